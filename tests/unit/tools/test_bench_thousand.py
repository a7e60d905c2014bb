# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the stand-in connection of `make bench-thousand`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.bench import answers
from tools.bench.thousand import ANSWERS, inventory

PROGRAM = b"""
    _ansiballz_main(
ansible_module='stat',
module_fqn='ansible.modules.stat',
profile='legacy',
"""


def test_module_is_recognised_by_its_full_name() -> None:
    assert answers.module_of(PROGRAM) == "ansible.modules.stat"


def test_program_without_a_module_is_an_error() -> None:
    with pytest.raises(ValueError, match="no module name"):
        answers.module_of(b"#!/bin/sh\n")


def test_answer_is_stored_without_what_sudo_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(answers.FILE, str(tmp_path))
    answers.store(PROGRAM, b'BECOME-SUCCESS-abc\n{"changed": false}\n')
    assert json.loads((tmp_path / "ansible.modules.stat.json").read_text()) == {"changed": False}


def test_recorded_host_is_as_recorded() -> None:
    recorded = json.loads(ANSWERS.read_text())
    assert recorded["ansible_collections.trtllm.fleet.plugins.modules.host_record"]["as_recorded"]


def test_inventory_has_each_host_once_with_its_address(tmp_path: Path) -> None:
    hosts = json.loads((inventory(tmp_path, 1000) / "hosts.yml").read_text())["gpu_hosts"]["hosts"]
    assert len(hosts) == len({host["ansible_host"] for host in hosts.values()}) == 1000
