# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_capacity
short_description: Compute the share of a fleet that serves without some instances
version_added: 1.0.0
description:
  - Returns the percentage of the instances behind a gateway that are in service and up if some are drained.
  - With several models it is the percentage of the model where it is lowest, among those that lose an instance.
  - Returns V(100) if the hosts to drain have no instance in service, because draining them changes nothing.
options:
  _input:
    description: Result of M(trtllm.fleet.gateway_info).
    type: dict
    required: true
  away:
    description: >-
      Instances to drain by host, each a number of instances of each model, or such numbers by model; all that it has if
      it has fewer.
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
  description: Percentage of all instances of the model.
  type: float
  sample: 83.3
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.plan import in_service


def rollout_capacity(gateway: Mapping[str, Any], away: Mapping[str, int | Mapping[str, int]]) -> float:
    """Return the percentage of the instances of a model that serve without some, of the model where it is lowest."""
    serving, taken, total = Counter[str](), Counter[str](), Counter[str]()
    for host, instances in gateway["hosts"].items():
        total.update(one["model"] for one in instances.values())
        ready = in_service(instances.values())
        serving += ready
        drained = away.get(host, 0)
        by_model = drained if isinstance(drained, Mapping) else dict.fromkeys(ready, drained)
        taken += Counter({model: min(number, by_model.get(model, 0)) for model, number in ready.items()})
    return min((100 * (serving[model] - number) / total[model] for model, number in taken.items()), default=100.0)


class FilterModule:
    """Provide filter rollout_capacity."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollout_capacity": rollout_capacity}
