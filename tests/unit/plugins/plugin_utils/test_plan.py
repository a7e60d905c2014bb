"""The plan: the recipe of each host of a fleet, and its changes."""

from __future__ import annotations

import copy
import itertools
import textwrap
from datetime import date
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import (
    PlannedHost,
    compare,
    failure,
    fleet_plan,
    look_up,
    make_plan,
    render,
    shorten,
    stale,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.revisions import readable, revision_hosts
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import RecipeError
from ansible_collections.trtllm.fleet.tests.schemas import valid

RECIPE: dict[str, Any] = {
    "name": "gpt-oss-120b-b200x4-max_throughput",
    "document": None,
    "model": "openai/gpt-oss-120b",
    "use_case": "max_throughput",
    "gpu_type": "b200",
    "gpu_count": 4,
    "gpus_per_instance": 2,
    "architecture": "sm100",
    "image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    "release": "1.2",
    "health": "refused",
    "instances": [
        {"name": "serve-0", "gpus": [0, 1], "port": 8000, "numa_node": 0},
        {"name": "serve-1", "gpus": [2, 3], "port": 8001, "numa_node": None},
    ],
    "engine_options": {"max_batch_size": 720, "moe_config": {"backend": "TRTLLM"}},
    "environment": {"TRTLLM_ENABLE_PDL": "1"},
    "limits": {"ipc": "host", "shm_size": None, "ulimits": {}},
    "requires": {"driver": "580", "gpu_memory_mib": 40000, "gpu_count": 4},
    "memory": {
        "weights_mib": 33000,
        "kv_cache_mib": 120000,
        "activations_mib": 5000,
        "cuda_graphs_mib": 2000,
        "runtime_mib": 2266,
        "free_mib": 21093,
        "total_mib": 183359,
        "kv_tokens": 3500000,
        "context": 131072,
        "sequences_at_context": 26.703,
        "fits": True,
    },
    "provenance": [
        {"option": "max_batch_size", "value": 720, "source": "serving_recipe_engine_options", "instead_of": 64},
        {"option": "moe_config.backend", "value": "TRTLLM", "source": "TensorRT-LLM deployment guide for GPT-OSS"},
        {"option": "limits.shm_size", "value": None, "source": "TensorRT-LLM README"},
    ],
    "notes": ["A note."],
    "warnings": ["A warning."],
}
VERIFIED = "3f786850e387"
MISSING: dict[str, Any] = {"verified": "", "description": None, "units": []}


def recipe(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(RECIPE), **changes}


def release(running: Any, *units: tuple[str, str]) -> dict[str, Any]:
    """Return the result of host_release_info for a running release; ``units`` have their release and state."""
    states = enumerate(units or [(VERIFIED, "active")] * 2)
    return {
        "verified": VERIFIED,
        "description": running,
        "units": [
            {"name": f"trtllm-serve-{number}.service", "release": name, "active": active}
            for number, (name, active) in states
        ],
    }


def planned(answer: Any = None, **changes: Any) -> PlannedHost:
    return PlannedHost(recipe(**changes), release=answer or MISSING)


def refused(*problems: str) -> PlannedHost:
    return PlannedHost(None, problems)


def text_of(hosts: dict[str, PlannedHost]) -> str:
    return render(make_plan(hosts))


# The running release


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (None, "not asked"),
        ({"skipped": True, "changed": False}, "not asked"),
        ({"unreachable": True, "msg": "Connection timed out"}, "not reachable"),
        (MISSING, "nothing runs"),
        ({"msg": "Permission denied"}, "cannot be read: Permission denied"),
        ({"failed": True}, "cannot be read: no answer"),
        (release(RECIPE), "runs this recipe already"),
        (release({"recipe": "only its name"}), "serves, but not from a release.json that holds its recipe"),
        (release(None), "serves, but not from a release.json that holds its recipe"),
        (
            {**release(None), "verified": ""},
            "is set to run a release that was never verified: an interrupted run",
        ),
    ],
)
def test_states_of_the_running_release(answer: Any, state: str) -> None:
    assert compare(answer, RECIPE) == (state, [])


RUNS, FAILED, LOST = (VERIFIED, "active"), (VERIFIED, "failed"), ("", "inactive")
ELSEWHERE = ("89e6c98d9288", "active")


@pytest.mark.parametrize(
    ("units", "trouble"),
    [
        ([RUNS, FAILED], "trtllm-serve-1 is failed"),
        ([RUNS, FAILED, FAILED, FAILED], "trtllm-serve-[1:3] are failed"),
        ([(VERIFIED, "activating"), FAILED], "trtllm-serve-0 is activating, trtllm-serve-1 is failed"),
        ([RUNS, LOST], "trtllm-serve-1 is not installed"),
        (
            [ELSEWHERE, ("89e6c98d9288", "failed")],
            "trtllm-serve-0, trtllm-serve-1 are set to run another release, by an interrupted switch",
        ),
    ],
)
def test_a_verified_release_may_not_run(units: list[tuple[str, str]], trouble: str) -> None:
    assert compare(release(RECIPE, *units), RECIPE) == (f"verified last, but {trouble}", [])
    state, changes = compare(release(recipe(image="another:1.2"), *units), RECIPE)
    assert state == f"would change; now {trouble}"
    assert [change["what"] for change in changes] == ["image"]


def test_a_release_without_units_does_not_run() -> None:
    assert compare({**release(RECIPE), "units": []}, RECIPE) == ("verified last, but it has no unit", [])


def test_changes_are_listed_by_value() -> None:
    running = recipe(
        image="nvcr.io/nvidia/tensorrt-llm/release:1.1.0",
        engine_options={"max_batch_size": 64, "moe_config": {"backend": "TRTLLM"}, "stream_interval": 20},
        environment={},
    )
    assert compare(release(running), RECIPE) == (
        "would change",
        [
            {
                "what": "image",
                "now": "nvcr.io/nvidia/tensorrt-llm/release:1.1.0",
                "planned": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
            },
            {"what": "engine_options.max_batch_size", "now": 64, "planned": 720},
            {"what": "engine_options.stream_interval", "now": 20},
            {"what": "environment.TRTLLM_ENABLE_PDL", "planned": "1"},
        ],
    )


def test_another_layout_is_one_change() -> None:
    running = recipe(instances=[{"name": "serve-0", "gpus": [0, 1, 2, 3], "port": 9000, "numa_node": 0}])
    assert compare(release(running), RECIPE)[1] == [{"what": "instances", "now": "1 x 4 GPUs", "planned": "2 x 2 GPUs"}]


def test_moved_instances_are_listed_by_instance() -> None:
    running = recipe()
    running["instances"][1].update(port=9001, gpus=[6, 7])
    assert compare(release(running), RECIPE)[1] == [
        {"what": "instances.serve-1.gpus", "now": [6, 7], "planned": [2, 3]},
        {"what": "instances.serve-1.port", "now": 9001, "planned": 8001},
    ]


def test_a_value_that_is_null_differs_from_one_that_is_not_set() -> None:
    options = {**RECIPE["engine_options"], "stream_interval": None}
    assert compare(release(RECIPE), recipe(engine_options=options))[1] == [
        {"what": "engine_options.stream_interval", "planned": None}
    ]


def test_an_empty_limit_is_not_set() -> None:
    running = recipe(limits={"ipc": "host"})
    assert compare(release(running), recipe(limits={**RECIPE["limits"], "cap_add": []}))[1] == []
    assert compare(release(running), recipe(limits={"ipc": None}))[1] == [{"what": "limits.ipc", "now": "host"}]


def test_other_values_are_not_changes() -> None:
    running = recipe(provenance=[], notes=[], warnings=[], memory={}, name="old")
    running["instances"][0]["numa_node"] = None
    assert compare(release(running), RECIPE)[0] == "runs this recipe already"


# Requests


def test_a_request_has_variables_over_defaults() -> None:
    requests: list[Any] = []

    def resolver(request: Any) -> Any:
        requests.append(request)
        return RECIPE

    variables = {
        "serving_recipe_port": 9000,
        "serving_recipe_unknown": 1,
        "__plan_gpus": {"skipped": True},
        "__plan_release": MISSING,
    }
    defaults = {"serving_recipe_port": 8000, "serving_recipe_limits": {}}
    assert look_up(variables, defaults, resolver) == PlannedHost(RECIPE, release=MISSING)
    named = ["serving_recipe_port", "serving_recipe_unknown"]
    assert requests == [{"port": 9000, "limits": {}, "detected": None, "variables": named}]


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ({"unreachable": True, "msg": "192.0.2.11: timed out"}, "could not be reached"),
        ({"failed": False, "msg": "no Python"}, "did not report its GPUs (no Python)"),
    ],
)
@pytest.mark.parametrize(("gpu_type", "missing"), [(None, "gpu_type"), ("b200", "gpu_count")])
def test_an_unreachable_host_has_unknown_gpus(gpus: Any, words: str, gpu_type: str | None, missing: str) -> None:
    variables = {"a": {"__plan_gpus": gpus, "serving_recipe_gpu_type": gpu_type, "serving_recipe_use_case": "any"}}
    (group,) = valid(fleet_plan(["a"], variables))["without_recipe"]
    not_gathered, use_case = group["problems"]
    assert not_gathered.startswith(f"serving_recipe_{missing}: the host {words}")
    assert "192.0.2.11" not in not_gathered, "hosts with the same problem share a group"
    assert use_case.startswith("serving_recipe_use_case")


def test_a_host_without_gpus() -> None:
    def resolver(request: Any) -> Any:
        assert request["detected"] == {"gpus": []}
        raise RecipeError(["no NVIDIA GPU was found on the host"])

    assert look_up({"__plan_gpus": {"gpus": []}}, {}, resolver).problems == ["no NVIDIA GPU was found on the host"]


def test_the_plan_of_a_fleet_from_its_variables() -> None:
    hosts = {
        "a": {"serving_recipe_gpu_type": "b200", "serving_recipe_gpu_count": 8},
        "b": {"serving_recipe_gpu_type": "b20", "serving_recipe_gpu_count": 8},
        "c": {"serving_recipe_gpu_type": "b200", "serving_recipe_gpu_count": 8, "serving_recipe_port": 9000},
    }
    plan = valid(fleet_plan(list(hosts), hosts))
    assert [group["recipe"]["name"] for group in plan["groups"]] == ["gpt-oss-120b-b200x8-low_latency"] * 2
    assert failure(plan) == "1 host without a recipe: b. The plan says why."


def test_variables_that_cannot_be_read_are_a_problem_of_one_host() -> None:
    class Broken(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            raise AnsibleError("'typo' is undefined")

    hosts = {"a": {"serving_recipe_gpu_type": "b200", "serving_recipe_gpu_count": 8}, "b": Broken()}
    data = valid(fleet_plan(list(hosts), hosts))
    assert data["groups"][0]["hosts"] == ["a"]
    assert data["without_recipe"] == [
        {"hosts": ["b"], "problems": ["the host's variables cannot be read: 'typo' is undefined"]}
    ]


# Groups


def test_hosts_with_the_same_recipe_are_one_group() -> None:
    hosts = {
        "gpu10": planned(),
        "gpu2": planned({"unreachable": True}),
        "gpu1": planned(),
        "other": planned(image="nvcr.io/nvidia/tensorrt-llm/release:1.3.0"),
        "bad1": refused("refused"),
        "bad2": refused("refused"),
    }
    data = make_plan(hosts)
    assert [group["hosts"] for group in data["groups"]] == [["gpu1", "gpu2", "gpu10"], ["other"]]
    assert data["groups"][0]["now"] == [
        {"state": "nothing runs", "hosts": ["gpu1", "gpu10"]},
        {"state": "not reachable", "hosts": ["gpu2"]},
    ]
    assert data["groups"][0]["recipe"] == RECIPE
    assert data["without_recipe"] == [{"hosts": ["bad1", "bad2"], "problems": ["refused"]}]


def test_the_order_of_the_inventory_does_not_matter() -> None:
    hosts = {"b": planned(), "a": planned(), "c": refused("refused")}
    assert make_plan(hosts) == make_plan(dict(reversed(hosts.items())))


def test_the_data_are_plain() -> None:
    data = make_plan({"a": planned(release(recipe(image="x:1"))), "b": refused("refused")})
    assert yaml.safe_load(yaml.safe_dump(data)) == data


# Names


@pytest.mark.parametrize(
    ("hosts", "short"),
    [
        ([], ""),
        (["gpu1"], "gpu1"),
        (["gpu2", "gpu1"], "gpu1, gpu2"),
        (["gpu1", "gpu2", "gpu3", "gpu5"], "gpu[1:3], gpu5"),
        ([f"gpu{n}" for n in range(1, 1001)], "gpu[1:1000]"),
        ([f"gpu{n:03}" for n in range(1, 1001)], "gpu[001:999], gpu1000"),
        ([f"gpu{n:04}" for n in range(1, 1001)], "gpu[0001:1000]"),
        ([f"dc2-gpu{n}.example.com" for n in range(3)], "dc2-gpu[0:2].example.com"),
        (["r1g1", "r1g2", "r1g3", "r2g1", "r2g2", "r2g3"], "r1g[1:3], r2g[1:3]"),
        ([f"192.0.2.{n}" for n in (9, 10, 11)], "192.0.2.[9:11]"),
        (["a", "b", "c"], "a, b, c"),
        (["1a", "a1", "1"], "1, 1a, a1"),
    ],
)
def test_runs_of_names_are_ranges(hosts: list[str], short: str) -> None:
    assert shorten(hosts) == short


def test_after_many_names_only_a_number_follows() -> None:
    assert shorten([f"gpu{n}" for n in range(0, 4000, 2)], listed=2) == "gpu0, gpu2, and 1,998 more"


# The text


def test_the_text_has_values_and_sources() -> None:
    hosts = {f"gpu{n}": planned() for n in range(1, 1001)}
    hosts["gpu7"] = planned(release(recipe(engine_options={"max_batch_size": 64})))
    expected = """\
        1,000 hosts with a recipe, 0 without

        1,000 hosts: gpu[1:1000]
          recipe     gpt-oss-120b-b200x4-max_throughput
          model      openai/gpt-oss-120b, max_throughput
          image      nvcr.io/nvidia/tensorrt-llm/release:1.2.1 (TensorRT-LLM 1.2)
          needs      4 x b200 (sm100), driver 580 or newer
          instances  serve-0  port 8000  GPUs 0, 1  NUMA node 0
                     serve-1  port 8001  GPUs 2, 3
          memory     of 183,359 MiB a GPU: weights 33,000, KV cache 120,000, activations 5,000, CUDA graphs 2,000,
                     runtime 2,266, free 21,093
                     KV cache of an instance holds 3,500,000 tokens: 26.7 x the full context of 131,072 tokens
          now        nothing runs: gpu[1:6], gpu[8:1000]
                     would change: gpu7
                       engine_options.max_batch_size: 64 -> 720
                       engine_options.moe_config.backend: not set -> TRTLLM

          option              value   source
          max_batch_size      720     serving_recipe_engine_options (the recipe says 64)
          moe_config.backend  TRTLLM  [1]
          limits.shm_size     null    [2]

          [1]  TensorRT-LLM deployment guide for GPT-OSS
          [2]  TensorRT-LLM README

          note       A note.
          warning    A warning."""
    assert text_of(hosts) == textwrap.dedent(expected)


def test_a_common_state_does_not_repeat_the_hosts() -> None:
    text = text_of({"a": planned(), "b": planned()})
    assert "  now        nothing runs" in text.splitlines()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "as the document {} has it"),
        ({"serving_recipe_image": "nvcr.io/nvidia/tensorrt-llm/release:1.0.0rc6"}, "as the document {} has it"),
        ({"serving_recipe_engine_options": {"trust_remote_code": True}}, "as the document {} has it"),
        ({"serving_recipe_limits": {"shm_size": None}}, "as the document {} has it"),
        ({"serving_recipe_port": 9000}, "as the document {} has it"),
        ({"serving_recipe_image": "registry.example.com/trt:1.0.0rc6"}, "based on the document {}"),
        ({"serving_recipe_engine_options": {"trust_remote_code": False}}, "based on the document {}"),
        ({"serving_recipe_engine_options": {"max_seq_len": 4096}}, "based on the document {}"),
        ({"serving_recipe_environment": {"NCCL_DEBUG": "INFO"}}, "based on the document {}"),
        ({"serving_recipe_limits": {"ipc": None}}, "based on the document {}"),
    ],
)
def test_the_text_names_the_document_and_changes(changes: dict[str, Any], words: str) -> None:
    name = "quick_start_low_latency"
    host = {"serving_recipe_name": name, "serving_recipe_gpu_type": "b200", "serving_recipe_gpu_count": 8}
    lines = render(valid(fleet_plan(["a"], {"a": {**host, **changes}}))).splitlines()
    assert f"  recipe     {name}-b200x8, {words.format(name)}" in lines


def test_several_instances_change_a_document() -> None:
    host = {
        "serving_recipe_name": "blog9_low_latency",
        "serving_recipe_gpu_type": "b200",
        "serving_recipe_gpu_count": 8,
        "serving_recipe_gpus_per_instance": 4,
    }
    text = render(valid(fleet_plan(["a"], {"a": host})))
    assert "  recipe     blog9_low_latency-b200x8, based on the document blog9_low_latency" in text.splitlines()
    text = render(fleet_plan(["a"], {"a": {**host, "serving_recipe_gpus_per_instance": 8}}))
    assert "as the document blog9_low_latency has it" in text


def test_the_text_has_the_kind_of_worker() -> None:
    host = {"serving_recipe_name": "dynamo_guide_decode", "serving_recipe_gpu_type": "b200"}
    lines = render(fleet_plan(["a"], {"a": {**host, "serving_recipe_gpus": [4, 5, 6, 7]}})).splitlines()
    assert "  recipe     dynamo_guide_decode-b200x4, as the document dynamo_guide_decode has it" in lines
    assert "  worker     decode, a part of disaggregated serving; site.yml refuses it" in lines
    assert "  instances  decode-0  port 8000  GPUs 4, 5, 6, 7" in lines
    assert "  worker" not in text_of({"a": planned()})


def test_lines_stay_within_the_width() -> None:
    values = [{"option": "x", "value": list(range(40)), "source": "many words " * 40}]
    hosts = {
        "a": planned(provenance=values, notes=["many words " * 40]),
        "b": planned(release(recipe(limits=dict.fromkeys("xyz", "a value" * 20)))),
        "c": refused("many words " * 40),
    }
    lines = text_of(hosts).splitlines()
    assert max(map(len, lines)) <= 112 + len("a value" * 20)
    assert max(len(line) for line in lines if "a valuea value" not in line) <= 112


def test_hosts_without_a_recipe_are_named() -> None:
    hosts = {"a1": planned(), "a2": refused("one", "two")}
    lines = text_of(hosts).splitlines()
    assert lines[0] == "1 host with a recipe, 1 without"
    assert lines[-3:] == ["1 host without a recipe: a2", "  - one", "  - two"]
    assert failure(make_plan(hosts)) == "1 host without a recipe: a2. The plan says why."
    assert failure(make_plan({"a1": planned()})) == ""


COMMIT = "b5c939de8f754692c1647ca79fbf85e8c1e70f8a"
PLANNED = {"serving_recipe_gpu_type": "b200", "serving_recipe_gpu_count": 8}
REACHED: dict[str, Any] = {"verified": "", "description": None, "units": [], "unreachable": False}


def revision_line(**variables: Any) -> str:
    lines = render(valid(fleet_plan(["a"], {"a": {**PLANNED, **variables}}))).splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("  revision"))
    rest = itertools.takewhile(lambda line: line.startswith("      "), lines[place + 1 :])
    return " ".join(line.strip() for line in [lines[place].removeprefix("  revision"), *rest])


def test_the_plan_shows_the_commit_of_the_revision() -> None:
    answer = {"commit": COMMIT, "revision": "main"}
    assert revision_line(__plan_revision=answer) == f"main, now commit {COMMIT}"
    plan = valid(fleet_plan(["a"], {"a": {**PLANNED, "__plan_revision": answer}}))
    assert plan["groups"][0]["revision"] == {"name": "main", "commit": COMMIT}
    assert revision_line(model_weights_revision=COMMIT) == COMMIT


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({}, "no reachable host can query the hub"),
        ({"__plan_revision": {"skipped": True}}, "no reachable host can query the hub"),
        (
            {"__plan_revision": {"failed": False, "msg": "https://huggingface.co cannot be reached (timed out)."}},
            "https://huggingface.co cannot be reached (timed out).",
        ),
        ({"bundle_dir": "/srv/bundle"}, "the bundle in bundle_dir (/srv/bundle) has the commit"),
    ],
    ids=["not_asked", "skipped", "no_network", "bundle"],
)
def test_the_plan_has_the_reason_for_an_unresolved_revision(variables: dict[str, Any], reason: str) -> None:
    assert revision_line(**variables) == f"main, not resolved: {reason}"


def test_one_host_queries_the_hub_for_each_revision() -> None:
    fleet: dict[str, dict[str, Any]] = {
        "gone": {"__plan_release": {"unreachable": True}},
        "a": {"__plan_release": REACHED},
        "b": {"__plan_release": REACHED},
        "other": {"__plan_release": REACHED, "model_weights_revision": "v2"},
        "pinned": {"__plan_release": REACHED, "model_weights_revision": COMMIT},
        "bundle": {"__plan_release": REACHED, "bundle_dir": "/srv/bundle"},
        "not_asked": {},
    }
    assert revision_hosts(readable([*fleet], fleet)) == ["a", "other"]
    variables = {name: {**PLANNED, **values} for name, values in fleet.items()}
    variables["a"]["__plan_revision"] = {"commit": COMMIT}
    variables["other"]["__plan_revision"] = {"msg": "no revision v2"}
    groups = valid(fleet_plan([*fleet], variables))["groups"]
    known = {host: group["revision"].get("commit") for group in groups for host in group["hosts"]}
    assert known == {
        "a": COMMIT,
        "b": COMMIT,
        "gone": COMMIT,
        "not_asked": COMMIT,
        "pinned": COMMIT,
        "other": None,
        "bundle": None,
    }


def test_unreadable_variables_do_not_affect_other_hosts() -> None:
    class Broken(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            raise AnsibleError("no such variable")

    fleet = {"a": {"__plan_release": REACHED}, "broken": Broken()}
    assert revision_hosts(readable([*fleet], fleet)) == ["a"]


@pytest.mark.parametrize(
    ("weights", "commit", "changes"),
    [
        (
            f"/srv/models/openai/gpt-oss-120b/{COMMIT}",
            "0" * 40,
            [{"what": "commit", "now": COMMIT, "planned": "0" * 40}],
        ),
        (f"/srv/models/openai/gpt-oss-120b/{COMMIT}", COMMIT, []),
        (f"/srv/models/openai/gpt-oss-120b/{COMMIT}", None, []),
        ("/mnt/own/weights", COMMIT, []),
    ],
    ids=["moved", "same", "not_resolved", "own_weights"],
)
def test_a_moved_revision_is_a_change(weights: str, commit: str | None, changes: list[Any]) -> None:
    running = release({**recipe(), "weights": weights})
    assert compare(running, recipe(), commit)[1] == changes


@pytest.mark.parametrize(("today", "said"), [("2026-11-26", ""), ("2027-02-18", ""), ("2027-02-19", "121 days old")])
def test_an_old_release_table_is_a_warning(today: str, said: str) -> None:
    rows = {
        "1.3": {"date": "2026-05-06", "default_tag": "1.3.0rc14"},
        "1.4": {"date": "2026-10-21", "default_tag": "1.4.0rc1"},
    }
    sentence = stale(rows, date.fromisoformat(today))
    assert said in sentence
    assert bool(sentence) is bool(said)
    assert "1.3.0rc14" not in sentence
