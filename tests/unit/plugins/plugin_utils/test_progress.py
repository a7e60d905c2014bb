"""The table of what hosts are doing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils import progress
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_nothing_is_shown_while_all_tasks_are_short(clock: Clock) -> None:
    table = progress.Progress(clock, lambda host, seconds: "")
    table.begin("gpu1", "a task")
    clock.now = 29
    assert table.table(30) == []
    table.end("gpu1")
    clock.now = 300
    assert table.table(30) == []


def test_hosts_with_the_same_task_are_one_line(clock: Clock) -> None:
    table = progress.Progress(clock, lambda host, seconds: "")
    for number in range(1, 6):
        table.begin(f"gpu{number}", "apt_packages : Install")
    table.begin("gpu9", "nvidia_driver : Reboot")
    table.begin("gpu8", "short")
    table.end("gpu8")
    clock.now = 75
    assert table.table(30) == [
        "1 min 15 s after the start:",
        "  gpu[1:5]: apt_packages : Install, for 1 min 15 s",
        "  gpu9: nvidia_driver : Reboot, for 1 min 15 s",
        "  1 of 7 hosts of the play have no task at the moment",
    ]


def test_known_amounts_are_shown_for_each_host(clock: Clock) -> None:
    amounts = {"gpu1": "45 %, 29.3 GB of 65.2 GB", "gpu2": "46 %, 30 GB of 65.2 GB"}
    table = progress.Progress(clock, lambda host, seconds: amounts[host])
    table.begin("gpu1", "Wait for the download")
    table.begin("gpu2", "Wait for the download")
    clock.now = 3720
    assert table.table(30)[1:] == [
        "  gpu1: Wait for the download, for 1 h 02 min: 45 %, 29.3 GB of 65.2 GB",
        "  gpu2: Wait for the download, for 1 h 02 min: 46 %, 30 GB of 65.2 GB",
    ]


def test_hosts_of_an_earlier_play_are_not_counted(clock: Clock) -> None:
    table = progress.Progress(clock, lambda host, seconds: "")
    table.begin("gateway1", "a task")
    table.play()
    table.begin("gpu1", "another")
    clock.now = 60
    assert table.table(30) == ["1 min 00 s after the start:", "  gpu1: another, for 1 min 00 s"]


def test_amounts_are_shown_at_once_without_the_callback(capsys: pytest.CaptureFixture[str]) -> None:
    progress.show("gpu1", "45 %")
    assert "gpu1: 45 %" in capsys.readouterr().out


def test_amounts_of_hosts_with_any_name_wait_for_the_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress.C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    progress.prepare()
    for host in ("gpu1.example.com", "gpu1.example.org", "rack/1"):
        progress.show(host, f"amount of {host}")
    assert capsys.readouterr().out == ""
    assert [progress.amount_of(host, 30) for host in ("gpu1.example.com", "rack/1")] == [
        "amount of gpu1.example.com",
        "amount of rack/1",
    ]
    # Of an earlier task: the present one began now.
    assert progress.amount_of("rack/1", 0) == ""


def test_old_amounts_have_their_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a thousand hosts is queried every 1000 s."""
    monkeypatch.setattr(progress.C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    progress.prepare()
    progress.show("gpu1", "45 %")
    (file,) = (tmp_path / "trtllm-fleet-progress").iterdir()
    os.utime(file, (0, time.time() - 125))
    assert progress.amount_of("gpu1", 3600) == "45 % (2 min 05 s ago)"
    assert progress.amount_of("gpu1", 120) == ""


def test_control_characters_of_a_log_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    progress.show("gpu1", "45 %\r\x1b[31mred")
    assert capsys.readouterr().out == "gpu1: 45 %  [31mred\n"


def test_a_task_of_many_hosts_has_few_lines(clock: Clock) -> None:
    table = progress.Progress(clock, lambda host, seconds: f"{host} is at 1 %")
    for number in range(100, 200):
        table.begin(f"gpu{number}", "Wait for the download")
    clock.now = 60
    lines = table.table(30)[1:]
    assert lines[0] == "  gpu100: Wait for the download, for 1 min 00 s: gpu100 is at 1 %"
    assert lines[-1] == "  gpu[108:199]: Wait for the download, for 1 min 00 s"
    assert len(lines) == 9


@pytest.mark.parametrize(("seconds", "shown"), [("1", True), ("0", False)])
def test_a_run_prints_tables_during_a_long_task(tmp_path: Path, seconds: str, shown: bool) -> None:
    """The callback is beside the playbooks; a copy of it beside this one works the same way."""
    plugins = tmp_path / "callback_plugins"
    plugins.mkdir()
    name = "trtllm_fleet_progress.py"
    (plugins / name).write_text((ROOT / "playbooks/callback_plugins" / name).read_text())
    play = [
        {
            "hosts": "gpu1,gpu2,gpu3",
            "gather_facts": False,
            "tasks": [
                {"name": "Wait", "ansible.builtin.command": "sleep 3", "when": "inventory_hostname != 'gpu3'"},
                {"name": "Include", "ansible.builtin.include_tasks": "included.yml"},
            ],
        }
    ]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    (tmp_path / "included.yml").write_text(json.dumps([{"ansible.builtin.command": "sleep 2", "name": "Wait again"}]))
    done = subprocess.run(
        [f"{Path(sys.executable).parent}/ansible-playbook", "-i", "gpu1,gpu2,gpu3", "-c", "local", "play.yml"],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "TRTLLM_FLEET_PROGRESS_SECONDS": seconds,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("gpu1, gpu2: Wait, for " in done.stderr) is shown
    assert ("  1 of 3 hosts of the play have no task at the moment" in done.stderr) is shown
    assert ("gpu[1:3]: Wait again, for " in done.stderr) is shown
    assert "Include, for" not in done.stderr
    assert "after the start" not in done.stdout
