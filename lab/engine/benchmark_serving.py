# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's `python3 -m tensorrt_llm.serve.scripts.benchmark_serving`: upstream's options, output and file.

Requests and figures are real. Requests are greedy and streamed, with random prompts; options that would change that
have no effect.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import ssl
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

# Upstream's options at 0228a71, apart from those in parser(): without a default by type, and with one.
WITHOUT = {
    str: """base-url dataset-path download-path tokenizer custom-tokenizer result-dir result-filename hf-subset hf-split
        served-model-name""",
    int: "max-concurrency logprobs sharegpt-output-len hf-output-len top-k",
    float: "top-p min-p temperature",
}
WITH = {
    "host": "127.0.0.1",
    "port": 8000,
    "endpoint": "/v1/completions",
    "num-prompts": 1000,
    "seed": 0,
    "request-rate": math.inf,
    "burstiness": 1.0,
    "percentile-metrics": "ttft,tpot,itl",
    "metric-percentiles": "99",
    "random-input-len": 1024,
    "random-output-len": 128,
    "random-prefix-len": 0,
    "random-range-ratio": 0.0,
    "download-timeout": 180,
    "sonnet-input-len": 550,
    "sonnet-output-len": 150,
    "sonnet-prefix-len": 200,
    **dict.fromkeys(("random-image-width", "random-image-height", "random-image-size"), 512),
    "random-num-images": 1,
}
FLAGS = """use-beam-search non-streaming trust-remote-code disable-tqdm profile save-result save-detailed ignore-eos
    random-ids tokenize-on-client no-test-input"""
DATASETS = ("sharegpt", "burstgpt", "sonnet", "random", "random_image", "hf", "trtllm_custom")
METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of upstream's command line."""
    made = argparse.ArgumentParser("benchmark_serving.py", description="Benchmark the online serving throughput.")
    made.add_argument("--model", required=True)
    made.add_argument("--backend", choices=["openai", "openai-chat"], default="openai")
    made.add_argument("--dataset-name", choices=DATASETS, default="sharegpt")
    made.add_argument("--tokenizer-mode", choices=["auto", "slow", "mistral", "custom"], default="auto")
    made.add_argument("--metadata", nargs="*", metavar="KEY=VALUE")
    for name in ("goodput", "lora-modules"):
        made.add_argument(f"--{name}", nargs="+", default=[])
    for kind, names in WITHOUT.items():
        for name in names.split():
            made.add_argument(f"--{name}", type=kind)
    for name, default in WITH.items():
        made.add_argument(f"--{name}", type=type(default), default=default)
    for name in FLAGS.split():
        made.add_argument(f"--{name}", action="store_true")
    return made


@dataclass
class Request:
    """Request with its result; times in seconds."""

    prompt: Any
    prompt_len: int
    output_len: int
    error: str = ""
    text: str = ""
    tokens: int = 0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0

    @property
    def tpot(self) -> float:
        return (self.latency - self.ttft) / (self.tokens - 1) if self.tokens > 1 else 0.0


def sample(args: argparse.Namespace) -> list[Request]:
    """Return random requests. Raises for data that would be downloaded, and for a missing tokenizer."""
    from tokenizers import Tokenizer  # type: ignore[import-not-found]

    tokenizer = Tokenizer.from_file(str(Path(args.tokenizer or args.model) / "tokenizer.json"))
    if args.dataset_name in ("sharegpt", "random") and not args.dataset_path and not args.random_ids:
        raise ConnectionError(
            "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: "
            "/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered (Caused by NameResolutionError)"
        )
    if args.dataset_name != "random" or not args.random_ids:
        raise NotImplementedError("the lab's simulated engine has no data set but random ids")
    rng = np.random.default_rng(args.seed)

    def length(mean: int) -> int:
        low, high = mean * (1 - args.random_range_ratio), mean * (1 + args.random_range_ratio)
        return int(rng.integers(math.floor(low), math.ceil(high) + 1))

    def ids(count: int) -> list[int]:
        found: list[int] = rng.integers(0, tokenizer.get_vocab_size(with_added_tokens=False), count).tolist()
        return found

    prefix, made = ids(args.random_prefix_len), []
    for _number in range(args.num_prompts):
        prompt = prefix + ids(length(args.random_input_len))
        given = prompt if args.tokenize_on_client else tokenizer.decode(prompt)
        made.append(Request(given, len(prompt), length(args.random_output_len)))
    return made


async def ask(client: httpx2.AsyncClient, url: str, args: argparse.Namespace, request: Request) -> None:
    """Send a request and record its response or error."""
    chat = args.backend == "openai-chat"
    body = {
        "model": args.served_model_name or args.model,
        "temperature": args.temperature or 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens" if chat else "max_tokens": request.output_len,
        **({"messages": [{"role": "user", "content": request.prompt}]} if chat else {"prompt": request.prompt}),
        **({"ignore_eos": True} if args.ignore_eos else {}),
    }
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY')}"}
    began = last = time.perf_counter()
    try:
        async with client.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code != 200:
                request.error = response.reason_phrase
                return
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now, data = time.perf_counter(), json.loads(line[6:])
                if choices := data.get("choices"):
                    if request.ttft:
                        request.itl.append(now - last)
                    else:
                        request.ttft = now - began
                    last = now
                    request.text += (choices[0]["delta"].get("content") if chat else choices[0].get("text")) or ""
                if usage := data.get("usage"):
                    request.tokens = usage["completion_tokens"]
        request.latency = last - began
        if not request.ttft:
            request.error = "Never received a valid chunk to calculate TTFT. This response will be marked as failed!"
    except Exception:  # any error: the other requests continue
        request.error = traceback.format_exc()


async def benchmark(args: argparse.Namespace, requests: Sequence[Request]) -> float:
    """Send all requests and return the duration in seconds.

    Raises:
        ValueError: The first test request fails.
    """
    endpoint = "/v1/chat/completions" if args.backend == "openai-chat" else args.endpoint
    url = (args.base_url or f"http://{args.host}:{args.port}") + endpoint
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    # Use the CA file of SSL_CERT_FILE, as upstream's client does.
    async with httpx2.AsyncClient(timeout=None, limits=limits, verify=ssl.create_default_context()) as client:
        if not args.no_test_input:
            print("Starting initial single prompt test run...", flush=True)
            test = Request(requests[0].prompt, requests[0].prompt_len, requests[0].output_len)
            await ask(client, url, args, test)
            if test.error:
                raise ValueError(
                    "Initial test run failed - Please make sure benchmark arguments are correctly specified. "
                    f"Error: {test.error}"
                )
            print("Initial test run completed. Starting main benchmark run...", flush=True)
        rng, at_once = np.random.default_rng(args.seed), asyncio.Semaphore(args.max_concurrency or len(requests))
        began = time.perf_counter()
        with tqdm(total=len(requests), desc="Benchmarking", disable=args.disable_tqdm) as bar:

            async def one(request: Request) -> None:
                async with at_once:
                    await ask(client, url, args, request)
                bar.update(1)

            tasks = []
            for request in requests:
                tasks.append(asyncio.create_task(one(request)))
                if args.request_rate < math.inf:
                    await asyncio.sleep(rng.gamma(args.burstiness, 1 / (args.request_rate * args.burstiness)))
            await asyncio.gather(*tasks)
        return time.perf_counter() - began


def objectives(pairs: Sequence[str]) -> dict[str, float]:
    """Return the objectives in milliseconds by metric.

    Raises:
        ValueError: An objective is malformed.
    """
    found = {name: float(limit) for name, limit in (pair.split(":") for pair in pairs)}
    if wrong := {name for name, limit in found.items() if name not in ("ttft", "tpot", "e2el") or limit < 0}:
        raise ValueError(f"Invalid metric name or value found in goodput: {', '.join(wrong)}")
    return found


def tell(lines: Mapping[str, float]) -> None:
    for label, value in lines.items():
        print(f"{label + ':':<40} {value:<10{'' if isinstance(value, int) else '.2f'}}")


def report(args: argparse.Namespace, requests: Sequence[Request], seconds: float) -> dict[str, Any]:
    """Print the report of the requests and return the content of the file."""
    done = [request for request in requests if not request.error]
    times = [{"ttft": request.ttft, "tpot": request.tpot, "e2el": request.latency} for request in done]
    limits = objectives(args.goodput)
    good = sum(all(1000 * one[name] <= limit for name, limit in limits.items()) for one in times)
    given, tokens = sum(request.prompt_len for request in done), sum(request.tokens for request in done)
    percentiles = [float(percent) for percent in args.metric_percentiles.split(",")]
    nothing = dict.fromkeys(("mean", "min", "max", "median", "std"), 0.0)
    figures: dict[str, Any] = {
        "duration": seconds,
        "completed": len(done),
        "total_input_tokens": given,
        "total_output_tokens": tokens,
        "request_throughput": len(done) / seconds,
        "request_goodput:": good / seconds if limits else None,
        "output_throughput": tokens / seconds,
        "total_token_throughput": (given + tokens) / seconds,
        "user_throughput": float(np.mean([request.tokens / request.latency for request in done] or 0)),
        # Upstream takes these from the engine; here they are absent.
        "avg_decoded_tokens_per_iter": {**nothing, "percentiles": {f"p{percent}": 0.0 for percent in percentiles}},
    }
    print(f"{' Serving Benchmark Result ':=^50}")
    tell(
        {
            "Total requests": len(requests),
            "Successful requests": len(done),
            "Failed requests": len(requests) - len(done),
        }
    )
    tell({"Benchmark duration (s)": seconds, "Total input tokens": given, "Total generated tokens": tokens})
    for label, name in (("Request", "request"), ("Output token", "output"), ("Total Token", "total_token")):
        tell({f"{label} throughput ({'req' if name == 'request' else 'tok'}/s)": figures[f"{name}_throughput"]})
    tell({"User throughput (tok/s)": figures["user_throughput"]})
    values = {name: [one[name] for one in times if name != "tpot" or one[name]] for name in ("ttft", "tpot", "e2el")}
    values["itl"] = [gap for request in done for gap in request.itl]
    for name in (name for name in METRICS if name in args.percentile_metrics.split(",")):
        # All are 0 if no request succeeded.
        milliseconds = 1000 * np.array(values[name] or [0.0])
        found = {"mean": milliseconds.mean(), "median": np.median(milliseconds), "std": milliseconds.std()}
        for percent in percentiles:
            found[f"p{percent:g}"] = np.percentile(milliseconds, percent)
        print(f"{METRICS[name]:-^50}")
        tell({f"{key.capitalize()} {name.upper()} (ms)": float(value) for key, value in found.items()})
        figures |= {f"{key}_{name}_ms": float(value) for key, value in found.items()}
    print("=" * 50)
    return figures


def save(args: argparse.Namespace, requests: Sequence[Request], figures: Mapping[str, Any]) -> None:
    """Write the file.

    Raises:
        ValueError: The metadata is malformed.
    """
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    details = {
        "input_lens": [request.prompt_len for request in requests],
        "output_lens": [0 if request.error else request.tokens for request in requests],
        "ttfts": [request.ttft for request in requests],
        "itls": [request.itl for request in requests],
        "e2els": [request.latency for request in requests],
        "generated_texts": [request.text for request in requests],
        "errors": [request.error for request in requests],
    }
    document = {
        "date": now,
        "backend": args.backend,
        "model_id": args.model,
        "tokenizer_id": args.tokenizer or args.model,
        "num_prompts": args.num_prompts,
        **dict(pair.split("=") for pair in args.metadata or []),
        **figures,
        **(details if args.save_detailed else {}),
        "request_rate": args.request_rate if args.request_rate < math.inf else "inf",
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
    }
    at_once = f"-concurrency{args.max_concurrency}" if args.max_concurrency else ""
    name = f"{args.backend}-{args.request_rate}qps{at_once}-{args.model.rpartition('/')[2]}-{now}.json"
    Path(args.result_dir or ".", args.result_filename or name).write_text(json.dumps(document))


def main() -> None:
    """Run the command line. Failed requests do not change the exit status."""
    args = parser().parse_args()
    print(args)
    requests = sample(args)
    figures = report(args, requests, asyncio.run(benchmark(args, requests)))
    if args.save_result:
        save(args, requests, figures)


if __name__ == "__main__":
    main()
