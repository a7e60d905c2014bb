# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the metrics of TensorRT-LLM's server, by release, and write them as its /prometheus/metrics does.

Names, labels, buckets and what is counted are those of tensorrt_llm/metrics/collector.py and perf_utils.py, and of
tensorrt_llm/serve/openai_server.py: pull requests 5785 (1.1), 11243 (1.3.0rc5), 12545 (before 1.3.0rc14), 12596 and
12636 (after it), 14506 (harmony streams).
The server uses prometheus_client in its multiprocess mode. So a series exists from its first value on, no series has
_created, the sum of a histogram comes first, and a gauge has the label pid.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

TEXT = "text/plain; version=0.0.4; charset=utf-8"
PAUSE = 0.5  # seconds without an iteration, after which the reader of their statistics sleeps
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Upper bounds in seconds, by the histogram's name without the unit; prometheus_metrics_config replaces them.
_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
BUCKETS: dict[str, Sequence[float]] = {
    "e2e_request_latency": _LONG,
    "time_to_first_token": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
    ),
    "time_per_output_token": (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
        *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
    ),
    "request_queue_time": _LONG,
    "request_prefill_time": (
        *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1, 2.5, 5, 10, 20, 40, 80, 160, 640, 2560),
    ),
    "request_decode_time": _LONG,
    "request_inference_time": _LONG,
}
# Gauges of an iteration by the name in its statistics, which may be in the group kvCacheStats.
GAUGES = {
    "numActiveRequests": "num_requests_running",
    "numQueuedRequests": "num_requests_waiting",
    "maxNumActiveRequests": "max_num_active_requests",
    "maxNumBlocks": "kv_cache_max_blocks",
    "freeNumBlocks": "kv_cache_free_blocks",
    "usedNumBlocks": "kv_cache_used_blocks",
    "tokensPerBlock": "kv_cache_tokens_per_block",
}

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Release:
    """What the server of a release measures."""

    chats: frozenset[tuple[bool, bool]]  # chats that count: (model with the harmony format, streamed)
    named: bool = False  # whether labels have the model and the backend; otherwise both are "undefined"
    phases: bool = False  # times of prefill, decode and both, tokens, and the configuration
    iterations: bool = False  # gauges from the statistics of iterations
    first_iterations: bool = False  # gauges from the start, and /metrics has only iterations that they have had
    errors: bool = False  # requests that its validation rejects, and prompt tokens from the cache


_NEITHER = frozenset({(False, False), (False, True)})
# Before 1.3 a harmony chat does not count: neither in openai_server.py of October 2025 (1.1), nor in that of February
# 2026, after the branch of 1.2.
_FIRST = Release(chats=_NEITHER)
_THIRD = Release(chats=_NEITHER | {(True, False)}, named=True, phases=True, iterations=True)
_FOURTH = replace(_THIRD, chats=_THIRD.chats | {(True, True)}, first_iterations=True, errors=True)
RELEASES = {"1.1": _FIRST, "1.2": _FIRST, "1.3": _THIRD, "1.4": _FOURTH}


def histogram_buckets(config: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the bounds of all histograms for prometheus_metrics_config.

    Raises:
        ValueError: Bounds are empty or do not increase.
    """
    bounds = {name: list(config.get(f"{name}_buckets") or default) for name, default in BUCKETS.items()}
    for name in BUCKETS:
        given = config.get(f"{name}_buckets")
        if given == []:
            raise ValueError(f"{name}_buckets must not be empty when provided.")
        if given and any(low >= high for low, high in itertools.pairwise(given)):
            raise ValueError(f"{name}_buckets must be strictly increasing, got {given}.")
    return bounds


@dataclass(frozen=True)
class Answer:
    """Complete response; times in seconds on one clock."""

    path: str
    harmony: bool
    streamed: bool
    arrival: float
    scheduled: float
    first_token: float
    last_token: float
    prompt_tokens: int
    output_tokens: int


@dataclass
class Family:
    """Metrics of one name; a histogram has a count for each bound, then its count and sum."""

    kind: Literal["counter", "gauge", "histogram"]
    bounds: Sequence[float] = ()
    values: dict[Labels, list[float]] = field(default_factory=dict)

    def add(self, labels: Labels, value: float) -> None:
        """Add to a counter or a gauge, or observe."""
        values = self.values.setdefault(labels, [0.0] * (len(self.bounds) + 2 if self.kind == "histogram" else 1))
        if self.kind != "histogram":
            values[0] += value
            return
        for position, bound in enumerate(self.bounds):
            values[position] += value <= bound
        values[-2] += 1
        values[-1] += value

    def samples(self, name: str) -> Iterator[str]:
        """Yield the lines of its samples."""
        for labels, values in self.values.items():
            if self.kind != "histogram":
                yield sample(name, labels, values[0])
                continue
            yield sample(f"{name}_sum", labels, values[-1])
            bounds = [*map(repr, map(float, self.bounds)), "+Inf"]
            for bound, count in zip(bounds, values, strict=False):
                yield sample(f"{name}_bucket", (*labels, ("le", bound)), count)
            yield sample(f"{name}_count", labels, values[-2])


def sample(name: str, labels: Labels, value: float) -> str:
    """Write a sample, its labels in the order of their names."""
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
    pairs = ",".join(f'{key}="{text.translate(escapes)}"' for key, text in sorted(labels))
    return f"{name}{{{pairs}}} {float(value)!r}\n"


class Collector:
    """Metrics of one server."""

    def __init__(
        self,
        release: str,
        prefix: str,
        model: str,
        buckets: Mapping[str, Sequence[float]],
        information: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Create the metrics; ``information`` has the labels of the gauges of the configuration, by their name."""
        self.release = RELEASES[release]
        self.prefix = prefix
        names = (model, "pytorch") if self.release.named else ("undefined", "undefined")
        self.labels: Labels = tuple(zip(("model_name", "engine_type"), names, strict=True))
        self.process: Labels = (("pid", str(os.getpid())),)
        self.buckets = buckets
        self.families: dict[str, Family] = {}
        if self.release.phases:
            for name, labels in information.items():
                self._gauge(name, 1, tuple(labels.items()))
        if self.release.errors:
            self._count("prompt_cached_tokens_total", 0)

    def _count(self, name: str, value: float, labels: Labels = ()) -> None:
        self.families.setdefault(name, Family("counter")).add((*self.labels, *labels), value)

    def _gauge(self, name: str, value: float, labels: Labels = ()) -> None:
        self.families.setdefault(name, Family("gauge")).values[(*self.labels, *labels, *self.process)] = [value]

    def _observe(self, name: str, seconds: float) -> None:
        if seconds > 0:
            family = self.families.setdefault(f"{name}_seconds", Family("histogram", self.buckets[name]))
            family.add(self.labels, seconds)

    def finish(self, answer: Answer) -> bool:
        """Record a complete response; return False if the release does not count such a one."""
        chat = answer.path == "/v1/chat/completions" and (answer.harmony, answer.streamed) in self.release.chats
        if not chat and answer.path != "/v1/completions":
            return False
        generation = answer.last_token - answer.first_token
        self._count("request_success_total", 1, (("finished_reason", "length"),))
        self._observe("e2e_request_latency", answer.last_token - answer.arrival)
        self._observe("time_to_first_token", answer.first_token - answer.arrival)
        if answer.output_tokens > 1:
            self._observe("time_per_output_token", generation / (answer.output_tokens - 1))
        self._observe("request_queue_time", answer.scheduled - answer.arrival)
        if self.release.phases:
            self._observe("request_prefill_time", answer.first_token - answer.scheduled)
            self._observe("request_decode_time", generation)
            self._observe("request_inference_time", answer.last_token - answer.scheduled)
            self._count("prompt_tokens_total", answer.prompt_tokens)
            self._count("generation_tokens_total", answer.output_tokens)
        return True

    def reject(self) -> None:
        """Record a request that the server's validation rejects with 400."""
        if self.release.errors:
            self._count("request_error_total", 1, (("http_code", "400"),))

    def iterate(self, statistics: Mapping[str, Any]) -> None:
        """Set the gauges to the statistics of an iteration, which have the names of /metrics."""
        cache = statistics["kvCacheStats"]
        for name, value in {**statistics, **cache}.items():
            if name in GAUGES:
                self._gauge(GAUGES[name], value)
        self._gauge("kv_cache_utilization", cache["usedNumBlocks"] / cache["maxNumBlocks"])

    def write(self, openmetrics: bool = False) -> str:
        """Return all metrics in the text format of Prometheus, or in OpenMetrics."""
        lines = []
        for short, family in self.families.items():
            name = self.prefix + short
            described = name.removesuffix("_total") if openmetrics else name
            lines.append(f"# HELP {described} {short.replace('_', ' ').capitalize()}\n")
            lines.append(f"# TYPE {described} {family.kind}\n")
            lines += family.samples(name)
        return "".join(lines) + ("# EOF\n" if openmetrics else "")


class Reader:
    """The server's reader of iteration statistics, for the gauges.

    After a pause it sleeps until a request that counts has ended. It takes the statistics out of the queue of /metrics.
    """

    def __init__(self, metrics: Collector, statistics: Mapping[str, Any]) -> None:
        """Read the statistics of the start if the release has them."""
        self.metrics = metrics
        self.awake = False
        self.seen = 0
        self.idle_since = 0.0
        if metrics.release.first_iterations:
            metrics.iterate(statistics)

    def wake(self, statistics: Mapping[str, Any]) -> None:
        """Read the statistics of the present iteration, and go on reading."""
        self.metrics.iterate(statistics)
        self.awake = True

    def stop(self) -> None:
        """Note the end of a request, after which there may be no iterations."""
        self.idle_since = time.monotonic()

    def is_tired(self) -> bool:
        """Return True if it is awake, and no request has ended within the pause; ask while none runs."""
        return self.awake and time.monotonic() - self.idle_since > PAUSE

    def sleep(self, iteration: int) -> None:
        """Stop reading after an iteration."""
        self.awake = False
        self.seen = iteration

    def share(self, listed: int, latest: int) -> tuple[int, int]:
        """Return the iterations between which /metrics has entries, for the one that it listed last and the latest."""
        if self.awake:
            self.seen = latest
        if self.metrics.release.first_iterations:
            return listed, self.seen
        return latest if self.awake else listed, latest
