# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tune_load_problems
short_description: Return why loads cannot tell the variations of a search apart
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Batch sizes above the number of requests at a time act alike, and so do instances that get no request.
options:
  _input:
    description: Dimensions by name, each a list of variations.
    type: dict
    required: true
  loads:
    description: The largest load of each scenario, RV(trtllm.fleet.benchmark_run#module:loads).
    type: list
    elements: dict
    required: true
  gpus:
    description: Number of GPUs of the inventory's recipe.
    type: int
    required: true
  instances:
    description: Number of instances with the inventory's recipe.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Assert that the loads suffice
  ansible.builtin.assert:
    that: problems | length == 0
  vars:
    problems: "{{ space | trtllm.fleet.tune_load_problems(planned.loads, gpus=8, instances=1) }}"
"""

RETURN = r"""
_value:
  description: Problems, each with the variable to set.
  type: list
  elements: str
  sample: []
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.space import load_problems


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tune_load_problems": load_problems}
