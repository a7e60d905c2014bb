# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan in which steps the hosts of a fleet are updated."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import ROLLOUT


class RolloutError(Exception):
    """The rollout is not possible as configured; the message names the variable to change."""


@dataclass(frozen=True)
class RolloutHost:
    """State and target of a host. Instances are counted by the model that they serve.

    runs, wanted: names of releases. instances, ready: the instances it runs, and those of them in service. will: those
    it runs afterwards. withheld: those that an operator drained. batches: number of batches of its instances, and
    updated: the models of those if they are updated one at a time, and drained: those that they had before; none if all
    are at once. staying: names of those that run the same afterwards, and are not updated. platform: changes of driver,
    Docker and toolkit, one sentence each.
    """

    name: str
    runs: str
    wanted: str
    instances: Counter[str]
    ready: Counter[str]
    will: Counter[str]
    withheld: Counter[str] = field(default_factory=Counter)
    batches: int = 1
    updated: Sequence[str] = ()
    drained: Sequence[str] = ()
    staying: Sequence[str] = ()
    platform: Sequence[str] = ()

    @property
    def pending(self) -> bool:
        """Whether the host has to be updated."""
        absent = self.instances - self.ready - self.withheld
        return self.runs != self.wanted or bool(self.platform) or bool(absent)

    @property
    def away(self) -> Counter[str]:
        """Its instances in service that are drained at the same time during the update."""
        if not self.updated:
            return +self.ready
        return Counter(dict.fromkeys((model for model in +self.ready if model in self.drained), 1))

    @property
    def models(self) -> tuple[str, ...]:
        """The models whose instances are updated."""
        return tuple(sorted(self.updated or self.will))


def in_service(instances: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the number of instances that get requests, from a gateway's view (module ``gateway_info``), by model."""
    return Counter(one["model"] for one in instances if one["up"] and not one["drained"])


def instance_batches(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], whole: bool, staying: Sequence[str] = ()
) -> list[list[str]]:
    """Return the batches in which the instances of a host are updated, by name.

    One instance at a time, without those ``staying`` as they are, if each new one has name, port and GPUs of an old
    one; otherwise all at once, which is an empty list of names. whole: update all at once in any case.
    """

    def places(instances: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        return [(one["name"], one["port"], one["gpus"]) for one in instances]

    if whole or len(new) < 2 or places(old) != places(new):
        return [[]]
    return [[one["name"]] for one in new if one["name"] not in staying] or [[]]


@dataclass(frozen=True)
class Step:
    """Hosts that are updated together; instances of their models that serve during the step, of how many.

    models: those of the hosts. canary: whether it is the first step of its models.
    """

    hosts: Sequence[str]
    serving: int
    total: int
    models: Sequence[str] = ()
    canary: bool = False


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

    The hosts of one model after those of the other, each with sizes from the first on. In each step ``min_capacity``
    percent of all instances of a model serve, including those of ``others``, which are not updated. Hosts that serve
    nothing cost no capacity. Raises RolloutError if not even one host at a time is possible.
    """
    total = sum((host.instances for host in (*hosts, *others)), Counter[str]())
    serving = sum((host.ready for host in (*hosts, *others)), Counter[str]())
    pending = [host for host in hosts if host.pending]
    found: list[Step] = []
    for models in dict.fromkeys(sorted(host.models for host in pending)) or [()]:
        left = [host for host in pending if host.models == models]
        # Hosts that serve nothing come first, because they add capacity. Hosts that an operator drained come last,
        # because they get no requests afterwards and the first step is the canary.
        left.sort(key=lambda host: (host.withheld.total() > 0, host.ready.total() > 0))
        sizes = batch_sizes(batches, len(left) or 1)
        steps = 0
        while left:
            chosen, away = _chosen(left, sizes[min(steps, len(sizes) - 1)], serving, total, min_capacity)
            concerned = {*models, *(model for host in chosen for model in host.drained or host.instances)}
            serve, of = (sum(count[model] for model in concerned) for count in (serving - away, total))
            found.append(Step([host.name for host in chosen], serve, of, sorted(concerned), canary=steps == 0))
            for host in chosen:
                serving = serving - host.ready + (host.will - host.withheld)
                total = total - host.instances + host.will
            left, steps = left[len(chosen) :], steps + 1
    return found


def _chosen(
    left: Sequence[RolloutHost], size: int, serving: Counter[str], total: Counter[str], min_capacity: int
) -> tuple[list[RolloutHost], Counter[str]]:
    """Return the first hosts that can be updated together, and their instances. Raises RolloutError for none."""
    least = Counter({model: math.ceil(number * min_capacity / 100) for model, number in total.items()})
    chosen: list[RolloutHost] = []
    away = Counter[str]()
    for host in left[:size]:
        scarce = [model for model in host.away if serving[model] - away[model] - host.away[model] < least[model]]
        if scarce and not chosen:
            model = scarce[0]
            raise RolloutError(
                f"rollout_min_capacity: {min_capacity} percent of {total[model]} instances of {model} is "
                f"{least[model]}; {serving[model]} serve, and without {host.name} ({host.away[model]}) it would be "
                f"{serving[model] - host.away[model]}. Add hosts, repair those that do not serve, or set it lower"
            )
        if scarce:
            break
        chosen.append(host)
        away += host.away
    return chosen, away


def describe(
    hosts: Sequence[RolloutHost], plan: Sequence[Step], seconds: float, bake: float, releases: Mapping[str, str]
) -> str:
    """Return the plan as text. seconds: time per batch of instances; bake: of each canary; releases: descriptions."""
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
    several = len({model for step in plan for model in step.models}) > 1
    for number, step in enumerate(plan, 1):
        took = max((by_name[name].batches * seconds for name in step.hosts), default=0.0) + (
            bake if step.canary else 0.0
        )
        expected += took
        share = 100 * step.serving // step.total if step.total else 0
        lines.append(
            f"  step {number:<3} {', '.join(step.hosts)}: {step.serving} of {step.total} instances"
            f"{' of ' + ', '.join(step.models) if several else ''} serve ({share} %), about {minutes(took)}"
            + (", canary" if step.canary and bake else "")
        )
    lines.append("")
    chosen = [by_name[name] for step in plan for name in step.hosts]
    lines += [f"  {host.name}: {'; '.join(host.platform)}" for host in chosen if host.platform]
    for text, names in {
        "one instance of a host after the other": [host.name for host in chosen if host.updated],
        "all instances of a host at once": [host.name for host in chosen if not host.updated],
    }.items():
        if names:
            lines.append(f"  {text}: {', '.join(names)}")
    lines += [f"  {host.name}: no change of {', '.join(host.staying)}" for host in chosen if host.staying]
    lines.append(f"  about {minutes(expected)} in all")
    return "\n".join(lines)


def minutes(seconds: float) -> str:
    """Return a duration in seconds or minutes, as text."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def by_model(description: Mapping[str, Any]) -> Counter[str]:
    """Return the number of instances of each model in the description of a release, or in a recipe."""
    return Counter(one.get("model", description["model"]) for one in description["instances"])


def _running_units(runs: Mapping[str, Any]) -> set[str]:
    return {
        unit["name"] for unit in runs["units"] if unit["active"] == "active" and unit["release"] == runs["verified"]
    }


def instances_ready(name: str, runs: Mapping[str, Any], gateways: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return a host's instances in service at the gateway with fewest; without gateways, those that run."""
    if not gateways:
        description = runs["description"] or {"instances": []}
        units = _running_units(runs)
        running = [one for one in description["instances"] if one["unit"] in units]
        return by_model({**description, "instances": running})
    served = [in_service(gateway["hosts"].get(name, {}).values()) for gateway in gateways]
    return functools.reduce(operator.and_, served)


def instances_withheld(name: str, gateways: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return a host's instances that an operator or a repair drained, at the gateway with most."""
    drained = [
        Counter(
            one["model"] for one in gateway["hosts"].get(name, {}).values() if one["drained_by"] not in ("", ROLLOUT)
        )
        for gateway in gateways
    ]
    return functools.reduce(operator.or_, drained, Counter[str]())


def read_host(
    name: str, host_plan: Mapping[str, Any], platform: Sequence[str], gateways: Sequence[Mapping[str, Any]]
) -> tuple[RolloutHost, list[list[str]]]:
    """Return a host and the batches of its instances.

    host_plan: what role trtllm_server sets as ``trtllm_server_plan``. platform: changes below the release.
    """
    runs, wanted, recipe = host_plan["runs"], host_plan["wanted"], host_plan["recipe"]
    description = runs["description"] or {"instances": []}
    served = description["instances"]
    platform = [] if host_plan["back"] else platform
    # The running units differ from the release that was verified.
    edited = host_plan["restart"] and runs["verified"] == wanted
    kept = staying(host_plan, [gateway["hosts"].get(name, {}) for gateway in gateways])
    batches = instance_batches(served, recipe["instances"], edited or bool(platform), kept)
    names = {name for batch in batches for name in batch}
    return RolloutHost(
        name=name,
        runs="" if edited else runs["verified"],
        wanted=wanted,
        # A host counts for the instances that it serves now, whatever they are afterwards.
        instances=by_model(description if served else recipe),
        ready=instances_ready(name, runs, gateways),
        will=by_model(recipe),
        withheld=instances_withheld(name, gateways),
        batches=len(batches),
        updated=_models_of(recipe, names),
        drained=_models_of(description, names),
        staying=kept if names else [],
        platform=platform,
    ), batches


def _models_of(description: Mapping[str, Any], names: Collection[str]) -> list[str]:
    return sorted(
        by_model({**description, "instances": [one for one in description["instances"] if one["name"] in names]})
    )


def staying(host_plan: Mapping[str, Any], known: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return the names of a host's instances that run well, and afterwards the same as now.

    known: the host's instances at each gateway.
    """
    runs = host_plan["runs"]
    if runs["verified"] == host_plan["wanted"]:
        return []
    units = _running_units(runs).intersection(host_plan["alike"])
    served = (runs["description"] or {"instances": []})["instances"]
    alike = [one["name"] for one in served if one["unit"] in units]
    # One that is down would fail the verification of the others.
    return [name for name in alike if all(instances.get(name, {}).get("up") for instances in known)]


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
    behind = {
        name: Counter(one["model"] for one in ones.values())
        for gateway in gateways
        for name, ones in gateway["hosts"].items()
        if name not in hosts
    }
    others = [
        RolloutHost(name, "", "", instances, instances_ready(name, {}, gateways), instances)
        for name, instances in sorted(behind.items())
    ]
    members = [host for host, _batches in found.values()]
    plan = plan_steps(members, batches, min_capacity, others)
    return {
        "text": describe(members, plan, seconds, bake, releases),
        "order": [name for step in plan for name in step.hosts],
        "canaries": [name for step in plan if step.canary for name in step.hosts],
        "serving": [host.name for host in members if +host.ready],
        "models": {name: list(host.models) for name, (host, _batches) in found.items()},
        "instance_batches": {name: chosen for name, (_host, chosen) in found.items()},
        "interrupted": {name: interrupted(host_plan["runs"]) for name, (host_plan, _platform) in hosts.items()},
        "away": {host.name: dict(host.away) for host in members},
        "steps": [list(step.hosts) for step in plan],
        "releases": {
            name: {"before": host_plan["runs"]["verified"] or None, "after": host_plan["wanted"]}
            for name, (host_plan, _platform) in hosts.items()
        },
    }
