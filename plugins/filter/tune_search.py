# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tune_search
short_description: Return the next variation of a recipe and the best so far
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - A search has stages. The inventory's recipe is started twice. Then each dimension is searched in its order, every
    value on top of the best so far. The four best variations are started again, and the two best of these.
  - Last the best one and the inventory's recipe are started in turns. Only these starts decide whether it is better.
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
  margin:
    description: Least gain of a better variation, as a fraction.
    type: float
    required: true
  pairs:
    description: Starts of each side in the confirmation, 3 or more.
    type: int
    required: true
  max_trials:
    description: Maximum number of trials, those of the confirmation included.
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
      {{ space | trtllm.fleet.tune_search(trials, margin=0.02, pairs=3, max_trials=27, seconds=0, budget=14400) }}
"""

RETURN = r"""
_value:
  description:
    - C(next) is the next trial's C(stage), C(choice) and C(variables). Where there is none, C(done) is the reason.
    - C(outcome) has the C(best) choice, V(null) if none led, its name as C(named), whether it is C(better), the
      C(variables) if it is, the C(confirmation) with ratio and interval, the C(spread) between starts of the same
      recipe, the C(detectable) gain, both as fractions, the C(verdict) in sentences, the C(pareto) set and all
      C(trials). C(problems) are the errors of the settings.
  type: dict
  sample:
    next: {stage: search, choice: {batch size: 1}, variables: {engine_options: {max_batch_size: 256}}}
    done: ""
    outcome: {best: {batch size: 0}, better: false, variables: {}}
    problems: []
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.search import search


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tune_search": search}
