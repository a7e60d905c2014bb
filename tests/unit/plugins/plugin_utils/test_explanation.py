"""What the doctor says after a failed task, from its message alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.explanation import explain
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

PLAY = """\
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Fail and go on
      ansible.builtin.fail:
        msg: "dpkg was interrupted"
      ignore_errors: true
    - name: Fail in a loop
      ansible.builtin.fail:
        msg: "write /var/lib/x: {{ item }}"
      loop: [no space left on device, no space left on device]
"""


@pytest.mark.parametrize(
    ("result", "unreachable", "words"),
    [
        ({"msg": "x", "stderr": "E: Could not get lock /var/lib/dpkg/lock-frontend"}, False, "(task_apt)"),
        ({"msg": "Missing sudo password"}, False, "(sudo_password)"),
        ({"msg": "x", "module_stderr": "/bin/sh: 1: /usr/bin/python3: not found"}, False, "(python_missing)"),
        ({"msg": "debian@gpu1: Permission denied (publickey)."}, True, "(host_login_refused)"),
        ({"msg": "All items completed", "results": [{"failed": True, "msg": "429 Client Error"}]}, False, "rate"),
        ({"msg": "All items completed", "results": [{"msg": "no space left on device"}]}, False, ""),
        ({"msg": "Assertion failed"}, False, ""),
        ({}, False, ""),
    ],
)
def test_a_message_that_the_catalogue_has(result: dict[str, Any], unreachable: bool, words: str) -> None:
    found = explain(result, unreachable)
    assert words in found
    assert bool(found) == bool(words)


def test_a_playbook_prints_it_once_after_the_failure(tmp_path: Path) -> None:
    path = tmp_path / "play.yml"
    path.write_text(PLAY)
    program = Path(sys.executable).parent / "ansible-playbook"
    environment = {**os.environ, "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "playbooks/callback_plugins")}
    command: list[str | Path] = [program, "-i", "localhost,", "-c", "local", path]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.count("doctor says: A file system of the host is full.") == 1
    assert "Another installation runs" not in done.stdout
