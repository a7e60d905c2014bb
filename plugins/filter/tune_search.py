# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tune_search
short_description: Return the next variation of a recipe and the best so far
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - The first trial varies nothing. Then each dimension is searched in its order, every value on top of the best so far.
  - The Pareto set has the loads that no other load beats in both tokens/s per user and tokens/s per GPU.
options:
  _input:
    description: Dimensions by name, each a list of variations.
    type: dict
    required: true
  trials:
    description: The trials so far, as P(trtllm.fleet.tune_trial#filter) returns them.
    type: list
    elements: dict
    required: true
  objective:
    description: The throughput that is the score.
    type: str
    required: true
  margin:
    description: Least difference of a better score, as a fraction.
    type: float
    required: true
  max_trials:
    description: Maximum number of trials.
    type: int
    required: true
  seconds:
    description: Seconds since the search began.
    type: float
    required: true
  budget:
    description: Seconds for the whole search. No trial starts that would end later if it took as long as the longest.
    type: float
    required: true
"""

EXAMPLES = r"""
- name: Select the next variation
  ansible.builtin.set_fact:
    search: >-
      {{ space | trtllm.fleet.tune_search(trials, 'output_tokens_per_second_per_gpu', margin=0.02, max_trials=20,
                                          seconds=0, budget=7200) }}
"""

RETURN = r"""
_value:
  description:
    - C(next) is the next trial's C(choice) and C(variables). Where there is none, C(done) is the reason.
    - C(outcome) has the number of the C(best) trial, V(null) without any, its C(variables), the C(pareto) set and all
      C(trials). C(problems) are the errors of the dimensions.
  type: dict
  sample:
    next: {choice: {batch size: 1}, variables: {engine_options: {max_batch_size: 256}}}
    done: ""
    outcome: {best: 0, variables: {}}
    problems: []
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning import search


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tune_search": search}
