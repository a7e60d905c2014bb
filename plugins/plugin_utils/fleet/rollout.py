# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which steps a fleet is switched, and whether a canary does as well as the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class RolloutError(Exception):
    """There is no way to roll out as asked; the message says which variable to change."""


@dataclass(frozen=True)
class Host:
    """A host as it is: what it runs and is to run (releases by name), and how many of its instances are in rotation.

    ``withheld``: how many an operator drained. ``goes``: in how many goes its instances are switched. ``platform``:
    what changes below the release, in sentences. ``gains``: how many more instances it has afterwards.
    """

    name: str
    runs: str
    wanted: str
    instances: int
    ready: int
    withheld: int = 0
    goes: int = 1
    platform: Sequence[str] = ()
    gains: int = 0

    @property
    def pending(self) -> bool:
        return self.runs != self.wanted or bool(self.platform) or self.ready + self.withheld < self.instances

    @property
    def away(self) -> int:
        """How many of its instances that serve now do not at some moment of the switch."""
        return min(self.ready, 1) if self.goes > 1 else self.ready


def in_rotation(instances: Iterable[Mapping[str, Any]]) -> int:
    """How many instances get requests, from what a gateway tells of them (module gateway_info)."""
    return sum(one["up"] and not one["drained"] for one in instances)


def instance_batches(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], whole: bool
) -> list[list[str]]:
    """In which goes the instances of a host are switched, by name.

    One by one where each takes its own place, else all at once, which is an empty list of names.
    """

    def places(instances: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        return [(one["name"], one["port"], one["gpus"]) for one in instances]

    if whole or len(new) < 2 or places(old) != places(new):
        return [[]]
    return [[one["name"]] for one in new]


@dataclass(frozen=True)
class Step:
    """Hosts that are switched together, and how many instances serve meanwhile, of how many."""

    hosts: Sequence[str]
    serving: int
    total: int


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
    left = [host for host in hosts if host.pending]
    # Hosts that serve nothing first: they cost no capacity, and give some. But not those that get no request
    # afterwards either: the first are the canary.
    left.sort(key=lambda host: (host.withheld > 0, host.ready > 0))
    sizes = batch_sizes(batches, len(left) or 1)
    found: list[Step] = []
    while left:
        size, away = sizes[min(len(found), len(sizes) - 1)], 0
        least = math.ceil(total * min_capacity / 100)
        chosen: list[Host] = []
        while left and len(chosen) < size and serving - away - left[0].away >= (least if left[0].away else 0):
            away += left[0].away
            chosen.append(left.pop(0))
        if not chosen:
            host = left[0]
            raise RolloutError(
                f"rollout_min_capacity: {min_capacity} percent of {total} instances is {least}; {serving} serve, and "
                f"without {host.name} ({host.away}) it would be {serving - host.away}. Add hosts, mend those that do "
                "not serve, or set it lower"
            )
        found.append(Step([host.name for host in chosen], serving - away, total))
        serving += sum(max(0, host.instances + host.gains - host.withheld) - host.ready for host in chosen)
        total += sum(host.gains for host in chosen)
    return found


def text(
    hosts: Sequence[Host],
    plan: Sequence[Step],
    seconds: float,
    bake: float,
    releases: Mapping[str, str],
) -> str:
    """The plan for a person. ``seconds``: how long one go of a host takes; ``releases``: what is told of each."""
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
        took = max((by_name[name].goes * seconds for name in step.hosts), default=0.0) + (bake if number == 1 else 0.0)
        expected += took
        share = 100 * step.serving // step.total if step.total else 0
        lines.append(
            f"  step {number:<3} {', '.join(step.hosts)}: {step.serving} of {step.total} instances serve ({share} %), "
            f"about {minutes(took)}" + (", canary" if number == 1 and bake else "")
        )
    lines.append("")
    chosen = [by_name[name] for step in plan for name in step.hosts]
    lines += [f"  {host.name}: {'; '.join(host.platform)}" for host in chosen if host.platform]
    if any(host.goes > 1 for host in chosen):
        lines.append(f"  one instance of a host after the other: {', '.join(h.name for h in chosen if h.goes > 1)}")
    if any(host.goes == 1 for host in chosen):
        lines.append(f"  all instances of a host at once: {', '.join(h.name for h in chosen if h.goes == 1)}")
    lines.append(f"  about {minutes(expected)} in all")
    return "\n".join(lines)


def minutes(seconds: float) -> str:
    """A time for a person."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def newest_rollout(histories: Iterable[Sequence[Mapping[str, Any]]]) -> str:
    """The rollout that brought something to a host last, from the hosts' histories; empty where none did.

    Rollouts are named after the moment they began at.
    """
    return max(
        (entry.get("rollout") or "" for history in histories for entry in history if not entry.get("back")), default=""
    )


def back_to(history: Sequence[Mapping[str, Any]], verified: str, rollout: str) -> str:
    """The release that a host goes back to (module host_release_info); empty where it has none.

    It is the one from before the ``rollout``; of a host that the rollout did not reach, or that has gone back already,
    it is the one that it runs, so that what was interrupted can be done again. Without a rollout it is the one before.
    """
    last = history[-1] if history else {}
    if last.get("release") == verified and (last.get("back") or (last.get("rollout") or "") != rollout):
        return verified
    for entry in reversed(history):
        brought = bool(rollout) and entry.get("rollout") == rollout
        if entry["kept"] and entry["release"] != verified and not brought:
            return str(entry["release"])
    return ""


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
