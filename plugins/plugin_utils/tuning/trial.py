# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The measurement of one start of a variation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import slo
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import loads, median

# stage, choice, variables, measured, score (None if it was not measured or no load meets the objectives), seconds,
# problem, points, path
Trial = Mapping[str, Any]


def score(document: Mapping[str, Any], objective: str) -> float | None:
    """Return the best figure of the loads that meet the objectives, None if none does."""
    rates = [
        rate
        for _scenario, _users, points in loads(document)
        if not slo.misses(points, document["slo"]) and (rate := median(points, f"throughput.{objective}")) is not None
    ]
    return max(rates, default=None)


def points(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens/s per user and per GPU of each load."""
    found = []
    for scenario, users, rounds in loads(document):
        user = median(rounds, "throughput.output_tokens_per_second_per_user")
        gpu = median(rounds, "throughput.output_tokens_per_second_per_gpu")
        if user is not None and gpu is not None:
            found.append({"scenario": scenario, "users": users, "per_user": user, "per_gpu": gpu})
    return found


def trial(step: Mapping[str, Any], result: Mapping[str, Any], objective: str) -> dict[str, Any]:
    """Return a trial from a step of the search and the result of benchmark_run, or only its ``problem``.

    A trial that misses the objectives with every load has no score, but its loads count for the Pareto set.
    """
    document = result.get("result") or {}
    measured = bool(document) and not document["problems"] and not result.get("problem")
    found = score(document, objective) if measured else None
    problems = [*(document.get("problems") or []), *(result.get("missed") or [] if found is None else [])]
    return {
        "stage": step["stage"],
        "choice": dict(step["choice"]),
        "variables": dict(step["variables"]),
        "measured": measured,
        "score": found,
        "points": points(document) if measured else [],
        "problem": str(result.get("problem") or "; ".join(problems)),
        "path": str(result.get("path") or ""),
        "seconds": float(result["seconds"]),
    }


def pooled(documents: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return one result of several starts, with the median of a start's rounds as one round of each load.

    Rounds of one start vary less than starts, so a comparison of all rounds would promise too much.
    """
    rounds = [
        {**_middle(points), "round": number, "problems": []}
        for number, document in enumerate(documents, 1)
        for _scenario, _users, points in loads(document)
    ]
    return {**documents[0], "name": name, "repeat": len(documents), "points": rounds, "ended": documents[-1]["ended"]}


def _middle(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a point with the median of each figure, None where a point lacks it."""
    found = dict(points[0])
    for group, figures in points[0].items():
        if isinstance(figures, Mapping):
            found[group] = {name: median(points, f"{group}.{name}") for name in figures}
    return found


def pareto(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the loads that no other load beats in both tokens/s per user and per GPU, fastest per user first."""
    every = [{"trial": number, **point} for number, trial in enumerate(trials) for point in trial["points"]]
    return sorted(
        (one for one in every if not any(_beats(other, one) for other in every)),
        key=lambda one: (-one["per_user"], one["per_gpu"]),
    )


def _beats(ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    no_worse = ours["per_user"] >= theirs["per_user"] and ours["per_gpu"] >= theirs["per_gpu"]
    return no_worse and (ours["per_user"] > theirs["per_user"] or ours["per_gpu"] > theirs["per_gpu"])
