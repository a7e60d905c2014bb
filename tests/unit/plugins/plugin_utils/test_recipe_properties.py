"""Properties of every recipe request, with generated requests."""

from __future__ import annotations

import copy
import datetime
import difflib
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import (
    check_options,
    dotted,
    option_paths,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import get, leaves, merge, merge_part
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import RecipeError, resolve
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from ansible_collections.trtllm.fleet.tests.unit.recipe_problems import recipe_problems

TABLES = load_tables()
REQUEST: dict[str, Any] = {
    "model": "openai/gpt-oss-120b",
    "use_case": "low_latency",
    "gpu_type": "b200",
    "gpu_count": 8,
    "port": 8000,
    "engine_options": {},
    "environment": {},
    "limits": {},
}

names = st.text(alphabet="abcdefgh_", min_size=1, max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
trees = st.dictionaries(names, values, max_size=4)
releases = st.sampled_from(list(TABLES.releases))


@given(st.lists(trees, max_size=5))
def test_the_last_layer_that_sets_a_value_is_used(layers: list[dict[str, Any]]) -> None:
    merged = merge_part([{"source": "s", "part": layer} for layer in layers], "part")
    for path, value in leaves(merged):
        for layer in reversed(layers):
            # No later layer may set the path or a group of it.
            said = [get(layer, path[:depth], ...) for depth in range(1, len(path) + 1)]
            if said[-1] is not ...:
                assert said[-1] == value or (value == {} and said[-1] == {}) or isinstance(said[-1], dict)
                break
            assert not any(part is not ... and not isinstance(part, dict) for part in said[:-1])


@given(trees, trees)
def test_merging_changes_and_shares_nothing(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    before = copy.deepcopy((lower, upper))
    merged = merge(lower, upper)
    assert (lower, upper) == before

    def boxes(tree: Any) -> set[int]:
        inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
        return {id(tree), *(box for item in inner for box in boxes(item))} if isinstance(tree, (dict, list)) else set()

    assert boxes(merged) & (boxes(lower) | boxes(upper)) == set()


@given(trees, trees, trees)
def test_merging_is_associative_where_types_agree(a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    def clash(x: dict[str, Any], y: dict[str, Any]) -> bool:
        return any(
            isinstance(x[key], dict) != isinstance(y[key], dict) or (isinstance(x[key], dict) and clash(x[key], y[key]))
            for key in x.keys() & y.keys()
        )

    assume(not (clash(a, b) or clash(b, c) or clash(a, c)))
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(releases, st.data())
def test_an_unknown_key_is_always_caught_and_named(release: str, data: st.DataObject) -> None:
    specs = TABLES.releases[release]["engine_options"]
    known = option_paths(specs)
    groups = ["", *(path for path in known if f"{path}." in "".join(f"{other} " for other in known))]
    group = data.draw(st.sampled_from(groups))
    name = data.draw(names | st.sampled_from(known).map(lambda path: path.split(".")[-1] + "x"))
    path = f"{group}.{name}" if group else name
    assume(path not in known)
    options: Any = data.draw(values)
    for part in reversed(path.split(".")):
        options = {part: options}

    ((found, sentence),) = check_options(options, specs)
    assert dotted(found) == path
    near = difflib.get_close_matches(path, known, n=1)
    assert not near or f"Did you mean '{near[0]}'?" in sentence

    tag = TABLES.releases[release]["default_tag"]
    problems = recipe_problems({**REQUEST, "image": f"r/i:{tag}", "engine_options": options})
    (problem,) = [problem for problem in problems if repr(path) in problem]
    assert problem.startswith(f"serving_recipe_engine_options: engine.yaml for TensorRT-LLM {release} ")


requests = st.fixed_dictionaries(
    {
        "model": st.sampled_from([*TABLES.models, "gpt-oss", None]) | values,
        "use_case": st.sampled_from(["low_latency", "max_throughput", "fast", None]) | values,
        "port": st.integers(-1, 70000) | scalars,
        "engine_options": st.dictionaries(
            st.sampled_from(list(TABLES.releases["1.2"]["engine_options"])), values, max_size=3
        )
        | values,
        "environment": trees | values,
        "limits": st.dictionaries(st.sampled_from(["ipc", "shm_size", "ulimits", "shm"]), values, max_size=2) | scalars,
    },
    optional={
        "name": st.sampled_from([*TABLES.documents, "quick_start", None]) | values,
        "trtllm_version": st.sampled_from([*TABLES.releases, "1.9", None]) | values,
        "gpu_type": st.sampled_from([*(row["gpu_type"] for row in TABLES.hardware), "b20", None]) | values,
        "gpu_count": st.integers(-1, 9) | scalars,
        "gpus": st.lists(st.integers(-1, 9) | scalars, max_size=4) | scalars,
        "gpus_per_instance": st.integers(-1, 9) | scalars,
        "image": st.sampled_from(["r/i:1.2.1", "r/i:2.1", "r/i:latest", "r/i", "r/i:gpt-oss-dev", None]) | values,
    },
)


@given(requests)
@example({**REQUEST, "gpu_type": ["b200"]})
@example({**REQUEST, "gpu_count": "²"})
@example({**REQUEST, "limits": {"ulimits": "memlock"}})
@example({**REQUEST, "engine_options": {"env_overrides": {1: "x", "a": datetime.date(2026, 1, 1)}}})
def test_any_request_has_a_recipe_or_problems(request: dict[str, Any]) -> None:
    before = copy.deepcopy(request)
    problems = recipe_problems(request)
    assert request == before
    if problems:
        assert [problem for problem in problems if not problem.startswith("serving_recipe_") or "\n" in problem] == []
    else:
        assert resolve(request, TABLES)["instances"]


@given(st.dictionaries(st.sampled_from(["max_batch_size", "max_num_tokens", "stream_interval"]), st.integers(1, 4096)))
def test_an_override_is_used_and_has_the_replaced_value(own: dict[str, Any]) -> None:
    plain = resolve(REQUEST, TABLES)["engine_options"]
    try:
        recipe = resolve({**REQUEST, "engine_options": own}, TABLES)
    except RecipeError:
        return  # the rules refused the combination
    entries = {entry["option"]: entry for entry in recipe["provenance"]}
    for name, value in own.items():
        assert recipe["engine_options"][name] == value
        assert entries[name]["source"] == "serving_recipe_engine_options"
        assert entries[name].get("instead_of", value) == plain[name]
    assert {name for name, entry in entries.items() if "instead_of" in entry} == {
        name for name, value in own.items() if plain[name] != value
    }


@pytest.mark.parametrize("model", TABLES.models)
def test_the_tables_are_not_changed_by_use(model: str) -> None:
    before = copy.deepcopy(TABLES)
    own = {"engine_options": {"cuda_graph_config": {"enable_padding": False}}, "limits": {"ulimits": {"stack": None}}}
    resolve({**REQUEST, "model": model, **own}, TABLES)
    assert before == TABLES
