# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two sides of a deployment of NVIDIA Dynamo, of which one serves while the other changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import few

Placement = Mapping[str, Sequence[str]]
Statuses = Mapping[str, Mapping[str, Any]]
KINDS = ("frontend", "prefill", "decode")
AT_ONCE = "run playbook dynamo.yml, which changes all hosts at the same time: nothing is served while the workers load"


class Sides(TypedDict):
    """Hosts by what a rollout does with them.

    ``plan``: the same in a sentence. ``problem``: why there is no rollout without an outage, and what to do.
    """

    first: list[str]  # the side that changes first; empty if it has changed
    first_to_drain: list[str]  # of these, the hosts that have not changed
    second: list[str]
    plan: str
    problem: str


class Host(NamedTuple):
    """A host that takes part, with the kinds of its components."""

    name: str
    kinds: frozenset[str]
    moved: bool  # serves in the new namespace
    open: bool  # drained by an earlier rollout that did not end


def sides(placement: Placement, statuses: Statuses, namespace: str, image: str) -> Sides:
    """Divide the hosts, so that each side has a component of each kind, and about half of them.

    A host that an operator drained does not take part.

    placement: host names by kind of component. statuses: by host, the results of module host_status_info. namespace,
    image: the new ones.
    """
    found: Sides = {"first": [], "first_to_drain": [], "second": [], "plan": "", "problem": ""}
    hosts = _hosts(placement, statuses, namespace)
    for problem in _problems(hosts, statuses, namespace, image):
        return {**found, "problem": problem}
    moved = {host for host in hosts if host.moved}
    if len(moved) == len(hosts):
        return {**found, "plan": f"All hosts are in the namespace {namespace}; no side has to change."}
    begun = {host for host in hosts if host.moved or host.open}
    # Without a side among the others, an earlier rollout has begun with its second side.
    first = _divide(hosts, begun) if _complete({*hosts} - begun) else moved
    second = {*hosts} - first
    if not (_complete(first) and (_complete(second) or first == moved)):
        return {**found, "problem": _no_sides(hosts)}
    to_drain = [host for host in hosts if host in first and not host.moved]
    return {
        "first": [host.name for host in hosts if host in first] if to_drain else [],
        "first_to_drain": [host.name for host in to_drain],
        "second": [host.name for host in hosts if host in second],
        "plan": _plan(hosts, to_drain, [host for host in hosts if host in second], namespace),
        "problem": "",
    }


def _hosts(placement: Placement, statuses: Statuses, namespace: str) -> list[Host]:
    names = list(dict.fromkeys(name for kind in KINDS for name in placement[kind]))
    found = []
    for name in names:
        drained_by = statuses[name]["drained_by"]
        if drained_by in (None, "rollout"):
            kinds = frozenset(kind for kind in KINDS if name in placement[kind])
            moved = not drained_by and {one["namespace"] for one in _serving(statuses[name])} == {namespace}
            found.append(Host(name, kinds, moved, drained_by == "rollout"))
    return found


def _serving(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the frontend and the workers."""
    return [one for one in status["components"] if one["kind"] in KINDS]


def _problems(hosts: Sequence[Host], statuses: Statuses, namespace: str, image: str) -> Iterator[str]:
    """Yield why these hosts cannot serve on two sides."""
    serving = [(one, host) for host in hosts for one in _serving(statuses[host.name])]
    unknown = [f"{one['name']} of {host.name}" for one, host in serving if not one["namespace"]]
    if unknown:
        yield (
            f"{few(unknown)} has no namespace, so its frontends would find the workers of the other side. Run playbook "
            "dynamo.yml once, which restarts all components at the same time."
        )
    bare = [host.name for host in hosts if not host.open and not _serving(statuses[host.name])]
    if bare:
        yield f"{few(bare)} has no frontend and no worker. Run playbook dynamo.yml with --limit {bare[0]} first."
    others = [
        f"{one['name']} of {host.name}"
        for one, host in serving
        if not host.open and one["namespace"] == namespace and one["image"] != image
    ]
    if others:
        yield (
            f"{few(others)} is in the namespace {namespace}, with another image than {image}. Set dynamo_namespace to "
            "another name."
        )


def _count(hosts: Collection[Host], kind: str) -> int:
    return sum(kind in host.kinds for host in hosts)


def _complete(hosts: Collection[Host]) -> bool:
    return all(_count(hosts, kind) for kind in KINDS)


def _divide(hosts: Sequence[Host], begun: Collection[Host]) -> set[Host]:
    """Return about half of the hosts of each kind, with all that a rollout has begun with.

    It moves or exchanges hosts as long as the smallest share of a kind on a side grows.
    """

    def score(first: set[Host]) -> tuple[float, float, int]:
        shares = []
        for kind in KINDS:
            total, here = _count(hosts, kind), _count(first, kind)
            shares.append(min(here, total - here) / max(total, 1))
        return min(shares), sum(shares), -len(first)

    free = [host for host in hosts if host not in begun]
    first = {*begun, *free[::2]}
    while True:
        moves = [{host} for host in free]
        moves += [{one, other} for one in free if one in first for other in free if other not in first]
        best = max((first ^ move for move in moves), key=score, default=first)
        if score(best) <= score(first):
            return first
        first = best


def _no_sides(hosts: Sequence[Host]) -> str:
    few_hosts = [kind for kind in KINDS if _count(hosts, kind) < 2]
    where = [
        f"{kind} is on {few([host.name for host in hosts if kind in host.kinds]) or 'no host that takes part'}"
        for kind in few_hosts
    ]
    reason = " and ".join(where) or "these hosts cannot be divided so"
    return f"Each of two sides needs a frontend, a prefill and a decode worker, and {reason}. Add hosts, or {AT_ONCE}."


def _plan(hosts: Sequence[Host], first: Sequence[Host], second: Sequence[Host], namespace: str) -> str:
    def changing(side: Sequence[Host]) -> str:
        counts = [f"{_count(side, kind)} of {_count(hosts, kind)} with a {kind}" for kind in KINDS]
        return f"{', '.join(host.name for host in side)} ({', '.join(counts)})"

    begin = f"First {changing(first)} change, while the other hosts serve. Then " if first else ""
    return f"{begin}{changing(second)} change. All are in the namespace {namespace} then."
