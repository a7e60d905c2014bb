#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_plan
short_description: Build the plan of all hosts of a play
version_added: 1.0.0
description:
  - Resolves the recipe of each host, as role P(trtllm.fleet.serving_recipe#role) does. A host without a recipe is in
    the plan with its problems; the module does not fail.
  - Groups hosts with the same recipe, and compares each recipe with the release that the host runs.
  - Reads the variables of each host, which have the defaults of the role where not set. C(__plan_gpus) is the result of
    M(trtllm.fleet.gpu_info), C(__plan_release) of M(trtllm.fleet.host_release_info), and C(__plan_revision) of
    M(trtllm.fleet.hub_manifest_info). Each may be missing, skipped, failed or unreachable.
  - The playbook C(trtllm.fleet.plan) gathers these results and runs the module once.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.attributes.action
attributes:
  action:
    details: Runs on the control node and does not connect to the host.
options:
  select_revision_hosts:
    description:
      - Only return the hosts that query the hub before the plan is built.
      - There is one for each revision of a model on a hub, among the hosts that returned C(__plan_release). A bundle or
        a revision that is a commit needs no query.
    type: bool
    default: false
  predictor:
    description:
      - Python interpreter that has NVIDIA's AIConfigurator, which predicts without a GPU what each recipe serves.
      - Takes half a minute for each model and GPU type. Without it nothing is predicted.
    type: path
  prompt_tokens:
    description: Tokens of a prompt for the prediction. By default 1,024, or for the use case V(agentic) 32,000.
    type: int
  answer_tokens:
    description: Tokens of an answer. By default 1,024, or for the use case V(agentic) 256.
    type: int
  gpu_hour_price:
    description: Price of a GPU for an hour, for the price of a million output tokens.
    type: float
  results:
    description:
      - Directory of results of role P(trtllm.fleet.benchmark#role). The plan says how far the predictions are from
        those of the same model, GPU type and layout.
    type: path
seealso:
  - module: trtllm.fleet.serving_recipe
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Build the plan
  trtllm.fleet.serving_plan:
  register: plan
  run_once: true

- name: Show the plan
  ansible.builtin.debug:
    msg: "{{ plan.text }}"
  run_once: true
"""

RETURN = r"""
revision_hosts:
  description: Names of the hosts that query the hub.
  returned: O(select_revision_hosts=true)
  type: list
  elements: str
  sample: [gpu1]
text:
  description: The plan for a terminal.
  returned: O(select_revision_hosts=false)
  type: str
data:
  description:
    - The complete plan. C(groups) has, for each recipe and revision, its hosts, their changes, the recipe, and the
      revision with its commit or the reason why the commit is unknown, and with O(predictor) C(prediction).
    - C(without_recipe) has the other hosts and their problems.
    - The same fleet in the same state gives the same data.
  returned: O(select_revision_hosts=false)
  type: dict
failure:
  description: The hosts without a recipe, in one sentence; empty if all have one.
  returned: O(select_revision_hosts=false)
  type: str
  sample: "2 hosts without a recipe: gpu3, gpu7. The plan says why."
"""
