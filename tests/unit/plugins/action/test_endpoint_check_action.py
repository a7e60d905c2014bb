"""endpoint_check: turns of the module, with what it waits for after each."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.action.endpoint_check import ActionModule
from ansible_collections.trtllm.fleet.tests.unit.scripted_module import ScriptedModule

LOADING = {
    "ok": False,
    "finished": False,
    "stage": "health",
    "first_invocation_id": "aaaa",
    "progress": "health: HTTP 503",
}
VARIABLES = {"inventory_hostname": "gpu7", "ansible_play_batch": ["gpu7"]}


class Turns(ScriptedModule, ActionModule):
    """The action plugin on a module that gives these results."""


def test_turns_until_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = {"ok": True, "finished": True}
    turns = Turns({"model": "x"}, LOADING, LOADING, verdict)
    assert turns.run(task_vars=VARIABLES) == verdict
    assert capsys.readouterr().out == "gpu7: health: HTTP 503\n" * 2
    first, second, third = [asked["turn"] for asked in turns.asked]
    assert (first["seconds"], "stage" in first) == (10, False)
    assert (second["stage"], second["invocation_id"]) == ("health", "aaaa")
    assert 0 <= first["waited"] <= second["waited"] <= third["waited"]
    assert all(asked["model"] == "x" for asked in turns.asked)


@pytest.mark.parametrize(
    "verdict",
    [
        pytest.param({"failed": True, "finished": True, "stage": "unit"}, id="failed"),
        pytest.param({"unreachable": True, "msg": "no route to host"}, id="unreachable"),
        pytest.param({"failed": True, "msg": "timeout is 0"}, id="bad option"),
    ],
)
def test_a_failure_ends_the_turns(verdict: dict[str, Any]) -> None:
    assert Turns({}, LOADING, verdict).run(task_vars=VARIABLES) == verdict


def test_a_task_without_a_log_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    turns = Turns({}, LOADING, {"finished": True})
    turns._task.no_log = True
    turns.run(task_vars=VARIABLES)
    assert capsys.readouterr().out == ""
