# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: evaluation_plan
short_description: Return the steps of an evaluation with their server settings
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Groups efforts that need the same engine options into steps, and validates the evaluation.
options:
  _input:
    description: Names of evaluations.
    type: list
    elements: str
    required: true
  efforts:
    description: Reasoning efforts.
    type: list
    elements: str
    required: true
  min_score:
    description: Lowest scores by evaluation.
    type: dict
    default: {}
  recipe:
    description: Recipe of the running release, as in C(release.json). V(null) applies no settings.
    type: dict
  resolved:
    description: Recipe of the inventory.
    type: dict
  table:
    description: The documents' settings, as rows of C(efforts), C(layouts) and C(settings).
    type: list
    elements: dict
    default: []
  own:
    description: Settings by effort that override O(table).
    type: dict
    default: {}
  datasets:
    description: Names of the copied data set files. V(null) if data sets are downloaded.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Set the plan of the evaluation
  ansible.builtin.set_fact:
    plan: >-
      {{ ['gpqa'] | trtllm.fleet.evaluation_plan(['low', 'high'], recipe=served, resolved=recipe, table=table) }}
"""

RETURN = r"""
_value:
  description: The steps, each with C(efforts) and C(settings), and the C(problems).
  type: dict
  sample:
    steps:
      - {efforts: [low], settings: {max_batch_size: 1024, max_num_tokens: 32768}}
    problems: []
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.evaluation import plan


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"evaluation_plan": plan}
