# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate searches of tune.yml: how often a variation without a gain is confirmed, and how often a gain is found."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.search import detectable, search

# Values by dimension, as in the default tune_space of role tune, with its other defaults.
FIGURES = Path(__file__).parents[2] / "docs/design/tuning-figures.md"
SIZES = (3, 3, 2, 1, 2, 2)
SPACE = {
    str(dimension): [{"environment": {f"V{dimension}": str(value)}} for value in range(size)]
    for dimension, size in enumerate(SIZES)
}
MARGIN, PAIRS, MAX_TRIALS = 0.02, 3, 27
SPREADS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05)
GAIN = 0.05
COUNT = 1000
# The largest share of searches without a gain that may confirm one, and the least that find a gain at a spread.
FALSE, FOUND, FOUND_AT = 0.05, 0.8, 0.01


@dataclass(frozen=True)
class Effects:
    """True gains of values, as fractions; those of all others are 0."""

    gains: Mapping[tuple[str, int], float]

    def speed(self, choice: Mapping[str, int]) -> float:
        found = 1.0
        for one in choice.items():
            found *= 1 + self.gains.get(one, 0.0)
        return found


def run(effects: Effects, spread: float, chance: random.Random) -> dict[str, Any]:
    """Run one search whose starts differ by ``spread``, the standard deviation of their logarithms."""
    trials: list[dict[str, Any]] = []
    while True:
        found = search(SPACE, trials, MARGIN, PAIRS, MAX_TRIALS, seconds=0.0, budget=float("inf"))
        if found["done"]:
            return {**found["outcome"], "gain": effects.speed(found["outcome"]["best"] or {}) - 1}
        step = found["next"]
        score = 1000 * effects.speed(step["choice"]) * chance.lognormvariate(0, spread)
        trials.append(
            {**step, "score": score, "measured": True, "points": [], "problem": "", "path": "", "seconds": 0.0}
        )


def shares(effects: Effects, spread: float, count: int, seed: int) -> tuple[float, float]:
    """Return the shares of searches that confirm a variation, and that confirm one with a true gain."""
    chance = random.Random(seed)
    outcomes = [run(effects, spread, chance) for _number in range(count)]
    better = [one for one in outcomes if one["better"]]
    return len(better) / count, sum(one["gain"] > 0 for one in better) / count


def table(spreads: Sequence[float], count: int, seed: int) -> list[dict[str, float]]:
    """Return the shares by spread: without any gain, and with one value that gains 5 percent."""
    gain = Effects({("1", 1): GAIN})
    return [
        {
            "spread": spread,
            "false": shares(Effects({}), spread, count, seed)[0],
            "found": shares(gain, spread, count, seed)[1],
        }
        for spread in spreads
    ]


def page(rows: Sequence[Mapping[str, float]], count: int) -> str:
    """Return the table for the document."""
    lines = [
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
