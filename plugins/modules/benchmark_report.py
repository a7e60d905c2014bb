#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_report
short_description: Draw the result of a benchmark, compare it with another, and list all results
version_added: 1.0.0
description:
  - Writes C(report.html) with figures, charts, all loads and the system under test, and each chart as a PNG file in
    C(charts).
  - With O(baseline) writes C(comparison.html) and C(comparison-charts) instead. A figure is better or worse only if it
    differs by more than noise and O(margin).
  - With O(index) writes C(index.html) with all results of a directory.
  - A page is one file without scripts that loads nothing from the network.
requirements:
  - matplotlib on the control node, with O(run)
  - scipy on the control node, with O(baseline)
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.action
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: The pages are meant for people.
  idempotent:
    support: full
    details: With the same version of matplotlib, equal results have identical pages.
  action:
    details: Runs on the control node, where the results are, and does not connect to the host.
options:
  run:
    description: Directory of the result to draw, as M(trtllm.fleet.benchmark_run) returns it in C(path).
    type: path
  baseline:
    description: Directory of the result to compare it with.
    type: path
  dest:
    description: Directory for the page. The default is that of O(run).
    type: path
  published:
    description:
      - Published figures, shown with results of the same model, GPU type and numbers of tokens.
      - Each has C(model), C(gpu_type), C(layout) (such as C(TP1)), C(input_tokens), C(output_tokens),
        C(output_tokens_per_second_per_gpu) and C(source).
    type: list
    elements: dict
    default: []
  margin:
    description: Least difference of a better or worse figure, as a fraction.
    type: float
    default: 0.05
  index:
    description: Directory of results to list.
    type: path
"""

EXAMPLES = r"""
- name: Generate the page of a result
  trtllm.fleet.benchmark_report:
    run: benchmark-results/20261123T153000Z-gpu1-serve-0
    index: benchmark-results

- name: Compare the result with an earlier one
  trtllm.fleet.benchmark_report:
    run: benchmark-results/20261123T153000Z-gpu1-serve-0
    baseline: benchmark-results/20261101T101500Z-gpu1-serve-0
  register: compared
  failed_when: compared is failed or compared.comparison.gate | length > 0
"""

RETURN = r"""
page:
  description: The page with the charts.
  returned: with O(run)
  type: str
  sample: /srv/benchmark-results/20261123T153000Z-gpu1-serve-0/comparison.html
charts:
  description: The PNG files.
  returned: with O(run)
  type: list
  elements: str
  sample: [/srv/benchmark-results/20261123T153000Z-gpu1-serve-0/comparison-charts/pareto.png]
index:
  description: The page with all results.
  returned: with O(index)
  type: str
  sample: /srv/benchmark-results/index.html
comparison:
  description: Comparison of both results.
  returned: with O(baseline)
  type: dict
  contains:
    verdict:
      description: V(better), V(worse), V(mixed), V(within noise), or V(unknown) where nothing could be compared.
      type: str
      sample: worse
    counts:
      description: Number of figures of each verdict.
      type: dict
      sample: {worse: 9, better: 0, within noise: 2, unknown: 0}
    gate:
      description:
        - Why the run does not pass as a gate. Figures are worse, cannot be compared or were not measured, or a side has
          fewer than three rounds.
      type: list
      elements: str
      sample: ["9 of 11 figures are worse"]
    power:
      description: The changes that this comparison would have found, by its rounds and their spread.
      type: list
      elements: str
      sample: ["quick_start, 64 at once: tokens/s lower by 12% would be found in 80% of comparisons"]
    differences:
      description: Other differences, the run's value first.
      type: list
      elements: str
      sample: ["driver: 580.159.04, 575.57.08"]
    only_run:
      description: Loads that the baseline does not have.
      type: list
      elements: str
      sample: ["quick_start, 4096 at once"]
    only_baseline:
      description: Loads that only the baseline has.
      type: list
      elements: str
      sample: []
    loads:
      description: Loads of both results, each with its C(metrics) as medians, ratio, interval and verdict.
      type: list
      elements: dict
      sample:
        - scenario: quick_start
          users: 64
          metrics:
            - metric: ttft_ms.p99
              run: 310.2
              baseline: 240.9
              ratio: 1.288
              low: 1.201
              high: 1.381
              detectable: 1.1
              verdict: worse
"""
