# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the repair of a fleet: which host gets which remedies, and when no program should act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import Finding
from ansible_collections.trtllm.fleet.plugins.module_utils.health.remedies import (
    Remedy,
    limit_problem,
    mode_problem,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import shorten

RUNGS = ("restart_engine", "reset_gpu", "reload_driver", "reboot")
# The default of role host_health, for a host without it.
DEFAULT_MODE = "drain"
# Hosts with the same fault at a time: its cause is outside of them, or what reports it is wrong.
ALIKE = 3
# Share of the hosts that may be sick. NVIDIA's NVSentinel stops at the same share of the nodes.
MOST_SICK = 0.5

Tree = Mapping[str, Any]


def plan_repairs(
    findings: Sequence[Finding], answers: Mapping[str, Tree], mode: str, now: float
) -> dict[str, dict[str, Any]]:
    """Return by host with a fault that takes it out of service: ``fault``, ``rungs``, ``gpus`` and ``reason``.

    ``answers``: results of module host_signals_info. ``mode``: for all hosts; empty for the one of role host_health of
    each host. Without rungs the reason says why no program repairs the host.
    """
    return {
        host: _plan_host(causes, answers.get(host) or {}, mode, now)
        for host, causes in _causes(findings).items()
        if host in answers
    }


def _causes(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.fault.out_of_service and not finding.consequence_of:
            found.setdefault(finding.host, []).append(finding)
    return found


def _plan_host(causes: Sequence[Finding], answer: Tree, mode: str, now: float) -> dict[str, Any]:
    mode = mode or (answer.get("health") or {}).get("mode") or DEFAULT_MODE
    signals = answer.get("signals", ())
    past = [
        Remedy(*(one[key] for key in ("action", "target", "fault", "at", "result")))
        for one in signals
        if one["signal"] == "remedy"
    ]
    by_hand = next((one for one in causes if one.remedy not in RUNGS), None)
    if by_hand:
        return {
            "fault": by_hand.fault.id,
            "rungs": [],
            "gpus": [],
            "reason": f"{by_hand.fault.title}: no program can repair it. {by_hand.as_dict()['cure']}",
        }
    worst = max(causes, key=lambda one: RUNGS.index(one.remedy))
    wanted = RUNGS[RUNGS.index(worst.remedy) :]
    problems = {rung: mode_problem(rung, mode) or limit_problem(rung, "host", past, now) for rung in wanted}
    gpus = [one["gpu"] for one in signals if one["signal"] == "gpu"]
    # A fault of a switch, or of no GPU in particular, needs a reset of all.
    named = {one.signal.get("gpu") for one in causes}
    return {
        "fault": worst.fault.id,
        "rungs": [rung for rung, problem in problems.items() if not problem],
        "gpus": gpus if None in named else [gpu for gpu in gpus if gpu in named],
        "reason": "" if not all(problems.values()) else f"{worst.fault.title}: {problems[wanted[0]]}",
    }


def breaker_reason(plans: Mapping[str, Tree], hosts: int) -> str:
    """Return why too many hosts are sick for a program to act; empty without a reason.

    ``hosts``: number of hosts that answered. Hosts that wait for a person, such as for a new GPU, do not count.
    """
    plans = {host: plan for host, plan in plans.items() if plan["rungs"]}
    by_fault: dict[str, list[str]] = {}
    for host, plan in plans.items():
        by_fault.setdefault(plan["fault"], []).append(host)
    for fault, names in by_fault.items():
        if len(names) >= ALIKE:
            return f"{len(names)} hosts have {fault} at the same time ({shorten(names)})"
    if len(plans) > 1 and len(plans) > MOST_SICK * hosts:
        return f"{len(plans)} of {hosts} hosts are sick ({shorten(list(plans))})"
    return ""
