# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tune_trial
short_description: Return the score of a recipe's variation
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Scores the result of a benchmark. A result with a problem has no score.
options:
  _input:
    description: What was started, C(next) of P(trtllm.fleet.tune_search#filter).
    type: dict
    required: true
  result:
    description:
      - Result of M(trtllm.fleet.benchmark_run), or the error as C(problem), with the C(seconds) of the trial.
    type: dict
    required: true
  objective:
    description: The throughput of the best load that meets the objectives, which is the score.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Record the measurement
  ansible.builtin.set_fact:
    trials: "{{ trials + [search.next | trtllm.fleet.tune_trial(measured, objective)] }}"
  vars:
    objective: output_tokens_per_second_per_gpu
"""

RETURN = r"""
_value:
  description: The trial.
  type: dict
  sample:
    {stage: search, choice: {}, variables: {}, score: 812.5, points: [], problem: "", path: results/1, seconds: 312.0}
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.trial import trial


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tune_trial": trial}
