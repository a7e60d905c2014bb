# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_canary
short_description: Why a host does worse than the others behind the same gateways
version_added: 0.1.0
description:
  - Compares what each gateway saw of a host with what it saw of the others.
  - An instance that is not up is a reason in itself.
options:
  _input:
    description: Name of the host.
    type: str
    required: true
  gateways:
    description: What M(trtllm.fleet.gateway_info) told of each gateway, traffic included.
    type: list
    elements: dict
    required: true
  max_failed:
    description: How many percent more of its requests may fail than of the others'.
    type: float
    required: true
  max_ratio:
    description: How many times as long it may take to the first byte of an answer, at the median and at p95.
    type: float
    required: true
  min_requests:
    description: Of fewer requests, its own or the others', nothing is said about time.
    type: int
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Stop where the canary does worse
  ansible.builtin.assert:
    that: worse | length == 0
  vars:
    worse: "{{ 'gpu1' | trtllm.fleet.rollout_canary(gateways.results, max_failed=1, max_ratio=2, min_requests=20) }}"
"""

RETURN = r"""
_value:
  description: The reasons; none where it does as well.
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.rollout import canary_problems, together


def rollout_canary(
    host: str, gateways: Sequence[Mapping[str, Any]], max_failed: float, max_ratio: float, min_requests: int
) -> list[str]:
    """Why a host does worse than the others, as DOCUMENTATION tells."""
    found = []
    for gateway in gateways:
        at = f"at {gateway['__rollout_gateway']}"
        canary = gateway["hosts"].get(host, {})
        if not canary:
            found.append(f"{host} is not behind {gateway['__rollout_gateway']}")
        found += [f"{host}.{name} {one['state']} {at}" for name, one in canary.items() if not one["up"]]
        others = [one["traffic"] for name, ones in gateway["hosts"].items() if name != host for one in ones.values()]
        compared = together([one["traffic"] for one in canary.values()]), together(others)
        found += [f"{at} {problem}" for problem in canary_problems(*compared, max_failed, max_ratio, min_requests)]
    return found


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollout_canary": rollout_canary}
