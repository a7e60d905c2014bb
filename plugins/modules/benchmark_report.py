#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_report
short_description: Draw the result of a benchmark, compare it with another, and list all results
version_added: 0.1.0
description:
  - Writes C(report.html) with figures, charts, every load and what it ran on, and each chart as PNG file in C(charts).
  - With O(baseline) it is C(comparison.html), whose PNG files are in C(comparison-charts). A figure is better or worse
    only if it differs by more than noise and O(margin).
  - With O(index) it writes C(index.html) with all results of a directory.
  - A page is one file, which needs no network and has no script.
  - It runs on the control machine, where the results are, and needs what O(run) and O(baseline) need there.
requirements:
  - matplotlib, with O(run)
  - scipy, with O(baseline)
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: The pages are meant for people.
  idempotent:
    support: full
    details: The same results and the same matplotlib give the same pages, byte for byte.
options:
  run:
    description: Result to draw, the directory that M(trtllm.fleet.benchmark_run) returns as C(path).
    type: path
  baseline:
    description: Result to compare it with.
    type: path
  dest:
    description: Directory for the page. Left out, that of O(run).
    type: path
  published:
    description: Figures to show beside those of the same model, GPU type and numbers of tokens.
    type: list
    elements: dict
    default: []
    suboptions:
      model:
        description: Model id.
        type: str
        required: true
      gpu_type:
        description: GPU type.
        type: str
        required: true
      layout:
        description: How the model lay on the GPUs, such as C(TP1).
        type: str
        required: true
      input_tokens:
        description: Tokens of a prompt.
        type: int
        required: true
      output_tokens:
        description: Tokens of an answer.
        type: int
        required: true
      output_tokens_per_second_per_gpu:
        description: What was published.
        type: float
        required: true
      source:
        description: Where.
        type: str
        required: true
  margin:
    description: By how much a figure must differ at least to be better or worse, as a share.
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
  delegate_to: localhost

- name: Compare it with an earlier one
  trtllm.fleet.benchmark_report:
    run: benchmark-results/20261123T153000Z-gpu1-serve-0
    baseline: benchmark-results/20261101T101500Z-gpu1-serve-0
  delegate_to: localhost
  register: compared
  failed_when: compared is failed or compared.comparison.verdict in ["worse", "mixed"]
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
  description: Both results beside each other.
  returned: with O(baseline)
  type: dict
  contains:
    verdict:
      description: V(better), V(worse), V(mixed), V(within noise), or V(unknown) where nothing could be compared.
      type: str
      sample: worse
    counts:
      description: How many figures there are of each verdict.
      type: dict
      sample: {worse: 9, better: 0, within noise: 2, unknown: 0}
    differences:
      description: In what else they differ, with the run's first.
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
      description: The loads of both, each with its C(metrics); these have both medians, ratio, interval and verdict.
      type: list
      elements: dict
      sample:
        - scenario: quick_start
          users: 64
          metrics:
            - {metric: ttft_ms.p99, run: 310.2, baseline: 240.9, ratio: 1.288, low: 1.201, high: 1.381, verdict: worse}
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import compare as comparing
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import drawing
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.charts import SIDES, charts
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.pages import (
    comparison_page,
    index_page,
    report_page,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.run import RESULT, RunError, read_run
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file

# Of one result, and of two.
PAGES = ("report.html", "comparison.html")
CHARTS = ("charts", "comparison-charts")

Content = Union[str, bytes]
Files = dict[Path, Content]


def pages(given: Mapping[str, Any], result: dict[str, Any]) -> Files:
    """The files of one result, or of two; what is returned about them is put into ``result``. Raises RunError."""
    documents = [read_run(Path(given[name])) for name in ("run", "baseline") if given[name]]
    folder = Path(given["dest"] or given["run"])
    page = folder / PAGES[len(documents) - 1]
    drawn = charts(documents, given["published"])
    names = [str(document["name"]) for document in documents]
    whose = [f"{side}: {name}" for side, name in zip(SIDES, names)] if len(names) > 1 else names
    found: Files = {
        folder / CHARTS[len(documents) - 1] / f"{chart.name}.png": drawing.to_png(chart, [name, *whose])
        for name, of in drawn
        for chart in of
    }
    result.update(page=str(page), charts=[str(path) for path in found])
    svg = [(name, [(chart, drawing.to_svg(chart)) for chart in of]) for name, of in drawn]
    if len(documents) == 1:
        found[page] = report_page(documents[0], svg)
    else:
        result["comparison"] = comparing.compare(documents[0], documents[1], given["margin"])
        found[page] = comparison_page(documents[0], documents[1], result["comparison"], svg)
    return found


def index(folder: Path, written: Sequence[Path]) -> str:
    """The page of all results in a directory, with the pages that are there or in ``written``."""
    return index_page(sorted(_entries(folder, written), key=_age, reverse=True))


def _entries(folder: Path, written: Sequence[Path]) -> Iterator[tuple[str, Mapping[str, Any] | str, Sequence[str]]]:
    for path in sorted(folder.glob(f"*/{RESULT}")):
        there = [page for page in PAGES if (path.parent / page).exists() or path.parent / page in written]
        try:
            yield path.parent.name, read_run(path), [*there, RESULT]
        except RunError as error:
            yield path.parent.name, str(error), []


def _age(entry: tuple[str, Mapping[str, Any] | str, Sequence[str]]) -> tuple[str, str]:
    folder, document, _pages = entry
    return ("" if isinstance(document, str) else document["started"], folder)


def changed(files: Files) -> Files:
    """Those that are not there as they should be. Raises OSError."""
    return {path: new for path, new in files.items() if not path.exists() or path.read_bytes() != _bytes(new)}


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def main() -> None:
    figure = dict(
        model=dict(type="str", required=True),
        gpu_type=dict(type="str", required=True),
        layout=dict(type="str", required=True),
        input_tokens=dict(type="int", required=True, no_log=False),
        output_tokens=dict(type="int", required=True, no_log=False),
        output_tokens_per_second_per_gpu=dict(type="float", required=True, no_log=False),
        source=dict(type="str", required=True),
    )
    module = AnsibleModule(
        argument_spec=dict(
            run=dict(type="path"),
            baseline=dict(type="path"),
            dest=dict(type="path"),
            published=dict(type="list", elements="dict", default=[], options=figure),
            margin=dict(type="float", default=comparing.MARGIN),
            index=dict(type="path"),
        ),
        required_one_of=[("run", "index")],
        required_by={"baseline": "run", "dest": "run"},
        supports_check_mode=True,
    )
    given = module.params
    for option, library, error in (
        ("run", "matplotlib", drawing.IMPORT_ERROR),
        ("baseline", "scipy", comparing.IMPORT_ERROR),
    ):
        if given[option] and error:
            module.fail_json(msg=missing_required_lib(library), exception=error)
    if not given["margin"] >= 0:
        module.fail_json(msg=f"margin is {given['margin']:g}; it must be 0 or more, such as 0.05 for 5 %")
    result: dict[str, Any] = {}
    try:
        files = pages(given, result) if given["run"] else {}
        if given["index"]:
            page = Path(given["index"]) / "index.html"
            files[page] = index(page.parent, list(files))
            result["index"] = str(page)
        new = changed(files)
        if not module.check_mode:
            for path, content in new.items():
                write_file(path, content)
    except (RunError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(new), **result)


if __name__ == "__main__":
    main()
