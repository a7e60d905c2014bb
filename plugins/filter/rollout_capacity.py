# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_capacity
short_description: How much of a fleet serves without some of its hosts
version_added: 0.1.0
description:
  - Says which percentage of the instances behind a gateway is in rotation and up, on other hosts than those named.
  - A host that serves nothing now takes nothing away, so a batch that only adds is told as V(100).
options:
  _input:
    description: What M(trtllm.fleet.gateway_info) told.
    type: dict
    required: true
  hosts:
    description: The hosts to do without.
    type: list
    elements: str
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Refuse to go below half
  ansible.builtin.assert:
    that: gateway | trtllm.fleet.rollout_capacity(ansible_play_batch) >= 50
"""

RETURN = r"""
_value:
  description: Percent.
  type: float
  sample: 83.3
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def rollout_capacity(gateway: Mapping[str, Any], hosts: Sequence[str]) -> float:
    """The share of all instances that serves without some hosts, in percent."""
    serving = {
        name: sum(one["up"] and not one["drained"] for one in instances.values())
        for name, instances in gateway["hosts"].items()
    }
    if not sum(serving.get(name, 0) for name in hosts):
        return 100.0
    total = sum(map(len, gateway["hosts"].values()))
    return 100 * sum(number for name, number in serving.items() if name not in hosts) / total


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollout_capacity": rollout_capacity}
