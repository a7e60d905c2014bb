# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: serving_plan
short_description: Show what would run on each host of a fleet, and why
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Looks up the recipe of every host, as role P(trtllm.fleet.serving_recipe#role) does, all at once and never failing.
  - Puts hosts with the same recipe in one group, and tells what each host would change against what it runs now.
  - The playbook C(trtllm.fleet.plan) gathers what it needs.
options:
  _input:
    description: Names of the hosts.
    type: list
    elements: str
    required: true
  variables:
    description:
      - Variables by host, most often C(hostvars). Of each host are read the public variables of role
        P(trtllm.fleet.serving_recipe#role), which have their defaults where they are not set.
      - C(__plan_gpus) is the result of M(trtllm.fleet.gpu_info), C(__plan_release) that of
        M(trtllm.fleet.host_release_info), C(__plan_revision) that of M(trtllm.fleet.hub_manifest). Each may be missing,
        or be that of a task that was skipped, that failed or that did not reach the host.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show what would run where
  ansible.builtin.debug:
    msg: "{{ (ansible_play_hosts_all | trtllm.fleet.serving_plan(hostvars)).text }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    text:
      description: The plan for a terminal.
      type: str
    data:
      description:
        - The whole plan. C(groups) has the hosts of each recipe and revision, what they change on them, the revision
          with its commit or the reason why that is not known, and the recipe; C(without_recipe) has the other hosts and
          their problems.
        - The same fleet in the same state gives the same data.
      type: dict
    failure:
      description: Which hosts have no recipe, in one sentence; empty when all have one.
      type: str
      sample: "2 hosts without a recipe: gpu3, gpu7. The plan says why."
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleError
from jinja2 import UndefinedError

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import (
    Host,
    failure,
    look_up,
    make_plan,
    render,
    resolve_revision,
    revision_answers,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.revisions import readable
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_defaults, serving_recipe


def serving_plan(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The plan of a fleet, as DOCUMENTATION tells."""

    answers = revision_answers(readable(hosts, variables))

    def host(name: str) -> Host:
        try:
            revision = resolve_revision(variables[name], answers)
            return look_up(variables[name], load_defaults(), serving_recipe, revision)
        except (AnsibleError, UndefinedError) as error:
            # Variables are templates until they are used.
            return Host(None, [f"the host's variables cannot be read: {error}"])

    plan = make_plan({name: host(name) for name in hosts})
    return {"text": render(plan), "data": plan, "failure": failure(plan)}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"serving_plan": serving_plan}
