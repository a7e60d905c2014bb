"""Repairs: which remedies a host gets, and when no program acts."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import Finding
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.fault_rows import read_catalogue
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.repair import breaker_reason, plan_repairs

NOW = 1_795_000_000.0
CATALOGUE = read_catalogue()
GPUS = ["0000:06:00.0", "0000:07:00.0"]


def finding(fault: str, host: str = "gpu1", remedy: str = "", **signal: Any) -> Finding:
    row = CATALOGUE[fault]
    return Finding(row, host, {"signal": "gpu", "evidence": "x", **signal}, remedy or row.remedy)


def answer(mode: str | None = None, past: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    signals = [{"signal": "gpu", "gpu": gpu} for gpu in GPUS] + (past or [])
    health = {"mode": mode, "age_seconds": 1, "unfit": {}, "faults": []} if mode else None
    return {"signals": signals, "health": health}


def remedy(action: str, ago: float) -> dict[str, Any]:
    known = {"signal": "remedy", "action": action, "target": "host", "fault": "gpu_lost"}
    return {**known, "at": NOW - ago, "result": "verified"}


def plan(*findings: Finding, mode: str = "", host: dict[str, Any] | None = None) -> dict[str, Any]:
    return plan_repairs(findings, {"gpu1": host or answer("reboot")}, mode, NOW).get("gpu1", {})


def test_a_host_that_is_well_gets_no_remedy() -> None:
    assert plan() == {}
    assert plan(finding("clock_not_synchronized")) == {}


@pytest.mark.parametrize(
    ("fault", "rungs"),
    [
        ("gpu_memory_uncontained", ["reset_gpu", "reload_driver", "reboot"]),
        ("driver_mismatch", ["reload_driver", "reboot"]),
        ("gpu_lost", ["reboot"]),
        ("container_without_gpu", ["restart_engine", "reset_gpu", "reload_driver", "reboot"]),
    ],
)
def test_the_ladder_begins_at_the_rung_of_the_fault(fault: str, rungs: list[str]) -> None:
    assert plan(finding(fault))["rungs"] == rungs


def test_the_mode_ends_the_ladder() -> None:
    assert plan(finding("gpu_memory_uncontained"), mode="reset")["rungs"] == ["reset_gpu", "reload_driver"]
    assert plan(finding("gpu_memory_uncontained"), host=answer("reset"))["rungs"] == ["reset_gpu", "reload_driver"]
    refused = plan(finding("gpu_lost"), host=answer())
    assert refused["rungs"] == []
    assert refused["reason"] == "GPU lost: mode drain does not allow reboot; mode reboot does"


def test_what_the_driver_asks_for_counts() -> None:
    assert plan(finding("gpu_memory_uncontained", remedy="reboot"))["rungs"] == ["reboot"]


def test_the_worst_of_several_faults_decides() -> None:
    found = plan(finding("fabric_manager_failed"), finding("gpu_lost"))
    assert (found["fault"], found["rungs"]) == ("gpu_lost", ["reboot"])


def test_only_the_faulty_gpu_is_reset() -> None:
    assert plan(finding("gpu_memory_uncontained", gpu=GPUS[1]))["gpus"] == [GPUS[1]]
    both = plan(finding("gpu_memory_uncontained", gpu=GPUS[1]), finding("nvswitch_fatal", switch="0000:05:00.0"))
    assert both["gpus"] == GPUS, "a switch needs a reset of all"


def test_a_fault_for_a_person_is_left_to_one() -> None:
    found = plan(finding("docker_stopped"), finding("gpu_lost"))
    assert found["rungs"] == []
    assert "no program can repair it" in found["reason"]


def test_a_consequence_is_no_cause() -> None:
    effect = finding("instance_down", name="serve-0", unit="u")
    effect.consequence_of = ["gpu_lost"]
    assert plan(finding("gpu_lost"), effect)["rungs"] == ["reboot"]


def test_a_reboot_once_a_day() -> None:
    found = plan(finding("gpu_lost"), host=answer("reboot", [remedy("reboot", 7200)]))
    assert found["rungs"] == []
    assert found["reason"] == "GPU lost: reboot was applied to host 1 times within 24 h"
    assert plan(finding("gpu_lost"), host=answer("reboot", [remedy("reboot", 90_000)]))["rungs"] == ["reboot"]


def test_a_rung_in_its_cool_down_is_left_out() -> None:
    past = [remedy("reset_gpu", 600)]
    assert plan(finding("gpu_memory_uncontained"), host=answer("reboot", past))["rungs"] == ["reload_driver", "reboot"]


def test_a_host_that_is_no_gpu_host_is_left_out() -> None:
    assert plan_repairs([finding("gpu_lost", host="gw1")], {"gpu1": answer("reboot")}, "", NOW) == {}


@pytest.mark.parametrize(
    ("sick", "hosts", "reason"),
    [
        ({}, 10, ""),
        ({"gpu1": "gpu_lost"}, 1, ""),
        ({"gpu1": "gpu_lost", "gpu2": "gpu_lost"}, 10, ""),
        (
            {f"gpu{number}": "gpu_lost" for number in range(1, 11)},
            100,
            "10 hosts have gpu_lost at the same time (gpu[1:10])",
        ),
        ({"gpu1": "gpu_lost", "gpu2": "nvidia_smi_hangs"}, 4, ""),
        ({"gpu1": "gpu_lost", "gpu2": "nvidia_smi_hangs"}, 3, "2 of 3 hosts are sick (gpu1, gpu2)"),
    ],
)
def test_the_breaker(sick: dict[str, str], hosts: int, reason: str) -> None:
    plans = {host: {"fault": fault, "rungs": ["reboot"]} for host, fault in sick.items()}
    assert breaker_reason(plans, hosts) == reason
    waiting = {f"old{number}": {"fault": "gpu_row_remap_failed", "rungs": []} for number in range(9)}
    assert breaker_reason({**plans, **waiting}, hosts) == reason, "those that wait for a person do not count"
