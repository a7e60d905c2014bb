#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_run
short_description: Measure an endpoint by scenarios and write the results
version_added: 1.0.0
description:
  - Runs the loads of O(scenarios) one after the other with M(trtllm.fleet.benchmark_load) on the host of the task, and
    shows the progress.
  - Writes each result on the control node at once, so that an interrupted run keeps its results.
  - A scenario ends at the first concurrency that fails a request, or misses O(slo) by the median of the rounds.
  - Fails if a request or the tool failed. Missed objectives are returned and do not fail the task.
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
    description: Names of scenarios in their order.
    type: list
    elements: str
    required: true
  table:
    description: The scenarios by name.
    type: dict
    required: true
  scenario_options:
    description: Changed values by scenario. A name that O(table) does not have is a new scenario.
    type: dict
    default: {}
  repeat:
    description: Number of rounds of each load.
    type: int
    required: true
  slo:
    description: Objectives, by figure such as C(ttft_ms.p99) or C(throughput.output_tokens_per_second_per_gpu).
    type: dict
    default: {}
  min_users:
    description: Concurrency at which O(slo) must be met.
    type: int
    default: 1
  published:
    description: Published figures, as M(trtllm.fleet.benchmark_report) takes them.
    type: list
    elements: dict
    default: []
  published_share:
    description: Fraction of the published tokens/s per GPU that must be reached; V(0) for none.
    type: float
    default: 0
  target:
    description:
      - The endpoint as C(name), C(kind), C(base_urls), C(model), C(gpus), C(load_from), C(note), copied to the result.
    type: dict
    required: true
  ran_on:
    description: Systems by host, as P(trtllm.fleet.system_under_test#filter) returns them, copied to the result.
    type: dict
    default: {}
  results_dir:
    description: Directory on the control node for the results.
    type: path
    required: true
  load:
    description:
      - Options of M(trtllm.fleet.benchmark_load) for all loads. C(directory) must exist.
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
  description: Directory of the result on the control node.
  returned: not in check mode
  type: str
  sample: /srv/benchmark-results/20261123T165309Z-gpu1
result:
  description: The content of C(result.json).
  returned: success, not in check mode
  type: dict
  sample: {kind: benchmark, schema: 1, state: complete, problems: []}
missed:
  description: The missed objectives.
  returned: not in check mode
  type: list
  elements: str
  sample: ["chat, 16 at once: ttft_ms.p99 is 2310, above 2000"]
plan:
  description: A description of each scenario.
  returned: success
  type: list
  elements: str
  sample: ["chat (ours): 1024 tokens in and 256 out, 1, 4, 16 at once, 3 rounds each, 630 requests by aiperf"]
loads:
  description:
    - The largest load of each scenario. C(concurrency) is the most requests at a time, 0 for random arrivals.
  returned: success
  type: list
  elements: dict
  sample: [{scenario: chat, tool: aiperf, concurrency: 16, input_tokens: 1024, output_tokens: 256}]
"""
