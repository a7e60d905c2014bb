# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health of a host as metrics in the text format of Prometheus, for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.exposition import Sample, exposition
from ansible_collections.trtllm.fleet.plugins.module_utils.health.verdict import OpenFault, subject

# As in Nagios plugins, and in NVIDIA's health validation.
STATUS = {"info": 0, "warning": 1, "critical": 2, "unknown": 3}
# Values of NVML's nvmlDeviceGetGpuRecoveryAction, by the words of nvidia-smi.
RECOVERY = {"None": 0, "Reset": 1, "Reboot": 2, "Drain P2P": 3, "Drain and Reset": 4, "Recover IMEX Domain": 5}

HELP: Mapping[str, str] = {
    "fleet_health_last_run_timestamp_seconds": "Time of the last look of role host_health.",
    "fleet_health_looks_total": "Looks of role host_health since the start of its program.",
    "fleet_health_check_status": "An open fault: 0 info, 1 warning, 2 critical, 3 unknown. Absent without a fault.",
    "fleet_health_open_faults": "Number of open faults by severity.",
    "fleet_host_out_of_service": "1 while role host_health reports the instance as unfit to the gateways.",
    "fleet_instance_healthy": "1 if /health of the instance answers.",
    "fleet_instance_connections": "Open connections of the instance, which are requests.",
    "fleet_instance_restarts": "Restarts of the instance's unit by systemd since the boot.",
    "fleet_gpu_expected": "GPUs on the PCI bus or in the last record.",
    "fleet_gpu_present": "GPUs that nvidia-smi lists.",
    "fleet_gpu_recovery_action": "Recovery action of the driver, as NVML numbers it: 0 none. -1 unknown.",
    "fleet_gpu_xid_last_timestamp_seconds": "Time of the last Xid of this number since the boot.",
    "fleet_gpu_row_remap_pending": "1 while a remapped row waits for a reset.",
    "fleet_gpu_row_remap_failed": "1 after a row could not be remapped.",
    "fleet_gpu_slowdown": "1 while the GPU is slowed down by heat or power.",
    "fleet_gpu_pcie_width": "Current PCIe lanes.",
    "fleet_gpu_pcie_width_max": "PCIe lanes of GPU and slot.",
    "fleet_gpu_temperature_celsius": "Temperature of the GPU.",
    "fleet_gpu_utilization_ratio": "Share of the last second in which a kernel ran.",
    "fleet_gpu_memory_used_bytes": "Used memory of the GPU.",
    "fleet_gpu_memory_total_bytes": "Memory of the GPU.",
    "fleet_remedy_timestamp_seconds": "Time of the last remedy by action and result.",
    "fleet_certificate_not_after_timestamp_seconds": "End of a certificate of a gateway or of Dynamo.",
    "fleet_acceptance_timestamp_seconds": "Time of the last burn-in of the GPUs.",
    "fleet_acceptance_valid": "1 if the last burn-in passed with these GPUs and this driver.",
}
MIB = 1024 * 1024

Signal = Mapping[str, Any]


def render(
    status: Mapping[str, Any],
    signals: Sequence[Signal],
    faults: Sequence[OpenFault],
    reasons: Mapping[str, str],
    now: float,
    looks: int,
) -> str:
    """Return the metrics of one look.

    ``status``: of module host_status_info. ``reasons``: why instances are unfit. ``looks``: since the start of the
    program.
    """
    samples = [
        ("fleet_health_last_run_timestamp_seconds", {}, now),
        ("fleet_health_looks_total", {}, looks),
        *_fault_samples(faults),
        *_instance_samples(status, reasons),
        *_gpu_samples(status, signals),
        *_history_samples(signals),
    ]
    return exposition(HELP, samples)


def _fault_samples(faults: Sequence[OpenFault]) -> Iterator[Sample]:
    for one in faults:
        finding = one.finding
        labels = {"check": finding.fault.id, "subject": subject(finding), "action": finding.remedy}
        yield "fleet_health_check_status", labels, STATUS[finding.fault.severity]
    for severity in STATUS:
        number = sum(one.finding.fault.severity == severity for one in faults)
        yield "fleet_health_open_faults", {"severity": severity}, number


def _instance_samples(status: Mapping[str, Any], reasons: Mapping[str, str]) -> Iterator[Sample]:
    units = {unit["name"]: unit for unit in status["units"]}
    for instance in status["instances"]:
        name = {"server": instance["name"]}
        why = reasons.get(instance["name"])
        yield "fleet_host_out_of_service", {**name, "reason": why or ""}, why is not None
        yield "fleet_instance_healthy", name, instance["healthy"]
        yield "fleet_instance_connections", name, instance["connections"]
        yield "fleet_instance_restarts", name, units.get(instance["unit"], {}).get("restarts", 0)


def _gpu_samples(status: Mapping[str, Any], signals: Sequence[Signal]) -> Iterator[Sample]:
    present = len(status["gpus"]) if status["driver"]["state"] == "ok" else 0
    expected = next((one["gpu_count"] for one in signals if one["signal"] == "driver"), 0)
    yield "fleet_gpu_expected", {}, expected
    yield "fleet_gpu_present", {}, present
    for gpu in status["gpus"] if present else ():
        health, name = gpu["health"], {"gpu": gpu["address"], "uuid": gpu["uuid"]}
        action = health["recovery_action"]
        values = {
            "recovery_action": None if action is None else RECOVERY.get(action, -1),
            "row_remap_pending": health["remap_pending"],
            "row_remap_failed": health["remap_failed"],
            "slowdown": bool(health["slowdowns"]),
            "pcie_width": health["pcie_width"],
            "pcie_width_max": health["pcie_width_max"],
            "temperature_celsius": gpu["temperature"],
            "utilization_ratio": _scaled(gpu["utilisation_percent"], 0.01),
            "memory_used_bytes": _scaled(gpu["memory_used_mib"], MIB),
            "memory_total_bytes": _scaled(gpu["memory_total_mib"], MIB),
        }
        yield from ((f"fleet_gpu_{key}", name, value) for key, value in values.items() if value is not None)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _history_samples(signals: Sequence[Signal]) -> Iterator[Sample]:
    last: dict[tuple[str, str], float] = {}
    xids: dict[tuple[str, int], float] = {}
    for one in signals:
        if one["signal"] == "xid":
            # One number may have several texts, which are signals of their own.
            xids[one["gpu"], one["code"]] = max(one["last"], xids.get((one["gpu"], one["code"]), 0.0))
        elif one["signal"] == "remedy":
            last[one["action"], one["result"]] = one["at"]
        elif one["signal"] == "acceptance":
            yield "fleet_acceptance_timestamp_seconds", {"verdict": one["verdict"]}, one["at"]
            yield "fleet_acceptance_valid", {}, one["valid"]
        elif one["signal"] == "certificate" and one["until"] is not None:
            yield "fleet_certificate_not_after_timestamp_seconds", {"path": one["path"]}, one["until"]
    for (gpu, code), moment in xids.items():
        yield "fleet_gpu_xid_last_timestamp_seconds", {"gpu": gpu, "xid": code}, moment
    for (action, result), moment in last.items():
        yield "fleet_remedy_timestamp_seconds", {"action": action, "result": result}, moment
