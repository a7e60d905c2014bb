# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tools.bench import fleet, fleet_mitogen

RECAP = """
PLAY RECAP *********************************************************************
gpu1 : ok=135  changed={changed}    unreachable=0    failed=0    skipped=63   rescued=0    ignored=0
gpu2 : ok=145  changed=0    unreachable=0    failed=0    skipped=63   rescued=0    ignored=0


TASKS RECAP ********************************************************************
Check the host --------------------------------------------------------- 1.35s
"""


def fake_ansible(folder: Path, changed: int) -> str:
    """Create an ansible-playbook that prints a recap. Return the PATH with it."""
    program = folder / "ansible-playbook"
    program.write_text(f"#!/bin/sh\ncat <<'EOF'\n{RECAP.format(changed=changed)}EOF\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_results_of_all_hosts_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fake_ansible(tmp_path, changed=0))
    results = fleet.play(tmp_path, "site.yml")
    assert (results["ok"], results["skipped"], results["changed"]) == (280, 126, 0)


def test_a_change_ends_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fake_ansible(tmp_path, changed=1))
    with pytest.raises(SystemExit, match="changed something"):
        fleet.play(tmp_path, "site.yml")


def test_masters_are_those_of_the_folder(tmp_path: Path) -> None:
    titles = [f"ssh: {tmp_path}/cp/0123456789 [mux]", f"ssh: {tmp_path}-other/cp/0123456789 [mux]"]
    processes = [subprocess.Popen([title, "60"], executable="/bin/sleep") for title in titles]
    try:
        assert list(fleet.masters(tmp_path)) == [processes[0].pid]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_mitogen_is_found_before_ansible(tmp_path: Path) -> None:
    plugins = tmp_path / "lib/python3.11/site-packages/ansible_mitogen/plugins/strategy"
    plugins.mkdir(parents=True)
    variables = fleet_mitogen.variables(tmp_path)
    assert variables["PATH"].startswith(f"{tmp_path}/bin{os.pathsep}")
    assert variables["ANSIBLE_STRATEGY_PLUGINS"] == str(plugins)
