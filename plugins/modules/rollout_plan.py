#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_plan
short_description: Generate the plan of a rollout
version_added: 1.0.0
description:
  - Decides which hosts are updated together, so that a share of all instances serves at each moment.
  - A host is updated if it does not run the release of the inventory, if something below the release changes, or if it
    is not in service at every gateway although no operator drained it.
  - The instances of a host are updated one at a time if each new one has name, port and GPUs of an old one. Otherwise
    they are updated all at once.
  - Reads the facts C(trtllm_server_plan) and C(rollout_platform) of all hosts of the play. The first is required. Entry
    point C(plan) of role P(trtllm.fleet.trtllm_server#role) sets it.
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.attributes.action
attributes:
  action:
    details: Runs on the control node and does not connect to the host.
options:
  gateways:
    description: Results of M(trtllm.fleet.gateway_info), one for each gateway.
    type: list
    elements: dict
    required: true
  batches:
    description: Number or percentage of hosts in each step, as C(serial) of a play. The last entry repeats.
    type: list
    elements: raw
    required: true
  min_capacity:
    description: Percentage of all instances that serve at each moment.
    type: int
    required: true
  seconds:
    description: Expected seconds for each batch of instances. Used for the times in the plan's text.
    type: float
    required: true
  bake:
    description: Seconds for which the first step is observed before the next.
    type: float
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Generate the rollout plan
  trtllm.fleet.rollout_plan:
    gateways: "{{ gateways.results }}"
    batches: [1, "25%"]
    min_capacity: 50
    seconds: 300
    bake: 60
  register: plan
  run_once: true
"""

RETURN = r"""
text:
  description: The plan as text.
  returned: success
  type: str
  sample: |-
    1 of 2 hosts are updated, in 1 steps
order:
  description: Names of the hosts to update, in order.
  returned: success
  type: list
  elements: str
  sample: [gpu1, gpu2]
steps:
  description: The same hosts, grouped by step.
  returned: success
  type: list
  elements: list
  sample: [[gpu1], [gpu2]]
canaries:
  description: Names of the hosts in the first step of each model.
  returned: success
  type: list
  elements: str
  sample: [gpu1]
models:
  description: The models whose instances are updated, by host.
  returned: success
  type: dict
  sample: {gpu1: [openai/gpt-oss-120b]}
instance_batches:
  description: >-
    Names of the instances in each batch, by host. An empty list means all instances. Instances that run the same in
    both releases are in no batch.
  returned: success
  type: dict
  sample: {gpu1: [[serve-0], [serve-1]], gpu2: [[]]}
interrupted:
  description: Names of the instances that an interrupted rollout left at another release, by host.
  returned: success
  type: dict
  sample: {gpu1: [serve-0], gpu2: []}
away:
  description: Number of instances of a model in service that the update drains at the same time, by host.
  returned: success
  type: dict
  sample: {gpu1: 1, gpu2: 8}
serving:
  description: Names of the hosts with instances in service.
  returned: success
  type: list
  elements: str
  sample: [gpu1, gpu2]
releases:
  description: Names of the verified release, V(null) without one, and of the release to run, by host.
  returned: success
  type: dict
  sample: {gpu1: {before: 3f786850e387, after: 89e6c98d9288}}
"""
