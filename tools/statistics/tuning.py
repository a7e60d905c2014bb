# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate searches of tune.yml: how often a variation without a gain is confirmed, and how often a gain is found."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.search import detectable, search

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs/design/tuning-figures.md"
DEFAULTS = yaml.safe_load((ROOT / "roles/tune/defaults/main.yml").read_text(encoding="utf-8"))
SPACE, MARGIN, PAIRS, MAX_TRIALS = (DEFAULTS[f"tune_{name}"] for name in ("space", "margin", "pairs", "max_trials"))
SPREADS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05)
COUNT = 1000
# The largest share of searches without a gain that may confirm one, and the least that find a gain at a spread.
FALSE, FOUND, FOUND_AT = 0.05, 0.8, 0.01

# True gains of values, as fractions, by dimension and index; those of all others are 0.
Gains = Mapping[tuple[str, int], float]
GAIN = 0.05
FASTER: Gains = {(list(SPACE)[1], 1): GAIN}


def speed(gains: Gains, choice: Mapping[str, int]) -> float:
    return math.prod(1 + gains.get(one, 0.0) for one in choice.items())


def run(gains: Gains, spread: float, chance: random.Random) -> dict[str, Any]:
    """Run one search whose starts differ by ``spread``, the standard deviation of their logarithms."""
    trials: list[dict[str, Any]] = []
    while True:
        found = search(SPACE, trials, MARGIN, PAIRS, MAX_TRIALS, seconds=0.0, budget=float("inf"))
        if found["done"]:
            return {**found["outcome"], "gain": speed(gains, found["outcome"]["best"] or {}) - 1}
        step = found["next"]
        score = 1000 * speed(gains, step["choice"]) * chance.lognormvariate(0, spread)
        trials.append(
            {**step, "score": score, "measured": True, "points": [], "problem": "", "path": "", "seconds": 0.0}
        )


def shares(gains: Gains, spread: float, count: int, seed: int) -> tuple[float, float]:
    """Return the shares of searches that confirm a variation, and that confirm one with a true gain."""
    chance = random.Random(seed)
    outcomes = [run(gains, spread, chance) for _number in range(count)]
    better = [one for one in outcomes if one["better"]]
    return len(better) / count, sum(one["gain"] > 0 for one in better) / count


def table(spreads: Sequence[float], count: int, seed: int) -> list[dict[str, float]]:
    """Return the shares by spread: without any gain, and with one value that gains 5 percent."""
    return [
        {
            "spread": spread,
            "false": shares({}, spread, count, seed)[0],
            "found": shares(FASTER, spread, count, seed)[1],
        }
        for spread in spreads
    ]


def page(rows: Sequence[Mapping[str, float]], count: int) -> str:
    """Return the table for the document."""
    lines = [
        "# Figures of tuning",
        "",
        "<!-- Written by `make check-statistics`. -->",
        "",
        f"| Spread between starts | Confirmed without any gain | A gain of {GAIN:.0%} confirmed | Detectable gain |",
        "|---|---|---|---|",
    ]
    for row in rows:
        gain = detectable(row["spread"], PAIRS, MARGIN)
        lines.append(f"| {row['spread']:.1%} | {row['false']:.1%} | {row['found']:.0%} | {gain:.1%} |")
    return "\n".join([*lines, "", f"Of {count:,} searches each.", ""])


def main(count: int = COUNT) -> list[dict[str, float]]:
    """Write the table; return the rows that do not hold."""
    rows = table(SPREADS, count, seed=1)
    FIGURES.write_text(page(rows, count), encoding="utf-8")
    print(FIGURES.read_text(encoding="utf-8"))
    # Three standard errors of a share that is as high as allowed.
    slack = 3 * (FALSE * (1 - FALSE) / count) ** 0.5
    return [row for row in rows if row["false"] > FALSE + slack or (row["spread"] <= FOUND_AT and row["found"] < FOUND)]
