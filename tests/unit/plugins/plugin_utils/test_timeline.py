# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The timeline of a run: legs from the start and the end of tasks, and its page."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.timeline.page import page, ticks
from ansible_collections.trtllm.fleet.plugins.plugin_utils.timeline.timeline import Timeline
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

STARTED = "2026-11-26T08:00:00+00:00"


class Run:
    """A timeline whose clock a test sets."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timeline = Timeline(lambda: self.time)

    def task(self, host: str, role: str, seconds: float, action: str = "ansible.builtin.copy", **result: Any) -> None:
        self.timeline.begin(host, "task")
        self.time += seconds
        self.timeline.end(host, "task", role, action, result)


@pytest.fixture
def run() -> Run:
    return Run()


def start(name: str, changed: bool = True) -> dict[str, Any]:
    return {"changed": changed, "invocation": {"module_args": {"name": name, "no_block": True}}}


def test_contiguous_tasks_of_a_role_are_one_leg_with_its_waits(run: Run) -> None:
    run.task("a", "", 1)
    run.task("a", "docker_engine", 2)
    run.task("a", "docker_engine", 3)
    run.task("a", "nvidia_driver", 4, "ansible.builtin.reboot")
    run.task("a", "docker_engine", 5)
    found = run.timeline.document(STARTED)
    assert found["seconds"] == 15
    assert found["hosts"]["a"]["legs"] == [
        {"name": "docker_engine", "kind": "role", "start": 1, "end": 6, "waited": 0},
        {"name": "nvidia_driver", "kind": "role", "start": 6, "end": 10, "waited": 4},
        {"name": "docker_engine", "kind": "role", "start": 10, "end": 15, "waited": 0},
    ]


def test_a_unit_works_from_its_start_to_its_last_line(run: Run) -> None:
    run.task("a", "model_weights", 1, "ansible.builtin.systemd_service", **start("trtllm-weights.service"))
    run.task("a", "nvidia_driver", 60)
    # Running already, as the task that starts it again after a reboot reports.
    run.task("a", "model_weights", 1, "ansible.builtin.systemd_service", **start("trtllm-weights.service", False))
    run.task(
        "a", "model_weights", 1, "trtllm.fleet.unit_wait", finished=True, ended_ago=20, unit={"name": "trtllm-weights"}
    )
    legs = run.timeline.document(STARTED)["hosts"]["a"]["legs"]
    assert [leg for leg in legs if leg["kind"] == "unit"] == [
        {"name": "trtllm-weights", "kind": "unit", "start": 1, "end": 43, "waited": 0}
    ]


def test_a_unit_that_did_not_finish_has_no_leg(run: Run) -> None:
    run.task("a", "model_weights", 1, "ansible.builtin.systemd_service", **start("trtllm-weights.service"))
    run.task("a", "model_weights", 1, "trtllm.fleet.unit_wait", finished=False, unit={"name": "trtllm-weights"})
    run.task("a", "model_weights", 1, "trtllm.fleet.unit_wait", msg="It failed.")
    legs = run.timeline.document(STARTED)["hosts"]["a"]["legs"]
    assert [leg["kind"] for leg in legs] == ["role"]


def test_a_host_answers_with_its_last_verified_instance(run: Run) -> None:
    run.task("a", "trtllm_server", 30, "trtllm.fleet.endpoint_check", results=[{}, {}])
    run.task("a", "trtllm_server", 5)
    assert run.timeline.document(STARTED)["hosts"]["a"]["answered"] == 30


def test_hosts_that_ran_no_role_are_left_out(run: Run) -> None:
    run.task("a", "", 1)
    run.task("b", "preflight", 1)
    assert list(run.timeline.document(STARTED)["hosts"]) == ["b"]


def test_page_has_each_leg_in_its_place_and_escapes_names(run: Run) -> None:
    run.task("<b>", "docker_engine", 25)
    run.task("<b>", "trtllm_server", 75, "trtllm.fleet.endpoint_check")
    text = page(run.timeline.document(STARTED))
    assert "&lt;b&gt;: answered after 100.0 s" in text
    assert "<b>" not in text
    assert "left: 25.000%; width: 75.000%" in text
    assert "trtllm_server: 25.0 s to 100.0 s, 75.0 s of it waiting" in text


@pytest.mark.parametrize(
    ("seconds", "marks"),
    [(0, [0]), (4.2, [0, 1, 2, 3, 4]), (60, [*range(0, 61, 5)]), (86400, [*range(0, 86401, 7201)])],
)
def test_an_axis_has_few_marks(seconds: float, marks: list[int]) -> None:
    assert ticks(seconds) == marks


PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - trtllm.fleet.host_record:
        phase: compared
      ignore_errors: true  # the test needs the task's name only
    - ansible.builtin.include_role:
        name: outer
"""


@pytest.fixture
def playbook(tmp_path: Path) -> Path:
    """A playbook with a role that includes another, beside the callbacks of this collection."""
    (tmp_path / "callback_plugins").symlink_to(ROOT / "playbooks/callback_plugins")
    for role, task in {
        "outer": "- ansible.builtin.include_role:\n    name: inner\n",
        "inner": "- ansible.builtin.debug:\n    msg: x\n",
    }.items():
        (tmp_path / f"roles/{role}/tasks").mkdir(parents=True)
        (tmp_path / f"roles/{role}/tasks/main.yml").write_text(f"---\n{task}")
    path = tmp_path / "play.yml"
    path.write_text(PLAYBOOK)
    return path


def ansible_playbook(path: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        ["ansible-playbook", path.name, "--inventory=host,", "--connection=local", *arguments],
        cwd=path.parent,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout


def test_callback_beside_a_playbook_writes_both_files_without_a_setting(playbook: Path) -> None:
    output = ansible_playbook(playbook)
    found = json.loads((playbook.parent / "fleet-timeline.json").read_text())
    assert [leg["name"] for leg in found["hosts"]["host"]["legs"]] == ["outer"], output
    assert "outer" in (playbook.parent / "fleet-timeline.html").read_text()


def test_check_mode_and_an_empty_directory_write_nothing(playbook: Path) -> None:
    ansible_playbook(playbook, "--check")
    ansible_playbook(playbook, TRTLLM_FLEET_TIMELINE_DIRECTORY="")
    assert not list(playbook.parent.glob("fleet-timeline*"))


def test_a_missing_directory_is_created(playbook: Path) -> None:
    ansible_playbook(playbook, TRTLLM_FLEET_TIMELINE_DIRECTORY="new/timeline")
    assert {path.name for path in (playbook.parent / "new/timeline").iterdir()} == {
        "fleet-timeline.html",
        "fleet-timeline.json",
    }


def test_a_directory_that_cannot_be_written_is_a_warning(playbook: Path) -> None:
    (playbook.parent / "file").touch()
    output = ansible_playbook(playbook, TRTLLM_FLEET_TIMELINE_DIRECTORY="file")
    assert "The timeline is not written" in output
    assert "'file'" in output
