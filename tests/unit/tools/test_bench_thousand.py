# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the stand-in connection of `make bench-thousand`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from tools.bench import answers
from tools.bench.thousand import ANSWERS, CONNECTIONS, by_name, environment, inventory

RECORD = "ansible_collections.trtllm.fleet.plugins.modules.host_record"
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
    assert json.loads(ANSWERS.read_text())[RECORD]["as_recorded"]


def test_inventory_has_each_host_once_with_its_address(tmp_path: Path) -> None:
    hosts = json.loads((inventory(tmp_path, 1000) / "hosts.yml").read_text())["gpu_hosts"]["hosts"]
    assert len(hosts) == len({host["ansible_host"] for host in hosts.values()}) == 1000


def test_tasks_of_the_same_name_are_added() -> None:
    task = {"name": "a", "main": 1.0, "tasks": 2.0, "wall": 4.0}
    assert by_name([task, task]) == [{"name": "a", "main": 2.0, "tasks": 4.0, "wall": 8.0}]


def site(folder: Path, recorded: Path) -> str:
    """Return the output of site.yml on three hosts with these answers."""
    variables = environment(CONNECTIONS, **{answers.FILE: str(recorded), "BENCH_TASKS": str(folder / "tasks.json")})
    command = ["ansible-playbook", "site.yml", "--inventory", str(inventory(folder, 3))]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False).stdout


def test_site_runs_one_task_on_each_host_that_is_as_recorded(tmp_path: Path) -> None:
    output = site(tmp_path, ANSWERS)
    counts = [line.split()[2:4] for line in output.splitlines() if " unreachable=" in line]
    # The first host runs those that run once.
    assert counts == [["ok=5", "changed=0"], ["ok=1", "changed=0"], ["ok=1", "changed=0"]], output


def test_site_runs_the_roles_on_other_hosts_and_names_a_module_without_an_answer(tmp_path: Path) -> None:
    differs = {**json.loads(ANSWERS.read_text())[RECORD], "as_recorded": False}
    (tmp_path / "differs.json").write_text(json.dumps({RECORD: differs}))
    output = site(tmp_path, tmp_path / "differs.json")
    roles = output.partition("PLAY [Run preflight checks]")[2]
    assert "No answer of ansible" in roles, output
