# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan in which steps the hosts of a fleet are updated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import ROLLOUT


class RolloutError(Exception):
    """The rollout is not possible as configured; the message names the variable to change."""


@dataclass(frozen=True)
class RolloutHost:
    """State and target of a host.

    runs, wanted: names of releases. instances, ready: number of instances it runs, and of those in service.
    withheld: number of instances that an operator drained. batches: number of batches of its instances. platform:
    changes of driver, Docker and toolkit, one sentence each. gains: number of instances it has more afterwards.
    """

    name: str
    runs: str
    wanted: str
    instances: int
    ready: int
    withheld: int = 0
    batches: int = 1
    platform: Sequence[str] = ()
    gains: int = 0

    @property
    def pending(self) -> bool:
        """Whether the host has to be updated."""
        return self.runs != self.wanted or bool(self.platform) or self.ready + self.withheld < self.instances

    @property
    def away(self) -> int:
        """Number of its instances in service that are drained at the same time during the update."""
        return min(self.ready, 1) if self.batches > 1 else self.ready


def in_service(instances: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of instances that get requests, from a gateway's view (module ``gateway_info``)."""
    return sum(one["up"] and not one["drained"] for one in instances)


def instance_batches(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], whole: bool
) -> list[list[str]]:
    """Return the batches in which the instances of a host are updated, by name.

    One instance at a time if each new one has name, port and GPUs of an old one; otherwise all at once, which is an
    empty list of names. whole: update all at once in any case.
    """

    def places(instances: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        return [(one["name"], one["port"], one["gpus"]) for one in instances]

    if whole or len(new) < 2 or places(old) != places(new):
        return [[]]
    return [[one["name"]] for one in new]


@dataclass(frozen=True)
class Step:
    """Hosts that are updated together; instances of the fleet that serve during the step, of how many."""

    hosts: Sequence[str]
    serving: int
    total: int


def batch_sizes(batches: Sequence[Any], total: int) -> list[int]:
    """Return the number of hosts of each entry, counted as Ansible's ``serial`` does: at least 1.

    Raises RolloutError if an entry is neither a number nor a percentage.
    """
    sizes = []
    for entry in batches:
        text = str(entry).strip()
        number = text[:-1] if text.endswith("%") else text
        if not (number.isascii() and number.isdigit()) or int(number) < 1:
            raise RolloutError(
                f"rollout_batches: {entry!r} is neither a number of hosts nor a percentage such as '25%', of 1 or more"
            )
        sizes.append(max(1, total * int(number) // 100) if text.endswith("%") else int(number))
    if not sizes:
        raise RolloutError("rollout_batches is empty; the default is [1, '10%', '25%']")
    return sizes


def plan_steps(
    hosts: Sequence[RolloutHost], batches: Sequence[Any], min_capacity: int, others: Sequence[RolloutHost] = ()
) -> list[Step]:
    """Return the steps of a rollout; each has ``batches`` hosts or fewer, the last size repeats.

    In each step ``min_capacity`` percent of all instances serve, including those of ``others``, which are not updated.
    Hosts that serve nothing cost no capacity. Raises RolloutError if not even one host at a time is possible.
    """
    total = sum(host.instances for host in (*hosts, *others))
    serving = sum(host.ready for host in (*hosts, *others))
    left = [host for host in hosts if host.pending]
    # Hosts that serve nothing come first, because they add capacity. Hosts that an operator drained come last, because
    # they get no requests afterwards and the first step is the canary.
    left.sort(key=lambda host: (host.withheld > 0, host.ready > 0))
    sizes = batch_sizes(batches, len(left) or 1)
    found: list[Step] = []
    while left:
        size, away = sizes[min(len(found), len(sizes) - 1)], 0
        least = math.ceil(total * min_capacity / 100)
        chosen: list[RolloutHost] = []
        while left and len(chosen) < size and serving - away - left[0].away >= (least if left[0].away else 0):
            away += left[0].away
            chosen.append(left.pop(0))
        if not chosen:
            host = left[0]
            raise RolloutError(
                f"rollout_min_capacity: {min_capacity} percent of {total} instances is {least}; {serving} serve, and "
                f"without {host.name} ({host.away}) it would be {serving - host.away}. Add hosts, repair those that do "
                "not serve, or set it lower"
            )
        found.append(Step([host.name for host in chosen], serving - away, total))
        serving += sum(max(0, host.instances + host.gains - host.withheld) - host.ready for host in chosen)
        total += sum(host.gains for host in chosen)
    return found


def describe(
    hosts: Sequence[RolloutHost], plan: Sequence[Step], seconds: float, bake: float, releases: Mapping[str, str]
) -> str:
    """Return the plan as text. seconds: time per batch of instances; bake: of the canary; releases: descriptions."""
    by_name = {host.name: host for host in hosts}
    lines = [f"{sum(len(step.hosts) for step in plan)} of {len(hosts)} hosts are updated, in {len(plan)} steps"]
    changes = Counter((by_name[name].runs, by_name[name].wanted) for step in plan for name in step.hosts)
    summary: Counter[tuple[str, str, bool]] = Counter()
    for (runs, wanted), number in changes.items():
        summary[releases.get(runs, "nothing"), releases[wanted], runs == wanted] += number
    for (before, after, same), number in summary.items():
        lines.append(f"  {number} from  {before}")
        lines.append(f"  {' ' * len(str(number))} to    {after}{', not in service' if same else ''}")
    lines.append("")
    expected = 0.0
    for number, step in enumerate(plan, 1):
        took = max((by_name[name].batches * seconds for name in step.hosts), default=0.0) + (
            bake if number == 1 else 0.0
        )
        expected += took
        share = 100 * step.serving // step.total if step.total else 0
        lines.append(
            f"  step {number:<3} {', '.join(step.hosts)}: {step.serving} of {step.total} instances serve ({share} %), "
            f"about {minutes(took)}" + (", canary" if number == 1 and bake else "")
        )
    lines.append("")
    chosen = [by_name[name] for step in plan for name in step.hosts]
    lines += [f"  {host.name}: {'; '.join(host.platform)}" for host in chosen if host.platform]
    if any(host.batches > 1 for host in chosen):
        lines.append(f"  one instance of a host after the other: {', '.join(h.name for h in chosen if h.batches > 1)}")
    if any(host.batches == 1 for host in chosen):
        lines.append(f"  all instances of a host at once: {', '.join(h.name for h in chosen if h.batches == 1)}")
    lines.append(f"  about {minutes(expected)} in all")
    return "\n".join(lines)


def minutes(seconds: float) -> str:
    """Return a duration in seconds or minutes, as text."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def instances_ready(name: str, runs: Mapping[str, Any], instances: int, gateways: Sequence[Mapping[str, Any]]) -> int:
    """Return how many instances of a host are in service at the gateway with fewest; without gateways, how many run."""
    if not gateways:
        units = runs.get("units", [])
        active = [unit for unit in units if unit["active"] == "active" and unit["release"] == runs["verified"]]
        return min(instances, len(active))
    return min(in_service(gateway["hosts"].get(name, {}).values()) for gateway in gateways)


def instances_withheld(name: str, gateways: Sequence[Mapping[str, Any]]) -> int:
    """Return how many instances of a host an operator or a repair drained, at the gateway with most."""
    return max(
        (
            sum(one["drained_by"] not in ("", ROLLOUT) for one in gateway["hosts"].get(name, {}).values())
            for gateway in gateways
        ),
        default=0,
    )


def read_host(
    name: str, host_plan: Mapping[str, Any], platform: Sequence[str], gateways: Sequence[Mapping[str, Any]]
) -> tuple[RolloutHost, list[list[str]]]:
    """Return a host and the batches of its instances.

    host_plan: what role trtllm_server sets as ``trtllm_server_plan``. platform: changes below the release.
    """
    runs, wanted, recipe = host_plan["runs"], host_plan["wanted"], host_plan["recipe"]
    served = (runs["description"] or {}).get("instances", [])
    platform = [] if host_plan["back"] else platform
    # The running units differ from the release that was verified.
    edited = host_plan["restart"] and runs["verified"] == wanted
    batches = instance_batches(served, recipe["instances"], whole=edited or bool(platform))
    return RolloutHost(
        name=name,
        runs="" if edited else runs["verified"],
        wanted=wanted,
        # A host counts for the instances that it serves now, whatever their number is afterwards.
        instances=len(served) or len(recipe["instances"]),
        ready=instances_ready(name, runs, len(served), gateways),
        withheld=instances_withheld(name, gateways),
        batches=len(batches),
        platform=platform,
        gains=len(recipe["instances"]) - len(served) if served else 0,
    ), batches


def interrupted(runs: Mapping[str, Any]) -> list[str]:
    """Return the names of instances that an interrupted run left at another release than the verified one."""
    units = {unit["name"] for unit in runs["units"] if unit["release"] != runs["verified"]}
    return [one["name"] for one in (runs["description"] or {}).get("instances", []) if one["unit"] in units]


def rollout_plan(
    hosts: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]],
    gateways: Sequence[Mapping[str, Any]],
    batches: Sequence[Any],
    min_capacity: int,
    seconds: float,
    bake: float,
) -> dict[str, Any]:
    """Return the plan that action plugin ``rollout_plan`` documents.

    hosts: ``trtllm_server_plan`` and ``rollout_platform`` of each host of the play. gateways: results of module
    ``gateway_info``. Raises RolloutError.
    """
    found, releases = {name: read_host(name, *host, gateways) for name, host in hosts.items()}, {}
    for host_plan, _platform in hosts.values():
        recipe, served = host_plan["recipe"], host_plan["runs"]["description"]
        releases[host_plan["wanted"]] = f"{recipe['name']}, {recipe['image']}"
        if served:
            releases.setdefault(host_plan["runs"]["verified"], f"{served['name']}, {served['image']}")
    # Hosts outside the play serve as well.
    behind = {name: len(ones) for gateway in gateways for name, ones in gateway["hosts"].items() if name not in hosts}
    others = [
        RolloutHost(name, "", "", number, instances_ready(name, {}, 0, gateways))
        for name, number in sorted(behind.items())
    ]
    members = [host for host, _batches in found.values()]
    plan = plan_steps(members, batches, min_capacity, others)
    return {
        "text": describe(members, plan, seconds, bake, releases),
        "order": [name for step in plan for name in step.hosts],
        "serving": [host.name for host in members if host.ready],
        "instance_batches": {name: chosen for name, (_host, chosen) in found.items()},
        "interrupted": {name: interrupted(host_plan["runs"]) for name, (host_plan, _platform) in hosts.items()},
        "away": {host.name: host.away for host in members},
        "steps": [list(step.hosts) for step in plan],
    }
