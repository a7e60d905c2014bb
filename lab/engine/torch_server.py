# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve a gpt-oss on a real GPU behind the lab's trtllm-serve, with the OpenAI server of transformers.

This is not TensorRT-LLM. Speed, scheduler, kernels and memory use are those of PyTorch and transformers: eager
attention, continuous batching, bfloat16. The text is noise, because the weights are random. Real are the GPU's memory,
its load and power, CUDA's errors and the time to load.

It runs with the machine's Python (machine_python.py), which has torch and transformers.
  torch_server.py MODEL --name NAME --port PORT [--layers N] [--kv-tokens N] [--requests N] [--memory-fraction F]

Faults, by LAB_ENGINE_FAULT from the start, or at any time by a file LAB_ENGINE_FAULT_FILE with one of these words:
  oom      allocate memory until CUDA has none; the process ends
  illegal  write far behind an allocation, which CUDA reports as an illegal memory access; the process ends
  spin     from the next request on a kernel spins on the GPU forever; the process lives and listens
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager, TimedModel
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.server import build_server
from transformers.cli.serving.transcription import TranscriptionHandler
from transformers.cli.serving.utils import GenerationState

# Tokens of one iteration. Eager attention needs memory for each pair of these and the tokens in the KV cache.
BATCH_TOKENS = 512
BLOCK = 256  # tokens of a block of the KV cache
WORKING_MEMORY = 20 * 2**30  # bytes: KV cache, attention, libraries
FOREVER = 2**62  # cycles of the GPU's clock: 60 years
STREAMS = {"/v1/chat/completions", "/v1/completions"}


def asked_fault() -> str:
    """Return the configured fault, or an empty string, like trtllm_serve.fault()."""
    path = Path(os.environ.get("LAB_ENGINE_FAULT_FILE", ""))
    return path.read_text().strip() if path.is_file() else os.environ.get("LAB_ENGINE_FAULT", "")


def words(tokenizer: Any) -> list[int]:
    """Return the ids of all tokens that decode to printable ASCII text."""
    ids = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.added_tokens_decoder))
    texts = tokenizer.batch_decode([[each] for each in ids])
    return [each for each, text in zip(ids, texts, strict=True) if text.isascii() and text.isprintable()]


def random_model(folder: str, layers: int, tokenizer: Any, device: str) -> Any:
    """Build the architecture of a model folder with random weights and its first layers only.

    The weights are the same in each run. The model generates only tokens of the tokenizer that are text, so a response
    ends at its limit.
    """
    config = AutoConfig.from_pretrained(folder)
    config.num_hidden_layers = min(layers, config.num_hidden_layers)
    config.layer_types = config.layer_types[: config.num_hidden_layers]
    config.__dict__.pop("quantization_config", None)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
        allowed = torch.full((config.vocab_size,), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16)
        allowed[torch.tensor(words(tokenizer))] = 0
    model.lm_head.bias = torch.nn.Parameter(allowed, requires_grad=False)
    model.generation_config = GenerationConfig(do_sample=True, pad_token_id=tokenizer.pad_token_id)
    return model.eval()


def load(folder: str, layers: int, device: str) -> tuple[Any, Any]:
    """Return the model and its tokenizer; without layers the weights are those of the folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if layers:
        return random_model(folder, layers, tokenizer, device), tokenizer
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager", device_map=device
    )
    return model.eval(), tokenizer


def hold_memory(fraction: float) -> torch.Tensor | None:
    """Allocate the share of free GPU memory that TensorRT-LLM's KV cache would have, less what this engine needs."""
    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    return torch.empty(max(0, int(free * fraction) - WORKING_MEMORY), dtype=torch.uint8, device="cuda")


def end(error: BaseException) -> NoReturn:
    """End the process with an error, whatever its threads wait for."""
    traceback.print_exception(error)
    os._exit(1)


class Array:
    """An array at a tensor's address, of any size."""

    def __init__(self, tensor: torch.Tensor, size: int) -> None:
        data = (tensor.data_ptr(), False)
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": data, "version": 3}


def exhaust_memory() -> None:
    """Allocate GPU memory until CUDA raises torch.OutOfMemoryError."""
    held = []
    while True:
        held.append(torch.zeros(2**28, dtype=torch.uint8, device="cuda"))


def access_illegally() -> None:
    """Write to an address 1 TiB behind an allocation; CUDA fails this process's context and the driver logs an Xid."""
    tensor = torch.zeros(2**26, dtype=torch.uint8, device="cuda")
    torch.as_tensor(Array(tensor, 2**40), device="cuda")[-1:].fill_(1)
    torch.cuda.synchronize()


class Faults:
    """Faults of a loaded model, and the count of its iterations."""

    def __init__(self, model: Any) -> None:
        self.iterations = 0
        model.register_forward_pre_hook(self.before)

    def before(self, *_: Any) -> None:
        """Count an iteration. With the fault spin its stream waits for a kernel that does not end."""
        if asked_fault() == "spin":
            torch.cuda._sleep(FOREVER)
        self.iterations += 1

    def check(self) -> None:
        """Run a fault that does not wait for a request."""
        kinds = {"oom": exhaust_memory, "illegal": access_illegally}
        if kind := kinds.get(asked_fault()):
            try:
                kind()
            except BaseException as error:
                end(error)

    def watch(self, state: GenerationState) -> None:
        """Check for faults forever, and end the process after an error of the generation, as TensorRT-LLM does."""
        while True:
            self.check()
            if not state.is_cb_alive():
                end(RuntimeError("The thread that generates has ended."))
            time.sleep(0.5)


class Manager(ModelManager):
    """Model manager with one model, under the name that clients use."""

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        super().__init__(device=str(model.device), model_timeout=-1)
        self.force_model = name
        self.loaded_models[name] = TimedModel(model, -1, tokenizer)

    @staticmethod
    def process_model_name(model_id: str) -> str:
        """Return the name without a revision."""
        return model_id


class Completions(CompletionHandler):
    """Handler of /v1/completions that takes token ids, too."""

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Any:
        """Decode token ids; their number may change with it."""
        if isinstance(body.get("prompt"), list):
            _, _, tokenizer = self._resolve_model(body)
            body["prompt"] = tokenizer.decode(body["prompt"])
        return await super().handle_request(body, request_id)


class Responses(ResponseHandler):
    """Handler of /v1/responses that streams only on request, as OpenAI's API does."""

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Any:
        """Add OpenAI's default for stream."""
        return await super().handle_request({"stream": False, **body}, request_id)


class EndOfStream:
    """ASGI middleware that ends a complete stream with [DONE], as TensorRT-LLM's server does."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        last = b""

        async def forward(message: dict[str, Any]) -> None:
            nonlocal last
            body = message.get("body", b"")
            last = body or last
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            if ended and last.startswith(b"data: ") and b'"finish_reason":"' in last:
                message = {**message, "body": body + b"data: [DONE]\n\n"}
            await send(message)

        await self.app(scope, receive, forward if scope.get("path") in STREAMS else send)


def application(name: str, model: Any, tokenizer: Any, state: GenerationState, faults: Faults) -> FastAPI:
    """Build the server of transformers for one model, with a metric that admission.py reads."""
    manager = Manager(name, model, tokenizer)
    handlers = [kind(manager, state) for kind in (ChatCompletionHandler, Completions, Responses)]
    for handler in handlers:
        handler._valid_params_class = None  # options of TensorRT-LLM, such as ignore_eos, are not errors
    app = build_server(manager, *handlers, TranscriptionHandler(manager, state), state)
    app.add_middleware(EndOfStream)

    @app.get("/metrics")
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(f"lab_engine_iterations_total {faults.iterations}\n")

    return app


def main() -> None:
    """Load and serve until a signal or an error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="the model's folder")
    parser.add_argument("--name", required=True, help="the model's name in requests and responses")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--layers", type=int, default=4, help="layers with random weights; 0: the folder's weights")
    parser.add_argument("--kv-tokens", type=int, default=32768, help="tokens in the KV cache")
    parser.add_argument("--requests", type=int, default=256, help="requests at once")
    parser.add_argument("--memory-fraction", type=float, default=0.9, help="share of free memory for the KV cache")
    parser.add_argument("--sequential", action="store_true", help="one request at a time, without continuous batching")
    args = parser.parse_args()
    # Otherwise both print lines for each request.
    for logger in ("transformers", "ContinuousBatchingLogger"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    began = time.monotonic()
    # Only the first of the visible GPUs is used.
    model, tokenizer = load(args.model, args.layers, "cuda" if torch.cuda.is_available() else "cpu")
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    print(f"Loaded {size / 2**30:.1f} GiB to {model.device} in {time.monotonic() - began:.1f} s", flush=True)
    held = hold_memory(args.memory_fraction)
    faults = Faults(model)
    faults.check()
    model.set_attn_implementation("eager" if args.sequential else "paged|eager")
    batching = ContinuousBatchingConfig(
        block_size=BLOCK,
        # Each request has blocks for the layers with full attention, and at most two for those with a window.
        num_blocks=-(-args.kv_tokens // BLOCK) + 3 * args.requests,
        max_batch_tokens=BATCH_TOKENS,
        max_requests_per_batch=args.requests,
    )
    state = GenerationState(continuous_batching=not args.sequential, cb_config=batching)
    threading.Thread(target=faults.watch, args=[state], daemon=True).start()
    app = application(args.name, model, tokenizer, state, faults)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=args.port, log_level="warning"))
    server.handle_exit = lambda *_: os._exit(0)  # the driver frees the memory; uvicorn would wait for its requests
    server.run()
    del held


if __name__ == "__main__":
    main()
