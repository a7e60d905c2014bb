# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check loads of a benchmark against service level objectives (SLOs)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.measured import LATENCIES, PERCENTILES
from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import Point, at_once, loads, median
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import Scenario

# Latencies have upper limits, throughputs lower limits.
CEILINGS = tuple(f"{name}.{part}" for name in LATENCIES for part in ("mean", *(f"p{p}" for p in PERCENTILES), "max"))
FLOORS = tuple(
    f"throughput.{name}_per_second{of}"
    for name, of in (
        ("requests", ""),
        ("output_tokens", ""),
        ("total_tokens", ""),
        ("output_tokens", "_per_gpu"),
        ("output_tokens", "_per_user"),
    )
)
# Requests of which one is beyond a percentile.
NEEDED = {f"p{p}": math.ceil(100 / (100 - p)) for p in PERCENTILES}
# Limits that the tools check for each request.
OF_A_REQUEST = ("ttft_ms", "tpot_ms", "e2e_ms")


def problems(slo: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of objectives."""
    for name, limit in slo.items():
        if name not in CEILINGS + FLOORS:
            known = ", ".join((*CEILINGS, *FLOORS))
            yield f"benchmark_slo has {name!r}.{did_you_mean(name, CEILINGS + FLOORS)} Allowed are {known}."
        elif isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
            yield f"benchmark_slo.{name} is {limit!r}; it must be a number above 0."


def limits(slo: Mapping[str, float]) -> dict[str, float]:
    """Return the strictest limits of a request; the tool computes the goodput from these."""
    found: dict[str, float] = {}
    for path, limit in slo.items():
        name = path.split(".")[0]
        if name in OF_A_REQUEST:
            found[name] = min(limit, found.get(name, limit))
    return found


def misses(points: Sequence[Point], slo: Mapping[str, float]) -> list[str]:
    """Return the objectives that the median of a load's rounds misses."""
    found = []
    for path, limit in slo.items():
        measured = median(points, path)
        ceiling = path in CEILINGS
        if measured is None:
            found.append(f"{path} was not measured")
        elif measured > limit if ceiling else measured < limit:
            found.append(f"{path} is {measured:g}, {'above' if ceiling else 'below'} {limit:g}")
    return found


def load_problems(slo: Mapping[str, Any], scenarios: Sequence[Scenario], users: int) -> Iterator[str]:
    """Yield the objectives that the loads of scenarios cannot decide.

    ``users``: the concurrency at which objectives have to be met. A percentile needs a request beyond it in each round.
    """
    for scenario in scenarios:
        if slo and users > max(scenario.concurrency):
            yield (
                f"benchmark_slo_concurrency is {users}; {scenario.name} has at most {max(scenario.concurrency)} "
                f"requests at a time. Set concurrency of {scenario.name} in benchmark_scenario_options, or a lower "
                "benchmark_slo_concurrency."
            )
        smallest = min((count for count in scenario.concurrency if count >= users), default=max(scenario.concurrency))
        fewest = scenario.requests or scenario.requests_per_user * smallest
        variable = "requests" if scenario.requests else "requests_per_user"
        for path in slo:
            needed = NEEDED.get(path.partition(".")[2], 1)
            if fewest < needed:
                yield (
                    f"benchmark_slo has {path}, which needs {needed} requests in a round; {scenario.name} has "
                    f"{fewest}. Set {variable} of {scenario.name} in benchmark_scenario_options, or a lower "
                    "percentile."
                )


def verdict(document: Mapping[str, Any], users: int) -> list[str]:
    """Return the scenarios that miss the SLO at a concurrency of ``users``, with the reasons."""
    found = []
    for scenario in document["scenarios"]:
        name, slo = scenario["name"], document["slo"]
        tried = [(at_once(document, of, count, points), points) for of, count, points in loads(document) if of == name]
        enough = [(count, misses(points, slo)) for count, points in tried if count >= users]
        if not all(missed for _count, missed in enough):
            continue
        if not enough:
            most = max((count for count, _points in tried), default=0)
            found.append(f"{name}: no load of {users} or more users was measured; the highest is {most}")
        else:
            count, missed = min(enough)
            found.append(f"{name}, {count} at once: {'; '.join(missed)}")
    return found
