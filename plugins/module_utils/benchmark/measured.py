# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of one run of a load generator, in the same form for each tool."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Share of the requested tokens below which answers are too short. A server may not count the last of 32.
ENOUGH = 0.95
# Percentiles that both tools compute.
PERCENTILES = (50, 90, 95, 99)


class ToolError(Exception):
    """A tool left no valid result."""


@dataclass(frozen=True)
class Spread:
    """A latency of the answered requests, in milliseconds; None is unknown."""

    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Measured:
    """One run of a tool at one concurrency.

    ``seconds`` excludes the warm-up. Tokens are the totals of the answered requests, as the server counts them. The
    latencies are the time to first token, the time per output token, the time between two pieces of the stream, and
    the whole request. ``good_per_second`` are the requests within the tool's limits. ``steady_per_second`` are the
    tokens a second while each user had a request in flight and had finished one before. ``most_at_once`` is the highest
    number of requests in flight. None is unknown.
    """

    asked: int
    answered: int
    seconds: float
    input_tokens: int
    output_tokens: int
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread
    good_per_second: float | None = None
    steady_per_second: float | None = None
    most_at_once: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        return self.asked - self.answered

    def problems(self, point: Mapping[str, Any]) -> list[str]:
        """Return why the result does not count: failed requests, answers that are too short, or a load that waited."""
        found = []
        if self.failed:
            reasons = "; ".join(f"{count} x {text}" for text, count in self.errors.items())
            found.append(f"{self.failed} of {self.asked} requests failed" + (f": {reasons}" if reasons else ""))
        if self.answered and not self.output_tokens:
            found.append("the answers had no token")
        elif self.output_tokens < ENOUGH * (self.requested(point)["requested_output"] or 0) and point["fixed_length"]:
            mean = self.output_tokens / self.answered
            found.append(
                f"the answers had {mean:.4g} tokens, not {point['output_tokens']}: the server ignores ignore_eos and "
                "min_tokens. Set fixed_length of the endpoint to false to accept it"
            )
        if point["request_rate"] and self.most_at_once is not None and self.most_at_once >= point["concurrency"]:
            found.append(
                f"{self.most_at_once} requests were in flight, the most that concurrency allows, so further ones were "
                f"sent later than they arrived. Raise concurrency, or lower request_rate ({point['request_rate']:g}/s)"
            )
        return found

    def requested(self, point: Mapping[str, Any]) -> dict[str, int | None]:
        """Return the tokens of the answered requests as the client counts them; None for lengths that vary."""
        alike = point["range_ratio"] == 1
        return {
            f"requested_{name}": point[f"{name}_tokens"] * self.answered if alike else None
            for name in ("input", "output")
        }

    def to_dict(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the form of the result files. ``gpus`` of the load is the number of GPUs, 0 if unknown."""
        output, gpus = _rate(self.output_tokens, self.seconds), point["gpus"]
        return {
            "requests": {
                "asked": self.asked,
                "answered": self.answered,
                "failed": self.failed,
                "most_at_once": self.most_at_once,
            },
            "errors": dict(self.errors),
            "seconds": _round(self.seconds),
            "tokens": {"input": self.input_tokens, "output": self.output_tokens, **self.requested(point)},
            "throughput": {
                "requests_per_second": _rate(self.answered, self.seconds),
                "good_requests_per_second": _round(self.good_per_second),
                "output_tokens_per_second": output,
                "steady_output_tokens_per_second": _round(self.steady_per_second),
                "total_tokens_per_second": _rate(self.input_tokens + self.output_tokens, self.seconds),
                "output_tokens_per_second_per_gpu": _round(output / gpus) if gpus and output is not None else None,
                # Tools define this differently; here it is the speed of an answer after its first token.
                "output_tokens_per_second_per_user": _round(1000 / self.tpot_ms.mean) if self.tpot_ms.mean else None,
            },
            **{name: {key: _round(value) for key, value in asdict(getattr(self, name)).items()} for name in LATENCIES},
        }


LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")


def number(value: Any) -> float | None:
    """Return a number of a tool's file, or None. Raises ValueError for others, such as NaN."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _rate(count: float, seconds: float) -> float | None:
    return _round(count / seconds) if seconds > 0 else None


def _round(value: float | None) -> float | None:
    """Round to five significant digits; further ones are noise."""
    if value is None or value == 0:
        return value
    return round(value, 4 - math.floor(math.log10(abs(value))))
