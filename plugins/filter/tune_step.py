# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tune_step
short_description: Tell which variation of a recipe is tried next
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - First nothing is varied. Then one dimension after the other is gone through, every value of it on top of the best so
    far.
options:
  _input:
    description: Dimensions by name, each a list of variations.
    type: dict
    required: true
  trials:
    description: The trials so far, as P(trtllm.fleet.tune_trial#filter) makes them.
    type: list
    elements: dict
    required: true
  margin:
    description: By how much a score must be higher to count as better, as a share.
    type: float
    required: true
  max_trials:
    description: Trials at most.
    type: int
    required: true
  seconds:
    description: Seconds that have passed.
    type: float
    required: true
  budget:
    description: Seconds that there are. Nothing is begun that would not end within them.
    type: float
    required: true
"""

EXAMPLES = r"""
- name: Select the next variation
  ansible.builtin.set_fact:
    step: "{{ space | trtllm.fleet.tune_step(trials, margin=0.02, max_trials=20, seconds=0, budget=7200) }}"
"""

RETURN = r"""
_value:
  description:
    - What is tried next, C(choice) and C(variables), or C(done), why nothing is.
    - C(problems) are sentences that tell why dimensions or variations are none.
  type: dict
  sample: {done: "", problems: [], choice: {batch size: 1}, variables: {engine_options: {max_batch_size: 256}}}
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning import step


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tune_step": step}
