"""The filters serving_recipe and serving_recipe_problems, on the role's own tables, and the checks behind them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.filter.serving_recipe import (
    load_tables,
    serving_recipe,
    serving_recipe_problems,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.options import (
    check_options,
    image_tag,
    option_paths,
    select_release,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.recipe import Tables, leaves, merge, resolve

REQUEST: dict[str, Any] = {
    "model": "openai/gpt-oss-120b",
    "use_case": "low_latency",
    "gpu_type": "b200",
    "gpu_count": 8,
    "detected": {"skipped": True, "changed": False},
    "image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    "port": 8000,
    "engine_options": {},
    "environment": {},
    "limits": {},
}


def detected(product: str | None, count: int, *device_ids: str, homogeneous: bool = True) -> dict[str, Any]:
    """What gpu_info returns, as far as a recipe reads it."""
    return {
        "count": count,
        "product_name": product,
        "pci_device_ids": list(device_ids),
        "homogeneous": homogeneous,
        "gpus": [{"product_name": product}] * count,
    }


def problems(**changes: Any) -> list[str]:
    return serving_recipe_problems({**REQUEST, **changes})


def test_the_recipe_for_eight_b200_is_the_contract() -> None:
    recipe = serving_recipe(REQUEST)
    assert recipe.pop("provenance")
    assert recipe == {
        "name": "gpt-oss-120b-b200x8-low_latency",
        "model": "openai/gpt-oss-120b",
        "use_case": "low_latency",
        "gpu_type": "b200",
        "gpu_count": 8,
        "architecture": "sm100",
        "image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        "release": "1.2",
        "health": "refused",
        "instances": [{"name": "serve-0", "gpus": [0, 1, 2, 3, 4, 5, 6, 7], "port": 8000}],
        # examples/configs/curated/gpt-oss-120b-latency.yaml, with the KV cache of examples/configs/database.
        "engine_options": {
            "max_batch_size": 64,
            "max_num_tokens": 16384,
            "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.85},
            "tensor_parallel_size": 8,
            "moe_expert_parallel_size": 1,
            "trust_remote_code": True,
            "enable_attention_dp": False,
            "cuda_graph_config": {"enable_padding": True, "max_batch_size": 64},
            "moe_config": {"backend": "TRTLLM"},
            "stream_interval": 20,
            "num_postprocess_workers": 4,
        },
        "environment": {"TRTLLM_ENABLE_PDL": "1", "TRTLLM_NO_USAGE_STATS": "1"},
        "limits": {"ipc": "host", "shm_size": None, "ulimits": {"memlock": "-1", "stack": "67108864"}},
        "requires": {"driver": "580", "gpu_memory_mib": 76293, "gpu_count": 8, "disk_bytes": None},
        "warnings": [],
    }


# What the documents say, in short: TP, EP, attention DP, batch, CUDA graph batch, MoE backend, KV dtype.
PUBLISHED = [
    # InferenceX (pure TP on each number of GPUs); examples/configs/curated/gpt-oss-120b-latency.yaml for eight.
    ("openai/gpt-oss-120b", "b200", "low_latency", 1, (1, 1, False, 64, 64, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "low_latency", 2, (2, 1, False, 64, 64, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "low_latency", 4, (4, 1, False, 64, 64, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "low_latency", 8, (8, 1, False, 64, 64, "TRTLLM", "fp8")),
    # database B200/1k1k_tp1_conc256.yaml; curated gpt-oss-120b-throughput.yaml for two; the quick start's DEP for more.
    ("openai/gpt-oss-120b", "b200", "max_throughput", 1, (1, 1, False, 512, 256, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "max_throughput", 2, (2, 2, True, 720, 720, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "max_throughput", 4, (4, 4, True, 720, 720, "TRTLLM", "fp8")),
    ("openai/gpt-oss-120b", "b200", "max_throughput", 8, (8, 8, True, 720, 720, "TRTLLM", "fp8")),
    # database H200/1k1k_tp{1,2,4,8}_conc64.yaml.
    ("openai/gpt-oss-120b", "h200", "low_latency", 1, (1, 1, False, 64, 64, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h200", "low_latency", 2, (2, 2, False, 64, 64, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h200", "low_latency", 4, (4, 4, False, 64, 64, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h200", "low_latency", 8, (8, 8, False, 64, 64, "TRITON", "auto")),
    # Blog 9's batch of 640; attention DP as in the database's best file for each number of GPUs.
    ("openai/gpt-oss-120b", "h200", "max_throughput", 1, (1, 1, False, 640, 640, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h200", "max_throughput", 2, (2, 2, False, 640, 640, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h200", "max_throughput", 4, (4, 4, False, 640, 640, "TRITON", "auto")),
    ("openai/gpt-oss-120b", "h200", "max_throughput", 8, (8, 8, True, 640, 640, "TRITON", "auto")),
    # perf-overview: one GPU.
    ("openai/gpt-oss-20b", "b200", "low_latency", 1, (1, 1, False, 64, 64, "TRTLLM", "fp8")),
    ("openai/gpt-oss-20b", "b200", "max_throughput", 1, (1, 1, False, 640, 640, "TRTLLM", "fp8")),
    ("openai/gpt-oss-20b", "h200", "low_latency", 1, (1, 1, False, 64, 64, "TRITON", "auto")),
    ("openai/gpt-oss-20b", "h200", "max_throughput", 1, (1, 1, False, 640, 640, "TRITON", "auto")),
]


@pytest.mark.parametrize(("model", "gpu_type", "use_case", "count", "published"), PUBLISHED)
def test_values_are_those_of_the_documents(
    model: str, gpu_type: str, use_case: str, count: int, published: tuple[Any, ...]
) -> None:
    recipe = serving_recipe({**REQUEST, "model": model, "gpu_type": gpu_type, "use_case": use_case, "gpu_count": count})
    options = recipe["engine_options"]
    assert published == (
        options["tensor_parallel_size"],
        options["moe_expert_parallel_size"],
        options["enable_attention_dp"],
        options["max_batch_size"],
        options["cuda_graph_config"]["max_batch_size"],
        options["moe_config"]["backend"],
        options["kv_cache_config"]["dtype"],
    )
    # Attention DP comes with its balancing, and only then.
    assert ("attention_dp_config" in options) is options["enable_attention_dp"]
    assert recipe["instances"][0]["gpus"] == list(range(count))


def test_everything_that_the_tables_support_is_in_the_table_above() -> None:
    supported = {
        (name, gpu_type, use_case, count)
        for name, model in load_tables().models.items()
        for gpu_type, counts in model["supported"].items()
        for count in counts
        for use_case in ("low_latency", "max_throughput")
    }
    assert supported == {cell[:4] for cell in PUBLISHED}


@pytest.mark.parametrize(("model", "gpu_type", "use_case", "count"), [cell[:4] for cell in PUBLISHED])
@pytest.mark.parametrize("release", load_tables().releases)
def test_every_release_takes_every_recipe_and_every_value_has_a_source(
    model: str, gpu_type: str, use_case: str, count: int, release: str
) -> None:
    tag = load_tables().releases[release]["default_tag"]
    request = {"model": model, "gpu_type": gpu_type, "use_case": use_case, "gpu_count": count, "image": f"r/i:{tag}"}
    recipe = serving_recipe({**REQUEST, **request})
    values = [
        *leaves(recipe["engine_options"]),
        *leaves({"environment": recipe["environment"], "limits": recipe["limits"]}),
    ]
    assert [(entry["option"], entry["value"]) for entry in recipe["provenance"]] == [
        (".".join(path), value) for path, value in values
    ]
    assert all("TensorRT-LLM" in entry["source"] for entry in recipe["provenance"])


def test_what_the_operator_sets_wins_and_is_named() -> None:
    before = copy.deepcopy(REQUEST)
    overrides = {
        "engine_options": {"kv_cache_config": {"dtype": "auto"}, "enable_chunked_prefill": True, "max_seq_len": None},
        "environment": {"TRTLLM_ENABLE_PDL": 0, "MINE": "x"},
        "limits": {"ulimits": {"memlock": None}, "shm_size": "10g"},
    }
    recipe = serving_recipe({**REQUEST, **overrides})
    assert recipe["engine_options"]["kv_cache_config"] == {"dtype": "auto", "free_gpu_memory_fraction": 0.85}
    assert recipe["engine_options"]["max_seq_len"] is None
    assert recipe["environment"] == {"TRTLLM_ENABLE_PDL": "0", "TRTLLM_NO_USAGE_STATS": "1", "MINE": "x"}
    assert recipe["limits"] == {"ipc": "host", "shm_size": "10g", "ulimits": {"stack": "67108864"}}
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
    # what is asked for, the variable to change, what the message says
    ({"model": "gpt-oss-120b"}, "serving_recipe_model", ["openai/gpt-oss-20b", "Did you mean 'openai/gpt-oss-120b'?"]),
    ({"use_case": "low-latency"}, "serving_recipe_use_case", ["max_throughput", "Did you mean 'low_latency'?"]),
    ({"gpu_type": "b20"}, "serving_recipe_gpu_type", ["Supported: b200, h200", "Did you mean 'b200'?"]),
    ({"gpu_type": "a100"}, "serving_recipe_gpu_type", ["'a100'", "Supported: b200, h200"]),
    ({"gpu_count": 3}, "serving_recipe_gpu_count", ["3 GPUs", "Supported: 1, 2, 4, 8"]),
    ({"gpu_count": "many"}, "serving_recipe_gpu_count", ["'many'"]),
    ({"model": "openai/gpt-oss-20b"}, "serving_recipe_gpu_count", ["8 GPUs", "Supported: 1."]),
    ({"gpu_type": None, "detected": {"count": 0}}, "serving_recipe_gpu_type", ["no NVIDIA GPU was found"]),
    ({"gpu_count": None, "detected": {"count": 0}}, "serving_recipe_gpu_count", ["no NVIDIA GPU was found"]),
    ({"detected": detected("NVIDIA B200", 4, "0x2901")}, "serving_recipe_gpu_count", ["the host has 4"]),
    (
        {**NOTHING_SET, "detected": detected("NVIDIA L40S", 2, "0x26b9")},
        "serving_recipe_gpu_type",
        ["NVIDIA L40S", "Supported: b200, h200"],
    ),
    (
        {**NOTHING_SET, "detected": detected(None, 2, "0x26b9")},
        "serving_recipe_gpu_type",
        ["PCI device 0x26b9", "Supported: b200, h200"],
    ),
    (
        {**NOTHING_SET, "gpu_count": 1, "detected": detected(None, 2, "0x2335", "0x2901", homogeneous=False)},
        "serving_recipe_gpu_type",
        ["0x2335", "not all of one kind"],
    ),
    ({"image": "r/i:1.1.0"}, "serving_recipe_image", ["older than every known release", "1.2.1"]),
    ({"image": "r/i:gpt-oss-dev"}, "serving_recipe_image", ["must tell the TensorRT-LLM release", "1.2.1"]),
    ({"image": "r:5000/i@sha256:ab"}, "serving_recipe_image", ["must tell the TensorRT-LLM release"]),
    ({"port": 70000}, "serving_recipe_port", ["70000", "1 to 65535"]),
    ({"environment": {"A": True}}, "serving_recipe_environment", ["A is True", "quotes"]),
    ({"environment": {"A B": "x"}}, "serving_recipe_environment", ["'A B'"]),
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
        {"engine_options": {"kv_cache_config": {"free_gpu_memory_fraction": 9}}},
        "serving_recipe_engine_options",
        ["takes float from 0 to 1"],
    ),
    (
        {"gpu_type": "h200", "engine_options": {"moe_config": {"backend": "TRTLLM"}}},
        "serving_recipe_engine_options",
        ["'TRTLLM' on h200 (sm90)", "which takes TRITON"],
    ),
    ({"engine_options": {"tensor_parallel_size": 4}}, "serving_recipe_engine_options", ["4 x 1 x 1", "GPUs used, 8"]),
    ({"engine_options": ["max_batch_size"]}, "serving_recipe_engine_options", ["takes a dict"]),
]


@pytest.mark.parametrize(("changes", "variable", "said"), REFUSALS, ids=[str(refusal[0])[:60] for refusal in REFUSALS])
def test_what_cannot_work_is_refused_in_one_sentence(changes: dict[str, Any], variable: str, said: list[str]) -> None:
    (problem,) = problems(**changes)
    assert problem.startswith(f"{variable}: ")
    assert [part for part in said if part not in problem] == []


def test_every_problem_is_in_one_message() -> None:
    changes = {
        "model": "openai/gpt-oss",
        "gpu_type": "b300",
        "gpu_count": "all",
        "use_case": "fast",
        "port": 0,
        "engine_options": {"stream_intervall": 1, "max_num_tokens": "many"},
    }
    with pytest.raises(AnsibleFilterError) as error:
        serving_recipe({**REQUEST, **changes})
    assert str(error.value) == "\n".join(problems(**changes))
    assert [problem.split(":")[0] for problem in problems(**changes)] == [
        "serving_recipe_gpu_type",
        "serving_recipe_model",
        "serving_recipe_use_case",
        "serving_recipe_gpu_count",
        "serving_recipe_port",
        "serving_recipe_engine_options",
        "serving_recipe_engine_options",
    ]
    assert problems() == []


def test_an_image_that_does_not_take_the_recipe_is_what_to_change() -> None:
    tables = load_tables()
    releases = copy.deepcopy(dict(tables.releases))
    del releases["1.2"]["engine_options"]["stream_interval"]
    with pytest.raises(ValueError, match=r"^serving_recipe_image: .*'stream_interval' is not an option"):
        resolve(REQUEST, Tables(tables.hardware, tables.models, tables.base, releases))


@pytest.mark.parametrize(
    ("row", "release", "floor"), [("575", "580", "580"), ("580.95", "580", "580.95"), ("9", "10", "10")]
)
def test_the_higher_driver_floor_counts(row: str, release: str, floor: str) -> None:
    tables = load_tables()
    hardware = [{**entry, "min_driver": row} for entry in tables.hardware]
    releases = {"1.2": {**tables.releases["1.2"], "driver_floor": release}}
    assert resolve(REQUEST, Tables(hardware, tables.models, tables.base, releases))["requires"]["driver"] == floor


def test_a_model_larger_than_the_gpu_is_refused() -> None:
    tables = load_tables()
    hardware = [{**entry, "memory_mib": 40960} for entry in tables.hardware]
    with pytest.raises(ValueError, match=r"serving_recipe_model: .* needs 76293 MiB of GPU memory, b200 has 40960 MiB"):
        resolve(REQUEST, Tables(hardware, tables.models, tables.base, tables.releases))


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
    (warning,) = serving_recipe({**REQUEST, "image": "r/i:9.9"})["warnings"]
    assert warning.startswith("serving_recipe_image: tag '9.9'")


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
        ({"sizes": [1, "2"]}, ("sizes",), "takes list of int, or null; '2' (str) is none."),
        ({"group": {"name": "a"}}, ("group", "name"), "takes one of A, B, not 'a'."),
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
