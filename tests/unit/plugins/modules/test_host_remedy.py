"""host_remedy: the commands of each rung, also after a failure, and the record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.health import ladder, remedies
from ansible_collections.trtllm.fleet.plugins.modules import host_remedy
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

UNIT, GPU = "trtllm-serve-0.service", "0000:06:00.0"
HOLDERS = ["trtllm-health.service", "trtllm-dcgm-exporter.service", "nvidia-persistenced.service"]
ACTIVE = set(HOLDERS)
INSTALLED = {*ACTIVE, "nvidia-fabricmanager.service"}


class Host:
    def __init__(self, path: Path) -> None:
        self.record = path / "remedies.json"
        self.commands: list[str] = []
        self.failing = ""
        self.state = "active"

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        if argv[1] == "show":
            units = argv[argv.index("--") + 1 :]
            states = [(unit in INSTALLED, unit in ACTIVE) for unit in units]
            shown = [
                f"LoadState={'loaded' if load else 'not-found'}\nActiveState={self.state if active else 'failed'}\n"
                for load, active in states
            ]
            return CommandResult(0, "\n".join(shown))
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
    monkeypatch.setattr(host_remedy, "NET", tmp_path)
    monkeypatch.setattr(ladder, "LOADED", tmp_path / "modules")
    (tmp_path / "modules").write_text(MODULES)
    return one


def remedy(capsys: pytest.CaptureFixture[str], action: str, **options: Any) -> dict[str, Any]:
    arguments = {"action": action, "fault": "gpu_lost", "units": [UNIT], "gpus": [GPU], **options}
    return run_module(host_remedy, capsys, arguments)


MODULES = """\
nvidia_uvm 2076672 0 - Live 0x0
nvidia_drm 135168 0 - Live 0x0
nvidia_modeset 1613824 1 nvidia_drm, Live 0x0
nvidia_peermem 16384 0 - Live 0x0
nvidia 14381056 3 nvidia_uvm,nvidia_modeset,nvidia_peermem, Live 0x0
ext4 983040 1 - Live 0x0
"""
AGAIN = [f"systemctl reset-failed {UNIT}", f"systemctl start --no-block {UNIT}"]
OTHERS = [
    command for unit in reversed(HOLDERS) for command in (f"systemctl reset-failed {unit}", f"systemctl start {unit}")
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
        f"systemctl stop {' '.join(HOLDERS)}",
        f"nvidia-smi --gpu-reset -i {GPU}",
        *OTHERS,
        *AGAIN,
    ]


@pytest.mark.parametrize("state", ["activating", "reloading"])
def test_reset_gpu_stops_what_systemd_starts_again(host: Host, capsys: pytest.CaptureFixture[str], state: str) -> None:
    host.state = state
    remedy(capsys, "reset_gpu")
    assert f"systemctl stop {' '.join(HOLDERS)}" in host.commands


def test_reload_driver_starts_a_failed_fabric_manager(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    remedy(capsys, "reload_driver")
    assert host.commands == [
        f"systemctl stop {UNIT}",
        f"systemctl stop {' '.join(HOLDERS)} nvidia-fabricmanager.service",
        "modprobe --remove nvidia_uvm nvidia_drm nvidia_modeset nvidia_peermem nvidia",
        *(
            f"modprobe {module}"
            for module in ("nvidia", "nvidia_peermem", "nvidia_modeset", "nvidia_drm", "nvidia_uvm")
        ),
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


def test_a_failed_removal_loads_all_modules_again(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.failing = "modprobe --remove"
    assert remedy(capsys, "reload_driver")["failed"]
    assert "modprobe nvidia_uvm" in host.commands
    assert host.commands[-2:] == AGAIN


def test_no_remedy_while_requests_are_in_flight(host: Host, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text("   0: 0100007F:1F40 0100007F:9C40 01 00000000\n")
    outcome = remedy(capsys, "restart_engine", ports=[8000], drain_timeout=0)
    assert outcome["failed"]
    assert "Requests are in flight (1 at port 8000)" in outcome["msg"]
    assert (host.commands, host.results) == ([], [])
    remedy(capsys, "restart_engine", ports=[8001], drain_timeout=0)
    assert host.results == [("restart_engine", "applied")]


def test_limits_hold_for_each_run(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    remedy(capsys, "reboot")
    remedy(capsys, "reboot", result="verified")
    outcome = remedy(capsys, "reboot")
    assert outcome["failed"]
    assert "reboot was applied to host 1 times within 24 h" in outcome["msg"]


def test_a_damaged_record_allows_no_remedy(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.record.write_text("[{]")
    outcome = remedy(capsys, "restart_engine")
    assert outcome["failed"]
    assert "limits of remedies are not known" in outcome["msg"]
    assert host.commands == []


def test_a_reset_of_no_gpu_is_an_error(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert remedy(capsys, "reset_gpu", gpus=[])["msg"] == (
        "gpus is empty; reset_gpu needs the PCI address of a GPU. Set gpus. Nothing was changed."
    )
    assert (host.commands, host.results) == ([], [])


def test_a_reboot_and_results_are_only_recorded(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    remedy(capsys, "reboot")
    assert host.results == [("reboot", "started")]
    remedy(capsys, "reboot", result="applied")
    remedy(capsys, "reboot", result="verified")
    assert host.results == [("reboot", "verified")]
    assert host.commands == []


@pytest.mark.parametrize("result", ["started", "applied"])
def test_a_remedy_that_ran_may_fail_later(host: Host, capsys: pytest.CaptureFixture[str], result: str) -> None:
    """A reboot from which the host does not return, or a remedy after which an instance does not answer."""
    remedy(capsys, "reboot")
    if result == "applied":
        remedy(capsys, "reboot", result=result)
    assert remedy(capsys, "reboot", result="failed")["changed"]
    assert host.results == [("reboot", "failed")]


@pytest.mark.parametrize("checked", [False, True], ids=["run", "check mode"])
def test_a_remedy_that_never_ran_is_not_recorded_as_failed(
    host: Host, capsys: pytest.CaptureFixture[str], checked: bool
) -> None:
    """It would count for the limits, and end the cure of the one before. That of an engine has another target."""
    remedies.record_remedy(remedies.Remedy("restart_engine", UNIT, "instance_down", 0, "started"), host.record)
    remedy(capsys, "reset_gpu")
    remedy(capsys, "reset_gpu", result="verified")
    before = host.record.read_text()
    for action in ("restart_engine", "reset_gpu", "reboot"):
        assert not remedy(capsys, action, result="failed", _ansible_check_mode=checked)["changed"]
    assert host.record.read_text() == before
    assert remedy(capsys, "reboot")["changed"], "the limit of a day is not spent"


def test_check_mode_changes_nothing(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = remedy(capsys, "reset_gpu", _ansible_check_mode=True)
    assert outcome["changed"]
    assert (host.commands, host.results) == ([], [])


@pytest.mark.parametrize(
    ("before", "action", "options"),
    [
        pytest.param([], "reset_gpu", {"gpus": []}, id="no_gpu"),
        pytest.param(["restart_engine"], "restart_engine", {}, id="cool_down"),
        pytest.param(["reboot"], "reboot", {}, id="limit"),
        pytest.param(None, "reboot", {}, id="damaged_record"),
        pytest.param(None, "reboot", {"result": "verified"}, id="damaged_record_of_a_result"),
    ],
)
def test_check_mode_rejects_what_a_run_rejects(
    host: Host, capsys: pytest.CaptureFixture[str], before: list[str] | None, action: str, options: dict[str, Any]
) -> None:
    for one in before or []:
        remedy(capsys, one)
    if before is None:
        host.record.write_text("[{]")
    checked = remedy(capsys, action, **options, _ansible_check_mode=True)
    assert checked["msg"] == remedy(capsys, action, **options)["msg"]


def test_check_mode_does_not_wait_for_requests(host: Host, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In check mode the host was not drained."""
    (tmp_path / "tcp").write_text("   0: 0100007F:1F40 0100007F:9C40 01 00000000\n")
    assert remedy(capsys, "restart_engine", ports=[8000], drain_timeout=0, _ansible_check_mode=True)["changed"]


def test_without_a_record_no_remedy(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.record.mkdir()
    host.record.joinpath("x").write_text(json.dumps({}))
    outcome = remedy(capsys, "reset_gpu")
    assert outcome["failed"]
    assert host.commands == []
