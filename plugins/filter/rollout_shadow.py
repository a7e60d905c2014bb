# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_shadow
short_description: Judge a canary by its answers to copies of live requests
version_added: 1.0.0
description:
  - Compares the answers of a canary with those that clients got. Each pair of answers is to the same request, so only
    pairs that differ count.
  - Defects are compared by McNemar's exact test, and finish reasons, lengths and times by the sign test. A difference
    counts if chance alone would make it in less than one of 1,000 cases.
options:
  _input:
    description: Results of M(trtllm.fleet.gateway_shadow), one for each gateway.
    type: list
    elements: dict
    required: true
  min_requests:
    description: Number of pairs without which there is no verdict.
    type: int
    required: true
  max_ratio:
    description: How many times as long the first byte or a further token may take.
    type: float
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Assert that the canary answers as well as the others
  ansible.builtin.assert:
    that: verdict.problems | length == 0
    fail_msg: "{{ verdict.text }}"
  vars:
    verdict: "{{ shadows.results | trtllm.fleet.rollout_shadow(min_requests=100, max_ratio=1.15) }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems) has in what the canary is worse; empty if it is not, or without a verdict.
    - C(pairs) is the number of answers that were compared. C(text) says all of it.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.shadow import verdict


class FilterModule:
    """The filter rollout_shadow."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollout_shadow": verdict}
