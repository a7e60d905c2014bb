# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variations of a recipe that AIConfigurator predicts to be the best for a load, to be measured by a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.plan import PER_GPU, Ask, Recipe, not_predicted
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import Layout, Question, Shape

PER_USER = "tokens_per_second_per_user"


def candidates(
    recipe: Recipe,
    sizes: Sequence[int],
    gpus: int,
    loads: Sequence[Mapping[str, Any]],
    objective: str,
    count: int,
    ask: Ask,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the best variations for the largest load, and each prediction or why there is none as a sentence.

    ``recipe``: the inventory's, which is left out; ``sizes``: GPUs that an instance may have; ``gpus``: those of the
    host; ``loads``: as module benchmark_run returns them; ``objective``: a throughput of the results; ``count``: of
    variations. All instances together get the requests of the load, so a layout's batch follows from them.
    AIConfigurator 0.12 has no kernels of gpt-oss with tensor-parallel experts, so layouts with those are not among the
    variations.
    """
    if problem := not_predicted(recipe):
        return [], [f"AIConfigurator proposes no layout: {problem}."]
    load = max(loads, key=lambda one: int(one["concurrency"]))
    if not load["concurrency"]:
        return [], ["AIConfigurator proposes no layout: it predicts for users, and the load has random arrivals."]
    model, shape = recipe["base_model"] or recipe["model"], Shape(load["input_tokens"], load["output_tokens"])
    questions = [
        Question(model, recipe["gpu_type"], shape, layout, _batch(layout, gpus, load["concurrency"]))
        for layout in _layouts(sizes, gpus)
    ]
    answers = ask(questions)
    most = PER_USER if objective == "output_tokens_per_second_per_user" else PER_GPU
    known = [question for question in questions if "problem" not in answers[question]]
    own = (Layout.of(recipe), recipe["engine_options"].get("max_batch_size"))
    ranked = sorted(known, key=lambda question: -float(answers[question][most]))
    chosen = [question for question in ranked if (question.layout, question.batch) != own][:count]
    if not chosen:
        reasons = {str(answers[question].get("problem")) for question in questions if question not in known}
        return [], [
            f"AIConfigurator proposes no layout: {'; '.join(sorted(reasons)) or 'none but that of the recipe'}."
        ]
    said = [
        f"AIConfigurator predicts {answers[question][PER_GPU]:,.0f} tokens/s a GPU and "
        f"{answers[question][PER_USER]:,.0f} a user for {question.layout} with max_batch_size {question.batch}."
        for question in chosen
    ]
    return [_variation(question) for question in chosen], said


def _layouts(sizes: Sequence[int], gpus: int) -> Iterator[Layout]:
    for size in sizes:
        if gpus % size == 0:
            yield Layout(size, False, size)
            if size > 1:
                yield Layout(size, True, size)


def _batch(layout: Layout, gpus: int, requests: int) -> int:
    """Return the requests at a time of an instance, with attention DP of each of its GPUs."""
    return max(1, math.ceil(requests / (gpus // layout.gpus * layout.ranks)))


def _variation(question: Question) -> dict[str, Any]:
    layout = question.layout
    return {
        "gpus_per_instance": layout.gpus,
        "engine_options": {
            "enable_attention_dp": layout.attention_dp,
            "moe_expert_parallel_size": layout.expert_parallel,
            "max_batch_size": question.batch,
        },
    }
