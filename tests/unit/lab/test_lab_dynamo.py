"""The lab's dynamo.trtllm checks like TensorRT-LLM and gives the mocker the worker's registration and capacity."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from ansible_collections.trtllm.fleet.tests.unit.paths import FIXTURES
from lab.engine import dynamo_trtllm, trtllm_serve

ROW = load_tables().releases["1.3"]
GUIDE = yaml.safe_load((FIXTURES / "documents/dynamo_guide.yml").read_text())


def config(**given: Any) -> argparse.Namespace:
    """Return the part of Dynamo 1.4.2's parsed command line that the lab reads."""
    known: dict[str, Any] = {
        "model": "/models/gpt-oss-120b",
        "served_model_name": "openai/gpt-oss-120b",
        "namespace": "dynamo",
        "component": "backend",
        "endpoint": "generate",
        "disaggregation_mode": "prefill_and_decode",
        "discovery_backend": "etcd",
        "request_plane": "tcp",
        "event_plane": None,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "expert_parallel_size": None,
        "enable_attention_dp": False,
        **dynamo_trtllm.DEFAULTS,
    }
    assert given.keys() <= known.keys()
    made = argparse.Namespace(**known | given)
    made.disaggregation_mode = SimpleNamespace(value=made.disaggregation_mode)
    return made


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_serve, "gpu_count", lambda: 4)


def test_stand_in_for_tensorrt_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use it like Dynamo's command line: an import, and the defaults of four fields."""
    for name in ("tensorrt_llm", "tensorrt_llm.llmapi"):
        monkeypatch.setitem(sys.modules, name, None)
    dynamo_trtllm.stand_in_for_tensorrt_llm()
    from tensorrt_llm.llmapi import BuildConfig

    fields = BuildConfig.model_fields
    assert [fields[f"max_{name}"].default for name in ("batch_size", "num_tokens", "seq_len", "beam_width")] == [
        2048,
        8192,
        None,
        1,
    ]


def test_file_takes_precedence(tmp_path: Path) -> None:
    given = config(model=str(tmp_path), tensor_parallel_size=2, expert_parallel_size=2, max_batch_size=64)
    args, checkpoint = dynamo_trtllm.check(given, {"max_batch_size": 128, "stream_interval": 10}, ROW)
    assert checkpoint == tmp_path
    assert args == {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "moe_expert_parallel_size": 2,
        "enable_attention_dp": False,
        "max_batch_size": 128,
        "max_num_tokens": 8192,
        "max_seq_len": None,
        "max_beam_width": 1,
        "stream_interval": 10,
    }


@pytest.mark.parametrize(
    ("given", "file", "error", "message"),
    [
        ({}, {"stream_intervall": 10}, pydantic.ValidationError, "stream_intervall\n  Extra inputs are not permitted"),
        ({}, {"cache_transceiver_config": {"backend": "ucx"}}, pydantic.ValidationError, "Input should be 'DEFAULT'"),
        ({"tensor_parallel_size": 8}, {}, RuntimeError, "Only 4 GPUs are available, but 8 are required"),
        ({"tensor_parallel_size": 4}, {"tensor_parallel_size": 8}, RuntimeError, "but 8 are required"),
        ({"tensor_parallel_size": 4, "expert_parallel_size": 8}, {}, ValueError, "tp_size must equal to"),
        ({}, {}, ValueError, "Repo id must be in the form"),
    ],
)
def test_invalid_options_fail_before_loading(
    given: dict[str, Any], file: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        dynamo_trtllm.check(config(**given), file, ROW)


def test_worker_without_a_gpu_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_serve, "gpu_count", lambda: 0)
    with pytest.raises(ValueError, match="No GPU devices found on the node"):
        dynamo_trtllm.check(config(), {}, ROW)


@pytest.mark.parametrize(
    ("mode", "args", "tokens"),
    [
        ("prefill", {"enable_chunked_prefill": True, "cache_transceiver_config": {"max_tokens_in_buffer": 9216}}, 9216),
        ("prefill", {"cache_transceiver_config": {"max_tokens_in_buffer": 9216}}, 8192),
        ("prefill", {"cache_transceiver_config": {"max_tokens_in_buffer": 4096}}, 4096),
        ("prefill", {"enable_chunked_prefill": True, "cache_transceiver_config": {"backend": "UCX"}}, None),
        ("prefill", {"enable_chunked_prefill": True, "cache_transceiver_config": None}, None),
        ("decode", {"cache_transceiver_config": {"max_tokens_in_buffer": 4096}}, None),
        ("prefill_and_decode", {"cache_transceiver_config": {"max_tokens_in_buffer": 4096}}, 8192),
    ],
)
def test_longest_prompt(mode: str, args: dict[str, Any], tokens: int | None) -> None:
    assert dynamo_trtllm.longest_prompt(mode, {"max_num_tokens": 8192, **args}) == tokens


def guide_file(blocks: list[Any]) -> dict[str, Any]:
    """Merge the blocks of a document's file in order."""
    merged: dict[str, Any] = {}
    for block in blocks:
        for name, value in block.items():
            merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) else value
    return merged


def test_workers_of_the_guide(tmp_path: Path) -> None:
    """Compare the mocker's command lines for the guide's two workers."""
    found = []
    for document in GUIDE["configurations"]:
        flags: dict[str, Any] = {}
        for block in document["command"]:
            flags |= block
        mode = flags["--disaggregation-mode"]
        given = config(
            model=str(tmp_path),
            served_model_name=flags["--served-model-name"],
            component="prefill" if mode == "prefill" else "backend",
            disaggregation_mode=mode,
            tensor_parallel_size=flags["--tensor-parallel-size"],
            expert_parallel_size=flags["--expert-parallel-size"],
            max_num_tokens=flags["--max-num-tokens"],
            max_batch_size=flags["--max-batch-size"],
            event_plane="nats",
        )
        args, checkpoint = dynamo_trtllm.check(given, guide_file(document["yaml"]), ROW)
        found.append(dynamo_trtllm.mocker_arguments(given, args, checkpoint, (1, 4)))
    common = [f"--model-path={tmp_path}", "--model-name=openai/gpt-oss-120b"]
    planes = ["--discovery-backend=etcd", "--request-plane=tcp", "--event-plane=nats", "--engine-type=trtllm"]
    assert found == [
        [
            *common,
            "--endpoint=dyn://dynamo.prefill.generate",
            "--disaggregation-mode=prefill",
            *planes,
            "--speedup-ratio=10",
            "--max-num-seqs=32",
            "--max-num-batched-tokens=65536",
            "--block-size=32",
            "--data-parallel-size=1",
            "--no-enable-chunked-prefill",
        ],
        [
            *common,
            "--endpoint=dyn://dynamo.backend.generate",
            "--disaggregation-mode=decode",
            *planes,
            "--speedup-ratio=10",
            "--max-num-seqs=128",
            "--max-num-batched-tokens=16384",
            "--block-size=32",
            "--data-parallel-size=4",
        ],
    ]


def test_cache_settings_reach_the_mocker(tmp_path: Path) -> None:
    given = config(model=str(tmp_path), served_model_name=None)
    file = {"kv_cache_config": {"tokens_per_block": 64, "enable_block_reuse": False}}
    args, checkpoint = dynamo_trtllm.check(given, file, ROW)
    arguments = dynamo_trtllm.mocker_arguments(given, args, checkpoint, (1, 4))
    assert {
        f"--model-name={tmp_path}",
        "--disaggregation-mode=agg",
        "--block-size=64",
        "--no-enable-prefix-caching",
    } <= set(arguments)
    assert not [argument for argument in arguments if argument.startswith("--event-plane")]


@pytest.mark.parametrize(
    ("minor", "options"),
    [((1, 0), []), ((1, 2), ["--event-plane=nats"]), ((1, 6), ["--event-plane=nats", "--engine-type=trtllm"])],
)
def test_mocker_options_match_the_version(tmp_path: Path, minor: tuple[int, ...], options: list[str]) -> None:
    given = config(model=str(tmp_path), event_plane="nats")
    args, checkpoint = dynamo_trtllm.check(given, {}, ROW)
    arguments = dynamo_trtllm.mocker_arguments(given, args, checkpoint, minor)
    assert [argument for argument in arguments if argument.startswith(("--event-plane", "--engine-type"))] == options


def test_context_length_of_options_or_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    known = trtllm_serve.model_config(tmp_path)
    assert trtllm_serve.max_tokens({"max_seq_len": 1024}, known) == 1024
    assert trtllm_serve.max_tokens({"max_seq_len": None}, known) == 4096
    (tmp_path / "config.json").unlink()
    with pytest.raises(OSError, match=r"does not appear to have a file named config\.json"):
        trtllm_serve.model_config(tmp_path)
