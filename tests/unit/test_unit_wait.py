"""unit_wait: how a oneshot unit ends, told by a scripted systemd."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd, UnitError
from ansible_collections.trtllm.fleet.plugins.modules import unit_wait
from tests.unit.fake_systemd import FakeSystemd

Run = Callable[..., "dict[str, Any]"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the module on a scripted systemd and gives what it printed; times are short."""

    def run(systemd: Callable[[Sequence[str], float], CommandResult], **options: Any) -> dict[str, Any]:
        monkeypatch.setattr(unit_wait, "Systemd", lambda: Systemd(systemd))
        args = {"name": "trtllm-weights", "timeout": 0.2, "interval": 0.02, **options}
        with patch_module_args(args), pytest.raises(SystemExit):
            unit_wait.main()
        return json.loads(capsys.readouterr().out)

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
    assert result["msg"] == "trtllm-weights is inactive (dead): it was not started since the host booted"


def test_failed_shows_hint_and_the_lines_of_that_run(run: Run) -> None:
    systemd = FakeSystemd("starting", "failed", journal={"aaaa": ["one", "two", "401 Unauthorized"], "": ["old"]})
    result = run(systemd, hint="Check model_weights_token.", journal_lines=2, timeout=60)
    assert result["failed"] is True
    assert result["finished"] is False
    assert result["journal"] == ["two", "401 Unauthorized"]
    assert result["msg"] == (
        "trtllm-weights is failed (failed), result exit-code, exit status 1. Check model_weights_token.\n"
        "two\n401 Unauthorized"
    )
    assert result["unit"]["exec_main_status"] == 1


def test_failed_without_lines_of_that_run_shows_the_unit_s(run: Run) -> None:
    result = run(FakeSystemd("failed", journal={"": ["no space left on device"]}))
    assert result["journal"] == ["no space left on device"]


def test_deadline_says_where_it_stands(run: Run) -> None:
    result = run(FakeSystemd("starting", journal={"aaaa": ["Fetching 12 files: 40%"]}))
    assert result["failed"] is True
    assert result["msg"] == "trtllm-weights is activating (start), not finished after 0.2 s\nFetching 12 files: 40%"
    assert 0.2 <= result["waited"] < 1


def test_unit_that_does_not_exist(run: Run) -> None:
    result = run(FakeSystemd("missing"), timeout=60)
    assert result["failed"] is True
    assert result["msg"] == "trtllm-weights is not-found: there is no such unit to wait for"


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


def test_interval_must_be_positive(run: Run) -> None:
    systemd = FakeSystemd("starting")
    assert run(systemd, interval=0)["msg"] == "interval is 0; it must be above 0 seconds"
    assert not systemd.calls


def test_a_bus_that_hangs_is_an_error() -> None:
    with pytest.raises(UnitError, match=r"systemctl: no answer within 20 s"):
        Systemd(lambda argv, timeout: CommandResult(None)).unit("x")


def test_a_journal_that_cannot_be_read_is_a_line() -> None:
    systemd = Systemd(lambda argv, timeout: CommandResult(1, "", "No journal files were opened"))
    assert systemd.journal("x", 5) == ["journalctl: No journal files were opened"]
