"""Invented benchmark results: a simple queueing model stands for the endpoint."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.measured import Measured, Spread
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import slo as objectives
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import Point, Run, read_run
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import Scenario, choose
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

TABLE = yaml.safe_load((ROOT / "roles/benchmark/vars/main/scenarios.yml").read_text())["__benchmark_scenarios"]
PUBLISHED = yaml.safe_load((ROOT / "roles/benchmark/vars/main/published.yml").read_text())["__benchmark_published"]
BEGAN = datetime(2026, 11, 23, 15, 30, tzinfo=UTC)
VERSIONS = {"aiperf": "0.13.0", "benchmark_serving": "1.2.1"}
AROUND: dict[str, Any] = {"problems": [], "raw": {"simulated": True}}
SLO = {"ttft_ms.p99": 2000, "tpot_ms.p50": 30}
SUBJECT: dict[str, Any] = {
    "release": "3f786850e387",
    "recipe": "gpt-oss-120b-h200x1-max_throughput",
    "model": "openai/gpt-oss-120b",
    "draft_model": None,
    "gpu_type": "h200",
    "use_case": "max_throughput",
    "image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    "digest": "sha256:e35ea1320d51e7c066134a52391d50eb294b7a75c37c1a736f68132956832174",
    "engine_options": {
        "tensor_parallel_size": 1,
        "max_batch_size": 1024,
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": 1024},
        "moe_config": {"backend": "TRITON"},
    },
    "flags": None,
    "environment": {"TRTLLM_ENABLE_PDL": "1"},
    "revision": "57476bbab104d89489bd206f997f9da1c2927ce2",
    "sources": {
        "tensor_parallel_size": "TensorRT-LLM perf-overview",
        "max_batch_size": "TensorRT-LLM examples/configs/curated/gpt-oss-120b-throughput.yaml",
        "cuda_graph_config.enable_padding": "TensorRT-LLM examples/configs/curated/gpt-oss-120b-throughput.yaml",
        "moe_config.backend": "TensorRT-LLM deployment guide for gpt-oss, Hopper",
        "environment.TRTLLM_ENABLE_PDL": "TensorRT-LLM deployment guide for gpt-oss",
    },
    "driver": "580.159.04",
    "kernel_module": "580.159.04",
    "gpus": {
        "count": 1,
        "product_name": "NVIDIA H200 (simulated)",
        "memory_total_mib": 143771,
        "ecc": True,
        "mig": False,
        "power_limit_watts": 700,
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 3201,
    },
}
TARGET: dict[str, Any] = {
    "name": "simulated-gpu1",
    "kind": "instance",
    "base_urls": ["http://127.0.0.1:8000"],
    "model": "gpt-oss-120b",
    "gpus": 1,
    "load_from": "gpu1",
    "note": "",
}


def measure(
    point: Mapping[str, Any], gpus: int, speed: float, noise: random.Random, limits: Mapping[str, float]
) -> Measured:
    """Simulate a closed queue: each user waits for the earlier prompts, then all decode together."""
    users = point["concurrency"] / max(1, gpus)
    wobble = noise.gauss(1, 0.012)
    tpot = (2.6 + 0.14 * users**0.98) / speed * wobble
    prefill = point["input_tokens"] / 55.0 / speed * noise.gauss(1, 0.02)
    ttft = 14 + prefill * (1 + 0.35 * (users - 1))
    whole = ttft + tpot * (point["output_tokens"] - 1)
    requests = point["requests"]
    seconds = requests * whole / point["concurrency"] / 1000
    names = {"ttft_ms": ttft, "tpot_ms": tpot, "e2e_ms": whole}
    good = sum(
        all(names[name] * noise.lognormvariate(0, 0.2) <= limit for name, limit in limits.items())
        for _request in range(requests)
    )
    return Measured(
        asked=requests,
        answered=requests,
        seconds=seconds,
        input_tokens=requests * point["input_tokens"],
        output_tokens=requests * point["output_tokens"],
        ttft_ms=_spread(ttft, 0.28, noise),
        tpot_ms=_spread(tpot, 0.06, noise),
        itl_ms=_spread(tpot, 0.35, noise),
        e2e_ms=_spread(whole, 0.09, noise),
        good_per_second=good / seconds if limits else None,
    )


def _spread(mean: float, width: float, noise: random.Random) -> Spread:
    def at(deviations: float) -> float:
        return mean * (1 + width * deviations) * noise.gauss(1, 0.01)

    return Spread(mean, mean * width, at(-0.9), at(4), p50=at(-0.1), p90=at(1.3), p95=at(1.7), p99=at(2.6))


def sample(
    folder: Path,
    scenarios: Sequence[str] = ("low_latency", "quick_start"),
    *,
    options: Mapping[str, Any] | None = None,
    repeat: int = 3,
    speed: float = 1.0,
    seed: int = 1,
    slo: Mapping[str, float] | None = None,
    began: datetime = BEGAN,
    target: Mapping[str, Any] | None = None,
    ran_on: Mapping[str, Any] | None = None,
    state: str = "complete",
) -> Path:
    """Write a result in the role's layout and return its directory. ``state`` running stops in the middle."""
    noise = random.Random(seed)
    chosen: list[Scenario] = choose(scenarios, TABLE, options or {})
    moment = began

    def clock() -> datetime:
        return moment

    where = {**TARGET, **(target or {})}
    limits = slo or {}
    subjects = {"gpu1": SUBJECT} if ran_on is None else ran_on
    run = Run(folder, where, chosen, repeat, subjects, limits, clock)
    for scenario in chosen:
        rounds: list[Point] = []
        for point in scenario.points(repeat, run.seed):
            measured = measure(point, where["gpus"], speed, noise, objectives.limits(limits))
            moment += timedelta(seconds=max(1, round(measured.seconds)))
            run.add(
                point,
                {
                    "measured": measured.to_dict({**point, "gpus": where["gpus"]}),
                    **AROUND,
                    "version": VERSIONS[point["tool"]],
                },
            )
            rounds.append(run.document["points"][-1])
            if point["round"] == repeat:
                if missed := objectives.misses(rounds, limits):
                    run.note(stopped={**run.document.get("stopped", {}), scenario.name: missed})
                    break
                rounds = []
    if state == "failed":
        run.problem("quick_start, 4096 at once, round 1: 12 of 20480 requests failed: 12 x 500 Internal Server Error")
    if state != "running":
        run.end("failed" if state == "failed" else "complete")
    return run.folder


def document(folder: Path, *scenarios: str, **options: Any) -> dict[str, Any]:
    """Return the result as read."""
    return read_run(sample(folder, scenarios, **options) if scenarios else sample(folder, **options))
