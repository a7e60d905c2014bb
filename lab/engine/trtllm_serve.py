# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's trtllm-serve: command line, checks, start-up and failures of a TensorRT-LLM release, without TensorRT-LLM.

NVIDIA's Dynamo frontend with its mocker engine answers requests, without a GPU. In an image with the machine's Python
(LAB_ENGINE_PYTHON, see Dockerfile.torch) it is transformers on a real GPU, whose speed is not TensorRT-LLM's.
nginx in front of it gives the server's states, and admission.py between them admits requests like TensorRT-LLM's
scheduler. Environment variables, with defaults:
  LAB_ENGINE_LOAD_SECONDS  minimum duration of the start (3)
  LAB_ENGINE_SPEEDUP       speed as a multiple of the mocker's model of a GPU (10)
  LAB_ENGINE_FACTORS       further factors by option and value, as JSON: {"max_batch_size": {"128": 1.5}}
  LAB_ENGINE_SPREAD        standard deviation of the logarithm of the speed from start to start (0)
  LAB_ENGINE_MODEL_ID      a wrong model id
  LAB_ENGINE_KV_TOKENS     tokens in its KV cache (the estimate for its GPUs; 32768 on a real GPU)
  LAB_ENGINE_REQUEST_LOG   1: a line for each request in /tmp/trtllm-serve-*/admission.log, LAB_REQUEST and JSON with
                           id, usage, events and complete
  LAB_ENGINE_ANSWER_TOKENS tokens of a response to a request without a limit (256)
  LAB_ENGINE_FAULT         die, hang or health_only; or LAB_ENGINE_FAULT_FILE, a file with that word. With hang it is
                           never ready; a ready one keeps its port, /health stays 200, and it sends no further byte
On a real GPU LAB_ENGINE_SPEEDUP, LAB_ENGINE_SPREAD and LAB_ENGINE_FACTORS have no effect, and there are
  LAB_ENGINE_LAYERS        layers with random weights (4); 0: all layers, with the weights of the model's folder
  LAB_ENGINE_SEQUENTIAL    1: one request at a time, without continuous batching
  LAB_ENGINE_FAULT         also oom, illegal or spin: real errors of CUDA, see torch_server.py
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import expand_releases
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.memory import (
    DEFAULT_FRACTION,
    DEFAULT_TOKENS_PER_BLOCK,
    estimate,
    graph_batch_sizes,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.parallelism import parallelism
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.rules import (
    DEFAULT_MAX_BATCH_SIZE,
    DEFAULT_MAX_NUM_TOKENS,
)
from lab.engine import metrics, options

HERE = Path(__file__).resolve().parent
VERSION = os.environ.get("TRT_LLM_VERSION", "")
PYTHON = os.environ.get("LAB_ENGINE_PYTHON", "")  # the machine's Python with torch; empty without a real GPU
VOCABULARY_ERROR = "error downloading or loading vocab file: failed to download or load vocab file"
# Response of a release that does not parse the harmony format, whole or streamed: the text of all channels.
RAW_HARMONY = """sub_filter_types application/json text/event-stream;
      sub_filter '"content":"' '"content":"analysisThe user asks something.assistantfinal';"""
GPU_MEMORY_MIB = 81559  # of an H100, without nvidia-smi
TORCH_KV_TOKENS = 32768  # transformers' eager attention needs far more memory for a token than TensorRT-LLM
TORCH_REQUESTS = 256  # at once
STOP_SECONDS = 1.5  # children still running are killed then: docker stop should take less than two seconds


def log(message: str, level: str = "I") -> None:
    """Print a line as upstream's logger does."""
    print(f"[{time.strftime('%m/%d/%Y-%H:%M:%S')}] [TRT-LLM] [{level}] {message}", flush=True)


def fault() -> str:
    """Return the configured fault, or an empty string."""
    path = Path(os.environ.get("LAB_ENGINE_FAULT_FILE", ""))
    return path.read_text().strip() if path.is_file() else os.environ.get("LAB_ENGINE_FAULT", "")


def container_gpus(devices: Path = Path("/dev")) -> int:
    """Count the GPUs of the container, by device node with CDI, otherwise by nvidia-smi."""
    count = len([path for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdigit()])
    if not count and shutil.which("nvidia-smi"):
        count = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ")
    return count


def gpu_count(devices: Path = Path("/dev")) -> int:
    """Count the GPUs of the container that CUDA_VISIBLE_DEVICES selects."""
    count = container_gpus(devices)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if visible is None else min(count, len([index for index in visible.split(",") if index]))


def gpu_memory_mib() -> int:
    """Return the memory of the container's smallest GPU."""
    with suppress(OSError, ValueError):
        query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        return min(int(line) for line in subprocess.run(query, capture_output=True, text=True).stdout.split())
    return GPU_MEMORY_MIB


def find_model(name: str) -> Path:
    """Return the folder of a model given as a path or as a repository in the local Hugging Face cache."""
    if Path(name).is_dir():
        return Path(name)
    if name.startswith("/") or name.count("/") > 1:
        raise ValueError(
            f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{name}'. "
            "Use `repo_type` argument if needed."
        )
    hub = (
        Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
        / "hub"
        / f"models--{name.replace('/', '--')}"
    )
    reference = hub / "refs" / "main"
    if not reference.is_file():
        raise FileNotFoundError(
            "Cannot find an appropriate cached snapshot folder for the specified revision on the local disk and "
            "outgoing traffic has been disabled. To enable repo look-ups and downloads online, "
            "set 'HF_HUB_OFFLINE=0' as environment variable."
        )
    return hub / "snapshots" / reference.read_text().strip()


def model_config(model: Path) -> dict[str, Any]:
    """Return config.json of a model's folder; OSError if there is none."""
    path = model / "config.json"
    if not path.is_file():
        raise OSError(f"{model} does not appear to have a file named config.json.")
    config: dict[str, Any] = json.loads(path.read_text())
    return config


def check_weights(model: Path) -> int:
    """Return the number of weight files; raise the loader's error if a file is missing or truncated."""
    index = model / "model.safetensors.index.json"
    if index.is_file():
        files = [model / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    else:
        files = sorted(model.glob("*.safetensors"))
    if not files:
        raise RuntimeError(f"No weight files found in {model}.")
    for path in files:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            tensors = {key: value for key, value in json.loads(file.read(size)).items() if key != "__metadata__"}
        if path.stat().st_size != 8 + size + max(tensor["data_offsets"][1] for tensor in tensors.values()):
            raise RuntimeError(
                f"Error while deserializing header of {path}: incomplete metadata, file not fully covered"
            )
    return len(files)


def check_parallelism(args: Mapping[str, Any], gpus: int) -> None:
    """Raise upstream's error if there are too few GPUs or they cannot divide the experts."""
    tensor = args.get("tensor_parallel_size") or 1
    world = tensor * (args.get("pipeline_parallel_size") or 1) * (args.get("context_parallel_size") or 1)
    if world > gpus:
        raise RuntimeError(f"Only {gpus} GPUs are available, but {world} are required.")
    experts = args.get("moe_expert_parallel_size") or 1
    if tensor % experts:
        raise ValueError(
            "tp_size must equal to moe_tp_size * moe_ep_size * moe_cluster_size, "
            f"but got {tensor} != {tensor // experts} * {experts} * 1"
        )


def check_graphs(args: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """Raise upstream's error if sizes of CUDA graphs and the largest one are set, and do not agree.

    Up to 1.2 the sizes have to be those that the largest one makes.
    """
    config = args.get("cuda_graph_config")
    if not isinstance(config, Mapping) or not config.get("batch_sizes") or not config.get("max_batch_size"):
        return
    given = sorted(config["batch_sizes"])
    made = graph_batch_sizes({"cuda_graph_config": {**config, "batch_sizes": None}}, row)
    if given[-1] != config["max_batch_size"] or (given != made and not row.get("dense_cuda_graphs")):
        raise ValueError("Please don't set both cuda_graph_config.batch_sizes and cuda_graph_config.max_batch_size.")


def check_draft(args: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Load the draft model of speculative decoding. Raise upstream's error if there is none that fits the model."""
    given = args.get("speculative_config") or {}
    if given.get("decoding_type") not in ("Eagle", "Eagle3"):
        return
    draft = find_model(str(given.get("speculative_model") or given.get("speculative_model_dir")))
    has = model_config(draft)
    if has["hidden_size"] != config["hidden_size"] or has["vocab_size"] != config["vocab_size"]:
        raise RuntimeError(f"size mismatch: the draft model in {draft} is of another model.")
    beyond = [layer for layer in given.get("eagle3_layers_to_capture") or [] if layer >= config["num_hidden_layers"]]
    if beyond:
        raise IndexError(f"eagle3_layers_to_capture has {beyond}, and the model {config['num_hidden_layers']} layers.")
    log(f"Loaded the draft model's {check_weights(draft)} weight file(s).")


def vocabulary_is_good(config: Mapping[str, Any]) -> bool:
    """Return True if the vocabulary of the harmony format is available; gpt-oss needs it beside model and image.

    Without TIKTOKEN_ENCODINGS_BASE upstream downloads it, which the lab cannot.
    """
    if config.get("model_type") != "gpt_oss" or os.environ.get("DISABLE_HARMONY_ADAPTER") == "1":
        return True
    path = Path(os.environ.get("TIKTOKEN_ENCODINGS_BASE", "/nowhere")) / "o200k_base.tiktoken"
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == os.environ["LAB_HARMONY_SHA256"]


def bind(host: str, port: int) -> tuple[socket.socket, str]:
    """Bind an address without listening, as upstream does before loading; return it in nginx's format too."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server = socket.socket(family, kind)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(address)
    except OSError as error:
        raise RuntimeError(f"Failed to bind socket to {host}:{port}: {error}") from error
    return server, f"[{address[0]}]:{port}" if family == socket.AF_INET6 else f"{address[0]}:{port}"


class Processes:
    """Child processes. Their output goes to files and is shown when one of them ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a child; without an environment it inherits the parent's output."""
        output = None if environment is None else (self.folder / f"{name}.log").open("wb")
        self.running[name] = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            env={**os.environ, **(environment or {})},
        )

    def check(self) -> None:
        """Raise RuntimeError if a child has ended, with the last lines of its output."""
        for name, process in self.running.items():
            if process.poll() is not None:
                path = self.folder / f"{name}.log"
                print(
                    "\n".join(path.read_text(errors="replace").splitlines()[-20:]) if path.exists() else "", flush=True
                )
                raise RuntimeError(f"Executor worker died: {name} ended with {process.returncode}")

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def max_tokens(args: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Return the maximum tokens of prompt and response together for these options and this model."""
    return args.get("max_seq_len") or config.get("max_position_embeddings") or 131072


def capacity(args: Mapping[str, Any], config: Mapping[str, Any], row: options.Row, memory_mib: int) -> dict[str, int]:
    """Return the KV cache size in blocks of one attention rank, and the longest sequence.

    Like upstream, it lowers the longest sequence to the blocks that exist.
    """
    block = (args.get("kv_cache_config") or {}).get("tokens_per_block") or DEFAULT_TOKENS_PER_BLOCK
    split = parallelism(args)
    longest = max_tokens(args, config)
    configured = os.environ.get("LAB_ENGINE_KV_TOKENS", TORCH_KV_TOKENS if PYTHON else None)
    if configured is not None:
        tokens = int(configured)
    else:
        facts = next(
            each
            for each in json.loads((HERE / "models.json").read_text())
            if (each["layers"], each["hidden_size"]) == (config["num_hidden_layers"], config["hidden_size"])
        )
        found = estimate(args, facts, args.get("tensor_parallel_size") or 1, memory_mib, row)
        if not found["fits"]:
            out_of_memory()
        tokens, longest = found["kv_tokens"], min(longest, found["context"])
    blocks = tokens // split.attention_ranks // block
    if blocks * block < longest:
        longest = blocks * block
    return {"blocks": blocks, "tokens_per_block": block, "ranks": split.attention_ranks, "max_seq_len": longest}


def collector(row: options.Row, model: str, name: str, args: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of metrics.Collector; None if these options or the release have no metrics.

    Raises:
        ValueError: The bounds of a histogram are wrong.
    """
    if not args.get("return_perf_metrics") or "prometheus" not in row:
        return None
    split = {each: args.get(each) or 1 for each in ("tensor_parallel_size", "pipeline_parallel_size")}
    split["context_parallel_size"] = args.get("context_parallel_size") or 1
    experts = args.get("moe_expert_parallel_size") or 0
    return {
        "release": row["name"],
        "prefix": row["prometheus"],
        "model": name,
        "buckets": metrics.histogram_buckets(args.get("prometheus_metrics_config") or {}),
        "information": {
            "model_config_info": {"model": model, "served_model_name": name, "dtype": str(args.get("dtype") or "auto")},
            "parallel_config_info": {
                **{each: str(size) for each, size in split.items()},
                "gpu_count": str(math.prod(split.values())),
                **({"expert_parallel_size": str(experts)} if experts > 0 else {}),
            },
        },
    }


def speedup(args: Mapping[str, Any]) -> float:
    """Return the speed as a multiple of the mocker's model of a GPU for these options."""
    factors = json.loads(os.environ.get("LAB_ENGINE_FACTORS", "{}"))
    ratio = float(os.environ.get("LAB_ENGINE_SPEEDUP", "10"))
    ratio *= random.lognormvariate(0, float(os.environ.get("LAB_ENGINE_SPREAD", "0")))
    return ratio * math.prod(by_value.get(str(args.get(name)), 1) for name, by_value in factors.items())


def start_dynamo(
    processes: Processes, model: Path, name: str, port: int, args: Mapping[str, Any], held: Mapping[str, int]
) -> None:
    """Start the frontend and the mocker, which find each other by files and use the loopback."""
    environment = {
        "HOME": str(processes.folder),  # the cache of model cards
        "HF_HUB_OFFLINE": "1",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(processes.folder / "discovery"),
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "lo",
        "DYN_SYSTEM_HOST": "127.0.0.1",
        "DYN_LOG": "warn",
    }
    frontend = ["--http-host", "127.0.0.1", "--http-port", str(port)]
    processes.start("frontend", [sys.executable, "-m", "dynamo.frontend", *frontend], environment)
    mocker = ["--model-path", str(model), "--model-name", name, "--speedup-ratio", f"{speedup(args):g}"]
    mocker += ["--max-model-len", str(held["max_seq_len"]), "--block-size", str(held["tokens_per_block"])]
    # Twice the limits of admission.py, because prompts count more here, with their template.
    mocker += ["--num-gpu-blocks-override", str(2 * held["ranks"] * held["blocks"])]
    mocker += ["--max-num-seqs", str(held["ranks"] * held["slots"])]
    # With a port for its system server the mocker serves the model's card; otherwise the frontend asks the hub.
    processes.start("mocker", [sys.executable, "-m", "dynamo.mocker", *mocker], environment | {"DYN_SYSTEM_PORT": "0"})


def start_torch(
    processes: Processes, model: Path, name: str, port: int, args: Mapping[str, Any], held: Mapping[str, int]
) -> None:
    """Start transformers' server on the first visible GPU. It does not emulate tensor parallelism."""
    layers = os.environ.get("LAB_ENGINE_LAYERS", "4")
    log(f"Lab: not TensorRT-LLM, transformers serves on the first visible GPU; LAB_ENGINE_LAYERS: {layers}")
    fraction = (args.get("kv_cache_config") or {}).get("free_gpu_memory_fraction") or DEFAULT_FRACTION
    command = [PYTHON, str(Path(PYTHON).with_name("torch_server.py")), str(model), "--name", name, "--port", str(port)]
    command += ["--layers", layers, "--memory-fraction", f"{fraction:g}"]
    command += ["--kv-tokens", str(held["ranks"] * held["blocks"] * held["tokens_per_block"])]
    command += ["--requests", str(min(held["ranks"] * held["slots"], TORCH_REQUESTS))]
    if os.environ.get("LAB_ENGINE_SEQUENTIAL") == "1":
        command.append("--sequential")
    processes.start("transformers", command)


def answers(port: int, name: str) -> bool:
    """Return True if a request for one token succeeds, as in upstream's warm-up."""
    body = json.dumps({"model": name, "prompt": "a", "max_tokens": 1}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def nginx_configuration(values: Mapping[str, Any]) -> str:
    """Fill in the template; KeyError for a name without a value."""
    return re.sub("@([A-Z_]+)@", lambda match: str(values[match[1]]), (HERE / "nginx.conf").read_text())


def out_of_memory() -> NoReturn:
    log("Failed to initialize executor on rank 0: Executor creation failed due to insufficient GPU memory.", "E")
    raise RuntimeError(
        "Executor creation failed due to insufficient GPU memory.\n\n"
        "The following component could not be created: KV cache\n"
        "Total GPU memory (GiB): 178.35\n"
        "Free GPU memory before component creation attempt (GiB): 1.27\n\n"
        "Please refer to the TensorRT LLM documentation for information on how to control the memory usage through "
        "TensorRT LLM configuration options. Possible options include:\n"
        "  KV cache: reduce kv_cache_config.free_gpu_memory_fraction"
    )


def phases(args: Mapping[str, Any], model: Path, asked: str) -> Iterator[None]:
    """Run the start-up, yielding during each phase."""
    log("Using LLM with PyTorch backend")
    log("neither checkpoint_format nor checkpoint_loader were provided, checkpoint_format will be set to HF.")
    shards = check_weights(model)
    for shard in range(shards):
        yield
        print(
            f"Loading safetensors weights in parallel: {100 * (shard + 1) // shards:3d}% {shard + 1}/{shards}",
            flush=True,
        )
    if asked == "die":
        out_of_memory()
    while asked == "hang":
        yield
    if args.get("enable_autotuner", True):
        log("[Autotuner] Autotuning process starts ...")
        yield
        log("[Autotuner] Autotuning process ends")
    graphs = args.get("cuda_graph_config", {})
    if graphs is not None:
        size = graphs.get("max_batch_size") or max(graphs.get("batch_sizes") or [128])
        log(f"Creating CUDA graph instances for batch sizes up to {size}.")
        yield


def serve(row: options.Row, model: str, **flags: Any) -> None:
    """Check like the release, load, and serve until a signal or the end of a child."""
    seconds = float(os.environ.get("LAB_ENGINE_LOAD_SECONDS", "3"))
    log(f"TensorRT LLM version: {VERSION}")
    gpus = gpu_count()
    if not gpus:
        raise ValueError("No GPU devices found on the node")
    path = flags.pop("extra_llm_api_options")
    file = (yaml.safe_load(Path(path).read_text()) or {}) if path else {}
    host, port = flags.pop("host") or "localhost", flags.pop("port") or 8000
    args = options.effective(row, {key: value for key, value in flags.items() if value not in (None, ())}, file)
    server, listen = bind(host, port)
    time.sleep(seconds / 5)  # upstream's imports take far longer
    options.model(row["engine_options"])(**file)
    check_parallelism(args, gpus)
    check_graphs(args, row)
    checkpoint = find_model(model)
    config = model_config(checkpoint)
    check_draft(args, config)
    name = args.get("served_model_name") or (checkpoint.name if checkpoint == Path(model) else model)
    name = os.environ.get("LAB_ENGINE_MODEL_ID", name)
    asked = fault()
    held = capacity(args, config, row, gpu_memory_mib())
    held["slots"] = args.get("max_batch_size") or DEFAULT_MAX_BATCH_SIZE
    is_harmony = config["model_type"] == "gpt_oss"
    parsed = row["harmony"] and is_harmony and os.environ.get("DISABLE_HARMONY_ADAPTER") != "1"
    harmony = RAW_HARMONY if is_harmony and not row["harmony"] else ""
    measured = collector(row, model, name, args)
    if asked == "health_only" or (row["harmony"] and not vocabulary_is_good(config)):
        body = json.dumps(
            {"object": "error", "message": VOCABULARY_ERROR, "type": "internal_error", "param": None, "code": 400}
        )
        harmony = f"access_log /dev/stdout vocabulary; access_log /dev/stdout uvicorn; return 400 '{body}';"

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trtllm-serve-")))
        processes = Processes(folder)
        stack.callback(processes.stop)
        frontend, admission = free_port(), free_port()
        settings = {
            **held,
            "port": admission,
            "frontend": frontend,
            "model": name,
            "tokenizer": str(checkpoint / "tokenizer.json"),
            "max_num_tokens": None
            if args.get("enable_chunked_prefill")
            else args.get("max_num_tokens") or DEFAULT_MAX_NUM_TOKENS,
            "answer_tokens": int(os.environ.get("LAB_ENGINE_ANSWER_TOKENS", "256")),
            "harmony": parsed,
            "too_long": row["too_long"],
            "invalid_request": row["invalid_request"],
            "iteration_statistics": bool(args.get("enable_iter_perf_stats")),
            "metrics": measured,
        }

        def listen_now() -> None:
            server.close()
            values = {
                "LISTEN": listen,
                "DIR": folder,
                "ADMISSION": admission,
                "MODEL": name,
                "VERSION": VERSION,
                "HARMONY": harmony,
                "VOCABULARY_ERROR": VOCABULARY_ERROR,
            }
            (folder / "nginx.conf").write_text(nginx_configuration(values))
            processes.start("nginx", ["nginx", "-e", "stderr", "-c", str(folder / "nginx.conf")])

        if row["health"] == "503":
            listen_now()
        processes.start("admission", [sys.executable, "-m", "lab.engine.admission", json.dumps(settings)], {})
        start = start_torch if PYTHON else start_dynamo
        start(processes, checkpoint, name, frontend, args, held)
        began = time.monotonic()
        for _ in phases(args, checkpoint, asked):
            time.sleep(seconds / 20)
            processes.check()
        while time.monotonic() < began + seconds or not answers(admission, name):
            time.sleep(0.1)
            processes.check()
        (folder / "ready").touch()
        if row["health"] == "refused":
            listen_now()
        print(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.")
        print("INFO:     Application startup complete.")
        print(f"INFO:     Uvicorn running on http://{listen} (Press CTRL+C to quit)", flush=True)
        while True:
            time.sleep(0.5)
            processes.check()


def releases() -> dict[str, dict[str, Any]]:
    """Return the release table in the image."""
    table = json.loads((HERE / "releases.json").read_text())
    return expand_releases(table["files"], table["declared"])


def main() -> None:
    """Run `trtllm-serve [serve] MODEL ...`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    row = options.release(releases(), VERSION)
    arguments = sys.argv[1:]
    options.command(row, partial(serve, row)).main(
        arguments[arguments[:1] == ["serve"] :], prog_name="trtllm-serve serve"
    )


if __name__ == "__main__":
    main()
