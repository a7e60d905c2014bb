"""host_remedy: the commands of each rung, also after a failure, and the record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.health import remedies
from ansible_collections.trtllm.fleet.plugins.modules import host_remedy
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

UNIT, GPU = "trtllm-serve-0.service", "0000:06:00.0"
ACTIVE = {"trtllm-health.service", "nvidia-persistenced.service"}
INSTALLED = {*ACTIVE, "nvidia-fabricmanager.service"}


class Host:
    def __init__(self, path: Path) -> None:
        self.record = path / "remedies.json"
        self.commands: list[str] = []
        self.failing = ""

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        if argv[1] == "show":
            unit = argv[-1]
            load, active = ("loaded" if unit in INSTALLED else "not-found"), "active" if unit in ACTIVE else "failed"
            return CommandResult(0, f"LoadState={load}\nActiveState={active}\n")
        self.commands.append(" ".join(argv))
        if self.failing and self.failing in self.commands[-1]:
            return CommandResult(255, f"GPU {GPU}: In use by another client\n")
        return CommandResult(0)

    @property
    def results(self) -> list[tuple[str, str]]:
        return [(one.action, one.result) for one in remedies.read_remedies(self.record)]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    one = Host(tmp_path)
    monkeypatch.setattr(host_remedy, "run", one)
    monkeypatch.setattr(remedies, "HISTORY", one.record)
    return one


def remedy(capsys: pytest.CaptureFixture[str], action: str, **options: Any) -> dict[str, Any]:
    arguments = {"action": action, "fault": "gpu_lost", "units": [UNIT], "gpus": [GPU], **options}
    return run_module(host_remedy, capsys, arguments)


AGAIN = [f"systemctl reset-failed {UNIT}", f"systemctl start --no-block {UNIT}"]
OTHERS = [
    command
    for unit in ("nvidia-persistenced.service", "trtllm-health.service")
    for command in (f"systemctl reset-failed {unit}", f"systemctl start {unit}")
]
FABRIC = [f"systemctl {verb} nvidia-fabricmanager.service" for verb in ("reset-failed", "start")]


def test_restart_engine(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    remedy(capsys, "restart_engine")
    assert host.commands == [f"systemctl stop {UNIT}", *AGAIN]
    assert host.results == [("restart_engine", "applied")]


def test_reset_gpu_stops_what_holds_the_gpu(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    remedy(capsys, "reset_gpu")
    assert host.commands == [
        f"systemctl stop {UNIT}",
        "systemctl stop trtllm-health.service nvidia-persistenced.service",
        f"nvidia-smi --gpu-reset -i {GPU}",
        *OTHERS,
        *AGAIN,
    ]


def test_reload_driver_starts_a_failed_fabric_manager(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    remedy(capsys, "reload_driver")
    assert host.commands == [
        f"systemctl stop {UNIT}",
        "systemctl stop trtllm-health.service nvidia-persistenced.service nvidia-fabricmanager.service",
        "modprobe --remove nvidia_uvm nvidia_drm nvidia_modeset nvidia",
        "modprobe nvidia",
        *FABRIC,
        *OTHERS,
        *AGAIN,
    ]


def test_all_runs_again_after_a_failure(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.failing = "--gpu-reset"
    outcome = remedy(capsys, "reset_gpu")
    assert outcome["failed"]
    assert "In use by another client" in outcome["msg"]
    assert host.commands[-len(OTHERS + AGAIN) :] == [*OTHERS, *AGAIN]
    assert host.results == [("reset_gpu", "failed")]


def test_a_reboot_and_results_are_only_recorded(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    remedy(capsys, "reboot")
    assert host.results == [("reboot", "started")]
    remedy(capsys, "reboot", result="applied")
    remedy(capsys, "reboot", result="verified")
    assert host.results == [("reboot", "verified")]
    assert host.commands == []


def test_check_mode_changes_nothing(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = remedy(capsys, "reset_gpu", _ansible_check_mode=True)
    assert outcome["changed"]
    assert (host.commands, host.results) == ([], [])


def test_without_a_record_no_remedy(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.record.mkdir()
    host.record.joinpath("x").write_text(json.dumps({}))
    outcome = remedy(capsys, "reset_gpu")
    assert outcome["failed"]
    assert host.commands == []
