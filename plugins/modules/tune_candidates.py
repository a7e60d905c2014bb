#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tune_candidates
short_description: Predict the best layouts for a load
version_added: 1.0.0
description:
  - Asks NVIDIA's AIConfigurator which layouts of the GPUs of a host serve a load best, without a GPU.
  - Returns them as variations for role P(trtllm.fleet.tune#role), which measures them.
  - Takes half a minute. For a GPU or a model that AIConfigurator does not know it returns no variation and says so.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.attributes.action
attributes:
  action:
    details: Runs on the control node and does not connect to the host.
options:
  predictor:
    description: Python interpreter that has AIConfigurator.
    type: path
    required: true
  recipe:
    description: The recipe of the inventory, RV(trtllm.fleet.serving_recipe#module:recipe). It is not a candidate.
    type: dict
    required: true
  gpus:
    description: Number of GPUs of all instances.
    type: int
    required: true
  loads:
    description: Loads, RV(trtllm.fleet.benchmark_run#module:loads). The one with the most requests at a time counts.
    type: list
    elements: dict
    required: true
  objective:
    description: Throughput that there should be most of.
    type: str
    choices: [output_tokens_per_second_per_gpu, output_tokens_per_second_per_user, output_tokens_per_second]
    required: true
  count:
    description: Number of candidates.
    type: int
    required: true
seealso:
  - module: trtllm.fleet.serving_plan
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Query AIConfigurator for the best layouts
  trtllm.fleet.tune_candidates:
    predictor: /root/.ansible/trtllm-fleet/aiconfigurator/bin/python
    recipe: "{{ generated.recipe }}"
    gpus: 8
    loads: "{{ planned.loads }}"
    objective: output_tokens_per_second_per_gpu
    count: 3
"""

RETURN = r"""
candidates:
  description: Variations, the best first; empty if nothing is predicted.
  returned: success
  type: list
  elements: dict
  sample:
    - gpus_per_instance: 2
      engine_options: {enable_attention_dp: true, moe_expert_parallel_size: 2, max_batch_size: 512}
predictions:
  description: A sentence for each, or why there is none.
  returned: success
  type: list
  elements: str
  sample: [AIConfigurator predicts 24,176 tokens/s a GPU and 47 a user for DEP2 with max_batch_size 512.]
"""
