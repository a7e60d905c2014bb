"""Layouts that a search tries because AIConfigurator proposes them, with a stand-in for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.action.tune_candidates import supported_sizes
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.candidates import candidates
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import SYSTEMS, Question
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables, serving_recipe
from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.space import problems

SIZES = (1, 2, 4, 8)
PER_GPU = "output_tokens_per_second_per_gpu"
# Tokens/s of a GPU and of a user by layout.
SPEED = {
    "TP1": (900, 20),
    "TP2 EP2": (700, 40),
    "DEP2": (1000, 25),
    "TP4 EP4": (500, 60),
    "DEP4": (800, 22),
    "TP8 EP8": (300, 90),
    "DEP8": (600, 21),
}


def load(concurrency: int, prompt: int = 1024) -> dict[str, Any]:
    return {"scenario": "s", "concurrency": concurrency, "input_tokens": prompt, "output_tokens": 256}


def answers(questions: Sequence[Question]) -> Mapping[Question, dict[str, Any]]:
    return {
        question: dict(
            zip(("tokens_per_second_per_gpu", "tokens_per_second_per_user"), SPEED[str(question.layout)], strict=True)
        )
        for question in questions
    }


def recipe(**asked: Any) -> dict[str, Any]:
    defaults = {"model": "openai/gpt-oss-120b", "gpu_type": "h200", "gpu_count": 8, "port": 8000}
    return serving_recipe({**defaults, "use_case": "max_throughput", **asked})


def names(found: Sequence[Mapping[str, Any]]) -> list[tuple[int, bool, int]]:
    return [
        (
            one["gpus_per_instance"],
            one["engine_options"]["enable_attention_dp"],
            one["engine_options"]["max_batch_size"],
        )
        for one in found
    ]


def test_the_best_layouts_with_the_batch_of_the_load() -> None:
    found, said = candidates(recipe(), SIZES, 8, [load(512), load(4096)], PER_GPU, 3, answers)
    # Of attention DP a batch is that of a GPU.
    assert names(found) == [(2, True, 512), (1, False, 512), (4, True, 512)]
    assert said[0] == "AIConfigurator predicts 1,000 tokens/s a GPU and 25 a user for DEP2 with max_batch_size 512."
    assert list(problems({"AIConfigurator's layouts": found})) == []


def test_the_best_for_a_user() -> None:
    found, _said = candidates(recipe(), SIZES, 8, [load(16)], "output_tokens_per_second_per_user", 2, answers)
    assert names(found) == [(8, False, 16), (4, False, 8)]


def test_gpus_that_are_left_over_are_not_a_layout() -> None:
    found, _said = candidates(recipe(gpu_count=2), SIZES, 2, [load(64)], PER_GPU, 9, answers)
    assert sorted({size for size, _attention_dp, _batch in names(found)}) == [1, 2]


def test_sizes_without_a_recipe_are_not_a_layout() -> None:
    found, _said = candidates(recipe(), (1, 4), 8, [load(64)], PER_GPU, 9, answers)
    assert sorted({size for size, _attention_dp, _batch in names(found)}) == [1, 4]


@pytest.mark.parametrize(
    ("model", "gpu_type"),
    [
        (model, gpu_type)
        for model in ("openai/gpt-oss-120b", "openai/gpt-oss-20b")
        for gpu_type in SYSTEMS
        if gpu_type in load_tables().models[model]["supported"]
    ],
)
def test_each_proposal_is_a_recipe(model: str, gpu_type: str) -> None:
    own = recipe(model=model, gpu_type=gpu_type, gpu_count=max(supported_sizes(recipe(model=model, gpu_type=gpu_type))))
    gpus = sum(len(instance["gpus"]) for instance in own["instances"])
    found, _said = candidates(own, supported_sizes(own), gpus, [load(256)], PER_GPU, 9, answers)
    for variation in found:
        recipe(model=model, gpu_type=gpu_type, gpu_count=gpus, **variation)


def test_random_arrivals_are_not_predicted() -> None:
    found, said = candidates(recipe(), SIZES, 8, [load(0)], PER_GPU, 3, answers)
    assert (found, len(said)) == ([], 1)


def test_the_recipe_itself_is_no_candidate() -> None:
    own = recipe(engine_options={"max_batch_size": 512})
    assert (own["gpus_per_instance"], own["engine_options"].get("enable_attention_dp")) == (1, False)
    found, _said = candidates(own, SIZES, 8, [load(4096)], PER_GPU, 9, answers)
    assert (1, False, 512) not in names(found)
    assert len(found) == len(SPEED) - 1


@pytest.mark.parametrize("gpu_type", ["rtx_pro_6000"])
def test_an_unknown_gpu_is_said(gpu_type: str) -> None:
    found, said = candidates(recipe(gpu_type=gpu_type), SIZES, 8, [load(8)], PER_GPU, 3, answers)
    assert (found, said) == ([], [f"AIConfigurator proposes no layout: AIConfigurator has no figures of {gpu_type}."])


def test_problems_of_all_layouts_are_said() -> None:
    def nothing(questions: Sequence[Question]) -> Mapping[Question, dict[str, Any]]:
        return {question: {"problem": "no kernel"} for question in questions}

    assert candidates(recipe(), SIZES, 8, [load(8)], PER_GPU, 3, nothing) == (
        [],
        ["AIConfigurator proposes no layout: no kernel."],
    )
