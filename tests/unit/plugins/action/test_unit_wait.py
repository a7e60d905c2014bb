"""unit_wait: how a oneshot unit ends, told by a scripted systemd."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.action.unit_wait import ActionModule, line
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd, UnitError
from ansible_collections.trtllm.fleet.plugins.modules import unit_wait
from ansible_collections.trtllm.fleet.tests.unit.fake_systemd import FakeSystemd
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from ansible_collections.trtllm.fleet.tests.unit.scripted_module import ScriptedModule

Run = Callable[..., "dict[str, Any]"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the module on a scripted systemd and gives what it printed."""

    def run(systemd: Callable[[Sequence[str], float], CommandResult], **options: Any) -> dict[str, Any]:
        monkeypatch.setattr(unit_wait, "Systemd", lambda: Systemd(systemd))
        monkeypatch.setattr(unit_wait, "INTERVAL", 0.02)
        args = {"name": "trtllm-weights", "timeout": 30, **options}
        return run_module(unit_wait, capsys, args)

    return run


@pytest.mark.parametrize(
    "states",
    [
        pytest.param(["starting", "starting", "exited"], id="remains after exit"),
        pytest.param(["queued", "starting", "dead"], id="does not remain"),
        pytest.param(["starting", "forgotten"], id="unloaded by systemd while waited for"),
        pytest.param(["skipped"], id="its conditions said nothing to do"),
        pytest.param(["starting", "auto-restart", "starting", "exited"], id="second attempt succeeds"),
    ],
)
def test_finished(run: Run, states: list[str]) -> None:
    result = run(FakeSystemd(*states))
    assert result["finished"] is True
    assert result["changed"] is False
    assert "failed" not in result


def test_finished_before_and_unloaded_by_systemd(run: Run) -> None:
    systemd = FakeSystemd("forgotten", journal={"": ["Finished trtllm-weights.service"]})
    assert run(systemd)["finished"] is True


def test_never_started_is_not_finished(run: Run) -> None:
    result = run(FakeSystemd("forgotten"))
    assert result["failed"] is True
    assert result["msg"] == "trtllm-weights is inactive (dead): it was not started since the boot"


def test_failed_shows_hint_and_the_lines_of_that_run(run: Run) -> None:
    systemd = FakeSystemd(
        "starting", "failed", journal={"aaaa": [*"x" * 9, *map(str, range(14)), "401 Unauthorized"], "": ["old"]}
    )
    result = run(systemd, hint="Check model_weights_token.", timeout=60)
    assert result["failed"] is True
    assert result["finished"] is False
    lines = [*map(str, range(14)), "401 Unauthorized"]
    assert result["journal"] == lines
    problem = "trtllm-weights is failed (failed), result exit-code, exit status 1. Check model_weights_token."
    assert result["msg"] == "\n".join([problem, *lines])
    assert result["unit"]["exec_main_status"] == 1


def test_failed_without_lines_of_that_run_shows_the_unit_s(run: Run) -> None:
    result = run(FakeSystemd("failed", journal={"": ["no space left on device"]}))
    assert result["journal"] == ["no space left on device"]


def test_deadline_says_where_it_stands(run: Run) -> None:
    result = run(FakeSystemd("starting", journal={"aaaa": ["Fetching 12 files: 40%"]}), timeout=0.2)
    assert result["failed"] is True
    assert result["msg"] == "trtllm-weights is activating (start), not finished after 0.2 s\nFetching 12 files: 40%"
    assert 0.2 <= result["waited"] < 20


def test_unit_that_does_not_exist(run: Run) -> None:
    result = run(FakeSystemd("missing"), timeout=60)
    assert result["failed"] is True
    assert result["msg"] == "trtllm-weights is not-found: the unit does not exist"


@pytest.mark.parametrize(("state", "finished"), [("starting", False), ("failed", False), ("exited", True)])
def test_check_mode_looks_once_and_never_fails(run: Run, state: str, finished: bool) -> None:
    systemd = FakeSystemd(state)
    result = run(systemd, timeout=60, _ansible_check_mode=True)
    assert "failed" not in result
    assert result["finished"] is finished
    assert len(systemd.calls) == 1


def test_secrets_are_starred_out_of_message_and_journal(run: Run) -> None:
    systemd = FakeSystemd("failed", journal={"aaaa": ["GET /?token=hf_canary failed"]})
    result = run(systemd, mask=["hf_canary"])
    assert result["journal"] == ["GET /?token=******** failed"]
    assert "hf_canary" not in json.dumps(result)


def test_no_systemd(run: Run) -> None:
    message = "System has not been booted with systemd as init system (PID 1). Can't operate."
    result = run(lambda argv, timeout: CommandResult(1, "", message))
    assert result["msg"] == f"The state of trtllm-weights cannot be read: systemctl: {message}"


def test_a_bus_that_hangs_is_an_error() -> None:
    with pytest.raises(UnitError, match=r"systemctl: no answer within 20 s"):
        Systemd(lambda argv, timeout: CommandResult(None)).unit("x")


def test_a_journal_that_cannot_be_read_is_a_line() -> None:
    systemd = Systemd(lambda argv, timeout: CommandResult(1, "", "No journal files were opened"))
    assert systemd.journal("x", 5) == ["journalctl: No journal files were opened"]


# --- progress -------------------------------------------------------------------------------------------------------


def test_turn_ends_while_the_unit_is_at_work(run: Run, tmp_path: Path) -> None:
    status = {"state": "hub", "done_bytes": 5, "total_bytes": 10}
    (tmp_path / "status").write_text(json.dumps(status))
    result = run(FakeSystemd("starting"), timeout=60, turn=0.05, progress=str(tmp_path / "status"))
    assert (result["finished"], result["progress"]) == (False, status)
    assert "failed" not in result


def test_earlier_turns_count_for_the_deadline(run: Run) -> None:
    result = run(FakeSystemd("starting"), timeout=60, turn=10, waited=60)
    assert result["failed"] is True
    assert "not finished after 60 s" in result["msg"]


@pytest.mark.parametrize("content", [None, "", "{", "[1]"])
def test_progress_that_cannot_be_read_is_none(run: Run, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "status").write_text(content)
    result = run(FakeSystemd("exited"), progress=str(tmp_path / "status"))
    assert (result["finished"], result["progress"]) == (True, {})


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        pytest.param(
            {
                "state": "hub",
                "message": "",
                "done_bytes": 22145466654,
                "total_bytes": 65276852092,
                "rate": 410215532,
                "seconds_left": 105,
            },
            "33 %, 22.1 GB of 65.3 GB, 410 MB/s, 1 min 45 s left (hub)",
            id="all",
        ),
        pytest.param(
            {"state": "waiting", "message": "for gpu2", "done_bytes": 0, "total_bytes": 0, "seconds_left": None},
            "0 B of 0 B (waiting for gpu2)",
            id="nothing known yet",
        ),
        pytest.param({}, "0 B of 0 B", id="nothing said"),
    ],
)
def test_line_of_progress(progress: dict[str, Any], told: str) -> None:
    assert line(progress) == told


class Turns(ScriptedModule, ActionModule):
    """The action plugin on a module that gives these results."""


AT_WORK = {"finished": False, "progress": {"state": "hub", "done_bytes": 1, "total_bytes": 4}}


def test_lines_of_progress_until_the_unit_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    turns = Turns({"name": "x", "progress": "/run/x"}, AT_WORK, AT_WORK, {"finished": True})
    assert turns.run(task_vars={"inventory_hostname": "gpu7", "ansible_play_batch": ["gpu7"]}) == {"finished": True}
    assert capsys.readouterr().out == "gpu7: 25 %, 1 B of 4 B (hub)\n" * 2
    assert [asked["turn"] for asked in turns.asked] == [10, 10, 10]


def test_a_failure_ends_the_turns() -> None:
    turns = Turns({"name": "x", "progress": "/run/x"}, AT_WORK, {"failed": True, "finished": False})
    assert turns.run(task_vars={"inventory_hostname": "gpu7"})["failed"] is True


def test_many_hosts_are_asked_less_often() -> None:
    turns = Turns({"name": "x", "progress": "/run/x"}, {"finished": True})
    turns.run(task_vars={"ansible_play_batch": [f"gpu{number}" for number in range(90)]})
    assert [asked["turn"] for asked in turns.asked] == [90]


@pytest.mark.parametrize(("arguments", "check_mode"), [({"name": "x"}, False), ({"progress": "/run/x"}, True)])
def test_without_progress_it_is_the_module(arguments: dict[str, Any], check_mode: bool) -> None:
    turns = Turns(arguments, AT_WORK)
    turns._task.check_mode = check_mode
    assert turns.run(task_vars={}) == AT_WORK
    assert turns.asked == [arguments]
