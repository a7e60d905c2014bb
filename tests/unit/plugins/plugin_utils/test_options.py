"""The release table: merging its files, its content, and the row of an image's tag."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import (
    check_options,
    dotted,
    expand_releases,
    option_paths,
    select_release,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables

RELEASES = load_tables().releases
VERSIONS = [name for name in RELEASES if re.fullmatch(r"\d+\.\d+", name)]
A: dict[str, Any] = {"type": "str", "choices": ["x", "y"], "nullable": True}
GROUP: dict[str, Any] = {"type": "dict", "options": {"b": {"type": "int"}, "c": {"type": "bool"}}}
OLDEST: dict[str, Any] = {
    "name": "1.0",
    "tags": ["1.0.0"],
    "cuda": "12.9",
    "declared": "1.0.0",
    "engine_options": {"a": A, "group": GROUP},
}


def expanded(declared: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    later = {"name": "1.1", "based_on": "1.0", "tags": ["1.1.0"], **changes}
    return expand_releases([later, OLDEST], {"1.0.0": declared or {}})["1.1"]


def specs(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for spec in tree.values():
        yield spec
        yield from specs(spec.get("options", {}))


def knowing(*path: str) -> list[str]:
    return [name for name, row in RELEASES.items() if ".".join(path) in option_paths(row["engine_options"])]


def test_nothing_changed() -> None:
    assert expanded() == {**OLDEST, "name": "1.1", "tags": ["1.1.0"], "unsupported": {}}


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"d": {"type": "int"}}, {"a": A, "group": GROUP, "d": {"type": "int"}}),
        ({"a": None}, {"group": GROUP}),
        ({"none": None}, {"a": A, "group": GROUP}),
        ({"a": {"choices": ["z"], "nullable": None}}, {"a": {"type": "str", "choices": ["z"]}, "group": GROUP}),
        (
            {"group": {"options": {"b": None, "c": {"nullable": True}, "e": {"type": "any"}}}},
            {
                "a": A,
                "group": {"type": "dict", "options": {"c": {"type": "bool", "nullable": True}, "e": {"type": "any"}}},
            },
        ),
        (
            {"new": {"type": "dict", "options": {"f": {"type": "int", "min": None}}}},
            {"a": A, "group": GROUP, "new": {"type": "dict", "options": {"f": {"type": "int"}}}},
        ),
    ],
)
def test_changes(changes: dict[str, Any], options: dict[str, Any]) -> None:
    assert expanded(engine_options=changes)["engine_options"] == options


@pytest.mark.parametrize(
    ("declared", "change", "options"),
    [
        ({"x": {"type": "int", "default": 3}}, {}, {"x": {"type": "int"}}),
        ({"x": {"type": "int"}}, {"x": {"min": 1}}, {"x": {"type": "int", "min": 1}}),
        ({"x": {"type": "object", "nullable": True}, "y": {"nullable": True}}, {}, {}),
        ({"x": {"type": "object"}}, {"x": {"type": "str"}}, {"x": {"type": "str"}}),
        ({}, {"x": {"min": 1}}, {}),
        ({"x": {"type": "int"}}, {"x": {"unsupported": "for this reason"}}, {}),
        (
            {"x": {"type": "dict", "options": {"y": {"type": "int"}, "z": {"type": "object"}}}},
            {"x": {"options": {"y": {"max": 2}}}},
            {"x": {"type": "dict", "options": {"y": {"type": "int", "max": 2}}}},
        ),
    ],
)
def test_changes_of_what_a_release_declares(
    declared: dict[str, Any], change: dict[str, Any], options: dict[str, Any]
) -> None:
    found = expanded(declared, engine_options={"a": None, "group": None, **change})["engine_options"]
    assert found == options


def test_the_order_of_files_does_not_matter() -> None:
    middle: dict[str, Any] = {"name": "1.1", "based_on": "1.0", "tags": ["1.1.0"], "engine_options": {"a": None}}
    newest: dict[str, Any] = {"name": "1.10", "based_on": "1.1", "tags": [], "engine_options": {"g": {"type": "int"}}}
    branch: dict[str, Any] = {"name": "branch", "based_on": "1.0", "tags": ["branch"]}
    results = [
        expand_releases(files, {"1.0.0": {}}) for files in itertools.permutations([OLDEST, middle, newest, branch])
    ]
    assert all(result == results[0] for result in results)
    assert all(list(result) == ["branch", "1.0", "1.1", "1.10"] for result in results)
    assert set(results[0]["1.10"]["engine_options"]) == {"group", "g"}
    assert "based_on" not in results[0]["1.10"]


def test_files_stay_as_they_are() -> None:
    before = repr(OLDEST)
    expanded(engine_options={"group": {"options": {"b": None}}})["engine_options"]["group"]["options"].clear()
    assert repr(OLDEST) == before


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([OLDEST, {"name": "1.2", "based_on": "1.1"}], "'1.2' is based on '1.1', which is not known .* releases: 1.0"),
        ([{"name": "1.0", "based_on": "1.0"}], "'1.0' is based on '1.0'.* Known releases: none"),
        ([{"name": "1.0", "based_on": "1.1"}, {"name": "1.1", "based_on": "1.0"}], "based on it in turn"),
    ],
)
def test_based_on_nothing(files: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand_releases(files, {"1.0.0": {}})


@pytest.mark.parametrize("name", RELEASES)
def test_rows_are_complete(name: str) -> None:
    row = RELEASES[name]
    assert row["name"] == name
    assert row["default_tag"] in row["tags"]
    assert all(tag == name or tag.startswith(f"{name}.") for tag in row["tags"])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", tag) for tag in row.get("runtime_tags", []))
    assert re.fullmatch(r"\d+\.\d", row["cuda"])
    assert date.fromisoformat(row["date"]) >= date.fromisoformat(RELEASES["gpt-oss-dev"]["date"])
    assert re.fullmatch(r"\d{3}", row["driver_floor"])
    assert row["architectures"]
    assert set(row["architectures"]) <= {"sm90", "sm100", "sm103", "sm120", "sm121"}
    assert row["health"] in ("refused", "503")
    assert row["precedence"] in ("file", "command_line")
    assert isinstance(row["telemetry"], bool)
    assert isinstance(row["harmony"], bool)
    assert row["invalid_request"] in ("object", "text")
    assert row.get("prometheus") in (None, "", "trtllm_")
    assert row["too_long"].format(prompt=9, limit=8, default=-1)
    assert row["source"]
    allowed = {"bool", "int", "float", "str", "list", "dict", "any"}
    keys = {"type", "options", "choices", "nullable", "min", "max", "above", "below"}
    keys |= {"elements", "element_min", "element_choices"}
    for spec in specs(row["engine_options"]):
        assert spec["type"] in allowed
        assert set(spec) <= keys
        assert spec.get("choices") != []
        assert spec.get("options") != {}
        assert not {"min", "max"} & set(spec) or spec["type"] in ("int", "float")
        assert "element_min" not in spec or spec["elements"] in ("int", "float")
    for spec in row["cli"].values():
        assert spec["type"] in {"flag", "int", "float", "str"}
        assert spec.get("choices") != []


@pytest.mark.parametrize("column", ["tags", "runtime_tags"])
def test_no_tag_is_in_two_rows(column: str) -> None:
    tags = [tag for row in RELEASES.values() for tag in row.get(column, [])]
    assert len(tags) == len(set(tags))


@pytest.mark.parametrize(
    ("path", "releases"),
    [
        (("enable_mixed_sampler",), ["gpt-oss-dev", "1.0"]),
        (("enable_trtllm_sampler",), ["gpt-oss-dev", "1.0"]),
        (("sampler_type",), ["1.1", "1.2", "1.3"]),
        (("env_overrides",), ["1.2", "1.3", "1.4"]),
        (("attention_dp_config", "enable_balance"), VERSIONS),
        (("kv_cache_config", "tokens_per_block"), ["1.1", "1.2", "1.3", "1.4"]),
        (("kv_cache_config", "onboard_blocks"), ["gpt-oss-dev", "1.0", "1.1", "1.2"]),
        (("kv_cache_config", "use_kv_cache_manager_v2"), ["1.3", "1.4"]),
        (("model_kwargs",), ["1.3", "1.4"]),
        (("speculative_config", "enable_penalty"), ["1.4"]),
        *((path, list(RELEASES)) for path in [("moe_config", "backend"), ("stream_interval",), ("cuda_graph_config",)]),
        (("kv_cache_free_gpu_memory_fraction",), []),
        (("kv_cache_dtype",), []),
    ],
)
def test_option_by_release(path: tuple[str, ...], releases: list[str]) -> None:
    assert knowing(*path) == releases


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"cache_transceiver_config": {"backend": "UCX"}}, "1.0.0rc6 accepts it in lower case"),
        ({"speculative_config": {"medusa_choices": []}}, "the PyTorch backend does not have the method"),
    ],
)
def test_an_option_that_a_release_declares_and_rejects_has_its_reason(option: dict[str, Any], reason: str) -> None:
    ((_path, sentence),) = check_options(option, RELEASES["1.0"]["engine_options"], RELEASES)
    assert sentence.startswith(f"is not supported: {reason}")


@pytest.mark.parametrize(
    ("flag", "releases"),
    [
        ("--config", ["1.2", "1.3", "1.4"]),
        ("--extra_llm_api_options", list(RELEASES)),
        ("--moe_backend", ["gpt-oss-dev"]),
        ("--no-telemetry", ["1.3", "1.4"]),
        ("--set", ["1.4"]),
    ],
)
def test_flag_by_release(flag: str, releases: list[str]) -> None:
    assert [name for name, row in RELEASES.items() if flag in row["cli"]] == releases


@pytest.mark.parametrize(
    ("backend", "releases"),
    [
        ("TRITON", ["gpt-oss-dev", "1.1", "1.2", "1.3", "1.4"]),
        ("AUTO", ["1.3", "1.4"]),
        ("WIDEEP", ["gpt-oss-dev", "1.0", "1.1", "1.2", "1.3"]),
        ("TRTLLM", list(RELEASES)),
        ("CUTLASS", list(RELEASES)),
    ],
)
def test_moe_backend_by_release(backend: str, releases: list[str]) -> None:
    choices = {n: row["engine_options"]["moe_config"]["options"]["backend"]["choices"] for n, row in RELEASES.items()}
    assert [name for name in RELEASES if backend in choices[name]] == releases


@pytest.mark.parametrize("key", ["telemetry", "harmony"])
def test_later_releases_keep_a_feature(key: str) -> None:
    values = [RELEASES[name][key] for name in VERSIONS]
    assert values == sorted(values)


@pytest.mark.parametrize(
    ("tag", "release", "exact"),
    [
        ("1.0.0rc6", "1.0", True),
        ("1.0.0", "1.0", True),
        ("1.0.0rc5", "1.0", False),
        ("gpt-oss-dev", "gpt-oss-dev", True),
        ("1.1.0rc1", "1.1", False),
        ("1.1.0", "1.1", True),
        ("1.2.1", "1.2", True),
        ("1.2.0rc2.post2", "1.2", False),
        ("1.3.0rc14", "1.3", True),
        ("1.3.0rc9", "1.3", False),
        ("1.3.0rc29", "1.3", False),
        ("1.4.0rc1", "1.4", True),
        ("1.15.0", "1.4", False),
        ("1.9.0", "1.4", False),
        ("1.9", "1.4", False),
        ("1.2.1@sha256:" + 64 * "0", "1.2", True),
    ],
)
def test_release_of_a_tag(tag: str, release: str, exact: bool) -> None:
    name, warning = select_release(f"nvcr.io/nvidia/tensorrt-llm/release:{tag}", RELEASES)
    assert name == release
    assert bool(warning) is not exact
    if warning:
        assert repr(tag) in warning
        assert f"TensorRT-LLM {release}" in warning


@pytest.mark.parametrize(
    ("image", "release", "exact"),
    [
        ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.0.0", "1.3", True),
        ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.2.1", "1.3", True),
        ("registry.example.com:5000/mirror/tensorrtllm-runtime:1.1.1@sha256:" + 64 * "0", "1.3", True),
        ("tensorrtllm-runtime:1.3.1", "1.3", True),
        # Newer ones are with 1.3.0rc22 (1.4) and 1.3.0rc25 (1.5), as Dynamo's pages on compatibility say.
        ("registry:5000/tensorrtllm-runtime:1.4.2", "1.3", False),
        ("registry:5000/tensorrtllm-runtime:1.5.0", "1.3", False),
        ("registry:5000/tensorrtllm-runtime:2.0.0", "1.3", False),
        ("registry:5000/tensorrtllm-runtime:1.0.0-efa-amd64", "1.3", False),
        # A tag of TensorRT-LLM's images, which has another meaning here.
        ("registry:5000/tensorrtllm-runtime:1.3.0rc14", "1.3", False),
        # Only the last component matters.
        ("registry:5000/tensorrtllm-runtime/release:1.0.0", "1.0", True),
        ("registry:5000/my-tensorrtllm-runtime:1.1.0", "1.1", True),
        ("tensorrtllm-runtime:5000/release:1.2.1", "1.2", True),
    ],
)
def test_tags_of_dynamos_runtime_are_dynamo_versions(image: str, release: str, exact: bool) -> None:
    name, warning = select_release(image, RELEASES)
    assert (name, not warning) == (release, exact)


@pytest.mark.parametrize("tag", [tag for row in RELEASES.values() for tag in row["tags"]])
def test_tags_of_other_images_are_tensorrt_llm_versions(tag: str) -> None:
    (name,) = [name for name, row in RELEASES.items() if tag in row["tags"]]
    for repository in ("nvcr.io/nvidia/tensorrt-llm/release", "registry:5000/anything"):
        assert select_release(f"{repository}:{tag}", RELEASES) == (name, "")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("r/tensorrtllm-runtime:my-tag", r"has no Dynamo version\. Set serving_recipe_trtllm_version .*1\.0\.0, "),
        ("r/tensorrtllm-runtime@sha256:00", "has no Dynamo version"),
        ("r/tensorrtllm-runtime:0.9.1", r"Dynamo 0\.9\.1 is older than every known version\. Known tags: 1\.0\.0"),
        ("nvcr.io/nvidia/tensorrt-llm/release:latest", "has no TensorRT-LLM version"),
        ("nvcr.io/nvidia/tensorrt-llm/release:gpt-oss-devel", "Did you mean 'gpt-oss-dev'"),
        ("nvcr.io/nvidia/tensorrt-llm/release", "has no TensorRT-LLM version"),
        ("registry:5000/release", "has no TensorRT-LLM version"),
        ("nvcr.io/nvidia/tensorrt-llm/release:0.21.0", "older than every known version"),
        # Other numberings: a month, a date, CUDA's, and an unknown one.
        *(
            (
                f"nvcr.io/nvidia/tritonserver:{tag}",
                r"has no TensorRT-LLM version.* Set serving_recipe_trtllm_version .*, 1\.4\. Known tags: .*1\.2\.1",
            )
            for tag in ("25.12", "25.12-trtllm-python-py3", "2026.11.1", "12.1-trt", "9.9")
        ),
    ],
)
def test_tag_without_a_release(image: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_release(image, RELEASES)


GPU_TYPES = ["b200", "gb200", "h200", "h200_nvl", "h100", "h100_nvl", "rtx_pro_6000", "rtx_5090"]


@pytest.mark.parametrize(
    ("name", "known", "nearest"),
    [
        ("B200", GPU_TYPES, "b200"),
        ("GB200", GPU_TYPES, "gb200"),
        ("GB200", ["b200"], None),
        ("b20", GPU_TYPES, "b200"),
        ("A100", [*GPU_TYPES, "a100"], "a100"),
        ("A100", GPU_TYPES, None),
        ("h300", GPU_TYPES, None),
        ("RTX5090", GPU_TYPES, "rtx_5090"),
        ("NVIDIA H200", GPU_TYPES, "h200"),
        ("NVIDIA H200 NVL", GPU_TYPES, "h200_nvl"),
        ("NVIDIA GB200", GPU_TYPES, "gb200"),
        ("NVIDIA H100 80GB HBM3", GPU_TYPES, "h100"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", GPU_TYPES, "rtx_pro_6000"),
        ("Radeon", GPU_TYPES, None),
        (200, GPU_TYPES, None),
        ("LOW_LATENCY", ["low_latency", "max_throughput"], "low_latency"),
        ("low-latency", ["low_latency", "max_throughput"], "low_latency"),
        ("trtllm", ["CUTLASS", "TRTLLM"], "TRTLLM"),
        ("TRTLM", ["CUTLASS", "TRTLLM"], "TRTLLM"),
        ("fp16", ["auto", "fp8", "bfloat16"], None),
        ("gpt-oss-120", ["openai/gpt-oss-20b", "openai/gpt-oss-120b"], "openai/gpt-oss-120b"),
        ("openai/gpt-oss", ["openai/gpt-oss-20b"], "openai/gpt-oss-20b"),
        ("1.5", ["1.1", "1.2"], None),
    ],
)
def test_did_you_mean(name: Any, known: list[str], nearest: str | None) -> None:
    assert did_you_mean(name, known) == (f" Did you mean {nearest!r}?" if nearest else "")


@pytest.mark.parametrize(
    ("release", "path", "sentence"),
    [
        ("1.2", "enable_mixed_sampler", "is not an option of this release; TensorRT-LLM 1.0 had it (removed in 1.1)."),
        (
            "1.4",
            "kv_cache_config.onboard_blocks",
            "is not an option of this release; TensorRT-LLM 1.2 had it (removed in 1.3).",
        ),
        ("1.2", "model_kwargs", "is not an option of this release; TensorRT-LLM 1.3 adds it."),
        (
            "1.0",
            "kv_cache_config.use_kv_cache_manager_v2",
            "is not an option of this release; TensorRT-LLM 1.3 adds it.",
        ),
        ("1.2", "max_batch_sise", "is not an option. Did you mean 'max_batch_size'?"),
    ],
)
def test_option_of_another_release(release: str, path: str, sentence: str) -> None:
    group, __, name = path.rpartition(".")
    options = {group: {name: 1}} if group else {name: 1}
    specs = RELEASES[release]["engine_options"]
    assert check_options(options, specs, RELEASES) == [(tuple(path.split(".")), sentence)]
    assert ("of this release" in check_options(options, specs)[0][1]) is False


SPECS: dict[str, Any] = {
    "size": {"type": "int", "min": 1, "nullable": True},
    "share": {"type": "float", "min": 0, "max": 1},
    "free": {"type": "float"},
    "sizes": {"type": "list", "elements": "int", "element_min": 1, "nullable": True},
    "rate": {"type": "float", "above": 0, "below": 1},
    "names": {"type": "list", "elements": "str", "element_choices": ["a", "b"]},
}


@pytest.mark.parametrize(
    "options",
    [
        *({"size": size} for size in (1, None)),
        {"share": 0},
        *({"free": number} for number in (-1, math.inf)),
        *({"sizes": sizes} for sizes in ([1, 2], [])),
        {"rate": 0.5},
        {"names": ["b", "a"]},
    ],
)
def test_within_bounds(options: dict[str, Any]) -> None:
    assert check_options(options, SPECS) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": 0}, "takes int from 1, or null, not 0."),
        ({"share": 1.5}, "takes float from 0 to 1, not 1.5."),
        ({"share": math.nan}, "takes float from 0 to 1, not nan."),
        ({"free": math.nan}, "takes float, not nan."),
        ({"sizes": [64, 0]}, "takes list of int from 1, or null; 0 is not allowed."),
        ({"sizes": [-1, "2"]}, "takes list of int from 1, or null; -1 is not allowed."),
        ({"sizes": ["2"]}, "takes list of int from 1, or null; '2' (str) is not allowed."),
        ({"rate": 0}, "takes float above 0 below 1, not 0."),
        ({"rate": 1}, "takes float above 0 below 1, not 1."),
        ({"names": ["c"]}, "takes list of a, b; 'c' is not allowed."),
    ],
)
def test_out_of_bounds(options: dict[str, Any], sentence: str) -> None:
    assert check_options(options, SPECS) == [(tuple(options), sentence)]


def refused(release: str, options: dict[str, Any]) -> list[str]:
    return [dotted(path) for path, __ in check_options(options, RELEASES[release]["engine_options"])]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "path",
    [
        "max_batch_size",
        "max_beam_width",
        "max_input_len",
        "max_num_tokens",
        "max_seq_len",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "context_parallel_size",
        "gpus_per_node",
        "moe_config.max_num_tokens",
        "kv_cache_config.max_tokens",
        "stream_interval",
    ],
)
def test_sizes_start_at_one(release: str, path: str) -> None:
    group, __, name = path.rpartition(".")
    for value, wrong in ((1, []), (0, [path]), (-5, [path])):
        assert refused(release, {group: {name: value}} if group else {name: value}) == wrong


@pytest.mark.parametrize(
    ("releases", "options", "wrong"),
    [
        (RELEASES, {"num_postprocess_workers": 0}, []),
        (RELEASES, {"num_postprocess_workers": -1}, ["num_postprocess_workers"]),
        (RELEASES, {"moe_expert_parallel_size": -1, "moe_tensor_parallel_size": None}, []),
        (RELEASES, {"moe_expert_parallel_size": -2}, ["moe_expert_parallel_size"]),
        (RELEASES, {"dtype": "bfloat16"}, []),
        (RELEASES, {"dtype": "float99"}, ["dtype"]),
        (RELEASES, {"cuda_graph_config": {"batch_sizes": [1, 64], "max_batch_size": 0}}, []),
        (RELEASES, {"cuda_graph_config": {"batch_sizes": [0, -1, 64]}}, ["cuda_graph_config.batch_sizes"]),
        (VERSIONS, {"attention_dp_config": {"timeout_iters": 0, "batching_wait_iters": 0}}, []),
        (VERSIONS, {"attention_dp_config": {"timeout_iters": -1}}, ["attention_dp_config.timeout_iters"]),
        (VERSIONS, {"attention_dp_config": {"batching_wait_iters": -1}}, ["attention_dp_config.batching_wait_iters"]),
        (["1.0", "1.2"], {"kv_cache_config": {"max_attention_window": [0]}}, ["kv_cache_config.max_attention_window"]),
        (["1.3", "1.4"], {"kv_cache_config": {"max_attention_window": [0]}}, []),
        (
            ["1.2", "1.4"],
            {"torch_compile_config": {"capture_num_tokens": [0]}},
            ["torch_compile_config.capture_num_tokens"],
        ),
        (["1.4"], {"iter_stats_max_iterations": -1, "max_stats_len": -1}, []),
    ],
)
def test_bounds_of_releases(releases: list[str], options: dict[str, Any], wrong: list[str]) -> None:
    assert {name: refused(name, options) for name in releases} == dict.fromkeys(releases, wrong)
