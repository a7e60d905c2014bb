# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab downloads the wheels that a lock has for the Python of a host, whatever Python runs the lab."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.plugins.filter.core import get_hash
from jinja2 import Environment, StrictUndefined

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from lab import wheels

ORIGIN = ROOT / "lab/tasks/origin.yml"
LOCK = """\
# program==1.0 for Python 3.11 to 3.14 on Linux, written by tools/lock.py.
contourpy==1.3.3 ; python_full_version < '3.12' \\
    --hash=sha256:aa
contourpy==1.4.0 ; python_full_version >= '3.12' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
uvloop==0.22.1 ; sys_platform != 'win32' \\
    --hash=sha256:dd
winloop==0.1 ; sys_platform == 'win32' \\
    --hash=sha256:ee
"""


@pytest.mark.parametrize(
    ("version", "contourpy"),
    [
        ("3.11", "contourpy==1.3.3 --hash=sha256:aa"),
        ("3.13", "contourpy==1.4.0 --hash=sha256:bb --hash=sha256:cc"),
    ],
)
def test_markers_are_those_of_the_host(version: str, contourpy: str) -> None:
    assert list(wheels.requirements(LOCK, version)) == [contourpy, "uvloop==0.22.1 --hash=sha256:dd"]


def test_wheels_are_downloaded_again_after_a_change_of_the_lock_or_of_the_program(tmp_path: Path) -> None:
    (task,) = (one for one in yaml.safe_load(ORIGIN.read_text()) if one["name"] == "Download the wheels of the locks")
    environment = Environment(undefined=StrictUndefined)
    environment.globals["lookup"] = lambda _plugin, path: Path(path).read_text()
    environment.filters["hash"] = get_hash

    def stamp(lock: str, program: str) -> str:
        (tmp_path / "a-1.0.txt").write_text(lock)
        (tmp_path / "wheels.py").write_text(program)
        names = {"lab_dir": "/lab", "item": ["3.13", "a-1.0"], "locks": str(tmp_path), "playbook_dir": str(tmp_path)}
        return environment.from_string(task["vars"]["stamp"]).render(names)

    assert stamp("a==1.0", "x").startswith("/lab/cache/wheels/3.13/.a-1.0-")
    assert len({stamp("a==1.0", "x"), stamp("a==1.0 b", "x"), stamp("a==1.0", "y"), stamp("a==1.0", "x")}) == 3
