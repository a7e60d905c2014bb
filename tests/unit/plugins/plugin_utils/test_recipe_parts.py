"""Recipes of hosts with several models."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_defaults, serving_recipe
from ansible_collections.trtllm.fleet.tests.unit.recipe_problems import recipe_problems

BIG, SMALL = "openai/gpt-oss-120b", "openai/gpt-oss-20b"
REQUEST: dict[str, Any] = {
    **{name.removeprefix("serving_recipe_"): value for name, value in load_defaults().items()},
    "gpu_type": "h200",
    "detected": None,
}
MODELS = [
    {"model": BIG, "gpus": [0, 1, 2, 3], "gpus_per_instance": 2},
    {"model": SMALL, "gpus": [4, 5], "gpus_per_instance": 1, "use_case": "max_throughput"},
]


def recipe(*entries: Any, **changes: Any) -> dict[str, Any]:
    return serving_recipe({**REQUEST, "models": list(entries), **changes})


def problems(*entries: Any, **changes: Any) -> list[str]:
    return recipe_problems({**REQUEST, "models": list(entries), **changes})


def test_each_model_has_its_gpus_and_instances() -> None:
    found = recipe(*MODELS)
    assert [(one["name"], one["model"], one["gpus"], one["port"], one["part"]) for one in found["instances"]] == [
        ("serve-0", BIG, [0, 1], 8000, 0),
        ("serve-1", BIG, [2, 3], 8001, 0),
        ("serve-2", SMALL, [4], 8002, 1),
        ("serve-3", SMALL, [5], 8003, 1),
    ]
    assert found["name"] == "gpt-oss-120b-h200x4-low_latency+gpt-oss-20b-h200x2-max_throughput"
    assert (found["gpu_count"], found["requires"]["gpu_count"]) == (6, 6)


def test_a_part_is_the_recipe_of_its_model_on_a_host_with_others() -> None:
    alone = serving_recipe(
        {**REQUEST, "model": SMALL, "use_case": "max_throughput", "gpu_count": 2, "gpus_per_instance": 1}
    )
    part = recipe(*MODELS)["parts"][1]
    for name in ("model", "served_model", "engine_options", "flags", "environment", "limits", "memory"):
        assert part[name] == alone[name], name


def test_one_instance_of_each_model_shares_the_host() -> None:
    """Limits of several instances apply, although no model has more than one."""
    found = recipe({"model": BIG, "gpus": [0]}, {"model": SMALL, "gpus": [1]})
    alone = serving_recipe({**REQUEST, "gpu_count": 1})
    together = serving_recipe({**REQUEST, "gpu_count": 2, "gpus_per_instance": 1})
    assert found["parts"][0]["limits"] == together["limits"]
    assert alone["limits"] != together["limits"]


def test_options_of_one_model() -> None:
    found = recipe({**MODELS[0], "engine_options": {"max_batch_size": 7}}, MODELS[1])
    assert [part["engine_options"]["max_batch_size"] == 7 for part in found["parts"]] == [True, False]


def test_a_host_with_one_model_has_no_parts() -> None:
    assert "parts" not in serving_recipe({**REQUEST, "gpu_count": 8, "variables": ["serving_recipe_models"]})


@pytest.mark.parametrize(
    ("entries", "changes", "words"),
    [
        ([{"model": BIG}], {}, "entry 1: gpus is missing."),
        ([{"gpus": [0]}], {}, "entry 1: model is missing."),
        (["openai/gpt-oss-20b"], {}, "is not a dictionary with model and gpus."),
        ([*MODELS, {"model": "openai/gpt-oss-120b", "gpus": [6]}], {}, "openai/gpt-oss-120b is there twice."),
        ([MODELS[0], {"model": SMALL, "gpus": [3, 4]}], {}, "entry 2: GPU 3 is in an entry before."),
        (
            [{**MODELS[0], "engine_option": {}}, MODELS[1]],
            {},
            "cannot be set for one model. Did you mean 'engine_options'?",
        ),
        ([{**MODELS[0], "port": 9000}], {}, "entry 1: port cannot be set for one model."),
        ([{"model": BIG, "gpus": "all"}], {}, "entry 1: serving_recipe_gpus: ['all'] is not a list of GPU indices"),
        ([{"model": "openai/gpt-5", "gpus": [0]}], {}, "entry 1: serving_recipe_model"),
        (MODELS, {"gpu_count": 8}, "serving_recipe_gpu_count: cannot be set with serving_recipe_models. Remove it."),
    ],
)
def test_wrong_entries_are_named(entries: list[Any], changes: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in problems(*entries, **changes)), problems(*entries, **changes)


def test_models_with_different_images_are_rejected() -> None:
    """A published configuration brings its image."""
    entries = [{**MODELS[0], "name": "quick_start_guide"}, MODELS[1]]
    found = problems(*entries, gpu_type="b200")
    assert any("Set serving_recipe_image." in one or "serving_recipe_name" in one for one in found), found
