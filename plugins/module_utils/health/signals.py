# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All signals of a host: of its GPUs, instances and record, of its kernel log and of its operating system."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import PCI_DEVICES, scan_pci
from ansible_collections.trtllm.fleet.plugins.module_utils.health.kernel_log import (
    KernelLogError,
    kernel_signals,
    read_kernel_log,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.health.platform import Platform, unit_kind, unreadable
from ansible_collections.trtllm.fleet.plugins.module_utils.health.remedies import (
    HISTORY,
    read_remedies,
    remedy_signals,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.record import RECORD, read_record
from ansible_collections.trtllm.fleet.plugins.module_utils.host_status import (
    HEALED,
    HealingError,
    read_healing,
    seconds_between,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.kv_transport import (
    KvTransportError,
    slow_transfers,
    unit_transfers,
    units_with_rdma,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.facts import at

CONTAINER_TIMEOUT = 20.0  # seconds
LOST_IN_CONTAINER = "Failed to initialize NVML"

Signal = dict[str, Any]
Status = Mapping[str, Any]


def gather_signals(
    status: Status,
    runner: Runner,
    names: Sequence[str] = (),
    control_time: float | None = None,
    root: Path = Path("/"),
    clock: Callable[[], float] = time.time,
) -> list[Signal]:
    """Return all signals of this host. ``status``: result of module host_status_info. A failed probe is a signal."""
    platform = Platform(root, runner, clock)
    with ThreadPoolExecutor(4) as pool:
        rare = pool.submit(rare_signals, status, runner, root, clock, control_time)
        resolved = pool.submit(platform.names, names)
        kernel = pool.submit(_kernel, runner, clock())
        # Not for the health program, whose looks cannot wait for a search of long journals.
        transfers = pool.submit(lambda: list(transfer_signals(runner, root)))
    frequent = frequent_signals(status, kernel.result(), runner, root, clock)
    return [*frequent, *rare.result(), *resolved.result(), *transfers.result()]


def frequent_signals(
    status: Status,
    kernel: Sequence[Signal],
    runner: Runner,
    root: Path = Path("/"),
    clock: Callable[[], float] = time.time,
) -> list[Signal]:
    """Return the signals that may change at any time. ``kernel``: those of the kernel log."""
    record = read_record(at(root, RECORD))
    models = list(record.owned.models) if record else []
    known = re.findall(r"[0-9a-f]{4}:[0-9a-f:.]+", (record.items.get("driver GPUs", "") if record else "").lower())
    state = "missing" if record is None else "complete" if record.complete else "incomplete"
    branch = driver_branch(status)
    on_bus = [device.address for device in scan_pci(at(root, PCI_DEVICES)) if device.is_gpu]
    of_driver = [*gpu_signals(status, on_bus, known), *kernel]
    return [
        {"signal": "record", "state": state, "evidence": f"{RECORD} is {state}"},
        *(dict(one, driver_branch=branch) if one["signal"] in ("gpu", "xid") else one for one in of_driver),
        *serving_signals(status),
        *worker_signals(root, status["time"]),
        *drift_signals(status),
        *acceptance_signals(status),
        *remedy_signals(read_remedies(at(root, HISTORY)), clock()),
        *(unreadable("status", problem) for problem in status["problems"]),
        *(one for one in Platform(root, runner, clock).frequent_signals(models) if _counts(one, status, known)),
    ]


def rare_signals(
    status: Status,
    runner: Runner,
    root: Path = Path("/"),
    clock: Callable[[], float] = time.time,
    control_time: float | None = None,
) -> list[Signal]:
    """Return the signals that change slowly or cost more: of containers, clock, certificates and packages."""
    return [*container_signals(status, runner), *Platform(root, runner, clock).rare_signals(control_time)]


def _counts(signal: Signal, status: Status, known: Sequence[str]) -> bool:
    """Return whether a unit is one that this host needs: an image of a cloud may bring others.

    ``known``: the GPUs at the end of the last complete run.
    """
    if signal["signal"] != "unit":
        return True
    needs = {"fabric_manager": status["nvswitches"] > 0, "docker": bool(known or status["units"])}
    return needs.get(signal["kind"], True)


def _kernel(runner: Runner, now: float) -> list[Signal]:
    try:
        return kernel_signals(read_kernel_log(runner), now)
    except KernelLogError as error:
        return [unreadable("kernel log", error)]


def driver_branch(status: Status) -> int:
    """Return the branch of the loaded driver, such as 580; 0 if it is unknown."""
    found = re.match(r"\d+", status["driver"].get("version") or "")
    return int(found.group()) if found else 0


def gpu_signals(status: Status, on_bus: Sequence[str], known: Sequence[str] = ()) -> Iterator[Signal]:
    """Yield the signals of driver, fabric and GPUs.

    ``on_bus``: PCI addresses of the GPUs in sysfs. ``known``: those of the GPUs at the end of the last complete run.
    """
    driver = status["driver"]
    yield {
        "signal": "driver",
        "state": driver["state"],
        "version": driver["version"],
        "loaded": driver["kernel_module"] is not None,
        "provisioned": bool(known or status["units"] or (driver["installed"] and on_bus)),
        "gpu_count": len({*on_bus, *known}),
        "evidence": driver["message"] or f"driver {driver['version']} answers",
    }
    listed = {gpu["address"] for gpu in status["gpus"]}
    for address in sorted({*status["missing"], *(one for one in known if one not in {*listed, *on_bus})}):
        there = "the PCI bus has it" if address in on_bus else "the PCI bus does not have it"
        evidence = f"nvidia-smi does not list GPU {address}; {there}"
        yield {"signal": "gpu_missing", "gpu": address, "present": address in on_bus, "evidence": evidence}
    # Trays of a rack have a fabric without a switch of their own.
    if status["nvswitches"] or status["fabric"]:
        failed = ", ".join(sorted({gpu["fabric_status"] for gpu in status["gpus"]} - {None, "Success"}))
        yield {
            "signal": "fabric",
            "switches": status["nvswitches"],
            "state": status["fabric"],
            "status": failed or "Success",
            "evidence": f"the fabric state of nvidia-smi is {status['fabric'] or 'not reported'}"
            + (f", its status {failed}" if failed else ""),
        }
    used = {index for instance in status["instances"] for index in instance["gpus"]}
    for gpu in status["gpus"]:
        if driver["state"] == "ok":
            yield gpu_signal(gpu, gpu["index"] in used or not used)


def gpu_signal(gpu: Mapping[str, Any], used: bool) -> Signal:
    """Return the signal of a GPU that the driver lists. ``used``: whether an instance has it, or none is known."""
    health = gpu["health"]
    width, widest = health["pcie_width"], health["pcie_width_max"]
    told = {
        "recovery action": health["recovery_action"],
        "uncorrected ECC errors": gpu["ecc_uncorrected"],
        "SRAM threshold exceeded": health["sram_threshold_exceeded"],
        "unrepairable memory": health["unrepairable_memory"],
        "repair pending": health["repair_pending"],
        "row remap pending": health["remap_pending"],
        "row remap failed": health["remap_failed"],
        "slowdown": ", ".join(health["slowdowns"]) or "none",
        "temperature": gpu["temperature"],
        "PCIe width": f"{width} of {widest}" if width else None,
        "MIG": gpu["mig"],
        "ECC": gpu["ecc"],
        "persistence mode": gpu["persistence_mode"],
        "fabric": gpu["fabric_state"],
    }
    values = "; ".join(f"{name}: {value}" for name, value in told.items() if value is not None)
    return {
        "signal": "gpu",
        "gpu": gpu["address"],
        "index": gpu["index"],
        **health,
        "slowdown": ", ".join(health["slowdowns"]),
        "ecc_uncorrected": gpu["ecc_uncorrected"],
        "temperature": gpu["temperature"],
        "pcie_narrow": None if width is None or widest is None else width < widest,
        "mig": gpu["mig"],
        "ecc": gpu["ecc"],
        "persistence_mode": gpu["persistence_mode"],
        "fabric_state": gpu["fabric_state"],
        "fabric_status": gpu["fabric_status"],
        "used": used,
        "evidence": f"nvidia-smi -q, GPU {gpu['index']} ({gpu['address']}): {values}",
    }


def serving_signals(status: Status) -> Iterator[Signal]:
    """Yield the signals of the running release, its instances and their watchdogs."""
    release, units = status["release"], {unit["name"]: unit for unit in status["units"]}
    if release or units:
        yield {
            "signal": "release",
            "verified": release is not None,
            "units": len(units),
            "model": (release or {}).get("model"),
            "evidence": f"units {', '.join(units) or 'of no release'}; verified release "
            + (release["name"] if release else "none"),
        }
    now = status["time"]
    addresses = {gpu["index"]: gpu["address"] for gpu in status["gpus"]}
    for instance in status["instances"]:
        unit = units.get(instance["unit"], {})
        state = f"{instance['unit']} is {unit.get('active', 'missing')} ({unit.get('sub', '')})"
        seconds = seconds_between(unit.get("since"), now)
        # While a rollout tries another release, which may have another model, this is not known.
        trial = release is not None and unit.get("release", release["name"]) != release["name"]
        model = "" if trial else instance.get("served_model") or (release or {}).get("served_model")
        yield {
            "signal": "instance",
            "name": instance["name"],
            "unit": instance["unit"],
            "active": unit.get("active", "missing"),
            "healthy": instance["healthy"],
            "answer": instance["answer"],
            "model_listed": not model or not instance["healthy"] or model in instance["models"],
            "image_of_release": instance["image_of_release"],
            "start_limit_reached": bool(unit.get("start_limit_reached")),
            "age_seconds": seconds,
            # Without those that the driver does not list, it is not known which GPUs it has.
            "gpus": [addresses[index] for index in instance["gpus"]]
            if addresses.keys() >= set(instance["gpus"])
            else [],
            "log": unit.get("last_log_line") or "",
            "evidence": "; ".join(
                filter(None, [state, f"/health: {instance['answer']}", _quoted(unit.get("last_log_line"))])
            ),
        }
        if instance["healed"]:
            yield _watchdog_signal(instance["name"], instance["healed"], now)


def _watchdog_signal(name: str, healed: Mapping[str, Any], now: str) -> Signal:
    return {
        "signal": "watchdog",
        "name": name,
        "times": healed["times"],
        "reason": healed["reason"],
        "age_hours": round((seconds_between(healed["at"], now) or 0) / 3600, 2),
        "evidence": f"the watchdog killed {name} {healed['times']} times since the boot, last at {healed['at']}: "
        f"{healed['reason']}",
    }


def worker_units(root: Path) -> list[str]:
    """Return the units of this host's workers of NVIDIA Dynamo."""
    folder = root / "etc/systemd/system"
    return sorted(path.name for path in folder.glob("*.service") if unit_kind(path.name) == "worker")


def worker_signals(root: Path, now: str) -> Iterator[Signal]:
    """Yield each worker of NVIDIA Dynamo that its watchdog has killed since the boot."""
    for unit in worker_units(root):
        try:
            healed = read_healing(at(root, HEALED), unit)
        except HealingError as error:
            yield unreadable("record of a watchdog", error)
            continue
        if healed:
            yield _watchdog_signal(unit, healed, now)


def _quoted(line: str | None) -> str:
    return f"last log line: {line}" if line else ""


def drift_signals(status: Status) -> Iterator[Signal]:
    """Yield a signal for each difference from the record."""
    for one in status["drift"]:
        kind, _space, rest = one["sentence"].partition(" ")
        now = rest.removeprefix(str(one["about"])).partition("; recorded")[0].strip()
        yield {"signal": "drift", "kind": kind, "about": one["about"], "now": now, "evidence": one["sentence"]}


def acceptance_signals(status: Status) -> Iterator[Signal]:
    """Yield the last burn-in of the GPUs that serve."""
    accepted = status["acceptance"]
    if accepted:
        yield {
            "signal": "acceptance",
            "verdict": accepted["verdict"],
            "valid": accepted["valid"],
            "at": datetime.fromisoformat(accepted["at"]).timestamp(),
            "evidence": f"acceptance of {accepted['at']}: {accepted['verdict']}",
        }


def container_signals(status: Status, runner: Runner) -> Iterator[Signal]:
    """Yield whether the containers of running instances still see their GPUs, which an update may take from them."""
    running = {unit["name"] for unit in status["units"] if unit["active"] == "active"}
    asked = [one for one in status["instances"] if one["unit"] in running and status["driver"]["state"] == "ok"]
    commands = [("docker", "exec", one["container"], "nvidia-smi", "-L") for one in asked]

    def ask(command: Sequence[str]) -> CommandResult | str:
        try:
            return runner(command, CONTAINER_TIMEOUT)
        except OSError as error:
            return error.strerror or str(error)

    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        answers = list(pool.map(ask, commands))
    for instance, command, done in zip(asked, commands, answers):
        if isinstance(done, str):
            yield unreadable(f"docker exec {instance['container']}", done)
            continue
        if done.rc is None:
            yield unreadable(f"docker exec {instance['container']}", f"no answer within {CONTAINER_TIMEOUT:g} s")
        # Any other failure, such as an image without nvidia-smi, says nothing about the GPUs.
        if done.rc == 0 or LOST_IN_CONTAINER in done.text:
            yield {
                "signal": "container",
                "name": instance["name"],
                "has_gpus": done.rc == 0,
                "error": "" if done.rc == 0 else done.text,
                "evidence": f"{' '.join(command)}: {' '.join(done.text.split())[:200]}",
            }


def transfer_signals(runner: Runner, root: Path) -> Iterator[Signal]:
    """Yield each slow way by which a worker of NVIDIA Dynamo has transferred the KV cache."""
    units = worker_units(root)
    if not units:
        return
    both_kinds = len({unit.split("-")[2] for unit in units}) > 1
    try:
        rdma = units_with_rdma(units, root)
    except OSError as error:
        yield unreadable("transfers of the KV cache", error)
        return
    for unit in units:
        try:
            ways = list(slow_transfers(unit_transfers(unit, runner), both_kinds, unit in rdma))
        except (KvTransportError, OSError) as error:
            yield unreadable("transfers of the KV cache", error)
            return
        for way in ways:
            evidence = f"{unit}: UCX has transferred from GPU to GPU {way}"
            yield {"signal": "kv_transfer", "name": unit, "way": way, "evidence": evidence}
