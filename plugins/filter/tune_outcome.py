# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tune_outcome
short_description: Tell which variation of a recipe was best
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - The best trial with what it sets, and the Pareto set of all loads, those than which none gives both a user and a GPU
    more tokens a second.
options:
  _input:
    description: Dimensions by name, each a list of variations.
    type: dict
    required: true
  trials:
    description: The trials, as P(trtllm.fleet.tune_trial#filter) makes them.
    type: list
    elements: dict
    required: true
  objective:
    description: The throughput that was the score.
    type: str
    required: true
  margin:
    description: By how much a score must be higher to count as better, as a share.
    type: float
    required: true
  done:
    description: Why no more were tried.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Set the result of the search
  ansible.builtin.set_fact:
    outcome: >-
      {{ space | trtllm.fleet.tune_outcome(trials, 'output_tokens_per_second_per_gpu', margin=0.02, done=step.done) }}
"""

RETURN = r"""
_value:
  description: The number of the C(best) trial, V(null) without any, its C(variables), the C(pareto) set, all C(trials).
  type: dict
  sample: {best: 3, variables: {engine_options: {max_batch_size: 256}}, done: all 9 variations were tried}
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning import outcome


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tune_outcome": outcome}
