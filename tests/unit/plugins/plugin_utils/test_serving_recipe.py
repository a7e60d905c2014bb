"""Recipes and problems of requests on the role's tables, and the checks that they use."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import (
    check_options,
    image_tag,
    option_paths,
    select_release,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import leaves, merge
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import USE_CASES, RecipeError, resolve
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables, serving_recipe
from ansible_collections.trtllm.fleet.tests.unit.recipe_problems import recipe_problems

REQUEST: dict[str, Any] = {
    "model": "openai/gpt-oss-120b",
    "use_case": "low_latency",
    "gpu_type": "b200",
    "gpu_count": 8,
    "detected": {"skipped": True, "changed": False},
    "image": None,
    "port": 8000,
    "engine_options": {},
    "environment": {},
    "limits": {},
}


def detected(product: str | None, count: int, *device_ids: str, homogeneous: bool = True) -> dict[str, Any]:
    """Return the part of gpu_info's result that a recipe reads."""
    return {
        "count": count,
        "product_name": product,
        "pci_device_ids": list(device_ids),
        "homogeneous": homogeneous,
        "gpus": [{"product_name": product, "device_id": device_ids[index % len(device_ids)]} for index in range(count)],
    }


def problems(**changes: Any) -> list[str]:
    return recipe_problems({**REQUEST, **changes})


def test_the_recipe_for_eight_b200_is_the_contract() -> None:
    recipe = serving_recipe(REQUEST)
    assert recipe.pop("provenance")
    assert recipe.pop("memory")["fits"]
    assert recipe.pop("notes")
    assert recipe["requires"].pop("gpu_memory_mib") > 0
    assert recipe == {
        "name": "gpt-oss-120b-b200x8-low_latency",
        "document": None,
        "as_written": False,
        "model": "openai/gpt-oss-120b",
        "base_model": None,
        "config": {},
        "draft_model": None,
        # TensorRT-LLM 1.2 has no option for the name.
        "served_model": "gpt-oss-120b",
        "use_case": "low_latency",
        "worker": None,
        "gpu_type": "b200",
        "gpu_count": 8,
        "architecture": "sm100",
        "image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        "release": "1.2",
        "health": "refused",
        "harmony": True,
        "vocabulary": True,
        "dynamo_parsers": {"reasoning": "gpt_oss", "tool_call": "harmony"},
        "gpus_per_instance": 8,
        "instances": [{"name": "serve-0", "gpus": [0, 1, 2, 3, 4, 5, 6, 7], "port": 8000, "numa_node": None}],
        # examples/configs/curated/gpt-oss-120b-latency.yaml, with the KV cache of examples/configs/database.
        "engine_options": {
            "enable_iter_perf_stats": True,
            "max_batch_size": 64,
            "max_num_tokens": 20000,
            "enable_chunked_prefill": True,
            "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.85},
            "tensor_parallel_size": 8,
            "moe_expert_parallel_size": 1,
            "trust_remote_code": False,
            "enable_attention_dp": False,
            "cuda_graph_config": {
                "enable_padding": True,
                "batch_sizes": [1, 2, 4, *range(8, 129, 8), *range(192, 2049, 64)],
            },
            "moe_config": {"backend": "TRTLLM"},
            "stream_interval": 4,
            "num_postprocess_workers": 4,
        },
        "flags": {},
        "environment": {"NCCL_GRAPH_REGISTER": "0", "TRTLLM_ENABLE_PDL": "1", "TRTLLM_NO_USAGE_STATS": "1"},
        "limits": {
            "ipc": "host",
            "shm_size": None,
            "ulimits": {"memlock": "-1", "nofile": "65536:65536", "stack": "67108864"},
            "cap_add": [],
            "devices": [],
        },
        "requires": {
            "gpu_products": ["NVIDIA B200"],
            "gpu_pci_ids": ["0x2901"],
            "driver": "580",
            "gpu_count": 8,
        },
        "warnings": [],
    }


DRAFT = "nvidia/gpt-oss-120b-Eagle3-v3"

# Values of the sources: TP, EP, attention DP, batch, MoE backend, KV dtype.
PUBLISHED = [
    # model, GPU type, use case, GPUs of an instance
    # InferenceX (pure TP on each number of GPUs); examples/configs/curated/gpt-oss-120b-latency.yaml for eight.
    ("openai/gpt-oss-120b", "b200", "low_latency", 1, (1, 1, False, 64, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "low_latency", 2, (2, 1, False, 64, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "gb200", "low_latency", 4, (4, 1, False, 64, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b300", "low_latency", 8, (8, 1, False, 64, "TRTLLM", "fp8")),
    # NVIDIA's performance tests on one, two and four GPUs; the quick start's DEP for eight.
    ("openai/gpt-oss-120b", "gb200", "max_throughput", 1, (1, 1, False, 512, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "gb200", "max_throughput", 2, (2, 2, True, 1024, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "gb200", "max_throughput", 4, (4, 4, True, 640, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "max_throughput", 2, (2, 2, True, 1024, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "max_throughput", 4, (4, 4, True, 640, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "max_throughput", 8, (8, 8, True, 720, "TRTLLM", "fp8")),
    # database H200/1k1k_tp{1,2,4,8}_conc64.yaml.
    ("openai/gpt-oss-120b", "h200", "low_latency", 1, (1, 1, False, 64, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h200_nvl", "low_latency", 2, (2, 2, False, 64, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h200", "low_latency", 8, (8, 8, False, 64, "TRITON", "auto")),
    # Blog 9's batch of 640; attention DP as in the database's best file for eight, and in perf-overview for H100.
    ("openai/gpt-oss-120b", "h200", "max_throughput", 1, (1, 1, False, 640, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h200", "max_throughput", 8, (8, 8, True, 640, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h100", "max_throughput", 4, (4, 4, True, 640, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h100", "max_throughput", 2, (2, 2, True, 640, "TRITON", "auto")),
    # AUTO takes CUTLASS on sm120.
    ("openai/gpt-oss-120b", "rtx_pro_6000", "low_latency", 1, (1, 1, False, 64, "CUTLASS", "auto")),
    ("openai/gpt-oss-20b", "rtx_5090", "max_throughput", 1, (1, 1, False, 640, "CUTLASS", "auto")),
    # Dynamo's agentic recipes for vLLM.
    ("openai/gpt-oss-120b", "b200", "agentic", 1, (1, 1, False, 256, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "h200", "agentic", 1, (1, 1, False, 256, "TRITON", "auto")),
    # perf-overview: one GPU.
    ("openai/gpt-oss-20b", "b200", "low_latency", 1, (1, 1, False, 64, "TRTLLM", "fp8")),
    ("openai/gpt-oss-20b", "h200", "max_throughput", 1, (1, 1, False, 640, "TRITON", "auto")),
]


@pytest.mark.parametrize(("model", "gpu_type", "use_case", "size", "published"), PUBLISHED)
def test_values_are_those_of_the_sources(
    model: str, gpu_type: str, use_case: str, size: int, published: tuple[Any, ...]
) -> None:
    asked = {"model": model, "gpu_type": gpu_type, "use_case": use_case, "gpu_count": size, "gpus_per_instance": size}
    options = serving_recipe({**REQUEST, **asked})["engine_options"]
    assert published == (
        options["tensor_parallel_size"],
        options["moe_expert_parallel_size"],
        options["enable_attention_dp"],
        options["max_batch_size"],
        options["moe_config"]["backend"],
        options["kv_cache_config"]["dtype"],
    )


# How many instances of how many GPUs a host gets.
LAYOUTS = [
    ("openai/gpt-oss-120b", "b200", "low_latency", 8, (1, 8)),
    ("openai/gpt-oss-120b", "b200", "max_throughput", 8, (4, 2)),  # curated gpt-oss-120b-throughput.yaml
    ("openai/gpt-oss-120b", "b200", "max_throughput", 1, (1, 1)),
    ("openai/gpt-oss-120b", "b200", "max_throughput", 3, (3, 1)),
    ("openai/gpt-oss-120b", "b200", "low_latency", 6, (3, 2)),
    ("openai/gpt-oss-120b", "gb200", "low_latency", 4, (1, 4)),
    ("openai/gpt-oss-120b", "gb200", "max_throughput", 4, (4, 1)),  # perf-overview, TP1
    ("openai/gpt-oss-120b", "h200", "max_throughput", 8, (8, 1)),  # perf-overview, TP1
    ("openai/gpt-oss-120b", "h100", "max_throughput", 8, (2, 4)),  # perf-overview, DEP4
    ("openai/gpt-oss-120b", "rtx_pro_6000", "low_latency", 8, (8, 1)),
    ("openai/gpt-oss-120b", "h200", "agentic", 8, (8, 1)),  # Dynamo's agentic recipes
    ("openai/gpt-oss-120b", "h100", "agentic", 8, (4, 2)),
    ("openai/gpt-oss-20b", "h200", "low_latency", 8, (8, 1)),
]


@pytest.mark.parametrize(("model", "gpu_type", "use_case", "count", "layout"), LAYOUTS)
def test_the_recipe_lays_instances_out(
    model: str, gpu_type: str, use_case: str, count: int, layout: tuple[int, int]
) -> None:
    asked = {"model": model, "gpu_type": gpu_type, "use_case": use_case, "gpu_count": count}
    recipe = serving_recipe({**REQUEST, **asked})
    assert (len(recipe["instances"]), recipe["gpus_per_instance"]) == layout
    assert recipe["instances"] == [
        {
            "name": f"serve-{number}",
            "gpus": list(range(number * layout[1], (number + 1) * layout[1])),
            "port": 8000 + number,
            "numa_node": None,
        }
        for number in range(layout[0])
    ]


def test_instances_of_a_host_share_no_memory() -> None:
    alone = serving_recipe({**REQUEST, "use_case": "max_throughput", "gpu_count": 2})
    assert (alone["limits"]["ipc"], alone["limits"]["shm_size"]) == ("host", None)
    several = serving_recipe({**REQUEST, "use_case": "max_throughput"})
    assert (several["limits"]["ipc"], several["limits"]["shm_size"]) == ("private", "10g")


def test_instances_keep_to_numa_nodes() -> None:
    nodes = [1, 0, 1, 0]
    gpus = [{"index": index, "product_name": "NVIDIA B200", "numa_node": node} for index, node in enumerate(nodes)]
    asked = {"gpu_type": None, "gpu_count": None, "use_case": "max_throughput", "detected": {"count": 4, "gpus": gpus}}
    recipe = serving_recipe({**REQUEST, **asked})
    assert [(instance["gpus"], instance["numa_node"]) for instance in recipe["instances"]] == [([1, 3], 0), ([0, 2], 1)]
    recipe = serving_recipe({**REQUEST, **asked, "gpus_per_instance": 4})
    assert [(instance["gpus"], instance["numa_node"]) for instance in recipe["instances"]] == [([1, 3, 0, 2], None)]


def mixed(*products: str) -> dict[str, Any]:
    """A host with GPUs of several types."""
    gpus = [{"index": index, "product_name": product, "numa_node": 0} for index, product in enumerate(products)]
    return {"gpu_type": None, "gpu_count": None, "detected": {"count": len(gpus), "gpus": gpus}}


@pytest.mark.parametrize("products", [["NVIDIA B200", "NVIDIA L40S"], ["NVIDIA H100 80GB HBM2e"] * 2])
def test_all_gpus_must_have_the_type_that_is_set(products: list[str]) -> None:
    host = {**mixed(*products), "gpu_type": "b200"}
    (problem,) = problems(**host)
    assert problem.startswith("serving_recipe_gpu_type: is b200; the host has ")


def test_products_of_one_row_are_one_type() -> None:
    editions = ("Server", "Workstation")
    host = mixed(*(f"NVIDIA RTX PRO 6000 Blackwell {edition} Edition" for edition in editions))
    assert serving_recipe({**REQUEST, **host})["gpu_count"] == 2


def test_unusable_gpus_are_warnings() -> None:
    host = mixed("NVIDIA H200", "NVIDIA H200")
    host["detected"]["gpus"][1].update(mig=True, address="0000:1b:00.0")
    host["detected"]["missing"] = ["0000:3a:00.0"]
    assert serving_recipe({**REQUEST, **host})["warnings"] == [
        "serving_recipe_gpus: in MIG mode: 0000:1b:00.0.",
        "serving_recipe_gpus: on the PCI bus but not working: 0000:3a:00.0.",
    ]


def test_values_from_the_command_line() -> None:
    given = {"gpu_count": "", "gpus": "4,5", "gpus_per_instance": "1", "port": "9000", "name": "", "image": ""}
    recipe = serving_recipe({**REQUEST, **given})
    assert [(each["gpus"], each["port"]) for each in recipe["instances"]] == [([4], 9000), ([5], 9001)]


def test_an_odd_number_of_gpus_is_a_warning() -> None:
    assert serving_recipe({**REQUEST, "gpu_count": 7})["warnings"] == [
        "serving_recipe_gpu_count: 7 GPUs make 7 instances of 1. Set it to 4 for one of 4."
    ]
    assert serving_recipe({**REQUEST, "gpu_count": 7, "gpus_per_instance": 1})["warnings"] == []


def test_the_version_of_an_image_without_one_in_its_tag() -> None:
    recipe = serving_recipe({**REQUEST, "image": "registry/server@sha256:00", "trtllm_version": "1.2"})
    assert (recipe["release"], recipe["warnings"]) == ("1.2", [])


def test_the_listed_gpus_are_used() -> None:
    host = mixed("NVIDIA L40S", "NVIDIA H200", "NVIDIA H200")
    recipe = serving_recipe({**REQUEST, **host, "gpus": [1, 2]})
    assert (recipe["gpu_type"], recipe["instances"][0]["gpus"]) == ("h200", [1, 2])
    recipe = serving_recipe({**REQUEST, "gpu_count": None, "gpus": [4, 5]})
    assert (recipe["gpu_count"], recipe["instances"][0]["gpus"]) == (2, [4, 5])


@pytest.mark.parametrize("model", load_tables().models)
@pytest.mark.parametrize("use_case", USE_CASES)
# The day-0 image has too few options; it is for published configurations.
@pytest.mark.parametrize("release", [name for name in load_tables().releases if name != "gpt-oss-dev"])
def test_every_value_has_a_source(model: str, use_case: str, release: str) -> None:
    tag = load_tables().releases[release]["default_tag"]
    recipe = serving_recipe({**REQUEST, "model": model, "use_case": use_case, "image": f"r/i:{tag}"})
    values = leaves(
        {**recipe["engine_options"], "environment": recipe["environment"], "limits": recipe["limits"]},
    )
    told = {entry["option"]: entry["value"] for entry in recipe["provenance"]}
    # Limits that are not set have Docker's default.
    assert told == {".".join(path): value for path, value in values if ".".join(path) in told or value}
    assert all(entry["source"] for entry in recipe["provenance"])


def test_overrides_are_used_and_named() -> None:
    before = copy.deepcopy(REQUEST)
    overrides = {
        "engine_options": {"kv_cache_config": {"dtype": "auto"}, "enable_chunked_prefill": True, "max_seq_len": None},
        "environment": {"TRTLLM_ENABLE_PDL": 0, "MINE": "x"},
        "limits": {"ulimits": {"memlock": None}, "shm_size": "10g"},
    }
    recipe = serving_recipe({**REQUEST, **overrides})
    assert recipe["engine_options"]["kv_cache_config"] == {"dtype": "auto", "free_gpu_memory_fraction": 0.85}
    assert recipe["engine_options"]["max_seq_len"] is None
    assert recipe["environment"] == {
        "NCCL_GRAPH_REGISTER": "0",
        "TRTLLM_ENABLE_PDL": "0",
        "TRTLLM_NO_USAGE_STATS": "1",
        "MINE": "x",
    }
    assert recipe["limits"] == {
        "ipc": "host",
        "shm_size": "10g",
        "ulimits": {"nofile": "65536:65536", "stack": "67108864"},
        "cap_add": [],
        "devices": [],
    }
    assert {
        entry["option"]: entry["source"] for entry in recipe["provenance"] if entry["source"].startswith("serv")
    } == {
        "kv_cache_config.dtype": "serving_recipe_engine_options",
        "enable_chunked_prefill": "serving_recipe_engine_options",
        "max_seq_len": "serving_recipe_engine_options",
        "environment.TRTLLM_ENABLE_PDL": "serving_recipe_environment",
        "environment.MINE": "serving_recipe_environment",
        "limits.shm_size": "serving_recipe_limits",
    }
    assert before == REQUEST
    assert serving_recipe(REQUEST)["engine_options"]["kv_cache_config"]["dtype"] == "fp8", "the tables were changed"


@pytest.mark.parametrize(
    ("changes", "gpu_type", "count"),
    [
        ({"detected": detected("NVIDIA H200", 8, "0x2335")}, "h200", 8),
        ({"detected": detected("NVIDIA B200", 4, "0x2901")}, "b200", 4),
        ({"detected": detected(None, 8, "0x2901")}, "b200", 8),  # no driver yet
        ({"detected": detected("NVIDIA H200", 8, "0x2335"), "gpu_count": 4}, "h200", 4),
        ({"detected": detected("NVIDIA H200", 8, "0x2335"), "gpu_count": "2"}, "h200", 2),  # from -e
        ({"detected": detected("NVIDIA H200", 8, "0x2335"), "gpu_type": "h200"}, "h200", 8),
    ],
)
def test_what_is_not_set_is_detected(changes: dict[str, Any], gpu_type: str, count: int) -> None:
    recipe = serving_recipe({**REQUEST, "gpu_type": None, "gpu_count": None, **changes})
    assert (recipe["gpu_type"], recipe["gpu_count"]) == (gpu_type, count)


NOTHING_SET = {"gpu_type": None, "gpu_count": None}
REFUSALS: list[tuple[dict[str, Any], str, list[str]]] = [
    # request, variable to change, words of the message
    ({"model": "gpt-oss-120b"}, "serving_recipe_model", ["openai/gpt-oss-20b", "Did you mean 'openai/gpt-oss-120b'?"]),
    ({"use_case": "low-latency"}, "serving_recipe_use_case", ["max_throughput", "Did you mean 'low_latency'?"]),
    ({"gpu_type": "b20"}, "serving_recipe_gpu_type", ["Supported: b200, gb200", "Did you mean 'b200'?"]),
    ({"gpu_type": "a100"}, "serving_recipe_gpu_type", ["a100 is not supported", "MXFP4"]),
    ({"gpu_type": "rtx_5090", "gpu_count": 1}, "serving_recipe_model", ["on rtx_5090", "61 GiB"]),
    ({"gpu_count": 0}, "serving_recipe_gpu_count", ["0 is not a number of GPUs"]),
    ({"gpu_count": "many"}, "serving_recipe_gpu_count", ["'many'"]),
    (
        {"gpus_per_instance": 3},
        "serving_recipe_gpus_per_instance",
        ["3 has no recipe on b200", "Supported: 1, 2, 4, 8"],
    ),
    ({"gpus_per_instance": 8, "gpu_count": 4}, "serving_recipe_gpus_per_instance", ["4 GPUs are not a multiple of 8"]),
    ({"gpus": [0, 0], "gpu_count": None}, "serving_recipe_gpus", ["twice"]),
    ({"gpus": "0,x", "gpu_count": None}, "serving_recipe_gpus", ["is not a list", "['0', 'x']"]),
    ({"model": ["openai/gpt-oss-120b"]}, "serving_recipe_model", ["takes a name"]),
    ({"gpu_count": "²"}, "serving_recipe_gpu_count", ["is not a number of GPUs"]),
    ({"image": "r/i:1.2.1 --privileged"}, "serving_recipe_image", ["is not an image reference"]),
    ({"limits": {"ulimits": {"nofilee": 5}}}, "serving_recipe_limits", ["'nofilee'", "Did you mean 'nofile'?"]),
    ({"limits": {"ulimits": {"memlock": True}}}, "serving_recipe_limits", ["ulimit memlock is True"]),
    ({"gpus": [0, 1]}, "serving_recipe_gpus", ["has 2 GPUs", "serving_recipe_gpu_count is 8"]),
    ({**mixed("NVIDIA H200"), "gpus": [1]}, "serving_recipe_gpus", ["has no GPU 1; it has 0"]),
    ({"gpu_type": None, "detected": {"count": 0}}, "serving_recipe_gpu_type", ["no NVIDIA GPU was found"]),
    ({"gpu_count": None, "detected": {"count": 0}}, "serving_recipe_gpu_count", ["no NVIDIA GPU was found"]),
    ({"detected": detected("NVIDIA B200", 4, "0x2901")}, "serving_recipe_gpu_count", ["the host has 4"]),
    (
        {"detected": {**detected("NVIDIA B200", 7, "0x2901"), "missing": ["0000:1b:00.0"]}},
        "serving_recipe_gpu_count",
        ["the host has 7 GPUs that work, and 0000:1b:00.0 that does not"],
    ),
    (
        {"detected": detected("NVIDIA H200", 8, "0x2335")},
        "serving_recipe_gpu_type",
        ["is b200; the host has", "NVIDIA H200"],
    ),
    ({**mixed("NVIDIA L40S")}, "serving_recipe_gpu_type", ["l40s is not supported", "MXFP4"]),
    ({**mixed("NVIDIA T4")}, "serving_recipe_gpu_type", ["NVIDIA T4", "have no recipe", "Supported: b200, gb200"]),
    (
        {**NOTHING_SET, "detected": detected(None, 2, "0x1eb8")},
        "serving_recipe_gpu_type",
        ["PCI device 0x1eb8", "Supported: b200, gb200"],
    ),
    (
        mixed("NVIDIA H200", "NVIDIA H200", "NVIDIA L40S"),
        "serving_recipe_gpu_type",
        ["GPUs of several types (0, 1: NVIDIA H200; 2: NVIDIA L40S)", "Set serving_recipe_gpus"],
    ),
    ({"name": "quick_start"}, "serving_recipe_name", ["Did you mean 'quick_start_low_latency'?"]),
    ({"name": "h100_template"}, "serving_recipe_name", ["h100_template has no recipe for b200", "h100"]),
    (
        {"gpu_type": "rtx_pro_6000", "image": "r/i:gpt-oss-dev"},
        "serving_recipe_image",
        ["is not documented for rtx_pro_6000 (sm120)"],
    ),
    ({"image": "r/i:0.21.0"}, "serving_recipe_image", ["older than every known version", "1.2.1"]),
    ({"image": "r/i:latest"}, "serving_recipe_image", ["has no TensorRT-LLM version", "1.2.1"]),
    ({"image": "r:5000/i@sha256:ab"}, "serving_recipe_image", ["has no TensorRT-LLM version"]),
    (
        {"variables": ["serving_recipe_model", "serving_recipe_usecase"]},
        "serving_recipe_usecase",
        ["is not a variable of the recipe", "Did you mean 'serving_recipe_use_case'?"],
    ),
    ({"port": 70000}, "serving_recipe_port", ["70000", "1 to 65535"]),
    ({"environment": {"A": True}}, "serving_recipe_environment", ["A is True", "quotes"]),
    ({"environment": {"A B": "x"}}, "serving_recipe_environment", ["'A B'"]),
    ({"limits": {"ipc": "hosst"}}, "serving_recipe_limits", ["ipc is 'hosst'", "host or private"]),
    ({"limits": {"shm_size": 10}}, "serving_recipe_limits", ["shm_size is 10", "10g"]),
    ({"limits": {"ulimits": "memlock"}}, "serving_recipe_limits", ["ulimits takes a dict"]),
    ({"limits": {"cap_add": "SYS_PTRACE"}}, "serving_recipe_limits", ["cap_add takes a list"]),
    ({"limits": {"devices": ["infiniband"]}}, "serving_recipe_limits", ["devices takes a list", "/dev/infiniband"]),
    ({"environment": {"A": "x\ny"}}, "serving_recipe_environment", ["A is 'x\\ny'", "one line"]),
    ({"trtllm_version": "1.9"}, "serving_recipe_trtllm_version", ["'1.9' is not in the release table", "gpt-oss-dev"]),
    ({"limits": {"shmsize": "1g"}}, "serving_recipe_limits", ["'shmsize'", "Did you mean 'shm_size'?"]),
    (
        {"engine_options": {"moe_config": {"backned": "TRTLLM"}}},
        "serving_recipe_engine_options",
        ["engine.yaml", "TensorRT-LLM 1.2", "1.2.1", "'moe_config.backned'", "Did you mean 'moe_config.backend'?"],
    ),
    (
        {"engine_options": {"kv_cache_free_gpu_memory_fraction": 0.9}},
        "serving_recipe_engine_options",
        ["Did you mean 'kv_cache_config.free_gpu_memory_fraction'?"],
    ),
    (
        {"engine_options": {"moe_config.backend": "TRTLLM"}},
        "serving_recipe_engine_options",
        ["'moe_config.backend' is not an option by that name", "nested"],
    ),
    (
        {"engine_options": {"stream_interval": "20"}},
        "serving_recipe_engine_options",
        ["takes int from 1, not '20' (str)"],
    ),
    ({"engine_options": {"stream_interval": 0}}, "serving_recipe_engine_options", ["takes int from 1, not 0"]),
    ({"engine_options": {"max_batch_size": True}}, "serving_recipe_engine_options", ["not True (bool)"]),
    (
        {"engine_options": {"enable_attention_dp": None}},
        "serving_recipe_engine_options",
        ["takes bool, not None (null)"],
    ),
    (
        {"engine_options": {"moe_config": {"backend": "TRTLM"}}},
        "serving_recipe_engine_options",
        ["'moe_config.backend' takes one of", "Did you mean 'TRTLLM'?"],
    ),
    (
        {"engine_options": {"moe_config": {"backend": "AUTO"}}},
        "serving_recipe_engine_options",
        ["TensorRT-LLM 1.2", "'moe_config.backend' takes one of CUTLASS, ", "not 'AUTO'"],
    ),
    (
        {"engine_options": {"kv_cache_config": {"free_gpu_memory_fraction": None}}},
        "serving_recipe_engine_options",
        ["'kv_cache_config.free_gpu_memory_fraction' takes float from 0 to 1, not None (null)"],
    ),
    (
        {"engine_options": {"kv_cache_config": {"free_gpu_memory_fraction": 9}}},
        "serving_recipe_engine_options",
        ["takes float from 0 to 1"],
    ),
    (
        {"gpu_type": "h200", "engine_options": {"moe_config": {"backend": "TRTLLM"}}},
        "serving_recipe_engine_options",
        ["'TRTLLM'; h200 (sm90) takes TRITON"],
    ),
    ({"engine_options": {"tensor_parallel_size": 4}}, "serving_recipe_engine_options", ["tensor_parallel_size", "8"]),
    ({"engine_options": {"max_seq_len": 200000}}, "serving_recipe_engine_options", ["max_seq_len", "131072"]),
    ({"engine_options": {"env_overrides": {1: "x"}}}, "serving_recipe_engine_options", ["put 1 in quotes"]),
    ({"engine_options": ["max_batch_size"]}, "serving_recipe_engine_options", ["takes a dict"]),
]


@pytest.mark.parametrize(("changes", "variable", "words"), REFUSALS, ids=[str(refusal[0])[:60] for refusal in REFUSALS])
def test_each_mistake_is_one_problem(changes: dict[str, Any], variable: str, words: list[str]) -> None:
    (problem,) = problems(**changes)
    assert problem.startswith(f"{variable}: ")
    assert [part for part in words if part not in problem] == []


def test_every_problem_is_in_one_message() -> None:
    changes = {
        "model": "openai/gpt-oss",
        "gpu_type": "b30",
        "gpu_count": "all",
        "use_case": "fast",
        "engine_options": {"stream_intervall": 1, "max_num_tokens": "many"},
    }
    with pytest.raises(RecipeError) as error:
        serving_recipe({**REQUEST, **changes})
    assert str(error.value) == "\n".join(problems(**changes))
    assert [problem.split(":")[0] for problem in problems(**changes)] == [
        "serving_recipe_model",
        "serving_recipe_use_case",
        "serving_recipe_gpu_count",
        "serving_recipe_gpu_type",
        "serving_recipe_engine_options",
        "serving_recipe_engine_options",
    ]
    assert problems() == []


def test_the_variable_to_change_for_an_image_that_rejects_the_recipe() -> None:
    tables = load_tables()
    releases = copy.deepcopy(dict(tables.releases))
    del releases["1.2"]["engine_options"]["stream_interval"]
    with pytest.raises(ValueError, match=r"^serving_recipe_image: .*'stream_interval' is not an option"):
        resolve(REQUEST, replace(tables, releases=releases))


@pytest.mark.parametrize(
    ("row", "release", "floor"), [("575", "580", "580"), ("580.95", "580", "580.95"), ("9", "10", "10")]
)
def test_the_higher_driver_floor_is_used(row: str, release: str, floor: str) -> None:
    tables = load_tables()
    hardware = [{**entry, "min_driver": row} for entry in tables.hardware]
    releases = {"1.2": {**tables.releases["1.2"], "driver_floor": release}}
    assert resolve(REQUEST, replace(tables, hardware=hardware, releases=releases))["requires"]["driver"] == floor


def test_memory_is_that_of_the_detected_gpus() -> None:
    gpus = [{"index": 0, "product_name": "NVIDIA GB300", "memory_total_mib": 256703}]  # the one of a DGX Station
    found = {"gpu_type": None, "gpu_count": None, "detected": {"count": 1, "gpus": gpus}}
    assert serving_recipe({**REQUEST, **found})["memory"]["total_mib"] == 256703
    named = {"gpu_type": "gb300", "gpu_count": 1}
    assert serving_recipe({**REQUEST, **named})["memory"]["total_mib"] == 284208


def test_a_model_larger_than_the_gpu_is_rejected() -> None:
    tables = load_tables()
    hardware = [{**entry, "memory_mib": 40960} for entry in tables.hardware]
    with pytest.raises(RecipeError, match=r"^serving_recipe_gpus_per_instance: .*b200"):
        resolve({**REQUEST, "gpu_count": 1}, replace(tables, hardware=hardware))


def test_the_default_image_is_the_newest_with_full_tests_or_the_documents() -> None:
    assert serving_recipe(REQUEST)["image"] == "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
    document = {**REQUEST, "name": "quick_start_low_latency"}
    assert serving_recipe(document)["image"] == "nvcr.io/nvidia/tensorrt-llm/release:1.0.0rc6"
    assert serving_recipe({**document, "image": "mirror/release:1.0.0rc6"})["image"] == "mirror/release:1.0.0rc6"


def test_consequences_are_notes_of_the_recipe_and_warnings_of_an_override() -> None:
    assert any("stream_interval" in note for note in serving_recipe(REQUEST)["notes"])
    recipe = serving_recipe({**REQUEST, "engine_options": {"stream_interval": 50}})
    assert any("50" in warning for warning in recipe["warnings"])


CASES = [
    (model, use_case, gpu_type)
    for model, row in load_tables().models.items()
    for use_case in USE_CASES
    for gpu_type in row["supported"]
]


def of_case(model: str, use_case: str, gpu_type: str, **changes: Any) -> dict[str, Any]:
    count = max(load_tables().models[model]["supported"][gpu_type])
    asked = {"model": model, "use_case": use_case, "gpu_type": gpu_type, "gpu_count": count}
    return serving_recipe({**REQUEST, **asked, **changes})


@pytest.mark.parametrize(("model", "use_case", "gpu_type"), CASES)
def test_no_recipe_rejects_a_prompt_that_fits_the_context(model: str, use_case: str, gpu_type: str) -> None:
    recipe = of_case(model, use_case, gpu_type)
    assert recipe["engine_options"]["enable_chunked_prefill"] is True
    assert not any("are rejected" in note for note in recipe["notes"])


@pytest.mark.parametrize(("use_case", "stored"), [("low_latency", False), ("max_throughput", False), ("agentic", True)])
def test_the_plan_says_whether_responses_are_stored(use_case: str, stored: bool) -> None:
    notes = serving_recipe({**REQUEST, "use_case": use_case})["notes"]
    assert any("responses are not stored" in note for note in notes) is not stored


@pytest.mark.parametrize(
    ("tag", "served", "flags"),
    [
        ("1.2.1", "gpt-oss-120b", {}),
        ("1.3.0rc14", "openai/gpt-oss-120b", {"served_model_name": "openai/gpt-oss-120b"}),
        ("1.4.0rc1", "openai/gpt-oss-120b", {"served_model_name": "openai/gpt-oss-120b"}),
    ],
)
def test_the_model_has_its_name_on_the_hub_where_the_release_can(tag: str, served: str, flags: dict[str, str]) -> None:
    recipe = serving_recipe({**REQUEST, "image": f"r/i:{tag}"})
    assert (recipe["served_model"], recipe["flags"]) == (served, flags)


@pytest.mark.parametrize(
    ("model", "base", "of"),
    [
        ("openai/gpt-oss-safeguard-120b", None, "openai/gpt-oss-120b"),
        ("openai/gpt-oss-safeguard-20b", None, "openai/gpt-oss-20b"),
        ("acme/support-20b", "openai/gpt-oss-20b", "openai/gpt-oss-20b"),
    ],
)
def test_a_fine_tune_has_the_recipe_of_its_base_model(model: str, base: str | None, of: str) -> None:
    request = {**REQUEST, "gpu_count": 1, "image": "r/i:1.3.0rc14"}
    recipe = serving_recipe({**request, "model": model, "base_model": base})
    original = serving_recipe({**request, "model": of})
    assert (recipe["model"], recipe["base_model"], recipe["served_model"]) == (model, of, model)
    assert recipe["config"]["model_type"] == "gpt_oss"
    assert recipe["name"].startswith(model.rpartition("/")[2])
    assert (original["base_model"], original["config"]) == (None, {})
    for same in ("engine_options", "environment", "limits", "instances", "memory", "notes"):
        assert recipe[same] == original[same]


@pytest.mark.parametrize("model", load_tables().models)
def test_values_of_the_config_are_the_facts(model: str) -> None:
    row = load_tables().models[model]
    facts, config = row["facts"], row["config"]
    dense = {"intermediate_size": "intermediate_size"}
    experts = {
        "experts": "num_local_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_intermediate_size": "intermediate_size",
        "sliding_window": "sliding_window",
    }
    for fact, key in {
        "layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "attention_heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "vocabulary": "vocab_size",
        "context": "max_position_embeddings",
        **(experts if facts.get("experts") else dense),
    }.items():
        assert facts[fact] == config[key], fact


def test_a_draft_model_that_the_options_do_not_use_is_a_problem() -> None:
    (problem,) = problems(draft_model=DRAFT, engine_options={"speculative_config": None})
    assert problem.startswith("serving_recipe_engine_options: without 'speculative_config.speculative_model_dir'")


def test_a_draft_model_of_another_model_is_a_warning() -> None:
    request = {**REQUEST, "model": "openai/gpt-oss-safeguard-120b", "draft_model": DRAFT}
    (warning,) = serving_recipe(request)["warnings"]
    assert warning.startswith(f"serving_recipe_draft_model: {DRAFT} is of openai/gpt-oss-120b; ")


def test_dgx_spark_is_experimental_and_for_the_small_model() -> None:
    request = {**REQUEST, "model": "openai/gpt-oss-20b", "gpu_type": "gb10", "gpu_count": 1}
    recipe = serving_recipe(request)
    assert [text.partition(":")[0] for text in recipe["warnings"]] == ["serving_recipe_gpu_type"]
    assert "issue 8474" in recipe["warnings"][0]
    assert recipe["engine_options"]["moe_config"]["backend"] == "CUTLASS"
    # nvidia-smi has no size to compare with.
    assert (recipe["requires"]["gpu_memory_mib"], recipe["memory"]["fits"]) == (0, True)
    assert "Use gpt-oss-20b." in problems(**{**request, "model": "openai/gpt-oss-120b"})[0]


QWEN = {**REQUEST, "model": "Qwen/Qwen3-8B"}


def test_a_dense_model_is_a_file_of_data() -> None:
    recipe = serving_recipe({**QWEN, "image": "r/i:1.4.0rc1"})
    assert recipe["flags"] == {"reasoning_parser": "qwen3", "tool_parser": "qwen3", "served_model_name": QWEN["model"]}
    assert (recipe["vocabulary"], recipe["harmony"], recipe["dynamo_parsers"]) == (False, True, {})
    assert "moe_config" not in recipe["engine_options"]
    assert len(recipe["instances"]) == 8
    # 1.0 has no parser for it. It does not parse harmony either, which this model does not use.
    older = serving_recipe({**QWEN, "image": "r/i:1.0.0"})
    assert ("reasoning_parser" in older["flags"], older["harmony"]) == (False, True)


def test_the_memory_of_a_dense_model() -> None:
    memory = {size: serving_recipe({**QWEN, "gpus_per_instance": size})["memory"] for size in (1, 2)}
    assert memory[1]["weights_mib"] == round(16381470720 / 2**20)
    assert memory[2]["weights_mib"] == round(16381470720 / 2 / 2**20)
    assert memory[2]["activations_mib"] < memory[1]["activations_mib"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine_options": {"moe_config": {"backend": "CUTLASS"}}}, "'moe_config' is set; the model has no experts"),
        ({"engine_options": {"moe_expert_parallel_size": 1}}, "'moe_expert_parallel_size' is set; the model has no"),
        ({"worker": "decode"}, "serving_recipe_model: no workers of NVIDIA Dynamo serve Qwen/Qwen3-8B here"),
        ({"draft_model": DRAFT}, "no draft model for Qwen/Qwen3-8B is known"),
    ],
)
def test_problems_of_a_dense_model(changes: dict[str, Any], words: str) -> None:
    assert words in problems(**{"model": "Qwen/Qwen3-8B", **changes})[0]


def test_a_dense_model_has_no_rules_of_gpt_oss() -> None:
    pipelines = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    options = {"attn_backend": "FLASHINFER", **pipelines}
    assert serving_recipe({**QWEN, "gpus_per_instance": 2, "engine_options": options})["engine_options"]["attn_backend"]


@pytest.mark.parametrize(
    ("changes", "variable", "words"),
    [
        (
            {"model": "acme/tune"},
            "serving_recipe_model",
            "For a fine-tune of one of them, set serving_recipe_base_model.",
        ),
        (
            {"model": "acme/tune", "base_model": "openai/gpt-oss"},
            "serving_recipe_base_model",
            "'openai/gpt-oss' has no",
        ),
        ({"base_model": "openai/gpt-oss-20b"}, "serving_recipe_base_model", "has a recipe of its own"),
        ({"model": "tune", "base_model": "openai/gpt-oss-20b"}, "serving_recipe_model", "OWNER/NAME"),
        ({"model": "acme/tune", "base_model": ["x"]}, "serving_recipe_base_model", "takes a name"),
    ],
)
def test_problems_of_fine_tunes(changes: dict[str, Any], variable: str, words: str) -> None:
    (problem,) = problems(**changes)
    assert problem.startswith(f"{variable}: ")
    assert words in problem


@pytest.mark.parametrize(
    ("draft", "release", "expected"),
    [
        (DRAFT, "1.1.0", {"max_draft_len": 3, "eagle3_layers_to_capture": [23, 29, 35]}),
        (
            DRAFT,
            "1.2.1",
            {"max_draft_len": 3, "eagle3_layers_to_capture": [23, 29, 35], "allow_advanced_sampling": True},
        ),
        (DRAFT, "1.4.0rc1", {"max_draft_len": 3, "eagle3_layers_to_capture": [23, 29, 35]}),
        (
            "nvidia/gpt-oss-120b-Eagle3-throughput",
            "1.4.0rc1",
            {"max_draft_len": 1, "eagle3_layers_to_capture": [-1]},
        ),
    ],
)
def test_a_draft_model_adds_its_options_and_its_memory(draft: str, release: str, expected: dict[str, Any]) -> None:
    request = {**REQUEST, "image": f"r/i:{release}"}
    recipe, without = serving_recipe({**request, "draft_model": draft}), serving_recipe(request)
    always = {"decoding_type": "Eagle", "speculative_model_dir": "/draft"}
    assert recipe["engine_options"]["speculative_config"] == {**always, **expected}
    assert (recipe["draft_model"], without["draft_model"]) == (draft, None)
    assert recipe["memory"]["weights_mib"] > without["memory"]["weights_mib"]
    assert recipe["memory"]["kv_tokens"] < without["memory"]["kv_tokens"]
    ignored = [note for note in recipe["notes"] if "'temperature'" in note]
    assert bool(ignored) is (release == "1.1.0")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"draft_model": "nvidia/gpt-oss-120b-Eagle3-v4"}, "is not a draft model of openai/gpt-oss-120b"),
        ({"model": "openai/gpt-oss-20b"}, "no draft model for openai/gpt-oss-20b is known"),
        ({"worker": "decode"}, "a decode worker of NVIDIA Dynamo takes none"),
        ({"name": "blog9_low_latency"}, "blog9_low_latency is a published configuration without one"),
        ({"gpu_type": "rtx_pro_6000"}, f"no document has {DRAFT} for low_latency on rtx_pro_6000"),
        ({"use_case": "max_throughput"}, f"no document has {DRAFT} for max_throughput on b200"),
        ({"draft_model": ["x"]}, "takes a name"),
        # The model's own repository is not one of its draft models.
        ({"draft_model": "openai/gpt-oss-120b"}, "is not a draft model of openai/gpt-oss-120b"),
    ],
)
def test_problems_of_draft_models(changes: dict[str, Any], words: str) -> None:
    (problem,) = problems(**{"draft_model": DRAFT, **changes})
    assert problem.startswith("serving_recipe_draft_model: ")
    assert words in problem


def test_an_image_between_two_releases_gets_no_flag_of_the_nearest() -> None:
    """1.3.0rc1 is older than the option for the name."""
    recipe = serving_recipe({**REQUEST, "image": "r/i:1.3.0rc1"})
    assert (recipe["release"], recipe["served_model"], recipe["flags"]) == ("1.3", "gpt-oss-120b", {})
    recipe = serving_recipe({**REQUEST, "image": "r/i:mine", "trtllm_version": "1.3"})
    assert recipe["flags"] == {"served_model_name": "openai/gpt-oss-120b"}


def test_a_published_configuration_is_for_fine_tunes_of_its_model() -> None:
    request = {**REQUEST, "name": "quick_start_max_throughput", "gpu_count": 8}
    plain = serving_recipe(request)
    assert (plain["model"], plain["base_model"]) == ("openai/gpt-oss-120b", None)
    for changes in (
        {"model": "acme/tune", "base_model": "openai/gpt-oss-120b"},
        {"model": "openai/gpt-oss-safeguard-120b"},
    ):
        recipe = serving_recipe({**request, **changes})
        assert (recipe["model"], recipe["base_model"]) == (changes["model"], "openai/gpt-oss-120b")
        assert recipe["config"]
        assert recipe["engine_options"] == plain["engine_options"]
    (problem,) = problems(**{**request, "model": "acme/tune", "base_model": "openai/gpt-oss-20b"})
    assert problem.startswith("serving_recipe_base_model: openai/gpt-oss-20b is not the model of quick_start_max_thr")


@pytest.mark.parametrize(("tag", "noted"), [("1.2.1", False), ("1.3.0rc14", True), ("1.4.0rc1", True)])
def test_triton_is_deprecated(tag: str, noted: bool) -> None:
    recipe = serving_recipe({**REQUEST, "gpu_type": "h200", "image": f"r/i:{tag}"})
    assert recipe["engine_options"]["moe_config"]["backend"] == "TRITON"
    assert any("'moe_config.backend' is TRITON, which is deprecated" in note for note in recipe["notes"]) is noted


@pytest.mark.parametrize("model", ["openai/gpt-oss-120b", "openai/gpt-oss-20b"])
@pytest.mark.parametrize("gpu_type", ["h200", "h200_nvl", "h100", "h100_pcie", "h100_nvl"])
def test_a_release_without_triton_gets_cutlass(model: str, gpu_type: str) -> None:
    tables = load_tables()
    row = copy.deepcopy(tables.releases["1.4"])
    row["engine_options"]["moe_config"]["options"]["backend"]["choices"].remove("TRITON")
    asked = {"model": model, "gpu_type": gpu_type, "gpu_count": 1, "image": "r/i:1.4.0rc1"}
    recipe = resolve({**REQUEST, **asked}, replace(tables, releases={**tables.releases, "1.4": row}))
    assert recipe["engine_options"]["moe_config"]["backend"] == "CUTLASS"
    assert not any("deprecated" in note for note in recipe["notes"])


ROWS = {"1.2": {"tags": ["1.2.0", "1.2.1"]}, "1.10": {"tags": ["1.10.0rc1"]}}


@pytest.mark.parametrize(
    ("image", "release", "warned"),
    [
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.1", "1.2", False),
        ("registry:5000/release:1.2.0@sha256:0123", "1.2", False),
        ("release:1.2.2", "1.2", True),
        ("release:1.3.0rc14", "1.2", True),
        ("release:1.10.0rc1", "1.10", False),
        ("release:2.0.0", "1.10", True),
    ],
)
def test_the_tag_picks_the_newest_release_that_is_not_newer(image: str, release: str, warned: bool) -> None:
    name, warning = select_release(image, ROWS)
    assert name == release
    assert bool(warning) is warned


def test_a_warning_reaches_the_recipe() -> None:
    (warning,) = serving_recipe({**REQUEST, "image": "r/i:2.1"})["warnings"]
    assert warning.startswith("serving_recipe_image: tag '2.1'")


@pytest.mark.parametrize(
    ("image", "tag"),
    [("a/b:1", "1"), ("r:5000/b", None), ("r:5000/b:2", "2"), ("b:3@sha256:00", "3"), ("b@sha256:00", None)],
)
def test_image_tag(image: str, tag: str | None) -> None:
    assert image_tag(image) == tag


SPECS: dict[str, Any] = {
    "count": {"type": "int", "min": 1, "max": 8},
    "share": {"type": "float", "min": 0, "max": 1},
    "sizes": {"type": "list", "elements": "int", "nullable": True},
    "group": {"type": "dict", "nullable": True, "options": {"name": {"type": "str", "choices": ["A", "B"]}}},
    "open": {"type": "dict"},
    "free": {"type": "any"},
}


@pytest.mark.parametrize(
    "options",
    [
        {"count": 1},
        {"count": 8, "share": 1},
        {"share": 0.5},
        {"sizes": [1, 2]},
        {"sizes": None},
        {"group": None},
        {"group": {}},
        {"group": {"name": "A"}},
        {"open": {"whatever": [1]}},
        {"free": None},
        {"free": True},
    ],
)
def test_good_options(options: dict[str, Any]) -> None:
    assert check_options(options, SPECS) == []


@pytest.mark.parametrize(
    ("options", "path", "sentence"),
    [
        ({"count": 9}, ("count",), "takes int from 1 to 8, not 9."),
        ({"count": 1.5}, ("count",), "takes int from 1 to 8, not 1.5 (float)."),
        ({"share": False}, ("share",), "takes float from 0 to 1, not False (bool)."),
        ({"sizes": [1, "2"]}, ("sizes",), "takes list of int, or null; '2' (str) is not allowed."),
        ({"group": {"name": "a"}}, ("group", "name"), "takes one of A, B, not 'a'. Did you mean 'A'?"),
        ({"group": {"nam": "A"}}, ("group", "nam"), "is not an option. Did you mean 'group.name'? group has: name."),
        ({"grup": {}}, ("grup",), "is not an option. Did you mean 'group'?"),
        ({"xyz": 1}, ("xyz",), "is not an option."),
        ({8: 1}, (8,), "is not an option."),
    ],
)
def test_bad_options(options: dict[Any, Any], path: tuple[Any, ...], sentence: str) -> None:
    assert check_options(options, SPECS) == [(path, sentence)]


def test_option_paths() -> None:
    assert option_paths(SPECS) == ["count", "share", "sizes", "group", "group.name", "open", "free"]


def test_merge_shares_nothing() -> None:
    lower, upper = {"a": {"x": [1]}, "b": 1, "c": {"y": 1}}, {"a": {"z": [2]}, "b": {"n": 1}, "c": None}
    merged = merge(lower, upper)
    assert merged == {"a": {"x": [1], "z": [2]}, "b": {"n": 1}, "c": None}
    merged["a"]["x"].append(2)
    merged["a"]["z"].append(3)
    assert lower["a"] == {"x": [1]}
    assert upper["a"] == {"z": [2]}


@pytest.mark.parametrize("gpu_type", ["b200", "h200", "h100", "rtx_pro_6000"])
@pytest.mark.parametrize("worker", ["prefill", "decode"])
def test_a_worker_of_disaggregated_serving(worker: str, gpu_type: str) -> None:
    request = {**REQUEST, "worker": worker, "gpu_type": gpu_type, "gpu_count": 4, "gpus_per_instance": 4, "port": 9090}
    recipe = serving_recipe({**request, "use_case": "max_throughput"})
    assert recipe["worker"] == worker
    assert recipe["name"] == f"gpt-oss-120b-{gpu_type}x4-max_throughput-{worker}"
    assert recipe["image"].startswith("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:")
    assert recipe["instances"] == [{"name": f"{worker}-0", "gpus": [0, 1, 2, 3], "port": 9090, "numa_node": None}]
    options = recipe["engine_options"]
    assert options["cache_transceiver_config"] == {"backend": "UCX", "max_tokens_in_buffer": 131072}
    assert options["disable_overlap_scheduler"] is (worker == "prefill")
    # The frontend turns tokens into text.
    assert options["num_postprocess_workers"] == 0


def test_several_workers_of_a_host_share_its_memory() -> None:
    recipe = serving_recipe({**REQUEST, "worker": "decode", "gpus_per_instance": 2})
    assert [instance["name"] for instance in recipe["instances"]] == ["decode-0", "decode-1", "decode-2", "decode-3"]
    assert recipe["limits"]["ipc"] == "host"


def test_a_document_for_the_other_kind_of_worker() -> None:
    assert problems(name="dynamo_guide_decode", worker="prefill", gpu_count=4) == [
        "serving_recipe_name: dynamo_guide_decode is not a prefill worker. Set it to a prefill configuration, or "
        "leave it unset for the best known recipe."
    ]


def test_no_such_worker() -> None:
    assert problems(worker="encode") == [
        "serving_recipe_worker: 'encode' is not a kind of worker. Supported: prefill, decode. Did you mean 'decode'?"
    ]
