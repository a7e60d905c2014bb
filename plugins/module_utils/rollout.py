# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which steps a fleet is switched, and whether a canary does as well as the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class RolloutError(Exception):
    """There is no way to roll out as asked; the message says which variable to change."""


@dataclass(frozen=True)
class Host:
    """A host as it is: what it runs and is to run (releases by name), and how many of its instances are in rotation."""

    name: str
    runs: str
    wanted: str
    instances: int
    ready: int

    @property
    def pending(self) -> bool:
        return self.runs != self.wanted or self.ready < self.instances


@dataclass(frozen=True)
class Step:
    """Hosts that are switched together, and how many instances of all serve meanwhile."""

    hosts: Sequence[str]
    serving: int


def batch_sizes(batches: Sequence[Any], total: int) -> list[int]:
    """How many hosts each entry is, as Ansible's ``serial`` counts: a number, or a percentage of all, at least 1.

    Raises RolloutError for what is neither.
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


def steps(hosts: Sequence[Host], batches: Sequence[Any], min_capacity: int, others: Sequence[Host] = ()) -> list[Step]:
    """The steps, of as many hosts as ``batches`` says or fewer, so that no less than ``min_capacity`` percent of the
    instances of all serve in each, those of ``others`` included, which are left alone. The last size repeats.

    A host that serves nothing takes nothing away. Raises RolloutError where not even one host at a time will do.
    """
    total = sum(host.instances for host in (*hosts, *others))
    serving = sum(host.ready for host in (*hosts, *others))
    least = math.ceil(total * min_capacity / 100)
    left = [host for host in hosts if host.pending]
    # Hosts that serve nothing first: they cost no capacity, and give some.
    left.sort(key=lambda host: host.ready > 0)
    sizes = batch_sizes(batches, len(left) or 1)
    found: list[Step] = []
    while left:
        size, away = sizes[min(len(found), len(sizes) - 1)], 0
        chosen: list[Host] = []
        while left and len(chosen) < size and serving - away - left[0].ready >= (least if left[0].ready else 0):
            away += left[0].ready
            chosen.append(left.pop(0))
        if not chosen:
            host = left[0]
            raise RolloutError(
                f"rollout_min_capacity: {min_capacity} percent of {total} instances is {least}; {serving} serve, and "
                f"without {host.name} ({host.ready}) it would be {serving - host.ready}. Add hosts, mend those that do "
                "not serve, or set it lower"
            )
        found.append(Step([host.name for host in chosen], serving - away))
        serving += sum(host.instances for host in chosen) - away
    return found


def text(
    hosts: Sequence[Host],
    plan: Sequence[Step],
    seconds: Mapping[str, float],
    bake: float,
    releases: Mapping[str, str],
    others: Sequence[Host] = (),
) -> str:
    """The plan for a person. ``seconds``: how long each host may take; ``releases``: what is told of each."""
    total = sum(host.instances for host in (*hosts, *others))
    by_name = {host.name: host for host in hosts}
    lines = [f"{sum(len(step.hosts) for step in plan)} of {len(hosts)} hosts are switched, in {len(plan)} steps"]
    changes = Counter((by_name[name].runs, by_name[name].wanted) for step in plan for name in step.hosts)
    told: Counter[tuple[str, str, bool]] = Counter()
    for (runs, wanted), number in changes.items():
        told[releases.get(runs, "nothing"), releases[wanted], runs == wanted] += number
    for (before, after, same), number in told.items():
        lines.append(f"  {number} from  {before}")
        lines.append(f"  {' ' * len(str(number))} to    {after}{', where it is: not in rotation' if same else ''}")
    lines.append("")
    expected = 0.0
    for number, step in enumerate(plan, 1):
        took = max((seconds.get(name, 0.0) for name in step.hosts), default=0.0) + (bake if number == 1 else 0.0)
        expected += took
        share = 100 * step.serving // total if total else 0
        lines.append(
            f"  step {number:<3} {', '.join(step.hosts)}: {step.serving} of {total} instances serve ({share} %), "
            f"about {minutes(took)}" + (", canary" if number == 1 and bake else "")
        )
    lines.append("")
    lines.append("  a host has all of its instances out of rotation while it is switched")
    lines.append(f"  about {minutes(expected)} in all")
    return "\n".join(lines)


def minutes(seconds: float) -> str:
    """A time for a person."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def canary_problems(
    canary: Mapping[str, Any], others: Mapping[str, Any], max_failed: float, max_ratio: float, min_requests: int
) -> list[str]:
    """Why a canary is worse than the others, from what a gateway measured of both (module gateway_info, ``traffic``).

    ``max_failed``: percent more of its requests that may fail; ``max_ratio``: how many times longer it may take. Fewer
    than ``min_requests`` say nothing about time.
    """
    found = []
    rates = [100 * one["failed"] / one["requests"] if one["requests"] else 0.0 for one in (canary, others)]
    if rates[0] > rates[1] + max_failed:
        found.append(
            f"{canary['failed']} of its {canary['requests']} requests failed ({rates[0]:.1f} %), of the others' "
            f"{rates[1]:.1f} %; rollout_canary_max_failed allows {max_failed:g} percent more"
        )
    enough = min(canary["timed"], others["timed"]) >= min_requests
    for share in ("p50", "p95"):
        ours, theirs = canary[f"first_byte_ms_{share}"], others[f"first_byte_ms_{share}"]
        if enough and ours is not None and theirs and ours > theirs * max_ratio:
            found.append(
                f"the {share} of its time to the first byte is {ours:.0f} ms, the others' {theirs:.0f} ms; "
                f"rollout_canary_max_latency_ratio allows {max_ratio:g} times that"
            )
    return found


def together(traffic: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The traffic of several instances as one. Of times, the median of theirs."""

    def median(key: str) -> float | None:
        values = sorted(one[key] for one in traffic if one[key] is not None)
        return values[len(values) // 2] if values else None

    return {
        "requests": sum(one["requests"] for one in traffic),
        "failed": sum(one["failed"] for one in traffic),
        "timed": sum(one["timed"] for one in traffic),
        "first_byte_ms_p50": median("first_byte_ms_p50"),
        "first_byte_ms_p95": median("first_byte_ms_p95"),
    }
