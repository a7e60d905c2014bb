# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The faults of a host over time, and which of its instances are unfit to serve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import GPU_EVENTS, OF_INSTANCES, Finding
from ansible_collections.trtllm.fleet.plugins.module_utils.health.remedies import Remedy, limit_problem, mode_problem

# What role host_health last found. Of this boot only.
STATE = Path("/run/trtllm-fleet/health.json")
# Looks in a row that have to find a state, or no longer find it. What the kernel reports once is a fault at once.
CONFIRMATIONS = 2
# Seconds from the first look at a fault until its remedy: gateways query the host every few seconds.
NOTICE = 60.0
REASON_LENGTH = 80  # characters, for HAProxy's log

# Attributes of signals that name what is faulty.
SUBJECTS = ("gpu", "name", "switch", "subject", "path")

Key = tuple[str, str]


@dataclass
class OpenFault:
    """A fault that was seen. ``seen``, ``missed``: looks in a row with and without it."""

    finding: Finding
    since: float
    seen: int = 0
    missed: int = 0

    @property
    def confirmed(self) -> bool:
        return self.seen >= CONFIRMATIONS or self.finding.signal["signal"] in GPU_EVENTS


class OpenFaults:
    """The faults of a host, each of which begins and ends with several equal looks."""

    def __init__(self) -> None:
        self._open: dict[Key, OpenFault] = {}

    def update(self, findings: Sequence[Finding], now: float) -> None:
        """Take in the faults of one look, causes first."""
        found = {_key(one): one for one in reversed(findings)}
        # In the order of this look, because its first fault is the cause.
        ordered = [_key(one) for one in findings] + [key for key in self._open if key not in found]
        updated: dict[Key, OpenFault] = {}
        for key in dict.fromkeys(ordered):
            known = self._open.get(key)
            if key in found:
                seen = (known.seen if known else 0) + 1
                updated[key] = OpenFault(found[key], known.since if known else now, seen)
            elif known and known.confirmed and known.missed + 1 < CONFIRMATIONS:
                updated[key] = OpenFault(known.finding, known.since, known.seen, known.missed + 1)
        self._open = updated

    @property
    def confirmed(self) -> list[OpenFault]:
        """The faults that are certain."""
        return [one for one in self._open.values() if one.confirmed]

    @property
    def settled(self) -> bool:
        """Whether the next look may wait: no fault waits for its confirmation or its end."""
        return all(one.confirmed and not one.missed for one in self._open.values())


def _key(finding: Finding) -> Key:
    return finding.fault.id, subject(finding)


def subject(finding: Finding) -> str:
    """Return what is faulty: a GPU, unit, instance, switch or path; empty for the host."""
    return next((str(finding.signal[one]) for one in SUBJECTS if finding.signal.get(one)), "")


def unfit(findings: Sequence[Finding], instances: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a reason for each instance that should get no request, by name.

    ``instances``: their signals. A fault of a GPU concerns the instances that use it, and all where that is not known.
    A gateway itself sees an instance that does not answer.
    """
    reasons: dict[str, str] = {}
    for finding in findings:
        signal = finding.signal
        seen_by_gateways = signal["signal"] == "instance" and not signal["healthy"]
        if not finding.fault.out_of_service or seen_by_gateways:
            continue
        for instance in instances:
            if _concerns(signal, instance):
                reasons.setdefault(instance["name"], reason(finding))
    return reasons


def _concerns(signal: Mapping[str, Any], instance: Mapping[str, Any]) -> bool:
    if signal["signal"] in OF_INSTANCES:
        return bool(signal["name"] == instance["name"])
    gpu = signal.get("gpu")
    return not gpu or not instance["gpus"] or gpu in instance["gpus"]


def reason(finding: Finding) -> str:
    """Return a fault in one line for HAProxy's agent-check."""
    gpu = finding.signal.get("gpu")
    text = f"{finding.fault.id}{f' of GPU {gpu}' if gpu else ''}"
    return "".join(one if one.isprintable() and one.isascii() and one != "#" else "?" for one in text)[:REASON_LENGTH]


def restarts(
    faults: Sequence[OpenFault],
    signals: Sequence[Mapping[str, Any]],
    connections: Mapping[str, int],
    remedies: Sequence[Remedy],
    mode: str,
    now: float,
) -> dict[str, str]:
    """Return the fault for each unit of an engine that this host may restart by itself now.

    ``connections``: open requests by instance. Nothing restarts an engine while an answer flows or before the gateways
    know of the fault, one that a person or a playbook stopped, or one of a temporary release. No gateway knows a worker
    of Dynamo, and one at its start limit has no answers.
    """
    temporary = any(
        one["signal"] == "unit" and one["kind"] == "restore" and one["active"] == "active" for one in signals
    )
    if mode_problem("restart_engine", mode) or temporary:
        return {}
    units = {
        one["name"]: {"unit": one["name"], **one}
        for one in signals
        if one["signal"] == "instance" or (one["signal"] == "unit" and one["kind"] == "worker")
    }
    found: dict[str, str] = {}
    for one in faults:
        finding = one.finding
        instance = units.get(str(finding.signal.get("name")))
        if not instance or finding.remedy != "restart_engine" or finding.consequence_of:
            continue
        worker = instance["signal"] == "unit"
        if not (worker or finding.fault.out_of_service):
            continue
        if connections.get(instance["name"], 0) or now - one.since < NOTICE:
            continue
        runs = instance["active"] == "active" or instance["start_limit_reached"]
        if runs and not limit_problem("restart_engine", instance["unit"], remedies, now):
            found.setdefault(instance["unit"], finding.fault.id)
    return found


def read_state(path: Path, now: float) -> dict[str, Any] | None:
    """Return what role host_health last found, with its age; None if it does not run or has not looked yet."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {
            "mode": state["mode"],
            "age_seconds": max(0, round(now - state["at"])),
            "unfit": state["unfit"],
            "faults": state["faults"],
        }
    except (OSError, ValueError, TypeError, KeyError):
        return None
