# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's `python3 -m dynamo.trtllm`: a TensorRT-LLM worker of NVIDIA Dynamo, without a GPU.

Dynamo provides the command line and the mocker. Between them are TensorRT-LLM's checks, start-up and failures, shared
with the lab's trtllm-serve and selected by the same variables.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pydantic
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import DYNAMO_RUNTIME, select_release
from lab.engine import options, trtllm_serve, ucx, worker_metrics

# TensorRT-LLM's part of the command line.
DEFAULTS = {"max_batch_size": 2048, "max_num_tokens": 8192, "max_seq_len": None, "max_beam_width": 1}
# First minor version of Dynamo whose mocker takes an option that 1.0's does not; 1.0 reads DYN_EVENT_PLANE.
SINCE = {"event-plane": (1, 1), "engine-type": (1, 3)}


def stand_in_for_tensorrt_llm() -> None:
    """Make the modules importable that the command line reads its defaults from."""
    package, llmapi = ModuleType("tensorrt_llm"), ModuleType("tensorrt_llm.llmapi")
    fields: dict[str, Any] = {name: (Any, value) for name, value in DEFAULTS.items()}
    llmapi.BuildConfig = pydantic.create_model("BuildConfig", **fields)  # type: ignore[attr-defined]
    sys.modules.update({module.__name__: module for module in (package, llmapi)})


def check(config: argparse.Namespace, file: Mapping[str, Any], row: options.Row) -> tuple[dict[str, Any], Path]:
    """Return the engine's options by their names in the file, which takes precedence, and the model's folder.

    Raises TensorRT-LLM's error where it would not start to load.
    """
    gpus = trtllm_serve.gpu_count()
    if not gpus:
        raise ValueError("No GPU devices found on the node")
    options.model(row["engine_options"])(**file)
    args = {
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "moe_expert_parallel_size": config.expert_parallel_size,
        "enable_attention_dp": config.enable_attention_dp,
        **{name: getattr(config, name) for name in DEFAULTS},
        **file,
    }
    trtllm_serve.check_parallelism(args, gpus)
    return args, trtllm_serve.find_model(config.model).absolute()


def longest_prompt(mode: str, args: Mapping[str, Any]) -> int | None:
    """Return the prompt length in tokens above which a request waits forever; None if all are served.

    The prompt has to fit into the buffer through which a prefill worker transfers its KV cache. Without chunked prefill
    it also has to fit into one iteration: upstream rejects a longer one, the lab cannot.
    """
    limits = []
    if mode != "decode" and not args.get("enable_chunked_prefill"):
        limits.append(args["max_num_tokens"])
    if mode == "prefill" and (buffer := (args.get("cache_transceiver_config") or {}).get("max_tokens_in_buffer")):
        limits.append(buffer)
    return min(limits, default=None)


def mocker_arguments(
    config: argparse.Namespace, args: Mapping[str, Any], checkpoint: Path, minor: tuple[int, ...]
) -> list[str]:
    """Return the command line of a mocker with the worker's registration and capacity."""
    mode = config.disaggregation_mode.value
    cache = args.get("kv_cache_config", {})
    longest = longest_prompt(mode, args)
    given = {
        "model-path": checkpoint,
        "model-name": config.served_model_name or config.model,
        "endpoint": f"dyn://{config.namespace}.{config.component}.{config.endpoint}",
        "disaggregation-mode": "agg" if mode == "prefill_and_decode" else mode,
        "discovery-backend": config.discovery_backend,
        "request-plane": config.request_plane,
        "event-plane": config.event_plane,
        "engine-type": "trtllm",
        "speedup-ratio": 10,
        "max-num-seqs": args["max_batch_size"],
        "max-num-batched-tokens": longest or args["max_num_tokens"],
        "block-size": cache.get("tokens_per_block") or 32,  # --kv-block-size is for engines without a block size
        "data-parallel-size": args["tensor_parallel_size"] if args["enable_attention_dp"] else 1,
    }
    taken = {name: value for name, value in given.items() if value is not None and minor >= SINCE.get(name, minor)}
    arguments = [f"--{name}={value}" for name, value in taken.items()]
    if longest:
        arguments.append("--no-enable-chunked-prefill")
    if cache.get("enable_block_reuse") is False:
        arguments.append("--no-enable-prefix-caching")
    return arguments


def main() -> None:
    """Run a worker until a signal or the loss of its lease."""
    # The first process of a container ignores a signal without a handler. Later the mocker handles it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    stand_in_for_tensorrt_llm()
    # For an option not used here, the mocker of 1.0 imports the planner, which needs a Kubernetes client.
    sys.modules["dynamo.planner.utils.perf_interpolation"] = Mock()
    import dynamo.mocker.main as mocker
    from dynamo.trtllm.args import parse_args
    from dynamo.trtllm.utils.trtllm_utils import deep_update

    config = parse_args()
    file = (yaml.safe_load(Path(config.extra_engine_args).read_text()) or {}) if config.extra_engine_args else {}
    deep_update(file, json.loads(config.override_engine_args or "{}"))
    dynamo = version("ai-dynamo")
    releases = trtllm_serve.releases()
    release, _ = select_release(f"{DYNAMO_RUNTIME}:{dynamo}", releases)
    args, checkpoint = check(config, file, releases[release])
    # Values that the worker registers and that the mocker has no options for. Their place differs by release.
    told = {
        "context_length": trtllm_serve.max_tokens(args, trtllm_serve.model_config(checkpoint)),
        "max_num_batched_tokens": args["max_num_tokens"],
        "kv_event_publishing_enabled": config.use_kv_events,
        "reasoning_parser": config.dyn_reasoning_parser,
        "tool_call_parser": config.dyn_tool_call_parser,
    }
    seconds = float(os.environ.get("LAB_ENGINE_LOAD_SECONDS", "3"))
    make_entrypoint = mocker.EntrypointArgs

    def load(**given: Any) -> Any:
        """Load at the same stage as the worker: with a lease and a system server, before registration."""
        end = time.monotonic() + seconds
        for _ in trtllm_serve.phases(args, checkpoint, trtllm_serve.fault()):
            time.sleep(seconds / 20)
        time.sleep(max(0.0, end - time.monotonic()))
        for name, value in told.items():
            if hasattr(given.get("runtime_config"), name):
                setattr(given["runtime_config"], name, value)
        return make_entrypoint(**{name: told.get(name, value) for name, value in given.items()})

    mocker.EntrypointArgs = load
    sys.argv[1:] = mocker_arguments(config, args, checkpoint, tuple(map(int, dynamo.split(".")[:2])))
    with tempfile.TemporaryDirectory() as folder:
        # The worker registers the path of its model. Before 1.4 the mocker registers the hub's, unless the model's
        # name is a path.
        link = Path(folder, config.served_model_name or config.model)
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(checkpoint)
        os.chdir(folder)
        if config.disaggregation_mode.value == "prefill":  # the side that sends
            ucx.report()
        worker_metrics.show_work()
        mocker.main()
