# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the layout of each default recipe with the best one that NVIDIA's AIConfigurator predicts.

A cell is a model, a GPU type, the number of GPUs of a host, a use case and the tokens of a request. Layouts with whole
experts on a GPU, with and without attention DP, are predicted under the objective of the use case
(tools/data/recipe_check.yml), each at its best batch size. A cell fails if the default recipe has less than the least
share of the best layout, and the data has no explanation.

Writes docs/reference/predictions.md, which-gpu.md beside it, and the errors of the predictions for plans. The
last line is one JSON object. The exit status is 1 if a cell fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import (
    BATCHES,
    SYSTEMS,
    Answer,
    Layout,
    Question,
    Shape,
    ask,
    best,
    up_to,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import applies
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_prediction, load_published
from tools.markdown import table
from tools.predict import recommend
from tools.predict.environment import python
from tools.recipe_pages import TABLES, host_gpus, recipe_for, short, words

ROOT = Path(__file__).resolve().parents[2]
DATA: dict[str, Any] = yaml.safe_load((ROOT / "tools/data/recipe_check.yml").read_text())
OBJECTIVES = load_prediction()["objectives"]
PREFIX = load_prediction()["prefix"]
PAGE = ROOT / "docs/reference/predictions.md"
WHICH_GPU = PAGE.with_name("which-gpu.md")
ERRORS = ROOT / "roles/serving_recipe/vars/prediction_errors.yml"
COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Cell:
    """What is compared, and the default recipe's layout and batch size."""

    model: str
    gpu_type: str
    count: int
    use_case: str
    shape: Shape
    layout: Layout
    max_batch_size: int

    def candidates(self) -> list[Layout]:
        """Return layouts of instances on these GPUs, the default first.

        AIConfigurator has no data of gpt-oss for experts that are split over GPUs.
        """
        sizes = [size for size in TABLES.models[self.model]["supported"][self.gpu_type] if self.count % size == 0]
        split = [Layout(size, dp, size) for size in sizes for dp in ([False, True] if size > 1 else [False])]
        return list(dict.fromkeys([self.layout, *split]))

    def batches(self, layout: Layout) -> list[int]:
        """Return the batch sizes to try, for the default recipe up to its own."""
        if requests := OBJECTIVES[self.use_case].get("requests"):
            return [requests]
        limit = self.max_batch_size if layout == self.layout else max(BATCHES)
        return up_to(limit)

    def questions(self, layout: Layout | None = None) -> Iterator[Question]:
        """Yield the questions about one layout, or about all candidates."""
        for each in [layout] if layout else self.candidates():
            for batch in self.batches(each):
                yield Question(self.model, self.gpu_type, self.shape, each, batch)


def cells() -> Iterator[Cell]:
    """Yield the cells of all models with experts and GPU types that AIConfigurator knows.

    A dense model has one layout for a number of GPUs.
    """
    for model, row in TABLES.models.items():
        if not row["facts"].get("experts"):
            continue
        for gpu_type in (name for name in row["supported"] if name in SYSTEMS):
            for count in (count for count in COUNTS if count <= host_gpus(gpu_type)):
                for use_case in OBJECTIVES:
                    recipe = recipe_for(gpu_type, use_case, model=model, gpu_count=count)
                    batch = recipe["engine_options"]["max_batch_size"]
                    for prompt, answer in DATA["shapes"]:
                        shape = Shape(prompt, answer, int(prompt * PREFIX) if use_case == "agentic" else 0)
                        yield Cell(model, gpu_type, count, use_case, shape, Layout.of(recipe), batch)


@dataclass(frozen=True)
class Result:
    """A cell with the values of its layouts, best first."""

    cell: Cell
    values: Sequence[tuple[Layout, float, int]]
    unknown: Sequence[Layout]

    @property
    def share(self) -> float | None:
        """The default's value in shares of the best; None where one of them is not predicted."""
        own = [value for layout, value, _batch in self.values if layout == self.cell.layout]
        return own[0] / self.values[0][1] if own else None

    @property
    def explanation(self) -> int | None:
        """The number of the reason in the data for which the default has another layout, from 1."""
        cell = self.cell
        facts = {
            "model": cell.model,
            "gpu_type": cell.gpu_type,
            "gpus": cell.count,
            "use_case": cell.use_case,
            "shape": f"{cell.shape.prompt}/{cell.shape.answer}",
            "predicted": self.share is not None,
        }
        return next((number for number, row in enumerate(DATA["explained"], 1) if applies(row, facts)), None)

    @property
    def verdict(self) -> str:
        if not self.values:
            return "no prediction"
        if self.share is not None and self.share >= DATA["least"]:
            return "passed"
        return "explained" if self.explanation else "failed"


def judge(cell: Cell, answers: Mapping[Question, Answer]) -> Result:
    found, unknown = [], []
    objective = OBJECTIVES[cell.use_case]
    for layout in cell.candidates():
        chosen = best(cell.questions(layout), answers, objective)
        if chosen:
            found.append((layout, float(chosen[1][objective["most"]]), chosen[0].batch))
        else:
            unknown.append(layout)
    return Result(cell, sorted(found, key=lambda one: -one[1]), unknown)


# The page


def page(results: Sequence[Result], answers: Mapping[Question, Answer]) -> str:
    text = [
        "# Default recipes beside NVIDIA's AIConfigurator\n",
        "<!-- Written by `make check-recipes`. -->\n",
        f"AIConfigurator {load_prediction()['version']} predicts what a layout serves from kernels that NVIDIA "
        "measured on each GPU. Each row is the layout of a default recipe beside the best one on a host with these "
        f"GPUs, by the objective of the use case. A default must have {DATA['least']:.0%} of the best, or a reason.\n",
    ]
    for use_case, objective in OBJECTIVES.items():
        text += [f"## {words(use_case).capitalize()}\n", goal(objective)]
        rows = [row(result) for result in results if result.cell.use_case == use_case]
        header = ["Model", "GPUs", "Prompt/answer", "Default", "Value", "Best", "Value", "Share", "Result"]
        text.append(table(header, rows))
    reasons = [f"{number}. {row['because']}.\n" for number, row in enumerate(DATA["explained"], 1)]
    return "\n".join([*text, "## Reasons\n", "".join(reasons), *published(answers)])


def goal(objective: Mapping[str, Any]) -> str:
    what = {"tokens_per_second_per_user": "tokens/s of a user", "tokens_per_second_per_gpu": "tokens/s of a GPU"}
    if "requests" in objective:
        return f"The most {what[objective['most']]}, with one request at a time.\n"
    return f"The most {what[objective['most']]}, with at least {objective['least_per_user']} tokens/s for each user.\n"


def row(result: Result) -> list[str]:
    cell = result.cell
    own = next((one for one in result.values if one[0] == cell.layout), None)
    first = result.values[0] if result.values else None
    share = f"{result.share:.0%}" if result.share is not None else ""
    return [
        short(cell.model),
        f"{cell.count} x {cell.gpu_type}",
        str(cell.shape),
        str(cell.layout),
        f"{own[1]:,.0f}" if own else "",
        str(first[0]) if first else "",
        f"{first[1]:,.0f}" if first else "",
        share,
        f"reason {result.explanation}" if result.verdict == "explained" else result.verdict,
    ]


def published(answers: Mapping[Question, Answer]) -> Iterator[str]:
    """Yield NVIDIA's published figures and the errors of the predictions."""
    yield "## Predictions and NVIDIA's published figures\n"
    yield f"Output tokens/s of a GPU, each at its best batch size. {load_published()[0]['source']}.\n"
    rows = []
    for figure, predicted in of_published(answers):
        tokens = figure["output_tokens_per_second_per_gpu"]
        rows.append(
            [
                short(figure["model"]),
                figure["gpu_type"],
                figure["layout"],
                f"{figure['input_tokens']:,}/{figure['output_tokens']:,}",
                f"{tokens:,}",
                f"{predicted:,.0f}" if predicted else "none",
                f"{predicted / tokens - 1:+.0%}" if predicted else "",
            ]
        )
    yield table(["Model", "GPU", "Layout", "Prompt/answer", "Published", "Predicted", "Error"], rows)


def published_questions(figure: Mapping[str, Any]) -> list[Question]:
    """Return the questions about the layout of one of NVIDIA's published figures, whose batch size is not known."""
    shape = Shape(figure["input_tokens"], figure["output_tokens"])
    layout = Layout.published(figure["layout"])
    return [Question(figure["model"], figure["gpu_type"], shape, layout, batch) for batch in BATCHES]


def of_published(answers: Mapping[Question, Answer]) -> Iterator[tuple[Mapping[str, Any], float | None]]:
    """Yield NVIDIA's published figures with what is predicted, output tokens/s of a GPU."""
    for figure in load_published():
        found = best(published_questions(figure), answers, {"most": "tokens_per_second_per_gpu"})
        yield figure, float(found[1]["tokens_per_second_per_gpu"]) if found else None


def errors(answers: Mapping[Question, Answer]) -> str:
    """Return the errors of the predictions by model and GPU type as a file of role serving_recipe, for plans."""
    found: dict[str, dict[str, list[float]]] = {}
    for figure, predicted in of_published(answers):
        if predicted:
            error = predicted / figure["output_tokens_per_second_per_gpu"] - 1
            found.setdefault(figure["model"], {}).setdefault(figure["gpu_type"], []).append(round(error, 2))
    head = "---\n# Written by `make check-recipes`: predicted / published - 1 for each of NVIDIA's figures.\n"
    rows = [
        f"  {model}:\n" + "".join(f"    {gpu_type}: {values}\n" for gpu_type, values in by_type.items())
        for model, by_type in found.items()
    ]
    return head + "__serving_recipe_prediction_errors:\n" + "".join(rows)


def loads() -> Iterator[recommend.Load]:
    """Yield the loads of the page of hosts for loads."""
    for one in DATA["loads"]:
        yield recommend.Load(Shape(*one["shape"]), one["user"], one["tokens"])


def main() -> None:
    every = list(cells())
    questions = [question for cell in every for question in cell.questions()]
    questions += [question for figure in load_published() for question in published_questions(figure)]
    candidates = list(recommend.hosts())
    questions += [question for load in loads() for host in candidates for question in host.questions(load)]
    answers = ask(questions, python())
    results = [judge(cell, answers) for cell in every]
    PAGE.write_text(page(results, answers))
    WHICH_GPU.write_text(recommend.page(list(loads()), candidates, answers))
    ERRORS.write_text(errors(answers))
    counts: dict[str, int] = {}
    for result in results:
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
        if result.verdict == "failed":
            print(" | ".join(row(result)))
    print(json.dumps({"questions": len(answers), "cells": len(results), **counts}))
    sys.exit(1 if counts.get("failed") else 0)


if __name__ == "__main__":
    main()
