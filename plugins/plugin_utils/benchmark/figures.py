# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Summarize a result: best figures, spread of the rounds, users within the SLO, and the format of a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import slo
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import Point, at_once, loads, median, value

PER_GPU = "throughput.output_tokens_per_second_per_gpu"
PER_USER = "throughput.output_tokens_per_second_per_user"
TOTAL = "throughput.output_tokens_per_second"


@dataclass(frozen=True)
class Best:
    """The highest median of a metric over all loads, with its load."""

    value: float
    scenario: str
    users: int


@dataclass(frozen=True)
class Spread:
    """A metric over the rounds of a load."""

    median: float
    low: float
    high: float


def best(document: Mapping[str, Any], path: str) -> Best | None:
    """Return the load with the highest median of a metric, None if no load has the metric."""
    found = [
        Best(measured, scenario, users)
        for scenario, users, points in loads(document)
        if (measured := median(points, path)) is not None
    ]
    return max(found, key=lambda one: one.value, default=None)


def spread(points: Sequence[Point], path: str) -> Spread | None:
    """Return the spread of a metric, None if a round does not have it."""
    middle = median(points, path)
    if middle is None:
        return None
    values = [found for point in points if (found := value(point, path)) is not None]
    return Spread(middle, min(values), max(values))


def users_within(document: Mapping[str, Any]) -> dict[str, int]:
    """Return by scenario the highest concurrency that meets the objectives, 0 if none does."""
    found = {scenario["name"]: 0 for scenario in document["scenarios"]}
    for scenario, users, points in loads(document):
        if not slo.misses(points, document["slo"]):
            found[scenario] = max(at_once(document, scenario, users, points), found[scenario])
    return found


def tools(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the load generators of a result with their versions."""
    found: dict[str, set[str]] = {}
    for point in document["points"]:
        found.setdefault(point["tool"], set()).add(point["version"] or "of unknown version")
    return {tool: ", ".join(sorted(versions)) for tool, versions in found.items()}


def number(figure: float | None) -> str:
    """Format a number with three significant digits and a whole integer part: ``25,870``, ``61.3``; a dash for None."""
    if figure is None:
        return "-"
    if figure == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(figure))))
    text = f"{figure:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
