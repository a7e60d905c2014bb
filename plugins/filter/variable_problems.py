# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: variable_problems
short_description: List unknown variables with the prefix of a role
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Returns a sentence for each variable of the hosts whose name begins with the name of a role of this collection, such
    as C(serving_recipe_), and that no role or playbook of this collection uses.
  - With the prefix of a role whose name is one word, such as C(gateway_), only a name near to a known one is returned,
    because such names are common outside this collection.
  - Role P(trtllm.fleet.preflight#role) uses it, so that a misspelt variable stops a run before it changes a host.
options:
  _input:
    description: Names of the hosts.
    type: list
    elements: str
    required: true
  variables:
    description: Variables by host, as C(hostvars) has them. Their values are not read.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Assert that all variables are known
  ansible.builtin.assert:
    that: ansible_play_hosts_all | trtllm.fleet.variable_problems(hostvars) | length == 0
  run_once: true
"""

RETURN = r"""
_value:
  description: One sentence for each unknown variable, with the nearest known one if there is one.
  type: list
  elements: str
  sample: [gpu1 sets serving_recipe_modle; no role knows it. Set serving_recipe_model.]
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.variables import problems


def variable_problems(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the problems of the hosts, as DOCUMENTATION says."""
    return problems({host: variables[host] for host in hosts})


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"variable_problems": variable_problems}
