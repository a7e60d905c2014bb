# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run TensorRT-LLM's benchmark_serving in the engine's image and read its result.

Options and result are those of tensorrt_llm/serve/scripts/benchmark_serving.py at 0228a71, in releases 1.0 to 1.4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.measured import (
    PERCENTILES,
    Measured,
    Spread,
    ToolError,
    number,
)

RESULT = "benchmark_serving.json"
CONTAINER = "trtllm-benchmark"
# Paths of the run's directory and of the model in the container.
INSIDE = "/benchmark"
TOKENIZER = "/tokenizer"
# tqdm's progress, repeated on one line.
PROGRESS = re.compile(r"%\|[^|]*\| (\d+)/(\d+) ")
# The tool's names of the limits.
LIMITS = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2el"}
# Spelled with the colon.
GOODPUT = "request_goodput:"
METRICS = "ttft,tpot,itl,e2el"


def command(point: Mapping[str, Any], image: str, options: Sequence[str], folder: Path) -> list[str]:
    """Return the command line. ``options`` of docker run give the container the GPU that the import needs."""
    limits: Mapping[str, float] = point["limits"]
    authority = point["ca_path"]
    middle = (1 + point["range_ratio"]) / 2
    ratio = (1 - point["range_ratio"]) / (1 + point["range_ratio"])
    # It has no option for a warm-up, only a first request that is not measured.
    return [
        *("docker", "run", "--rm", "--name", CONTAINER, "--network", "host", "--log-driver", "none"),
        *options,
        *("--volume", f"{folder}:{INSIDE}", "--volume", f"{point['tokenizer']}:{TOKENIZER}:ro"),
        *("--env", "HF_HUB_OFFLINE=1", *(("--env", "OPENAI_API_KEY") if point["keyed"] else ())),
        *(("--volume", f"{authority}:{authority}:ro", "--env", f"SSL_CERT_FILE={authority}") if authority else ()),
        image,
        *("python3", "-m", "tensorrt_llm.serve.scripts.benchmark_serving"),
        *("--model", point["model"], "--tokenizer", TOKENIZER, "--base-url", point["base_urls"][0]),
        *(
            ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")
            if point["endpoint"] == "chat"
            else ("--backend", "openai", "--endpoint", "/v1/completions", "--tokenize-on-client")
        ),
        # Without --random-ids it downloads a data set.
        *("--dataset-name", "random", "--random-ids", "--random-prefix-len", "0"),
        *("--random-input-len", str(round(middle * point["input_tokens"]))),
        *("--random-output-len", str(round(middle * point["output_tokens"]))),
        # [length * (1 - ratio), length * (1 + ratio)]
        *(("--random-range-ratio", f"{ratio:.6g}") if ratio else ()),
        *("--num-prompts", str(point["requests"]), "--max-concurrency", str(point["concurrency"])),
        *("--seed", str(point["seed"]), "--percentile-metrics", METRICS),
        *(("--ignore-eos",) if point["fixed_length"] else ()),
        *("--metric-percentiles", ",".join(str(percent) for percent in PERCENTILES)),
        *(("--goodput", *(f"{LIMITS[name]}:{limit:g}" for name, limit in limits.items())) if limits else ()),
        *("--save-result", "--result-dir", INSIDE, "--result-filename", RESULT),
    ]


def progress(log: str) -> dict[str, Any]:
    """Return the last progress in the output; empty before the first request."""
    found = PROGRESS.findall(log)
    return {"phase": "load", "done": int(found[-1][0]), "total": int(found[-1][1])} if found else {}


def read(folder: Path, point: Mapping[str, Any]) -> tuple[Measured, dict[str, Any]]:
    """Return the result and the content of its file. Raises ToolError if the file is missing or incomplete."""
    try:
        said = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except OSError:
        raise ToolError(f"benchmark_serving left no {RESULT}") from None
    except ValueError as error:
        raise ToolError(f"benchmark_serving's {RESULT} cannot be read: {error}") from None
    return parse(said, point), said


def parse(said: Any, point: Mapping[str, Any]) -> Measured:
    """Return the result in a file."""
    try:
        asked, answered = _figure(said, "num_prompts"), _figure(said, "completed")
        if asked != point["requests"] or answered > asked:
            raise ToolError(
                f"benchmark_serving counts {answered:g} answers to {asked:g} requests instead of {point['requests']}"
            )
        return Measured(
            asked=int(asked),
            answered=int(answered),
            seconds=_figure(said, "duration"),
            input_tokens=int(_figure(said, "total_input_tokens")),
            output_tokens=int(_figure(said, "total_output_tokens")),
            ttft_ms=_spread(said, "ttft"),
            tpot_ms=_spread(said, "tpot"),
            itl_ms=_spread(said, "itl"),
            e2e_ms=_spread(said, "e2el"),
            good_per_second=number(said.get(GOODPUT)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ToolError(f"benchmark_serving's {RESULT} has an unknown format: {error!r}") from None


def _figure(said: Mapping[str, Any], name: str) -> float:
    value = number(said[name])
    if value is None:
        raise ValueError(f"{name} is null")
    return value


def _spread(said: Mapping[str, Any], name: str) -> Spread:
    """Return a latency; the tool writes 0 if no request was answered."""
    if not said["completed"]:
        return Spread()
    parts = [said.get(f"{part}_{name}_ms") for part in ("mean", "std", "min", "max")]
    parts.append(said.get(f"p50_{name}_ms", said.get(f"median_{name}_ms")))
    parts += [said.get(f"p{percent}_{name}_ms") for percent in PERCENTILES[1:]]
    return Spread(*map(number, parts))
