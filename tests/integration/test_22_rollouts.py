"""Rollouts on lab hosts behind two gateways, under a steady load: no request fails, and bad releases go back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.rollout_fleet import Fleet

FLEET = Fleet("roll-", gpus=3, gateways=2)
# Requests per second that two cores can give beside Ansible.
RATE = 8
ONE = {"serving_recipe_engine_options": {"max_num_tokens": 8192}}
TWO = {"serving_recipe_engine_options": {"max_num_tokens": 4096}}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    FLEET.up()
    run = FLEET.play("site", **ONE)
    assert run.status == 0, run.output
    assert FLEET.rotation() == FLEET.all_instances
    yield FLEET
    FLEET.down()


def options(fleet: Fleet) -> list[int]:
    """What each host serves with."""
    return [fleet.release(host)["engine_options"]["max_num_tokens"] for host in fleet.gpu_names]


def test_rollout_loses_nothing(fleet: Fleet) -> None:
    with fleet.load(RATE) as load:
        run = fleet.play("rollout", **TWO)
        assert run.status == 0, run.output
    assert load.errors() == {}
    assert options(fleet) == [4096] * fleet.gpus
    assert fleet.rotation() == fleet.all_instances


def test_second_run_switches_nothing(fleet: Fleet) -> None:
    before = fleet.releases()
    run = fleet.play("rollout", **TWO)
    assert run.status == 0, run.output
    assert f"0 of {fleet.gpus} hosts are switched" in run.output
    assert fleet.releases() == before


def test_dry_run_prints_the_plan_and_changes_nothing(fleet: Fleet) -> None:
    before = fleet.releases()
    run = fleet.play("rollout", "--check", **ONE)
    assert run.status == 0, run.output
    assert f"{fleet.gpus} of {fleet.gpus} hosts are switched" in run.output
    assert fleet.releases() == before


def test_rollback_goes_back_and_stays(fleet: Fleet) -> None:
    with fleet.load(RATE) as load:
        run = fleet.play("rollback")
        assert run.status == 0, run.output
    assert load.errors() == {}
    assert options(fleet) == [8192] * fleet.gpus
    again = fleet.play("rollback")
    assert f"0 of {fleet.gpus} hosts are switched" in again.output
    assert options(fleet) == [8192] * fleet.gpus


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ({"serving_recipe_environment": {"LAB_ENGINE_FAULT": "die"}}, "does not serve"),
        ({"serving_recipe_environment": {"LAB_ENGINE_FAULT": "health_only"}}, "does not serve"),
        ({"serving_recipe_environment": {"LAB_ENGINE_MODEL_ID": "another"}}, "does not serve"),
        (
            {"serving_recipe_environment": {"LAB_ENGINE_SPEEDUP": "2"}, "rollout_max_slowdown": 3},
            "tokens a second for one user",
        ),
    ],
    ids=["crashes", "garbage", "another model id", "slow"],
)
def test_bad_canary_goes_back(fleet: Fleet, bad: dict[str, Any], cause: str) -> None:
    before = fleet.releases()
    with fleet.load(RATE) as load:
        run = fleet.play("rollout", **ONE, **bad, trtllm_server_start_timeout=60)
    assert run.status != 0
    assert cause in run.output
    assert "It serves its old release" in run.output
    assert load.errors() == {}
    assert fleet.releases() == before
    assert fleet.rotation() == fleet.all_instances


def until(fleet: Fleet, process: Any, words: str) -> str:
    """Read what a playbook prints until some words come."""
    seen = ""
    for line in process.stdout:
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"{words!r} was never printed:\n{seen}")


@pytest.mark.parametrize(
    "moment",
    [
        "rollout : Send it no new request",
        "rollout : Wait for the requests in flight",
        "trtllm_server : Start its instances",
        "trtllm_server : Ask each instance for a completion",
        "rollout : Send it requests again",
        "rollout : Let it serve for a while",
    ],
)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_controller_is_taken_up_again(fleet: Fleet, moment: str, how: signal.Signals) -> None:
    wanted = TWO if options(fleet) == [8192] * fleet.gpus else ONE
    with fleet.load(RATE) as load:
        process = fleet.start("rollout", **wanted)
        until(fleet, process, moment)
        time.sleep(1)
        process.send_signal(how)
        process.stdout.close()  # type: ignore[union-attr]
        process.wait()
        assert set(options(fleet)) <= {8192, 4096}
        run = fleet.play("rollout", **wanted)
        assert run.status == 0, run.output
    assert load.errors() == {}
    assert len(set(options(fleet))) == 1
    assert fleet.rotation() == fleet.all_instances


def test_second_rollout_is_refused(fleet: Fleet) -> None:
    wanted = TWO if options(fleet) == [8192] * fleet.gpus else ONE
    first = fleet.start("rollout", **wanted)
    until(fleet, first, "Make the plan")
    second = fleet.play("rollout", **wanted)
    assert second.status != 0
    assert "holds it since" in second.output
    output = first.communicate()[0]
    assert first.returncode == 0, output
