"""The result of a rollout: states of hosts and of the run."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.result import HostState, RolloutResult, message
from ansible_collections.trtllm.fleet.tests.schemas import valid

STARTED, ENDED = "2026-11-29T08:00:00+00:00", "2026-11-29T08:30:00+00:00"
PLAN: dict[str, Any] = {
    "steps": [["gpu1"], ["gpu2"]],
    "canaries": ["gpu1"],
    "releases": {
        "gpu1": {"before": None, "after": "r2"},
        "gpu2": {"before": "r1", "after": "r2"},
        "gpu3": {"before": "r2", "after": "r2"},
    },
}


def ended(first: HostState, second: HostState | None, *failed: str) -> dict[str, Any]:
    """Return the result of a run that left its two hosts in these states; None leaves a host as planned."""
    run = RolloutResult("rollout", STARTED)
    run.name("2026-11-29T08:00:00Z")
    run.plan(PLAN)
    run.set_state("gpu1", first)
    if second:
        run.set_state("gpu2", second)
    for host in ("gpu1", "gpu2"):
        run.add_failure(host, "Rescued task", {"msg": "a cause"})
    run.end(ENDED, failed)
    return valid(run.document)


@pytest.mark.parametrize(
    ("first", "second", "failed", "state"),
    [
        ("updated", "updated", [], "complete"),
        ("updated", None, [], "failed"),
        ("updated", "updating", [], "failed"),
        ("updated", "rolled_back", ["gpu2"], "failed"),
        ("failed", None, ["gpu1"], "failed"),
        # The lock could not be released.
        ("updated", "updated", ["gateway1"], "failed"),
    ],
)
def test_a_run_is_complete_if_each_host_is_updated(
    first: HostState, second: HostState | None, failed: list[str], state: str
) -> None:
    result = ended(first, second, *failed)
    assert result["state"] == state
    assert [host["state"] for host in result["hosts"]] == [first, second or "not_started", "unchanged"]
    # A failure that a block rescued is not a problem.
    assert [problem["host"] for problem in result["problems"]] == [host for host in failed if host.startswith("gpu")]


def test_a_run_is_on_disk_before_its_plan_and_its_end() -> None:
    run = RolloutResult("rollback", STARTED)
    assert (valid(run.document)["state"], run.document["ended"]) == ("running", None)
    run.add_failure("gpu1", "Check the host", {"msg": "no Docker"})
    run.end(ENDED, {"gpu1"})
    assert valid(run.document)["problems"] == [{"host": "gpu1", "task": "Check the host", "message": "no Docker"}]
    assert (run.document["state"], run.document["hosts"]) == ("failed", [])


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": "a cause"}, "a cause"),
        ({"msg": "One or more items failed", "results": [{"msg": "well"}, {"failed": True, "msg": "bad"}]}, "bad"),
        ({"msg": "All items failed", "results": [{"failed": True}]}, "All items failed"),
        ({"censored": "hidden"}, "no message"),
    ],
)
def test_the_message_of_a_loop_is_that_of_its_first_failure(result: dict[str, Any], text: str) -> None:
    assert message(result) == text


def test_run_without_a_plan_is_not_complete() -> None:
    run = RolloutResult("rollout", STARTED)
    run.end(ENDED, [])
    assert valid(run.document)["state"] == "failed"
