# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Search the best variation of a recipe, one dimension after the other from the best so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import slo
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import loads, median
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import merge

# The variables of role serving_recipe that a variation may set, without their prefix.
VARIABLES = ("engine_options", "gpus_per_instance", "use_case", "environment", "draft_model")

Space = Mapping[str, Sequence[Mapping[str, Any]]]
Choice = dict[str, int]  # the index of a value by dimension; other dimensions are as in the inventory
Trial = Mapping[str, Any]  # choice, variables, score (None where it could not be measured), seconds, problem, points


def problems(space: Any) -> Iterator[str]:
    """Yield the errors of a search space."""
    if not isinstance(space, Mapping) or not space:
        yield f"tune_space is {space!r}; it must have dimensions by name, each a list of variations."
        return
    for name, values in space.items():
        if not isinstance(values, (list, tuple)) or not values:
            yield f"tune_space.{name} is {values!r}; it must be a list of variations."
            continue
        for value in values:
            if not isinstance(value, Mapping) or not value:
                yield f"tune_space.{name} has {value!r}; a variation sets one or more of {', '.join(VARIABLES)}."
                continue
            for unknown in (variable for variable in value if variable not in VARIABLES):
                known = ", ".join(VARIABLES)
                yield f"tune_space.{name} sets {unknown!r}; allowed are {known}.{did_you_mean(unknown, VARIABLES)}"


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


def variables(space: Space, choice: Mapping[str, int]) -> dict[str, Any]:
    """Return the variables of a choice; later dimensions override earlier ones."""
    found: dict[str, Any] = {}
    for name in space:
        if name in choice:
            found = merge(found, space[name][choice[name]])
    return found


def best(trials: Sequence[Trial], margin: float) -> int | None:
    """Return the number of the best trial, None without a score. A later trial must lead by more than the margin."""
    found: int | None = None
    for number, trial in enumerate(trials):
        score = trial["score"]
        if score is not None and (found is None or score > trials[found]["score"] * (1 + margin)):
            found = number
    return found


def next_choice(space: Space, trials: Sequence[Trial], margin: float) -> Choice | None:
    """Return the next choice, None after the last dimension.

    The first choice is empty: the inventory's recipe. Then each dimension in its order tries every value on top of the
    best so far. If dimensions are independent, this finds the optimum in as many trials as there are values.
    """
    if not trials:
        return {}
    tried = [trial["choice"] for trial in trials]
    for place, name in enumerate(space):
        earlier = list(space)[:place]
        # Trials before this dimension.
        before = [trial for trial in trials if not set(trial["choice"]) - set(earlier)]
        number = best(before, margin)
        base: Choice = dict(before[number]["choice"]) if number is not None else {}
        for index in range(len(space[name])):
            choice = {**base, name: index}
            if choice not in tried:
                return choice
    return None


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


def search(
    space: Space,
    trials: Sequence[Trial],
    objective: str,
    margin: float,
    max_trials: int,
    seconds: float,
    budget: float,
) -> dict[str, Any]:
    """Return the next trial or the reason why there is none, and the outcome so far.

    ``seconds`` of ``budget`` have passed. No trial starts that would end later if it took as long as the longest.
    """
    if found := list(problems(space)):
        return {"problems": found}
    choice = next_choice(space, trials, margin)
    longest = max((trial["seconds"] for trial in trials), default=0.0)
    done = ""
    if choice is None:
        done = f"all {len(trials)} variations were tried"
    elif len(trials) >= max_trials:
        done = f"{max_trials} variations were tried (tune_max_trials)"
    elif trials and seconds + longest > budget:
        done = f"after {seconds:.0f} s no time was left for another of {longest:.0f} s (tune_seconds)"
    number = best(trials, margin)
    outcome = {
        "objective": objective,
        "done": done,
        "best": number,
        "variables": dict(trials[number]["variables"]) if number is not None else {},
        "pareto": pareto(trials),
        "trials": [{**one, "named": named(space, one["choice"])} for one in trials],
    }
    ahead = {} if done or choice is None else {"choice": choice, "variables": variables(space, choice)}
    return {"problems": [], "done": done, "next": ahead, "outcome": outcome}


def trial(
    choice: Mapping[str, int], wanted: Mapping[str, Any], result: Mapping[str, Any], objective: str
) -> dict[str, Any]:
    """Return a trial from the result of benchmark_run, which may be missing or have only a ``problem``.

    A trial that misses the objectives with every load has no score, but its loads count for the Pareto set.
    """
    document = result.get("result") or {}
    measured = bool(document) and not document["problems"]
    found = score(document, objective) if measured else None
    problems = [*(document.get("problems") or []), *(result.get("missed") or [] if found is None else [])]
    return {
        "choice": dict(choice),
        "variables": dict(wanted),
        "score": found,
        "points": points(document) if measured else [],
        "problem": str(result.get("problem") or "; ".join(problems)),
        "path": str(result.get("path") or ""),
        "seconds": float(result["seconds"]),
    }


def named(space: Space, choice: Mapping[str, int]) -> str:
    """Describe a choice: each dimension with its values."""
    told = [f"{name}: {', '.join(_told(space[name][choice[name]]))}" for name in space if name in choice]
    return "; ".join(told) or "the inventory's recipe"


def _told(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            # Names of options and environment are enough.
            yield from _told(value, f"{above}{name}." if above or name not in VARIABLES else above)
        else:
            yield f"{above}{name}={str(value).lower() if isinstance(value, bool) else value}"
