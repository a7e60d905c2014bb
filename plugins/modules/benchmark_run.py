#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_run
short_description: Measure an endpoint by scenarios, and keep the results
version_added: 0.1.0
description:
  - Puts the loads of O(scenarios) on an endpoint, one after the other, with M(trtllm.fleet.benchmark_load) on the host
    of the task, and shows how far it is.
  - Each result is written on the control machine as soon as it is there, so a run that is broken off keeps what it had.
  - A scenario ends at the first number of users that loses a request, or misses O(slo) by the median of the rounds.
  - It fails where a request failed, or the tool did. What is missed of the objectives is returned, and no failure.
  - Role P(trtllm.fleet.benchmark#role) runs it.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.action
attributes:
  check_mode:
    support: full
    details: Returns the planned loads in check mode, and sends no request.
  diff_mode:
    support: none
  idempotent:
    support: none
    details: Each run measures again.
  action:
    details: Writes the results on the control node.
options:
  scenarios:
    description: Names of scenarios, in their order.
    type: list
    elements: str
    required: true
  table:
    description: The scenarios by name.
    type: dict
    required: true
  scenario_options:
    description: By scenario what differs from it; under a name that O(table) does not have another scenario.
    type: dict
    default: {}
  repeat:
    description: Rounds of each load.
    type: int
    required: true
  slo:
    description: Objectives, by figure such as C(ttft_ms.p99) or C(throughput.output_tokens_per_second_per_gpu).
    type: dict
    default: {}
  min_users:
    description: Users at once for whom O(slo) has to be met.
    type: int
    default: 1
  published:
    description: Published figures, as M(trtllm.fleet.benchmark_report) takes them.
    type: list
    elements: dict
    default: []
  published_share:
    description: The part of the published tokens a second and GPU that has to be reached; V(0) for none.
    type: float
    default: 0
  target:
    description:
      - The endpoint, C(name), C(kind), C(base_urls), C(model), C(gpus), C(load_from), C(note). It is kept as it is.
    type: dict
    required: true
  ran_on:
    description: What it runs on, by host, as P(trtllm.fleet.system_under_test#filter) makes it. It is kept as it is.
    type: dict
    default: {}
  results_dir:
    description: Directory on the control machine for the results.
    type: path
    required: true
  load:
    description:
      - Options of M(trtllm.fleet.benchmark_load) that are the same for all loads. C(directory) is one that is there.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Measure an endpoint
  trtllm.fleet.benchmark_run:
    scenarios: [chat]
    table:
      chat:
        tool: aiperf
        endpoint: chat
        input_tokens: 1024
        output_tokens: 256
        concurrency: [1, 4, 16]
        requests_per_user: 10
    repeat: 3
    target: {name: gpu1, kind: instance, base_urls: ["http://127.0.0.1:8000"], model: gpt-oss-120b, gpus: 8}
    results_dir: /srv/benchmark-results
    load: {directory: /tmp/load, tokenizer: /srv/models/gpt-oss-120b}
  register: measured
"""

RETURN = r"""
path:
  description: Directory with the result on the control machine.
  returned: when something was asked
  type: str
  sample: /srv/benchmark-results/20261123T165309Z-gpu1
result:
  description: The result, as C(result.json) has it there.
  returned: success, not in check mode
  type: dict
  sample: {schema: 1, state: complete, problems: []}
missed:
  description: Which objectives are missed, in sentences.
  returned: when something was asked
  type: list
  elements: str
  sample: ["chat, 16 at once: ttft_ms.p99 is 2310, above 2000"]
plan:
  description: Each scenario in a sentence.
  returned: success
  type: list
  elements: str
  sample: ["chat (ours): 1024 tokens in and 256 out, 1, 4, 16 at once, 3 rounds each, 630 requests by aiperf"]
"""
