# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_canary
short_description: Compare a canary with the hosts behind the same gateways that are not canaries
version_added: 1.0.0
description:
  - Compares the traffic of a host at each gateway with the traffic of the hosts that are not canaries.
  - An instance that is not up is a problem by itself.
options:
  _input:
    description: Name of the host.
    type: str
    required: true
  gateways:
    description: Results of M(trtllm.fleet.gateway_info) with traffic, one for each gateway.
    type: list
    elements: dict
    required: true
  canaries:
    description: Names of the hosts that were updated with this one, and of this one.
    type: list
    elements: str
    required: true
  models:
    description: The models whose instances were updated on this host.
    type: list
    elements: str
    required: true
  max_failed:
    description: Percentage points by which its share of failed requests may be above that of the others.
    type: float
    required: true
  max_ratio:
    description: How many times as long the first byte of an answer may take, at the median and at p95.
    type: float
    required: true
  min_requests:
    description: Times are compared only if the host and the others each answered this number of requests.
    type: int
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Assert that the canary does as well as the others
  ansible.builtin.assert:
    that: worse | length == 0
  vars:
    worse: >-
      {{ 'gpu1' | trtllm.fleet.rollout_canary(gateways.results, ['gpu1', 'gpu2'], ['openai/gpt-oss-120b'],
                                                max_failed=1, max_ratio=2, min_requests=20) }}
"""

RETURN = r"""
_value:
  description: The problems found; empty if it does as well as the others.
  type: list
  elements: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.canary import canary_problems


class FilterModule:
    """Provide filter rollout_canary."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollout_canary": canary_problems}
