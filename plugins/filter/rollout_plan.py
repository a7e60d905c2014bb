# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_plan
short_description: In which steps a fleet is switched
version_added: 0.1.0
description:
  - Decides which hosts are switched together, so that never less than a share of the instances of all serves, and says
    it for a person.
  - A host is switched where it does not run what it is to run, where something below that is to be changed, or where it
    is not in rotation at every gateway although no operator drained it.
  - Its instances are switched one after the other where each is in the place of one that is there, else all at once.
options:
  _input:
    description: Names of the hosts of the play.
    type: list
    elements: str
    required: true
  variables:
    description: C(hostvars), where role P(trtllm.fleet.trtllm_server#role) noted what each host runs and is to run.
    type: dict
    required: true
  gateways:
    description: What M(trtllm.fleet.gateway_info) told of each gateway.
    type: list
    elements: dict
    required: true
  batches:
    description: Hosts of each step, as C(serial) of a play has them. The last repeats.
    type: list
    elements: raw
    required: true
  min_capacity:
    description: Percent of all instances that have to serve at each moment.
    type: int
    required: true
  seconds:
    description: How long one instance is expected to take.
    type: float
    required: true
  bake:
    description: How long the first step is watched before the next.
    type: float
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Set the rollout plan
  ansible.builtin.set_fact:
    plan: >-
      {{ ansible_play_hosts | trtllm.fleet.rollout_plan(hostvars, gateways.results, batches=[1, '25%'], min_capacity=50,
                                                        seconds=300, bake=60) }}
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    text:
      description: The plan for a terminal.
      type: str
    order:
      description: The hosts that are switched, in their order.
      type: list
      elements: str
    goes:
      description: For each host, the instances of each go by name. An empty list is all of them at once.
      type: dict
      sample: {gpu1: [[serve-0], [serve-1]], gpu2: [[]]}
    away:
      description: For each host, how many of its instances that serve now do not at some moment.
      type: dict
      sample: {gpu1: 1, gpu2: 8}
    serving:
      description: Hosts with instances in rotation.
      type: list
      elements: str
    steps:
      description: The same hosts, those of each step together.
      type: list
      elements: list
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import OPERATOR
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.rollout import (
    Host,
    RolloutError,
    in_rotation,
    instance_batches,
    steps,
    text,
)


def ready(name: str, runs: Mapping[str, Any], instances: int, gateways: Sequence[Mapping[str, Any]]) -> int:
    """How many instances of a host get requests, at the gateway with fewest; without gateways, how many run."""
    if not gateways:
        units = runs.get("units", [])
        active = [unit for unit in units if unit["active"] == "active" and unit["release"] == runs["verified"]]
        return min(instances, len(active))
    return min(in_rotation(gateway["hosts"].get(name, {}).values()) for gateway in gateways)


def withheld(name: str, gateways: Sequence[Mapping[str, Any]]) -> int:
    """How many instances of a host an operator drained, at the gateway with most."""
    return max(
        (sum(one["drained_by"] == OPERATOR for one in gateway["hosts"].get(name, {}).values()) for gateway in gateways),
        default=0,
    )


def host(
    name: str, variables: Mapping[str, Any], gateways: Sequence[Mapping[str, Any]]
) -> tuple[Host, list[list[str]]]:
    """A host, and in which goes its instances are switched."""
    outlook = variables["trtllm_server_plan"]
    runs, wanted, recipe = outlook["runs"], outlook["wanted"], outlook["recipe"]
    served = (runs["description"] or {}).get("instances", [])
    platform = [] if outlook["back"] else variables.get("rollout_platform", [])
    # What runs is something else than what was verified.
    edited = outlook["restart"] and runs["verified"] == wanted
    chosen = instance_batches(served, recipe["instances"], whole=edited or bool(platform))
    return Host(
        name=name,
        runs="" if edited else runs["verified"],
        wanted=wanted,
        # A host counts for what it serves now, however many instances it is to have.
        instances=len(served) or len(recipe["instances"]),
        ready=ready(name, runs, len(served), gateways),
        withheld=withheld(name, gateways),
        goes=len(chosen),
        platform=platform,
        gains=len(recipe["instances"]) - len(served) if served else 0,
    ), chosen


def rollout_plan(
    hosts: Sequence[str],
    variables: Mapping[str, Mapping[str, Any]],
    gateways: Sequence[Mapping[str, Any]],
    batches: Sequence[Any],
    min_capacity: int,
    seconds: float,
    bake: float,
) -> dict[str, Any]:
    """The plan of a rollout, as DOCUMENTATION tells."""
    outlooks = {name: variables[name]["trtllm_server_plan"] for name in hosts}
    found, releases = {name: host(name, variables[name], gateways) for name in hosts}, {}
    for outlook in outlooks.values():
        recipe, served = outlook["recipe"], outlook["runs"]["description"]
        releases[outlook["wanted"]] = f"{recipe['name']}, {recipe['image']}"
        if served:
            releases.setdefault(outlook["runs"]["verified"], f"{served['name']}, {served['image']}")
    # Hosts that the run leaves alone serve, too.
    behind = {name: len(ones) for gateway in gateways for name, ones in gateway["hosts"].items() if name not in hosts}
    others = [Host(name, "", "", number, ready(name, {}, 0, gateways)) for name, number in sorted(behind.items())]
    ours = [one for one, _chosen in found.values()]
    try:
        plan = steps(ours, batches, min_capacity, others)
    except RolloutError as error:
        raise AnsibleFilterError(str(error)) from None
    return {
        "text": text(ours, plan, seconds, bake, releases),
        "order": [name for step in plan for name in step.hosts],
        "serving": [one.name for one in ours if one.ready],
        "goes": {name: chosen for name, (_one, chosen) in found.items()},
        "away": {one.name: one.away for one in ours},
        "steps": [list(step.hosts) for step in plan],
    }


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollout_plan": rollout_plan}
