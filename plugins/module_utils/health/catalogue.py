# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fault catalogue: which signals are which fault, and what follows.

A signal is a flat dict: its name in ``signal``, its attributes, and the text that shows it in ``evidence``. A fault is
a row of data with conditions on signals. Nothing here knows a single fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean

Signal = Mapping[str, Any]
Row = Mapping[str, Any]

# From worst to best. ``unknown``: a check without an answer, which is neither a fault nor health.
SEVERITIES = ("critical", "warning", "unknown", "info", "ignored")
# From the cause to the effect, for faults of one severity.
LAYERS = (
    "inventory",
    "connection",
    "host",
    "driver",
    "gpu",
    "fabric",
    "container",
    "weights",
    "instance",
    "dynamo",
    "gateway",
    "run",
)
# Rungs of the remedy ladder, from cheap to costly. ``human``: no program can do it.
REMEDIES = ("none", "restart_engine", "reset_gpu", "reload_driver", "reboot", "take_out", "human")
# Values of nvidia-smi's gpu_recovery_action and the rung that each asks for.
RECOVERY_ACTIONS = {
    "None": "none",
    "Reset": "reset_gpu",
    "GPU Reset Required": "reset_gpu",
    "Reboot": "reboot",
    "Node Reboot Required": "reboot",
    "Drain P2P": "reset_gpu",
    "Drain and Reset": "reset_gpu",
    "Bus Reset": "reset_gpu",
    "System Reboot": "reboot",
    "Recover IMEX Domain": "human",
}
# Attributes of each signal, to which conditions and texts may refer.
SIGNALS: Mapping[str, tuple[str, ...]] = {
    "xid": ("gpu", "code", "fatal", "action", "count", "day_count", "age_hours", "last", "gpu_count", "driver_branch"),
    "sxid": ("switch", "code", "fatal", "count", "day_count", "age_hours", "last"),
    "kernel": ("kind", "subject", "gpu", "count", "day_count", "age_hours", "last"),
    "gpu": (
        "gpu",
        "index",
        "recovery_action",
        "ecc_uncorrected",
        "sram_threshold_exceeded",
        "unrepairable_memory",
        "repair_pending",
        "remap_pending",
        "remap_failed",
        "slowdown",
        "temperature",
        "temperature_left",
        "pcie_width",
        "pcie_width_max",
        "pcie_narrow",
        "mig",
        "ecc",
        "persistence_mode",
        "fabric_state",
        "fabric_status",
        "used",
        "driver_branch",
    ),
    "gpu_missing": ("gpu", "present"),
    "driver": ("state", "version", "loaded", "provisioned", "gpu_count"),
    "fabric": ("switches", "state", "status"),
    "unit": ("name", "kind", "load", "active", "sub", "enabled", "restarts", "start_limit_reached"),
    "instance": (
        "name",
        "unit",
        "active",
        "healthy",
        "answer",
        "model_listed",
        "image_of_release",
        "start_limit_reached",
        "age_seconds",
        "gpus",
        "log",
    ),
    "watchdog": ("name", "times", "reason", "age_hours"),
    "container": ("name", "has_gpus", "error"),
    "release": ("verified", "units", "model"),
    "drift": ("kind", "about", "now"),
    "record": ("state",),
    "acceptance": ("verdict", "valid", "at"),
    "remedy": ("action", "target", "fault", "result", "at", "age_hours"),
    "disk": ("path", "used_percent", "inodes_used_percent", "free_gib", "read_only"),
    "memory": ("available_percent",),
    "clock": ("synchronized", "offset_seconds"),
    "name": ("name", "error"),
    "connection_table": ("used_percent",),
    "certificate": ("path", "days", "until", "problem"),
    "packages": ("state", "names"),
    "kv_transfer": ("name", "way"),
    "probe": ("name", "error"),
    "connection": ("kind", "message"),
    "variables": ("message", "readable"),
    "gateway": ("name", "running", "servers", "up"),
    "gateway_instance": (
        "gateway",
        "host",
        "name",
        "up",
        "drained",
        "drained_by",
        "state",
        "healthy",
        "age_seconds",
        "gpus",
    ),
    "registration": ("gateway", "name"),
    "task": ("message", "name"),
}
# Signals whose name is that of an instance.
OF_INSTANCES = {"instance", "gateway_instance", "container", "watchdog"}
# Signals of the kernel log that a passed burn-in or a verified remedy after them ends.
GPU_EVENTS = ("xid", "sxid", "kernel")
# Remedies that reach the GPUs.
OF_GPUS = ("reset_gpu", "reload_driver", "reboot")
# Results of remedies that end what the kernel log reported before. repair.yml verifies the host before it serves.
CURED = ("applied", "verified")
COMPARISONS = ("min", "max", "matches", "not")
REQUIRED = ("id", "title", "layer", "severity", "seen", "cause", "cure", "remedy", "source")
OPTIONAL = ("out_of_service", "explains", "resolved_by_driver")
PLACEHOLDER = re.compile(r"\{(\w+)\}")


class CatalogueError(ValueError):
    """Rows that are not a catalogue; ``problems`` has a sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Fault:
    """A row of the catalogue.

    ``seen``: conditions, one of which a signal has to meet. ``cause`` and ``cure`` may name attributes of the signal in
    braces. ``explains``: faults of the same host that follow from this one. ``out_of_service``: whether a host with it
    should get no request. ``resolved_by_driver``: the driver's branch from which its recovery action decides whether
    the fault persists; 0 if it never does.
    """

    id: str
    title: str
    layer: str
    severity: str
    seen: Sequence[Mapping[str, Any]]
    cause: str
    cure: str
    remedy: str
    source: str
    out_of_service: bool = False
    explains: Sequence[str] = ()
    resolved_by_driver: int = 0


@dataclass
class Finding:
    """A fault that was seen on a host. ``consequence_of``: ids of faults there that explain it."""

    fault: Fault
    host: str
    signal: Signal
    remedy: str
    consequence_of: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {
            "fault": self.fault.id,
            "title": self.fault.title,
            "severity": self.fault.severity,
            "layer": self.fault.layer,
            "host": self.host,
            "evidence": str(self.signal.get("evidence", "")),
            "cause": fill(self.fault.cause, self.signal),
            "cure": fill(self.fault.cure, self.signal),
            "remedy": self.remedy,
            "out_of_service": self.fault.out_of_service,
            "consequence_of": self.consequence_of,
            "source": self.fault.source,
        }


def load_catalogue(rows: Iterable[Row], overrides: Iterable[Row] = ()) -> dict[str, Fault]:
    """Return the faults by id. A row of ``overrides`` replaces the values that it has, or adds a fault.

    Raises CatalogueError with all problems.
    """
    merged: dict[str, dict[str, Any]] = {}
    problems = []
    for row in (*rows, *overrides):
        if not isinstance(row, Mapping) or not isinstance(row.get("id"), str):
            problems.append(f"{row!r} is not a fault; it needs an id. Set fleet_faults to a list of faults")
            continue
        merged.setdefault(row["id"], {}).update(row)
    for name, row in merged.items():
        problems += [f"fault {name}: {problem}" for problem in row_problems(row, merged)]
    if problems:
        raise CatalogueError(problems)
    return {name: Fault(**row) for name, row in merged.items()}


def row_problems(row: Row, known: Iterable[str]) -> list[str]:
    """Return what is wrong with a row. ``known``: ids of all faults."""
    problems = [f"{key} is missing" for key in REQUIRED if row.get(key) in (None, "")]
    allowed = (*REQUIRED, *OPTIONAL)
    problems += [f"{key} is not a key of a fault.{did_you_mean(key, allowed)}" for key in row if key not in allowed]
    for key, values in (("layer", LAYERS), ("severity", SEVERITIES), ("remedy", REMEDIES)):
        if row.get(key) is not None and row[key] not in values:
            problems.append(f"{key} is {row[key]!r}; it may be {', '.join(values)}")
    strangers = [name for name in row.get("explains", ()) if name not in known]
    problems += [f"explains names {name}, which is not a fault" for name in strangers]
    seen = row.get("seen") or []
    if not isinstance(seen, list) or not all(isinstance(one, Mapping) for one in seen):
        return [*problems, "seen is not a list of conditions"]
    for condition in seen:
        problems += condition_problems(condition)
    names = [set(SIGNALS.get(one.get("signal", ""), ())) for one in seen]
    shared = set.intersection(*names) if names else set()
    for key in ("cause", "cure"):
        for placeholder in PLACEHOLDER.findall(str(row.get(key, ""))):
            if placeholder not in shared | {"host"}:
                problems.append(f"{key} names {{{placeholder}}}, which not every signal in seen has")
    return problems


def condition_problems(condition: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the conditions on a signal."""
    name = condition.get("signal", "")
    if name not in SIGNALS:
        return [f"signal is {name!r}; it may be {', '.join(SIGNALS)}"]
    problems = []
    for key, wanted in condition.items():
        if key != "signal" and key not in SIGNALS[name]:
            problems.append(f"signal {name} has no {key}.{did_you_mean(key, SIGNALS[name])}")
        if not isinstance(wanted, Mapping):
            continue
        problems += [
            f"{name}.{key} has the comparison {comparison!r}; it may be {', '.join(COMPARISONS)}"
            for comparison in wanted
            if comparison not in COMPARISONS
        ]
        try:
            re.compile(str(wanted.get("matches", "")))
        except re.error as error:
            problems.append(f"{name}.{key} has a pattern that is not valid: {error}")
    return problems


def meets(signal: Signal, condition: Mapping[str, Any]) -> bool:
    """Return True if a signal meets all parts of a condition. An unknown value meets none."""
    return all(_compare(signal.get(key), wanted) for key, wanted in condition.items())


def _compare(value: Any, wanted: Any) -> bool:
    if value is None:
        return False
    if isinstance(wanted, Mapping):
        return (
            ("min" not in wanted or value >= wanted["min"])
            and ("max" not in wanted or value <= wanted["max"])
            and ("matches" not in wanted or re.search(wanted["matches"], str(value)) is not None)
            and ("not" not in wanted or not _compare(value, wanted["not"]))
        )
    if isinstance(wanted, (list, tuple)):
        return value in wanted
    return bool(value == wanted)


def diagnose(host: str, signals: Sequence[Signal], catalogue: Mapping[str, Fault]) -> list[Finding]:
    """Return the faults of one host, causes first; those that follow from others know these."""
    actions = {one["gpu"]: one.get("recovery_action") for one in signals if one["signal"] == "gpu"}
    cured = cured_at(signals)
    found = [
        Finding(fault, host, signal, _remedy(fault, signal, actions))
        for fault in catalogue.values()
        if fault.severity != "ignored"
        for signal in signals
        if any(meets(signal, condition) for condition in fault.seen)
        and not _resolved(fault, signal, actions)
        and not (signal["signal"] in GPU_EVENTS and fault.out_of_service and signal.get("last", cured) < cured)
    ]
    for finding in found:
        finding.consequence_of = sorted(
            {
                cause.fault.id
                for cause in found
                if finding.fault.id in cause.fault.explains and _related(cause.signal, finding.signal)
            }
        )
    return sorted(found, key=_order)


def cured_at(signals: Iterable[Signal]) -> float:
    """Return the time of the last passed burn-in or verified remedy of the GPUs; 0 without one."""
    return max(
        (
            one["at"]
            for one in signals
            if (one["signal"] == "acceptance" and one["valid"])
            or (one["signal"] == "remedy" and one["result"] in CURED and one["action"] in OF_GPUS)
        ),
        default=0.0,
    )


def _related(cause: Signal, effect: Signal) -> bool:
    """Return True unless both signals name another GPU, instance, gateway or unit."""
    kinds = cause["signal"], effect["signal"]
    if "gpu" in cause and effect.get("gpus"):
        return cause["gpu"] in effect["gpus"]
    if kinds[1] == "drift" and effect["kind"] == "unit" and kinds[0] in ("unit", "instance"):
        return bool((cause["name"] if kinds[0] == "unit" else cause["unit"]) == effect["about"])
    same = ["gpu", "gateway"] + ["name"] * (set(kinds) <= OF_INSTANCES)
    return all(cause[key] == effect[key] for key in same if key in cause and key in effect)


def _order(finding: Finding) -> tuple[Any, ...]:
    fault = finding.fault
    return bool(finding.consequence_of), SEVERITIES.index(fault.severity), LAYERS.index(fault.layer)


def _remedy(fault: Fault, signal: Signal, actions: Mapping[str, str | None]) -> str:
    """Return the rung. What the driver asks for comes first; the row decides if it asks for nothing."""
    asked = RECOVERY_ACTIONS.get(actions.get(str(signal.get("gpu"))) or "None", "human")
    return asked if asked != "none" else fault.remedy


def _resolved(fault: Fault, signal: Signal, actions: Mapping[str, str | None]) -> bool:
    """Return True if a driver that reports such faults by its recovery action says that the GPU needs none."""
    branch, gpu = signal.get("driver_branch") or 0, str(signal.get("gpu"))
    return 0 < fault.resolved_by_driver <= branch and gpu in actions and actions[gpu] == "None"


def fill(text: str, signal: Signal) -> str:
    """Return a text with the attributes of the signal in place of their names in braces."""
    return PLACEHOLDER.sub(lambda found: str(signal.get(found[1], "unknown")), text)
