"""Every combination that the role supports: a configuration that its image accepts, or a reason."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pydantic
import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import expand_releases
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import get
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import USE_CASES, RecipeError, resolve
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_declared, load_tables
from lab.engine import options as engine

TABLES = load_tables()
GPU_TYPES = [row["gpu_type"] for row in TABLES.hardware]
COUNTS = [1, 2, 3, 4, 6, 8]
SIZES = [None, 1, 2, 4, 8]
TAGS = [row["default_tag"] for row in TABLES.releases.values()]
# Reasons from the combination itself: the rest of a request here is always valid.
REASONS = ("gpu_type", "gpu_count", "gpus_per_instance", "image", "model", "name", "draft_model")
DRAFT = "nvidia/gpt-oss-120b-Eagle3-v3"


def request(**cell: Any) -> dict[str, Any]:
    return {
        "model": "openai/gpt-oss-120b",
        "use_case": "low_latency",
        "image": None,
        "port": 8000,
        "engine_options": {},
        "environment": {},
        "limits": {},
        **cell,
    }


def models() -> Iterator[dict[str, Any]]:
    grid = itertools.product(TABLES.models, GPU_TYPES, COUNTS, SIZES, USE_CASES, TAGS, [None, DRAFT])
    for model, gpu_type, count, size, use_case, tag, draft in grid:
        # A draft model does not depend on the size of an instance.
        if draft and size:
            continue
        yield request(
            draft_model=draft,
            model=model,
            gpu_type=gpu_type,
            gpu_count=count,
            gpus_per_instance=size,
            use_case=use_case,
            image=f"registry/release:{tag}",
        )


def documents() -> Iterator[dict[str, Any]]:
    for name, gpu_type, count in itertools.product(TABLES.documents, GPU_TYPES, COUNTS):
        yield request(name=name, gpu_type=gpu_type, gpu_count=count)


def outcome(asked: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the recipe, or the problems."""
    try:
        return resolve(asked, TABLES), []
    except RecipeError as error:
        return {}, error.problems


@cache
def declared_by(release: str) -> type[pydantic.BaseModel]:
    """Return the options as TensorRT-LLM declares them, without this project's restrictions."""
    declared = load_declared()[TABLES.releases[release]["declared"]]
    return engine.model(
        expand_releases([{"name": "1.0", "declared": "it", "engine_options": {}}], {"it": declared})["1.0"][
            "engine_options"
        ]
    )


@cache
def engine_of(release: str) -> type[pydantic.BaseModel]:
    """Return the options as the lab's engine reads them: with pydantic like upstream, not with these checks."""
    return engine.model(TABLES.releases[release]["engine_options"])


def check(recipe: dict[str, Any], asked: dict[str, Any]) -> None:
    options = recipe["engine_options"]
    engine_of(recipe["release"]).model_validate(options, strict=True)
    # gpt-oss-dev is a branch without a page: it has a backend more than the release that its row is made of.
    if recipe["release"] != "gpt-oss-dev":
        declared_by(recipe["release"]).model_validate(options, strict=True)
    gpus = [gpu for instance in recipe["instances"] for gpu in instance["gpus"]]
    assert sorted(gpus) == list(range(asked["gpu_count"])), "a GPU is idle or used twice"
    ports = [instance["port"] for instance in recipe["instances"]]
    assert ports == list(range(8000, 8000 + len(ports)))
    assert {len(instance["gpus"]) for instance in recipe["instances"]} == {recipe["gpus_per_instance"]}
    assert options.get("tensor_parallel_size", 1) == recipe["gpus_per_instance"]
    assert recipe["memory"]["fits"]
    assert bool(get(options, ("speculative_config", "decoding_type"))) is bool(asked.get("draft_model"))
    expected = ("serving_recipe_gpu_count: ", "serving_recipe_gpu_type: gb10 is experimental: ")
    assert [text for text in recipe["warnings"] if not text.startswith(expected)] == []
    assert all(entry["source"] for entry in recipe["provenance"])
    # Set by layers that choose by architecture, so a new one without a layer has neither.
    dense = not TABLES.models[recipe["model"]]["facts"].get("experts")
    assert recipe["document"] or dense or options["moe_config"]["backend"], "no MoE backend"
    batch_size = options.get("max_batch_size") or recipe["flags"].get("max_batch_size")
    assert recipe["document"] or batch_size, "no batch size"
    # A published configuration is unchanged.
    assert recipe["document"] or options["trust_remote_code"] is False


@pytest.mark.parametrize("grid", [models, documents])
def test_every_combination_has_a_recipe_or_a_reason(grid: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rendered: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for asked in grid():
        recipe, problems = outcome(asked)
        if recipe:
            check(recipe, asked)
            rendered[recipe["gpu_type"]] += 1
        else:
            variables = [problem.split(": ", 1)[0].removeprefix("serving_recipe_") for problem in problems]
            assert variables, asked
            assert set(variables) <= set(REASONS), (asked, problems)
            refused[variables[0]] += 1
    with capsys.disabled():
        print(f"\n{grid.__name__}: {rendered.total()} cells rendered {dict(rendered)}")
        print(f"{grid.__name__}: {refused.total()} cells refused, by what to change {dict(refused)}")
    # The documents are for certain GPUs and images.
    usable = {row["gpu_type"] for row in TABLES.hardware if "refused" not in row}
    assert set(rendered) == usable if grid is models else {"b200", "gb200", "h200", "h100"} <= set(rendered) < usable


@pytest.mark.parametrize("gpu_type", ["a100", "l40s"])
def test_unsupported_gpus_are_rejected_by_name(gpu_type: str) -> None:
    with pytest.raises(RecipeError, match=rf"serving_recipe_gpu_type: {gpu_type} is not supported: .*MXFP4"):
        resolve(request(gpu_type=gpu_type, gpu_count=8), TABLES)
