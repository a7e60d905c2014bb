# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run NVIDIA's aiperf 0.13 and read its results, also those of 0.2 and later."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.measured import (
    PERCENTILES,
    Measured,
    Spread,
    ToolError,
    number,
)

RESULT = "profile_export_aiperf.json"
# One line per request.
REQUESTS = "profile_export.jsonl"
CONFIGURATION = "aiperf.json"
# With these it looks for the tokenizer's directory on the hub (0.13: "Repo id must be ...").
UNSET = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
# aiperf's names of the limits.
LIMITS = {"ttft_ms": "time_to_first_token", "tpot_ms": "inter_token_latency", "e2e_ms": "request_latency"}
# The progress of the simple interface, repeated on one line; with commas from 1,000.
PROGRESS = re.compile(r"(Warmup|Profiling): ([\d,]+)/([\d,]+) ")
ERROR_LENGTH = 200  # characters of a server's error


def configuration(point: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the configuration file of a run. It refers to the key by its environment variable."""
    load = {"type": "concurrency", "concurrency": point["concurrency"]}
    if point["request_rate"]:
        load.update(type="poisson", rate=point["request_rate"])
    # As in sglang's benchmark: [ratio * length, length].
    ratio = {"random_range_ratio": str(point["range_ratio"]), "random_corpus_style": "sglang"}
    varied = ratio if point["range_ratio"] < 1 else {}
    phases = [{"name": "profiling", "kind": "profiling", **load, "requests": point["requests"]}]
    if point["warm_up"]:
        warm_up = {"name": "warmup", "kind": "warmup", **load, "requests": point["warm_up"]}
        phases.insert(0, {**warm_up, "exclude_from_results": True})
    return {
        "benchmark": {
            "models": {"items": [{"name": point["model"]}]},
            "endpoint": {
                "urls": list(point["base_urls"]),
                "type": point["endpoint"],
                "path": {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[point["endpoint"]],
                "streaming": True,
                **({"api_key": "${OPENAI_API_KEY}"} if point["keyed"] else {}),
                # aiperf's own count depends on where the stream is split.
                "use_server_token_count": True,
                "extra": {
                    # Of varied lengths each request has its own.
                    **({} if varied else {"max_tokens": point["output_tokens"]}),
                    **({"ignore_eos": True} if point["fixed_length"] else {}),
                    **({"min_tokens": point["output_tokens"]} if point["fixed_length"] and not varied else {}),
                },
            },
            "datasets": [
                {
                    "name": "main",
                    "type": "synthetic",
                    "entries": point["entries"],
                    "random_seed": point["seed"],
                    "prompts": {
                        "isl": {"mean": point["input_tokens"], "stddev": 0},
                        "osl": {"mean": point["output_tokens"], "stddev": 0},
                        **varied,
                    },
                }
            ],
            "phases": phases,
            "slos": {LIMITS[name]: limit for name, limit in point["limits"].items()},
            "artifacts": {"dir": str(folder)},
            "tokenizer": {"name": point["tokenizer"]},
            "gpu_telemetry": {"enabled": False},
            "server_metrics": {"enabled": False},
        }
    }


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that make aiperf keep its prompts in ``folder``; it does not remove them."""
    return {"AIPERF_DATASET_MMAP_BASE_PATH": str(folder)}


def command(program: str, folder: Path) -> list[str]:
    """Return the command line; ``folder`` has the configuration."""
    # Without a terminal only this option shows the progress, not the file's.
    return [program, "profile", "--config", str(folder / CONFIGURATION), "--ui", "simple"]


def progress(log: str) -> dict[str, Any]:
    """Return the last progress in the output; empty before the first request."""
    found = PROGRESS.findall(log)
    if not found:
        return {}
    phase, done, total = (text.replace(",", "") for text in found[-1])
    return {"phase": "warm-up" if phase == "Warmup" else "load", "done": int(done), "total": int(total)}


def read(folder: Path, point: Mapping[str, Any]) -> tuple[Measured, dict[str, Any]]:
    """Return the result and the content of its file. Raises ToolError if the file is missing or incomplete.

    aiperf 0.9 and later write no file if all requests failed; their errors are then read from the file of requests.
    """
    path = next(iter(sorted(folder.rglob(RESULT), key=lambda path: len(path.parts))), None)
    if path is None:
        failures = _failures(folder / REQUESTS)
        if len(failures) != point["requests"]:
            raise ToolError(f"aiperf left no {RESULT}")
        said = {"error_request_count": {"avg": len(failures)}, "error_summary": failures}
        return parse(said, point), said
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ToolError(f"aiperf's {RESULT} cannot be read: {error}") from None
    answers = read_answers(path.parent / REQUESTS)
    steady, most = steady_rate(answers, point), most_at_once(answers)
    return replace(parse(said, point), steady_per_second=steady, most_at_once=most), said


def parse(said: Any, point: Mapping[str, Any]) -> Measured:
    """Return the result in a file. aiperf exits with 0 even if requests failed, so count them."""
    if not isinstance(said, dict):
        raise ToolError(f"aiperf's {RESULT} is not an object")
    if said.get("was_cancelled"):
        raise ToolError("aiperf was cancelled before its last request")
    try:
        answered = _count(said, "request_count")
        failed = _count(said, "error_request_count")
        seconds = _mean(said, "benchmark_duration")
        measured = Measured(
            asked=point["requests"],
            answered=answered,
            seconds=seconds or 0.0,
            input_tokens=_total(said, "input_sequence_length"),
            output_tokens=_total(said, "output_sequence_length"),
            ttft_ms=_spread(said, "time_to_first_token"),
            # Per request the mean, which other tools call TPOT.
            tpot_ms=_spread(said, "inter_token_latency"),
            itl_ms=_spread(said, "inter_chunk_latency"),
            e2e_ms=_spread(said, "request_latency"),
            good_per_second=_mean(said, "goodput"),
            errors=_errors(said.get("error_summary") or []),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ToolError(f"aiperf's {RESULT} has an unknown format: {error!r}") from None
    if answered and seconds is None:
        raise ToolError(f"aiperf's {RESULT} has no benchmark_duration")
    if answered + failed > point["requests"]:
        raise ToolError(f"aiperf counts {answered + failed} requests instead of {point['requests']}")
    return measured


def _mean(metrics: Mapping[str, Any], name: str) -> float | None:
    return number((metrics.get(name) or {}).get("avg"))


def _count(metrics: Mapping[str, Any], name: str) -> int:
    """Return a number of requests; aiperf omits zeros."""
    return int(_mean(metrics, name) or 0)


def _total(metrics: Mapping[str, Any], name: str) -> int:
    """Return a sum over the requests; aiperf 0.5 has only the mean."""
    metric = metrics.get(name) or {}
    return int(number(metric.get("sum")) or round((_mean(metrics, name) or 0) * _count(metrics, "request_count")))


def _spread(metrics: Mapping[str, Any], name: str) -> Spread:
    metric = metrics.get(name) or {}
    if metric and metric["unit"] != "ms":
        raise ValueError(f"{name} is in {metric['unit']}")
    parts = ("avg", "std", "min", "max", *(f"p{percent}" for percent in PERCENTILES))
    return Spread(*(number(metric.get(part)) for part in parts))


# Start, first token and end of a request in seconds, and its tokens.
Answer = tuple[float, float, float, float]


def read_answers(path: Path) -> list[Answer]:
    """Return the answered requests by their start; none if the file is not readable."""
    try:
        return sorted(_answer(line) for line in _measured(path) if not line.get("error"))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def steady_rate(answers: Sequence[Answer], point: Mapping[str, Any]) -> float | None:
    """Return the tokens a second of a load without its beginning and its end; None if nothing is left.

    ``answers``: by their start. The beginning is until each user has finished a request, because all of them begin at
    the same time; without users until the first has ended. The end begins with the last request: from then on fewer are
    in flight. Tokens of an answer are spread evenly from its first one to its end.
    """
    first = 1 if point["request_rate"] else point["concurrency"]
    if len(answers) < 2 * first:
        return None
    begin, end = max(answer[2] for answer in answers[:first]), answers[-1][0]
    if end <= begin:
        return None
    tokens = sum(_within(first, last, count, begin, end) for _start, first, last, count in answers)
    return tokens / (end - begin)


def most_at_once(answers: Sequence[Answer]) -> int | None:
    """Return the most requests that were in flight at the same time; None if no request is known."""
    # At the same moment an end comes before a start.
    changes = sorted([(answer[0], 1) for answer in answers] + [(answer[2], -1) for answer in answers])
    return max(accumulate(change for _moment, change in changes), default=None)


def _answer(line: Mapping[str, Any]) -> Answer:
    about, metrics = line["metadata"], line["metrics"]
    start, last = (about[name] / 1e9 for name in ("request_start_ns", "request_end_ns"))
    first = metrics["time_to_first_token"]
    if first["unit"] != "ms":
        raise ValueError(f"time_to_first_token is in {first['unit']}")
    return start, start + first["value"] / 1000, last, metrics["output_sequence_length"]["value"]


def _within(first: float, last: float, count: float, begin: float, end: float) -> float:
    """Return how many tokens of an answer are within a time."""
    if last <= first:
        return count if begin <= last < end else 0.0
    return count * max(0.0, min(last, end) - max(first, begin)) / (last - first)


def _measured(path: Path) -> list[dict[str, Any]]:
    """Return the requests that are not of the warm-up. Raises OSError, ValueError, KeyError, TypeError."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["metadata"]["benchmark_phase"] == "profiling"]


def _failures(path: Path) -> list[dict[str, Any]]:
    """Return the failed requests in the form of a result's summary."""
    try:
        measured = _measured(path)
        return [{"error_details": line["error"], "count": 1} for line in measured if line.get("error")]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _errors(summary: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in summary:
        details = one["error_details"]
        text = " ".join(str(details[name]) for name in ("code", "type", "message") if details.get(name))
        text = " ".join(text.split())[:ERROR_LENGTH]
        found[text] = found.get(text, 0) + int(one["count"])
    return found
