# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_capacity
short_description: How much of a fleet serves without some of its instances
version_added: 0.1.0
description:
  - Says which percentage of the instances behind a gateway is in rotation and up when some do not serve.
  - A host that serves nothing now takes nothing away, so where nothing is taken away it is told as V(100).
options:
  _input:
    description: What M(trtllm.fleet.gateway_info) told.
    type: dict
    required: true
  away:
    description: By host, how many of its instances to do without, or all it has where that is fewer.
    type: dict
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Assert that half of the capacity stays
  ansible.builtin.assert:
    that: "gateway | trtllm.fleet.rollout_capacity({'gpu1': 1}) >= 50"
"""

RETURN = r"""
_value:
  description: Percent.
  type: float
  sample: 83.3
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.rollout import in_rotation


def rollout_capacity(gateway: Mapping[str, Any], away: Mapping[str, int]) -> float:
    """The share of all instances that serves without some, in percent."""
    serving = {name: in_rotation(instances.values()) for name, instances in gateway["hosts"].items()}
    taken = sum(min(number, serving.get(name, 0)) for name, number in away.items())
    total = sum(map(len, gateway["hosts"].values()))
    return 100 * (sum(serving.values()) - taken) / total if taken else 100.0


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollout_capacity": rollout_capacity}
