"""The faults of a host over several looks: when instances are unfit, and which engines a host may restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.health import metrics, remedies
from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import Finding, diagnose, load_catalogue
from ansible_collections.trtllm.fleet.plugins.module_utils.health.remedies import (
    HistoryError,
    Remedy,
    limit_problem,
    mode_problem,
    read_remedies,
    record_remedy,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.health.verdict import (
    OpenFaults,
    read_state,
    reason,
    restarts,
    unfit,
)

NOW = 1_795_000_000.0
GPU, OTHER = "0000:06:00.0", "0000:07:00.0"
UNIT = "trtllm-serve-0.service"


def row(name: str, remedy: str = "reboot", **seen: Any) -> dict[str, Any]:
    return {
        "id": name,
        "title": name,
        "layer": "gpu",
        "severity": "critical",
        "out_of_service": True,
        "remedy": remedy,
        "seen": [seen],
        "cause": "It is so.",
        "cure": "Do it.",
        "source": "a test",
    }


CATALOGUE = load_catalogue(
    [
        row("gpu_lost", signal="xid", code=79),
        row("fabric_failed", signal="unit", kind="fabric_manager", active="failed"),
        row("gpu_narrow", signal="gpu", pcie_narrow=True),
        row("container_without_gpu", "restart_engine", signal="container", has_gpus=False),
        row("instance_down", "restart_engine", signal="instance", active=["failed", "inactive"]),
        {
            **row("worker_down", "restart_engine", signal="unit", kind="worker", active="failed"),
            "out_of_service": False,
        },
        {**row("hot", signal="gpu", slowdown="hot"), "out_of_service": False, "severity": "warning"},
    ]
)


def xid(**values: Any) -> dict[str, Any]:
    return {"signal": "xid", "gpu": GPU, "code": 79, "last": NOW - 60, **values}


def instance(name: str = "serve-0", **values: Any) -> dict[str, Any]:
    known = {"unit": UNIT, "active": "active", "healthy": True, "start_limit_reached": False, "gpus": [GPU]}
    return {"signal": "instance", "name": name, **known, **values}


FABRIC = {"signal": "unit", "kind": "fabric_manager", "name": "nvidia-fabricmanager.service", "active": "failed"}
CONTAINER = {"signal": "container", "name": "serve-0", "has_gpus": False}
TIMER = {"signal": "unit", "kind": "restore", "name": "trtllm-restore.timer", "active": "active"}


def findings(*signals: dict[str, Any]) -> list[Finding]:
    return diagnose("gpu1", signals, CATALOGUE)


def looks(*each: Sequence[dict[str, Any]]) -> OpenFaults:
    faults = OpenFaults()
    for number, signals in enumerate(each):
        faults.update(findings(*signals), NOW + 15 * number)
    return faults


def names(faults: OpenFaults) -> list[str]:
    return [one.finding.fault.id for one in faults.confirmed]


# --- confirmation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("each", "confirmed", "settled"),
    [
        pytest.param([[]], [], True, id="a host that is well"),
        pytest.param([[xid()]], ["gpu_lost"], True, id="what the kernel reports counts at once"),
        pytest.param([[FABRIC]], [], False, id="a state may be transient"),
        pytest.param([[FABRIC], [FABRIC]], ["fabric_failed"], True, id="a state that stays"),
        pytest.param([[FABRIC], []], [], True, id="a state that was transient"),
        pytest.param([[FABRIC], [], [FABRIC]], [], False, id="a state that flaps is not confirmed"),
        pytest.param([[FABRIC], [FABRIC], []], ["fabric_failed"], False, id="the end may be transient"),
        pytest.param([[FABRIC], [FABRIC], [], []], [], True, id="an end that stays"),
        pytest.param([[FABRIC], [FABRIC], [], [FABRIC]], ["fabric_failed"], True, id="one look does not end it"),
    ],
)
def test_a_state_needs_two_looks(each: list[list[dict[str, Any]]], confirmed: list[str], settled: bool) -> None:
    faults = looks(*each)
    assert names(faults) == confirmed
    assert faults.settled is settled


def test_a_fault_keeps_the_time_of_its_first_look() -> None:
    (fault,) = looks([FABRIC], [FABRIC], [FABRIC]).confirmed
    assert fault.since == NOW


@pytest.mark.parametrize(
    ("cure", "left"),
    [
        pytest.param({"signal": "acceptance", "valid": True, "at": NOW}, [], id="a passed burn-in"),
        pytest.param({"signal": "acceptance", "valid": False, "at": NOW}, ["gpu_lost"], id="a failed burn-in"),
        pytest.param({"signal": "acceptance", "valid": True, "at": NOW - 90}, ["gpu_lost"], id="one before the fault"),
        pytest.param({"signal": "remedy", "action": "reset_gpu", "result": "verified", "at": NOW}, [], id="a reset"),
        pytest.param(
            {"signal": "remedy", "action": "reset_gpu", "result": "started", "at": NOW}, ["gpu_lost"], id="not verified"
        ),
        pytest.param(
            {"signal": "remedy", "action": "restart_engine", "result": "verified", "at": NOW},
            ["gpu_lost"],
            id="a restart does not reach the GPU",
        ),
    ],
)
def test_events_of_a_gpu_end_with_a_cure_after_them(cure: dict[str, Any], left: list[str]) -> None:
    assert [one.fault.id for one in findings(xid(), cure)] == left


# --- unfit -----------------------------------------------------------------------------------------------------------


def test_a_fault_of_a_gpu_concerns_the_instances_that_use_it() -> None:
    both = [instance("serve-0", gpus=[GPU]), instance("serve-1", gpus=[OTHER]), instance("serve-2", gpus=[])]
    assert unfit(findings(xid()), both) == {
        "serve-0": f"gpu_lost of GPU {GPU}",
        "serve-2": f"gpu_lost of GPU {GPU}",
    }
    assert unfit(findings(FABRIC), both) == dict.fromkeys(("serve-0", "serve-1", "serve-2"), "fabric_failed")
    assert unfit(findings(CONTAINER), both) == {"serve-0": "container_without_gpu"}


def test_warnings_and_what_gateways_see_themselves_make_nothing_unfit() -> None:
    hot = {"signal": "gpu", "gpu": GPU, "slowdown": "hot"}
    down = instance(active="failed", healthy=False)
    assert unfit(findings(hot), [instance()]) == {}
    assert unfit(findings(down), [down]) == {}


def test_a_reason_is_one_line_of_ascii() -> None:
    (finding,) = findings(xid(gpu="0000:06\n#é" + "x" * 200))
    assert reason(finding).startswith("gpu_lost of GPU 0000:06???xxx")
    assert len(reason(finding)) == 80


# --- remedies --------------------------------------------------------------------------------------------------------


def chosen(
    *signals: dict[str, Any],
    mode: str = "restart",
    connections: int = 0,
    past: Sequence[Remedy] = (),
    after: float = 90,
) -> dict[str, str]:
    faults = looks(signals, signals)
    return restarts(faults.confirmed, signals, {"serve-0": connections}, past, mode, NOW + after)


def remedy(ago: float, action: str = "restart_engine", target: str = UNIT, result: str = "started") -> Remedy:
    return Remedy(action, target, "container_without_gpu", NOW - ago, result)


def test_an_engine_without_its_gpus_is_restarted() -> None:
    assert chosen(CONTAINER, instance()) == {UNIT: "container_without_gpu"}


@pytest.mark.parametrize(
    ("values", "signals"),
    [
        pytest.param({"mode": "drain"}, [CONTAINER, instance()], id="not in mode drain"),
        pytest.param({"mode": "observe"}, [CONTAINER, instance()], id="not in mode observe"),
        pytest.param({"after": 30}, [CONTAINER, instance()], id="not before gateways know it"),
        pytest.param({"connections": 1}, [CONTAINER, instance()], id="not while an answer flows"),
        pytest.param({}, [CONTAINER, instance(), TIMER], id="not a temporary release"),
        pytest.param({}, [instance(active="inactive")], id="not one that was stopped"),
        pytest.param({}, [FABRIC, instance()], id="not for a fault of another remedy"),
        pytest.param({"past": [remedy(60)]}, [CONTAINER, instance()], id="not again within the cool-down"),
        pytest.param(
            {"past": [remedy(80000), remedy(7000)]}, [CONTAINER, instance()], id="not a third time within a day"
        ),
    ],
)
def test_an_engine_is_left_alone(values: dict[str, Any], signals: list[dict[str, Any]]) -> None:
    assert chosen(*signals, **values) == {}


def test_an_engine_may_be_restarted_again_later() -> None:
    assert chosen(CONTAINER, instance(), past=[remedy(100_000), remedy(90_000), remedy(2000)]) != {}
    assert chosen(CONTAINER, instance(), past=[remedy(60, target="trtllm-serve-1.service")]) != {}


def test_an_engine_that_reached_its_start_limit_is_started() -> None:
    assert chosen(instance(active="failed", healthy=False, start_limit_reached=True)) == {UNIT: "instance_down"}


@pytest.mark.parametrize("limit", [True, False])
def test_a_worker_of_dynamo_that_reached_its_start_limit_is_started(limit: bool) -> None:
    """One that failed otherwise is started by systemd or was stopped by a person."""
    unit = "trtllm-dynamo-decode-0.service"
    worker = {"signal": "unit", "kind": "worker", "name": unit, "active": "failed", "start_limit_reached": limit}
    assert chosen(worker) == ({unit: "worker_down"} if limit else {})


@pytest.mark.parametrize(
    ("action", "mode", "problem"),
    [
        ("restart_engine", "restart", ""),
        ("reset_gpu", "restart", "mode restart does not allow reset_gpu; mode reset does"),
        ("reload_driver", "reset", ""),
        ("reboot", "reset", "mode reset does not allow reboot; mode reboot does"),
        ("reboot", "reboot", ""),
        ("take_out", "reboot", "mode reboot does not allow take_out; a person has to do it"),
    ],
)
def test_a_mode_allows_its_rung_and_those_before(action: str, mode: str, problem: str) -> None:
    assert mode_problem(action, mode) == problem


def test_one_reboot_in_a_day() -> None:
    past = [remedy(80_000, "reboot", "host", "failed")]
    assert limit_problem("reboot", "host", past, NOW) == "reboot was applied to host 1 times within 24 h"
    assert limit_problem("reboot", "host", past, NOW + 10_000) == ""


def test_the_record_of_remedies(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "remedies.json"
    assert read_remedies(path) == []
    record_remedy(remedy(50, "reset_gpu", "host"), path)
    record_remedy(remedy(10, "reset_gpu", "host", "applied"), path)
    record_remedy(remedy(5), path)
    assert [(one.action, one.result) for one in read_remedies(path)] == [
        ("reset_gpu", "applied"),
        ("restart_engine", "started"),
    ]
    for _number in range(remedies.KEPT):
        record_remedy(remedy(1), path)
    assert len(read_remedies(path)) == remedies.KEPT
    path.write_text("[{]")
    assert read_remedies(path) == []
    with pytest.raises(HistoryError, match="cannot be read"):
        record_remedy(remedy(1), path)
    assert path.read_text() == "[{]", "the limits are not forgotten"


def test_a_result_keeps_the_time_of_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "remedies.json"
    record_remedy(remedy(900, "reset_gpu", "host"), path)
    record_remedy(remedy(800, "reset_gpu", "host", "applied"), path)
    record_remedy(remedy(500), path)
    record_remedy(remedy(10, "reset_gpu", "host", "verified"), path)
    first, second = read_remedies(path)
    assert (first.action, second.action, second.result) == ("restart_engine", "reset_gpu", "verified")
    assert second.at == NOW - 800, "what happened since is not cured"


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_state_of_a_host_without_the_program(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    assert read_state(path, NOW) is None
    path.write_text('{"at": 1794999990.0, "mode": "drain", "unfit": {}, "faults": []}')
    assert read_state(path, NOW) == {"mode": "drain", "age_seconds": 10, "unfit": {}, "faults": []}
    path.write_text('{"at": null}')
    assert read_state(path, NOW) is None


def test_metrics_of_a_host_with_a_lost_gpu() -> None:
    health = {"recovery_action": "Reboot", "remap_pending": None, "remap_failed": False, "slowdowns": ["hw_slowdown"]}
    gpu = {
        "address": OTHER,
        "uuid": "GPU-1",
        "health": {**health, "pcie_width": 8, "pcie_width_max": 16},
        "temperature": 45,
        "utilisation_percent": 50,
        "memory_used_mib": 1,
        "memory_total_mib": 2,
    }
    status = {
        "driver": {"state": "ok"},
        "gpus": [gpu],
        "units": [{"name": UNIT, "restarts": 3}],
        "instances": [{"name": "serve-0", "unit": UNIT, "healthy": True, "connections": 7}],
    }
    accepted = {"signal": "acceptance", "verdict": "pass", "valid": True, "at": 5}
    driver = {"signal": "driver", "state": "ok", "gpu_count": 2}
    again = xid(last=NOW - 90, action="Reset")
    signals = [xid(), again, driver, accepted]
    text = metrics.render(status, signals, looks(signals).confirmed, {"serve-0": 'a "b"\\'}, NOW, 7)
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert f'fleet_health_check_status{{check="gpu_lost",subject="{GPU}",action="reboot"}} 2' in samples
    assert 'fleet_health_open_faults{severity="critical"} 1' in samples
    assert 'fleet_host_out_of_service{server="serve-0",reason="a \\"b\\"\\\\"} 1' in samples
    assert "fleet_health_looks_total 7" in samples
    assert "# TYPE fleet_health_looks_total counter" in text
    assert "fleet_gpu_expected 2" in samples
    assert "fleet_gpu_present 1" in samples
    assert f'fleet_gpu_recovery_action{{gpu="{OTHER}",uuid="GPU-1"}} 2' in samples
    assert f'fleet_gpu_xid_last_timestamp_seconds{{gpu="{GPU}",xid="79"}} 1794999940' in samples
    assert 'fleet_instance_restarts{server="serve-0"} 3' in samples
    assert f'fleet_gpu_utilization_ratio{{gpu="{OTHER}",uuid="GPU-1"}} 0.5' in samples
    assert not any("row_remap_pending" in one for one in samples)  # unknown is not well
    assert text.endswith("\n")
