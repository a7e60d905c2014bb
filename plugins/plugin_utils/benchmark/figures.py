# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of a result that people ask for first, and how a figure is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import slo
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import Point, loads, median, value

PER_GPU = "throughput.output_tokens_per_second_per_gpu"
PER_USER = "throughput.output_tokens_per_second_per_user"
TOTAL = "throughput.output_tokens_per_second"


@dataclass(frozen=True)
class Best:
    """The highest median of a metric over a result's loads, and at which load."""

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
    """None where no load has it."""
    found = [
        Best(measured, scenario, users)
        for scenario, users, points in loads(document)
        if (measured := median(points, path)) is not None
    ]
    return max(found, key=lambda one: one.value, default=None)


def spread(points: Sequence[Point], path: str) -> Spread | None:
    """None where one of the rounds does not tell."""
    middle = median(points, path)
    if middle is None:
        return None
    values = [found for point in points if (found := value(point, path)) is not None]
    return Spread(middle, min(values), max(values))


def users_within(document: Mapping[str, Any]) -> dict[str, int]:
    """The most users at once for whom each scenario meets the objectives; 0 where it does for none."""
    found = {scenario["name"]: 0 for scenario in document["scenarios"]}
    for scenario, users, points in loads(document):
        if not slo.misses(points, document["slo"]):
            found[scenario] = max(users, found[scenario])
    return found


def tools(document: Mapping[str, Any]) -> dict[str, str]:
    """The load generators of a result, each with its version."""
    found: dict[str, set[str]] = {}
    for point in document["points"]:
        found.setdefault(point["tool"], set()).add(point["version"] or "of unknown version")
    return {tool: ", ".join(sorted(versions)) for tool, versions in found.items()}


def number(figure: float | None) -> str:
    """Three digits that count, all of those before the point: ``25,870``, ``61.3``, ``0.0421``; a dash for None."""
    if figure is None:
        return "-"
    if figure == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(figure))))
    text = f"{figure:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
