# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate comparisons of benchmarks: how often a gate stops equal runs, and how often it finds a slower one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.compare import (
    MARGIN,
    METRICS,
    POWER,
    RISK,
    compare,
    shift_errors,
)

FIGURES = Path(__file__).parents[2] / "docs/design/comparison-figures.md"
LOADS = (1, 8)
ROUNDS = (3, 5)
SPREADS = (0.01, 0.02, 0.05, 0.2)
SLOW = "ttft_ms.p50"
SHAPE = {"name": "sweep", "concurrency": [1]}
BASE = {"scenarios": [SHAPE], "target": {}, "ran_on": {}, "name": "a run"}
COUNT = 400


def document(slower: float, spread: float, loads: int, rounds: int, chance: random.Random) -> dict[str, Any]:
    """Return a result whose figures vary from round to round by the spread; SLOW of load 1 is so many times as bad."""
    points = []
    for load in range(loads):
        for _round in range(rounds):
            point: dict[str, Any] = {"scenario": "sweep", "concurrency": 2**load, "tool": "x", "version": "1"}
            for path, more in METRICS.items():
                group, _dot, name = path.partition(".")
                factor = (1 / slower if more else slower) if (path, load) == (SLOW, 0) else 1.0
                value = 100 * factor * chance.lognormvariate(0, spread)
                point.setdefault(group, {})[name] = value
            points.append({**point, "problems": []})
    return {**BASE, "points": points}


def printed(spread: float, loads: int, rounds: int) -> float:
    """Return the ratio that the test of a single figure finds with the printed power, at the true spread."""
    figures = len(METRICS) * loads
    level = (RISK if loads == 1 else RISK / 2) / figures
    return math.exp(math.log1p(MARGIN) + shift_errors(rounds, level) * spread * math.sqrt(2 / rounds))


def row(spread: float, loads: int, rounds: int, count: int, seed: int) -> dict[str, float]:
    chance = random.Random(seed)
    slower = printed(spread, loads, rounds)
    stopped = found = 0
    for _comparison in range(count):
        equal, usual, slow = (document(factor, spread, loads, rounds, chance) for factor in (1.0, 1.0, slower))
        stopped += bool(compare(equal, usual)["gate"])
        of = {load["users"]: load["metrics"] for load in compare(slow, usual)["loads"]}
        found += next(one["verdict"] for one in of[1] if one["metric"] == SLOW) == "worse"
    return {
        "spread": spread,
        "loads": loads,
        "rounds": rounds,
        "slower": slower - 1,
        "stopped": stopped / count,
        "found": found / count,
    }


def page(rows: Sequence[dict[str, float]], count: int) -> str:
    """Return the table for the document."""
    lines = [
        "# Figures of the gates",
        "",
        "<!-- Written by `make check-statistics`. -->",
        "",
        "| Loads | Rounds | Spread of rounds | Equal runs stopped | Slower by | Stopped |",
        "|---|---|---|---|---|---|",
        *(
            f"| {one['loads']} | {one['rounds']} | {one['spread']:.0%} | {one['stopped']:.1%} | {one['slower']:.0%} "
            f"| {one['found']:.0%} |"
            for one in rows
        ),
    ]
    return "\n".join(
        [*lines, "", f"Of {count:,} comparisons each. One figure of one load is slower by what the gate prints.", ""]
    )


def main(count: int = COUNT) -> list[dict[str, float]]:
    """Write the table; return the rows that do not hold."""
    rows = [row(spread, loads, rounds, count, seed=1) for loads in LOADS for rounds in ROUNDS for spread in SPREADS]
    FIGURES.write_text(page(rows, count), encoding="utf-8")
    print(FIGURES.read_text(encoding="utf-8"))
    slack = 3 * (RISK * (1 - RISK) / count) ** 0.5
    return [one for one in rows if one["stopped"] > RISK + slack or one["found"] < POWER - slack]
