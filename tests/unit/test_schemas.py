"""The published schemas of JSON documents. tests/schemas.py validates documents elsewhere, too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.plugin_utils.documents import VERSIONS, identified
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import fleet_plan
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status import make_status
from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.trial import pooled
from ansible_collections.trtllm.fleet.tests.schemas import SCHEMAS, valid
from ansible_collections.trtllm.fleet.tests.unit.benchmark_sample import SUBJECT, document
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.plugins.modules.test_host_status_info import Machine

GPUS = {"serving_recipe_gpu_type": "b200", "serving_recipe_gpu_count": 8}
SEVERAL = [
    {"model": "openai/gpt-oss-120b", "gpus": [0, 1, 2, 3]},
    {"model": "openai/gpt-oss-20b", "gpus": [4], "use_case": "max_throughput"},
]
# What a host's variables may ask for, so that each key of a recipe is in one of the plans.
ASKED: dict[str, dict[str, Any]] = {
    "default": GPUS,
    "options": {**GPUS, "serving_recipe_engine_options": {"max_batch_size": 64}},
    "document": {**GPUS, "serving_recipe_name": "quick_start_max_throughput"},
    "worker": {**GPUS, "serving_recipe_worker": "prefill"},
    "fine-tune": {**GPUS, "serving_recipe_model": "me/tuned", "serving_recipe_base_model": "openai/gpt-oss-120b"},
    "several models": {"serving_recipe_gpu_type": "b200", "serving_recipe_models": SEVERAL},
    "no recipe": {"serving_recipe_gpu_type": "b2000", "serving_recipe_gpu_count": 8},
}
RUNNING = {"verified": "r1", "units": [], "description": {"engine_options": {"max_batch_size": 1}, "weights": ""}}


def subschemas(schema: Any, path: str = "$") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the schema of each named value, with its path."""
    if isinstance(schema, list):
        for one in schema:
            yield from subschemas(one, path)
    elif isinstance(schema, Mapping):
        for group in ("properties", "$defs"):
            for name, value in schema.get(group, {}).items():
                yield f"{path}.{name}", value
        for key, value in schema.items():
            inner = value.values() if key in ("properties", "$defs") else [value]
            for one in inner:
                yield from subschemas(one, f"{path}.{key}")


def test_each_kind_has_a_schema_of_its_version() -> None:
    assert {kind: schema["properties"]["schema"]["const"] for kind, schema in SCHEMAS.items()} == VERSIONS
    for kind, schema in SCHEMAS.items():
        assert schema["properties"]["kind"]["const"] == kind
        assert schema["$id"] == f"urn:trtllm-fleet:schema:{kind}:{VERSIONS[kind]}"
        assert schema["title"]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_is_valid_and_describes_each_key(kind: str) -> None:
    schema = SCHEMAS[kind]
    Draft202012Validator.check_schema(schema)
    named = list(subschemas(schema))
    assert len(named) > 10
    assert [path for path, value in named if not (value.get("description", "").endswith(".") or "$ref" in value)] == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_required_keys_are_described(kind: str) -> None:
    required = [(schema["required"], schema["properties"]) for schema in objects(SCHEMAS[kind])]
    assert required
    assert all(set(names) <= set(properties) for names, properties in required)


def objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each schema with required keys."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("required"), list):
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def test_readers_may_get_new_keys_and_tests_may_not() -> None:
    plan = identified("plan", {"groups": [], "without_recipe": [], "new": 1})
    Draft202012Validator(SCHEMAS["plan"]).validate(plan)
    with pytest.raises(AssertionError, match="'new' was unexpected"):
        valid(plan)


@pytest.mark.parametrize("time", ["yesterday", "2026-11-29T08:00:00"])
def test_a_time_has_a_time_zone(tmp_path: Path, time: str) -> None:
    with pytest.raises(AssertionError, match="is not a 'date-time'"):
        valid({**document(tmp_path), "started": time})


@pytest.mark.parametrize("release", [None, {"unreachable": True, "msg": "x"}, RUNNING], ids=["asked", "lost", "runs"])
@pytest.mark.parametrize("asked", ASKED)
def test_plans(asked: str, release: Any) -> None:
    plan = fleet_plan(["gpu1"], {"gpu1": {**ASKED[asked], "__plan_release": release}})
    assert bool(plan["groups"]) == (asked != "no recipe"), plan["without_recipe"]
    valid(json.loads(json.dumps(plan)))


@pytest.mark.parametrize(
    "prediction",
    [
        {"problem": "AIConfigurator has no figures of rtx_5090"},
        {
            "prompt": 1024,
            "cached": 0,
            "answer": 1024,
            "requests": 16,
            "ttft_ms": 20.1,
            "per_user": 180.2,
            "per_gpu": 900.0,
            "price": 0.61,
            "published": [0.1],
            "measured": [],
        },
    ],
    ids=["none", "known"],
)
def test_plans_with_a_prediction(prediction: dict[str, Any]) -> None:
    plan = fleet_plan(["gpu1"], {"gpu1": GPUS})
    plan["groups"][0]["prediction"] = prediction
    valid(plan)


@pytest.mark.parametrize("state", ["running", "complete", "failed"])
@pytest.mark.parametrize("ran_on", [{}, {"gpu1": SUBJECT}], ids=["unknown", "known"])
def test_benchmarks(tmp_path: Path, state: str, ran_on: dict[str, Any]) -> None:
    result = valid(document(tmp_path, state=state, ran_on=ran_on))
    assert result["state"] == state


def test_benchmarks_that_an_objective_stopped(tmp_path: Path) -> None:
    result = document(tmp_path, slo={"ttft_ms.p99": 1})
    assert valid(result)["stopped"]


def test_pooled_benchmarks(tmp_path: Path) -> None:
    valid(pooled([document(tmp_path / str(seed), seed=seed) for seed in (1, 2)], "variation"))


@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.parametrize("driver", ["answers", "hangs"])
def test_statuses_of_what_the_module_returns(tmp_path: Path, serves: bool, driver: str) -> None:
    machine = Machine(tmp_path, port=1)
    if serves:
        machine.serve()
        machine.end_run()
        (tmp_path / "etc").mkdir(exist_ok=True)
        (tmp_path / "etc/a").write_text("changed by hand")
    if driver == "hangs":
        machine.broken["nvidia-smi"] = CommandResult(None, "")
    answers = {"gpu1": machine.gather(), "gpu2": {"unreachable": True, "msg": "no route"}}
    status = valid(make_status(answers, {"gateway1": {"msg": "no answer"}}, ["gpu1"], "2026-11-29T08:00:00+00:00"))
    assert [host["verdict"] for host in status["hosts"]] == ["down" if serves else "nothing", "unreachable"]


def test_the_page_names_each_document() -> None:
    page = (ROOT / "docs/reference/interfaces.md").read_text()
    assert [kind for kind in SCHEMAS if f"[{kind}](schemas/{kind}.schema.json)" not in page] == []
