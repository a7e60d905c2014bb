"""The lab's trtllm-serve accepts, rejects, starts, fails and ends like a TensorRT-LLM release."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click.testing
import pydantic
import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.completion_checks import RAW_HARMONY
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.memory import graph_batch_sizes
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from lab.engine import options, trtllm_serve

TABLE = load_tables().releases
SAMPLES = {"int": "1", "float": "0.5", "str": "x"}
# The throughput configuration of NVIDIA's gpt-oss guide.
GOOD = {
    "enable_attention_dp": True,
    "cuda_graph_config": {"enable_padding": True, "max_batch_size": 720},
    "moe_config": {"backend": "TRTLLM"},
    "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "dtype": "fp8"},
    "stream_interval": 20,
    "num_postprocess_workers": 4,
    "attention_dp_config": {"enable_balance": True, "batching_wait_iters": 50, "timeout_iters": 1},
    "env_overrides": {"TRTLLM_ENABLE_PDL": 1},
}


def run(version: str, *arguments: str) -> tuple[click.testing.Result, dict[str, Any]]:
    """Run the command line of a release; return its output and what it would deploy."""
    served: dict[str, Any] = {}
    command = options.command(options.release(TABLE, version), lambda **given: served.update(given))
    return click.testing.CliRunner().invoke(command, arguments), served


def validate(version: str, file: Mapping[str, Any]) -> None:
    options.model(options.release(TABLE, version)["engine_options"])(**file)


def test_unknown_release_is_an_error() -> None:
    with pytest.raises(KeyError):
        options.release(TABLE, "1.0.0rc5")


@pytest.mark.parametrize(("name", "flag"), [(name, flag) for name, row in TABLE.items() for flag in row["cli"]])
def test_each_flag_of_a_release_is_accepted(name: str, flag: str) -> None:
    spec = TABLE[name]["cli"][flag]
    value = [] if spec["type"] == "flag" else [spec.get("choices", [SAMPLES[spec["type"]]])[0]]
    result, served = run(TABLE[name]["default_tag"], "/models/m", flag, *value)
    assert result.exit_code == 0, result.output
    assert served["model"] == "/models/m"
    assert served[spec.get("name", flag[2:].replace("-", "_"))] not in (None, ())


def test_spellings_of_an_option_are_equivalent() -> None:
    __, served = run("1.2.1", "m", "--tp_size", "8", "--ep_size", "4", "--config", "f")
    assert (served["tensor_parallel_size"], served["moe_expert_parallel_size"]) == (8, 4)
    assert served["extra_llm_api_options"] == "f"
    __, served = run("1.0.0rc6", "m", "--tp_size", "8", "--kv_cache_free_gpu_memory_fraction", "0.9")
    assert (served["tensor_parallel_size"], served["free_gpu_memory_fraction"]) == (8, 0.9)
    assert run("1.4.0rc1", "m", "--no-telemetry")[1]["telemetry"] is False


@pytest.mark.parametrize(
    ("version", "arguments", "message"),
    [
        ("1.2.1", ["m", "--tensor_paralel_size", "8"], "No such option"),
        ("1.2.1", ["m", "--moe_backend", "TRITON"], "No such option"),
        ("1.2.1", ["m", "--served_model_name", "x"], "No such option"),
        ("1.2.1", ["m", "--port", "http"], "'http' is not a valid int"),
        ("1.0.0rc6", ["m", "--config", "f"], "No such option"),
        ("1.1.0", ["m", "--config", "f"], "No such option"),
        ("1.3.0rc14", ["m", "--set", "max_batch_size=1"], "No such option"),
        ("1.4.0rc1", ["m", "--backend", "tensorrt"], "'tensorrt' is not one of"),
        ("1.4.0rc1", [], "Missing argument 'MODEL'"),
        ("1.4.0rc1", ["m", "n"], "unexpected extra argument"),
    ],
)
def test_wrong_command_line_is_rejected(version: str, arguments: list[str], message: str) -> None:
    result, served = run(version, *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert not served


@pytest.mark.parametrize("version", [row["default_tag"] for row in TABLE.values()])
def test_valid_files_are_accepted(version: str) -> None:
    known = TABLE[next(name for name, row in TABLE.items() if version in row["tags"])]["engine_options"]
    validate(version, {name: value for name, value in GOOD.items() if name in known})
    validate(version, {})
    validate(version, {"cuda_graph_config": None})


@pytest.mark.parametrize(
    ("version", "file", "where", "message"),
    [
        ("1.2.1", {"stream_intervall": 20}, "stream_intervall", "Extra inputs are not permitted"),
        ("1.2.1", {"enable_mixed_sampler": True}, "enable_mixed_sampler", "Extra inputs are not permitted"),
        ("1.1.0", {"enable_mixed_sampler": True}, "enable_mixed_sampler", "Extra inputs are not permitted"),
        ("1.0.0rc6", {"sampler_type": "TorchSampler"}, "sampler_type", "Extra inputs are not permitted"),
        ("1.0.0rc6", {"moe_config": {"backend": "TRITON"}}, "moe_config.backend", "Input should be 'CUTLASS'"),
        ("1.2.1", {"kv_cache_free_gpu_memory_fraction": 0.9}, "kv_cache_free_gpu_memory_fraction", "Extra inputs"),
        ("1.2.1", {"moe_config": {"bakend": "TRTLLM"}}, "moe_config.bakend", "Extra inputs are not permitted"),
        ("1.2.1", {"moe_config": {"backend": "TRTLM"}}, "moe_config.backend", "Input should be 'CUTLASS', 'CUTEDSL'"),
        ("1.2.1", {"moe_config": {"backend": "AUTO"}}, "moe_config.backend", "Input should be 'CUTLASS', 'CUTEDSL'"),
        (
            "1.2.1",
            {"kv_cache_config": {"free_gpu_memory_fraction": None}},
            "kv_cache_config.free_gpu_memory_fraction",
            "Input should be a valid number",
        ),
        ("1.2.1", {"moe_config": None}, "moe_config", "Input should be a valid dictionary or instance of MoeConfig"),
        ("1.2.1", {"max_batch_size": "many"}, "max_batch_size", "Input should be a valid integer"),
        ("1.2.1", {"stream_interval": 0}, "stream_interval", "greater than or equal to 1"),
        ("1.2.1", {"enable_attention_dp": "perhaps"}, "enable_attention_dp", "Input should be a valid boolean"),
        ("1.2.1", {"max_batch_size": 0}, "max_batch_size", "greater than or equal to 1"),
        ("1.2.1", {"cuda_graph_config": {"batch_sizes": [8, 0]}}, "cuda_graph_config.batch_sizes.1", "or equal to 1"),
        ("1.2.1", {"dtype": "float99"}, "dtype", "Input should be 'auto', 'float16'"),
        ("1.2.1", {"pp_partition": ["a"]}, "pp_partition.0", "Input should be a valid integer"),
        ("1.2.1", {"kv_cache_config": {"free_gpu_memory_fraction": 90}}, "kv_cache_config", "less than or equal to 1"),
        ("1.4.0rc1", {"sampler_type": "TorchSampler"}, "sampler_type", "Extra inputs are not permitted"),
        ("1.4.0rc1", {"moe_config": {"backend": "WIDEEP"}}, "moe_config.backend", "Input should be 'AUTO'"),
    ],
)
def test_wrong_files_are_rejected(version: str, file: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        validate(version, file)
    first, second, third, *__ = str(error.value).splitlines()
    assert first == "1 validation error for TorchLlmArgs"
    assert second.startswith(where)
    assert message in third


def test_precedence() -> None:
    given, file = {"tensor_parallel_size": 4, "max_batch_size": 1}, {"tensor_parallel_size": 8}
    assert options.effective(TABLE["1.2"], given, file) == {"tensor_parallel_size": 8, "max_batch_size": 1}
    assert options.effective(TABLE["1.3"], given, file) == {"tensor_parallel_size": 8, "max_batch_size": 1}
    assert options.effective(TABLE["1.4"], given, file) == {"tensor_parallel_size": 4, "max_batch_size": 1}


def test_option_of_the_command_line_only() -> None:
    file = {"max_batch_size": 720, "stream_interval": 20}
    assert options.effective(TABLE["1.0"], {}, file) == {"stream_interval": 20}
    assert options.effective(TABLE["1.0"], {"max_batch_size": 720}, file) == file
    assert options.effective(TABLE["1.1"], {}, file) == file


def test_gpu_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert trtllm_serve.gpu_count(tmp_path) == 0
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert trtllm_serve.gpu_count(tmp_path) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert trtllm_serve.gpu_count(tmp_path) == 2


def test_gpu_count_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA B200 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA B200 (UUID: GPU-2)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert trtllm_serve.gpu_count(tmp_path) == 2


def test_find_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trtllm_serve.find_model(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="Repo id must be in the form"):
        trtllm_serve.find_model("/models/missing")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="Cannot find an appropriate cached snapshot folder"):
        trtllm_serve.find_model("openai/gpt-oss-120b")
    repository = tmp_path / "hub" / "models--openai--gpt-oss-120b"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("b5c939d")
    assert trtllm_serve.find_model("openai/gpt-oss-120b") == repository / "snapshots" / "b5c939d"


def shard(path: Path) -> None:
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"abcd")


def test_weights(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No weight files found"):
        trtllm_serve.check_weights(tmp_path)
    shard(tmp_path / "a.safetensors")
    assert trtllm_serve.check_weights(tmp_path) == 1
    weight_map = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(FileNotFoundError, match=r"b\.safetensors"):
        trtllm_serve.check_weights(tmp_path)
    shard(tmp_path / "b.safetensors")
    assert trtllm_serve.check_weights(tmp_path) == 2
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-1])
    with pytest.raises(RuntimeError, match="file not fully covered"):
        trtllm_serve.check_weights(tmp_path)


def test_parallelism() -> None:
    trtllm_serve.check_parallelism({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 8)
    trtllm_serve.check_parallelism({"tensor_parallel_size": 8, "moe_expert_parallel_size": None}, 8)
    with pytest.raises(RuntimeError, match="Only 4 GPUs are available, but 8 are required"):
        trtllm_serve.check_parallelism({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 4)
    with pytest.raises(ValueError, match="tp_size must equal to"):
        trtllm_serve.check_parallelism({"tensor_parallel_size": 4, "moe_expert_parallel_size": 8}, 8)


def graphs(**config: Any) -> dict[str, Any]:
    return {"cuda_graph_config": {"enable_padding": True, **config}}


@pytest.mark.parametrize("release", ["1.2", "1.3"])
def test_sizes_of_graphs(release: str) -> None:
    """Up to 1.2 the largest size has to make the others; later it has to be one of them."""
    row = TABLE[release]
    made = graph_batch_sizes(graphs(max_batch_size=256), row)
    for accepted in (
        {},
        graphs(max_batch_size=64),
        graphs(batch_sizes=[1, 64]),
        graphs(batch_sizes=made, max_batch_size=256),
    ):
        trtllm_serve.check_graphs(accepted, row)
    with pytest.raises(ValueError, match="Please don't set both"):
        trtllm_serve.check_graphs(graphs(batch_sizes=made, max_batch_size=512), row)
    both = graphs(batch_sizes=[1, 64], max_batch_size=64)
    if release == "1.3":
        trtllm_serve.check_graphs(both, row)
    else:
        with pytest.raises(ValueError, match="Please don't set both"):
            trtllm_serve.check_graphs(both, row)


DRAFT: dict[str, Any] = {"decoding_type": "Eagle", "max_draft_len": 3, "eagle3_layers_to_capture": [23, 29, 35]}


@pytest.mark.parametrize(
    ("config", "speculative", "error", "words"),
    [
        ({}, {"speculative_model_dir": "/nowhere"}, ValueError, "Repo id must be in the form"),
        ({}, {"speculative_model_dir": "nvidia/a-draft"}, FileNotFoundError, "HF_HUB_OFFLINE"),
        (None, {}, OSError, "config.json"),
        ({"hidden_size": 4096}, {}, RuntimeError, "size mismatch"),
        ({}, {"eagle3_layers_to_capture": [36]}, IndexError, r"\[36\]"),
        ({}, {}, RuntimeError, "No weight files"),
    ],
)
def test_a_draft_model_is_loaded(
    tmp_path: Path, config: dict[str, Any] | None, speculative: dict[str, Any], error: type[Exception], words: str
) -> None:
    """The engine ends with upstream's errors."""
    model = {"hidden_size": 2880, "vocab_size": 201088, "num_hidden_layers": 36}
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps({**model, "num_hidden_layers": 1, **config}))
    given = {**DRAFT, "speculative_model_dir": str(tmp_path), **speculative}
    with pytest.raises(error, match=words):
        trtllm_serve.check_draft({"speculative_config": given}, model)


def test_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt_oss = {"model_type": "gpt_oss"}
    path = tmp_path / "o200k_base.tiktoken"
    monkeypatch.setenv("LAB_HARMONY_SHA256", hashlib.sha256(b"good").hexdigest())
    monkeypatch.delenv("TIKTOKEN_ENCODINGS_BASE", raising=False)
    monkeypatch.delenv("DISABLE_HARMONY_ADAPTER", raising=False)
    assert not trtllm_serve.vocabulary_is_good(gpt_oss)
    assert trtllm_serve.vocabulary_is_good({"model_type": "llama"})
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    assert not trtllm_serve.vocabulary_is_good(gpt_oss)
    path.write_bytes(b"bad")
    assert not trtllm_serve.vocabulary_is_good(gpt_oss)
    path.write_bytes(b"good")
    assert trtllm_serve.vocabulary_is_good(gpt_oss)


def test_bind() -> None:
    server, listen = trtllm_serve.bind("127.0.0.1", 0)
    port = server.getsockname()[1]
    assert listen == "127.0.0.1:0"
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    server.listen()
    with pytest.raises(RuntimeError, match=f"Failed to bind socket to 127.0.0.1:{port}: .* in use"):
        trtllm_serve.bind("127.0.0.1", port)
    server.close()


def test_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard(tmp_path / "a.safetensors")
    list(trtllm_serve.phases({"cuda_graph_config": {"max_batch_size": 64}}, tmp_path, ""))
    output = capsys.readouterr().out
    loading, tuning, graphs = map(output.index, ("100% 1/1", "Autotuning process ends", "sizes up to 64"))
    assert loading < tuning < graphs
    list(trtllm_serve.phases({"cuda_graph_config": None, "enable_autotuner": False}, tmp_path, ""))
    assert not re.search("Autotun|CUDA graph", capsys.readouterr().out)
    with pytest.raises(RuntimeError, match="insufficient GPU memory"):
        list(trtllm_serve.phases({}, tmp_path, "die"))
    hanging = trtllm_serve.phases({}, tmp_path, "hang")
    for __ in range(1000):
        next(hanging)


def test_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_ENGINE_FAULT", raising=False)
    monkeypatch.delenv("LAB_ENGINE_FAULT_FILE", raising=False)
    assert trtllm_serve.fault() == ""
    monkeypatch.setenv("LAB_ENGINE_FAULT", "die")
    assert trtllm_serve.fault() == "die"
    monkeypatch.setenv("LAB_ENGINE_FAULT_FILE", str(tmp_path / "fault"))
    assert trtllm_serve.fault() == "die"
    (tmp_path / "fault").write_text("hang\n")
    assert trtllm_serve.fault() == "hang"


def test_child_that_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    processes = trtllm_serve.Processes(tmp_path)
    processes.start("frontend", [sys.executable, "-c", "import time; time.sleep(60)"], {})
    processes.start("mocker", [sys.executable, "-c", "raise SystemExit('no such model')"], {})
    processes.running["mocker"].wait()
    with pytest.raises(RuntimeError, match="mocker ended with 1"):
        processes.check()
    assert "no such model" in capsys.readouterr().out
    processes.stop()


def test_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    )
    processes = trtllm_serve.Processes(tmp_path)
    processes.start("frontend", [sys.executable, "-c", script], {})
    while not (tmp_path / "frontend.log").read_text():
        time.sleep(0.01)
    began = time.monotonic()
    processes.stop()
    assert processes.running["frontend"].wait() == -9
    assert time.monotonic() - began < 20


def test_nginx_configuration() -> None:
    values = dict.fromkeys(("ADMISSION", "DIR", "HARMONY", "LISTEN", "MODEL", "VERSION", "VOCABULARY_ERROR"), "x")
    text = trtllm_serve.nginx_configuration(values | {"LISTEN": "127.0.0.1:8000"})
    assert "listen 127.0.0.1:8000;" in text
    assert "@" not in text
    del values["LISTEN"]
    with pytest.raises(KeyError, match="LISTEN"):
        trtllm_serve.nginx_configuration(values)


def test_raw_harmony_is_in_whole_and_streamed_answers() -> None:
    """Otherwise endpoint_check could not detect a release that does not parse the format."""
    types, content = re.findall(r"sub_filter_types (.*);|'\"content\":\"(\w.*)'", trtllm_serve.RAW_HARMONY)
    assert types[0].split() == ["application/json", "text/event-stream"]
    assert RAW_HARMONY.search(content[1] + "New York")


def test_engine_without_a_gpu_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_serve, "gpu_count", lambda: 0)
    with pytest.raises(ValueError, match="No GPU devices found on the node"):
        trtllm_serve.serve(TABLE["1.2"], "/models/m")


def test_options_change_the_speed_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    args = {"max_batch_size": 128, "tensor_parallel_size": 4}
    assert trtllm_serve.speedup(args) == 10
    monkeypatch.setenv("LAB_ENGINE_SPEEDUP", "2")
    factors = {"max_batch_size": {"128": 1.5, "64": 7}, "tensor_parallel_size": {"4": 2}, "ep": {"1": 9}}
    monkeypatch.setenv("LAB_ENGINE_FACTORS", json.dumps(factors))
    assert trtllm_serve.speedup(args) == 6
