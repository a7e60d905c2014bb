# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: unregistered_hosts
short_description: Select the hosts to register at gateways
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Selects the hosts that run their roles in this run, and those of which a gateway does not have exactly the instances
    of the verified release, as it may have lost its state, or has other instances drained than another gateway.
  - Playbook C(site.yml) uses it.
options:
  _input:
    description: The hosts of each gateway, as RV(trtllm.fleet.gateway_info#module:hosts).
    type: list
    elements: dict
    required: true
  records:
    description: The result of M(trtllm.fleet.host_record) with C(state=compared), by host.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Set which hosts to register
  ansible.builtin.set_fact:
    unregistered: "{{ [info.hosts] | trtllm.fleet.unregistered_hosts({'gpu1': hostvars.gpu1.record}) }}"
"""

RETURN = r"""
_value:
  description: Names of the hosts, in the order of O(records).
  type: list
  elements: str
  sample: [gpu1]
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def unregistered_hosts(gateways: Sequence[Mapping[str, Any]], records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the hosts to register, as DOCUMENTATION says."""

    def is_registered(host: str, record: Mapping[str, Any]) -> bool:
        instances = {instance["name"] for instance in record["release"]["instances"]} if record["as_recorded"] else None
        known = [hosts.get(host, {}) for hosts in gateways]
        drains = [{name: state["drained_by"] for name, state in states.items()} for states in known]
        return all(set(states) == instances for states in known) and all(one == drains[0] for one in drains)

    return [host for host, record in records.items() if not is_registered(host, record)]


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"unregistered_hosts": unregistered_hosts}
