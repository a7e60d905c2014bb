"""Test the stages of a search, its outcome, and its error rates by simulation."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import loads, median
from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.search import (
    Settings,
    confirmation,
    detectable,
    search,
    spread,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.space import Choice, load_problems, named, variables
from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.trial import pareto, pooled, score, trial
from tools.statistics.tuning import FALSE, FASTER, FOUND, GAIN, shares

SPACE: dict[str, list[dict[str, Any]]] = {
    "batch size": [{"engine_options": {"max_batch_size": size}} for size in (16, 256, 1024)],
    "layout": [{"gpus_per_instance": gpus} for gpus in (1, 2)],
    "prefill": [{"engine_options": {"enable_chunked_prefill": True}}],
}
# A start that fails; None is one that meets no objective.
BROKEN = -1.0
PER_GPU = "output_tokens_per_second_per_gpu"
Speed = Callable[[dict[str, Any]], float | None]


def start(stage: str, choice: Choice, measured: float | None, seconds: float = 10) -> dict[str, Any]:
    points = [{"scenario": "smoke", "users": 2, "per_user": 10.0, "per_gpu": measured}] if measured else []
    result = {"variables": variables(SPACE, choice), "score": measured, "points": points, "problem": ""}
    result["measured"] = measured != BROKEN
    if measured == BROKEN:
        result |= {"score": None, "points": [], "problem": "no memory"}
    return {"stage": stage, "choice": choice, "seconds": seconds, "path": "", **result}


def state(trials: list[dict[str, Any]], space: Any = None, **given: Any) -> dict[str, Any]:
    limits = {"margin": 0.02, "pairs": 3, "max_trials": 99, "budget": 1e9, **given}
    return search(space or SPACE, trials, seconds=sum(one["seconds"] for one in trials), **limits)


def run(speed: Speed, seconds: float = 10, **given: Any) -> list[dict[str, Any]]:
    trials: list[dict[str, Any]] = []
    for _turn in range(60):
        found = state(trials, **given)
        if found["done"]:
            assert found["next"] == {}
            return trials
        step = found["next"]
        trials.append(start(step["stage"], step["choice"], speed(step["variables"]), seconds))
    raise AssertionError("the search does not end")


def independent(wanted: dict[str, Any]) -> float:
    options = wanted.get("engine_options", {})
    return (
        {16: 0.5, 256: 1.4, 1024: 1.2}.get(options.get("max_batch_size", 0), 1.0)
        * {1: 1.3, 2: 1.1}.get(wanted.get("gpus_per_instance", 8), 1.0)
        * (0.9 if options.get("enable_chunked_prefill") else 1.0)
    )


def test_the_best_of_independent_dimensions_is_found_in_as_many_trials_as_values() -> None:
    trials = run(independent)
    assert [one["stage"] for one in trials].count("search") == 3 + 2 + 1
    # Every combination, not only the tried ones.
    axes = [[None, *range(len(values))] for values in SPACE.values()]
    every = [
        {name: index for name, index in zip(SPACE, indexes, strict=True) if index is not None}
        for indexes in itertools.product(*axes)
    ]
    best = max(every, key=lambda choice: independent(variables(SPACE, choice)))
    outcome = state(trials)["outcome"]
    assert outcome["best"] == best == {"batch size": 1, "layout": 0}
    assert (outcome["better"], outcome["variables"]) == (True, variables(SPACE, best))
    assert outcome["confirmation"]["ratio"] == pytest.approx(1.4 * 1.3, rel=1e-3)


def test_the_order_of_the_stages() -> None:
    trials = run(independent)
    stages = ["baseline"] * 2 + ["search"] * 6 + ["best 4"] * 4 + ["best 2"] * 2 + ["confirmation"] * 6
    assert [one["stage"] for one in trials] == stages
    assert [one["choice"] for one in trials[:2]] == [{}, {}]
    tried = [one["choice"] for one in trials[2:8]]
    assert all(tried.count(choice) == 1 for choice in tried)
    again = [one["choice"] for one in trials[8:14]]
    ranked = sorted(tried, key=lambda choice: -independent(variables(SPACE, choice)))
    assert again == ranked[:4] + ranked[:2]
    ours: Choice = ranked[0]
    theirs: Choice = {}
    assert [one["choice"] for one in trials[14:]] == [theirs, ours, ours, theirs, theirs, ours]


def test_only_the_confirmation_decides() -> None:
    """The best leads by chance in each stage before it, and is as fast as the inventory's recipe."""
    trials = run(lambda wanted: 100.0 if not wanted else 150.0)
    late = [{**one, "score": 100.0} if one["stage"] == "confirmation" else one for one in trials]
    outcome = state(late)["outcome"]
    assert (outcome["better"], outcome["variables"]) == (False, {})
    assert outcome["verdict"][0].startswith(
        "batch size: max_batch_size=16 is not confirmed as better: its gain is +0.0%"
    )


def test_a_small_gain_is_not_confirmed_within_the_spread() -> None:
    trials = run(lambda wanted: 100.0 if not wanted else 104.0)
    for number, factor in zip(range(14, 20), (1.0, 1.05, 0.97, 1.03, 0.98, 1.02), strict=True):
        trials[number]["score"] *= factor
    outcome = state(trials)["outcome"]
    assert not outcome["better"]
    assert outcome["confirmation"]["low"] < 1 < outcome["confirmation"]["ratio"]


def test_a_search_without_a_lead_ends_before_a_confirmation() -> None:
    trials = run(lambda wanted: 100.0 if not wanted else 101.9)
    assert "confirmation" not in [one["stage"] for one in trials]
    found = state(trials)
    assert found["done"] == "no variation led by more than 0.02 (tune_margin)"
    assert (found["outcome"]["best"], found["outcome"]["confirmation"]) == (None, None)


def test_a_failed_trial_does_not_end_the_search() -> None:
    trials = run(lambda wanted: None if "gpus_per_instance" in wanted else independent(wanted))
    assert [one["score"] for one in trials].count(None) == 2
    assert state(trials)["outcome"]["best"] == {"batch size": 1}


def test_a_variation_that_fails_in_one_start_is_dropped() -> None:
    starts = itertools.count()

    def flaky(wanted: dict[str, Any]) -> float | None:
        fast = wanted.get("engine_options", {}).get("max_batch_size") == 256 and "gpus_per_instance" not in wanted
        return (200.0 if next(starts) < 1 else None) if fast else 110.0 if wanted else 100.0

    outcome = state(run(flaky))["outcome"]
    assert outcome["best"] not in (None, {"batch size": 1})


def test_a_search_without_a_score_has_no_best_variation() -> None:
    outcome = state(run(lambda wanted: None))["outcome"]
    assert (outcome["best"], outcome["variables"], outcome["pareto"], outcome["spread"]) == (None, {}, [], None)


def test_a_variation_that_alone_meets_the_objectives_is_better() -> None:
    trials = run(lambda wanted: 50.0 if wanted.get("gpus_per_instance") == 1 else None)
    outcome = state(trials)["outcome"]
    assert outcome["better"]
    assert outcome["verdict"][0].endswith("no start of the inventory's recipe meets the objectives.")


def test_a_start_that_fails_confirms_nothing() -> None:
    """As if a variation were better because the tool failed beside it."""
    trials = run(lambda wanted: 50.0 if wanted.get("gpus_per_instance") == 1 else None)
    last = next(number for number in reversed(range(len(trials))) if not trials[number]["choice"])
    trials[last] = start("confirmation", {}, BROKEN)
    outcome = state(trials)["outcome"]
    assert (outcome["better"], outcome["confirmation"]["reason"]) == (False, "not all starts could be measured")


def test_a_recipe_that_cannot_be_measured_ends_the_search() -> None:
    trials = run(lambda wanted: 100.0 if wanted else BROKEN)
    assert [one["stage"] for one in trials] == ["baseline", "baseline"]
    assert state(trials)["done"] == "the inventory's recipe could not be measured (no memory)"


@pytest.mark.parametrize(
    ("budget", "stages"),
    [
        (0, ["baseline"]),  # the first is tried anyway, because the length of a trial is unknown
        (89, ["baseline", "baseline"]),
        (90, ["baseline", "baseline", "search", *["confirmation"] * 6]),
        (145, ["baseline", "baseline", *["search"] * 6, *["confirmation"] * 6]),
        (165, ["baseline", "baseline", *["search"] * 6, "best 2", "best 2", *["confirmation"] * 6]),
    ],
)
def test_time_for_the_confirmation_is_kept(budget: float, stages: list[str]) -> None:
    assert [one["stage"] for one in run(lambda wanted: 150.0 if wanted else 100.0, budget=budget)] == stages


def test_a_confirmation_that_is_too_slow_ends_the_search() -> None:
    trials = run(independent)[:15]
    found = state(trials, budget=155)
    assert found["done"] == "no time was left for the confirmation, 5 more starts (tune_seconds)"
    assert not found["outcome"]["better"]
    assert "was not compared" in found["outcome"]["verdict"][0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_trials": 8}, "tune_max_trials is 8; 2 starts of the inventory's recipe, one variation and the"),
        ({"pairs": 2}, "tune_pairs is 2; fewer than 3 cannot decide"),
    ],
)
def test_limits_that_cannot_decide_are_rejected(given: dict[str, Any], words: str) -> None:
    assert words in "\n".join(state([], **given)["problems"])


def test_the_maximum_number_of_trials() -> None:
    assert len(run(lambda wanted: 150.0 if wanted else 100.0, max_trials=9)) == 9


def test_the_spread_is_pooled_over_all_recipes() -> None:
    trials = [start("baseline", {}, 100), start("baseline", {}, 102), start("search", {"layout": 0}, 500)]
    assert spread(trials) == pytest.approx(math.log(1.02) / math.sqrt(2), rel=1e-2)
    assert spread(trials[:1]) is None


def test_the_detectable_gain_falls_with_the_pairs() -> None:
    gains = [detectable(0.01, pairs, 0.0) for pairs in (3, 4, 8)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] < GAIN
    assert detectable(0, 3, 0.02) == pytest.approx(0.02, abs=1e-3)


@pytest.mark.parametrize(("spread", "pairs"), [(0.005, 3), (0.01, 3), (0.03, 3), (0.02, 6)])
def test_a_detectable_gain_is_confirmed_in_four_of_five(spread: float, pairs: int) -> None:
    chance, gain = random.Random(5), detectable(spread, pairs, 0.02)
    settings = Settings(margin=0.02, pairs=pairs, max_trials=99, budget=1e9)
    hits = 0
    for _search in range(400):
        trials = [
            start("confirmation", choice, 100 * (1 + gain * bool(choice)) * chance.lognormvariate(0, spread))
            for choice in [{}, {"layout": 0}] * pairs
        ]
        found = confirmation(trials, {"layout": 0}, settings)
        assert found is not None
        hits += found.better
    assert 0.74 < hits / 400 < 0.95


def test_error_rates_at_a_spread_of_one_percent() -> None:
    """The whole table is `make check-statistics`; 60 searches say as much in seconds."""
    assert shares({}, 0.01, 60, 1)[0] <= FALSE
    assert shares(FASTER, 0.01, 60, 1)[1] >= FOUND


def test_later_dimensions_are_merged_on_top() -> None:
    space: dict[str, list[dict[str, Any]]] = {
        "one": [{"engine_options": {"a": {"x": 1, "y": 1}, "b": 1}}],
        "two": [{"engine_options": {"a": {"y": 2}}, "use_case": "max_throughput"}],
    }
    assert variables(space, {"two": 0, "one": 0}) == {
        "engine_options": {"a": {"x": 1, "y": 2}, "b": 1},
        "use_case": "max_throughput",
    }


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ([1], "must have dimensions"),
        ({"batch": []}, "tune_space.batch is []"),
        ({"batch": 64}, "tune_space.batch is 64"),
        ({"batch": [64]}, "tune_space.batch has 64"),
        ({"batch": [{"engine_option": {}}]}, "Did you mean 'engine_options'?"),
    ],
)
def test_an_invalid_space_is_rejected(space: Any, words: str) -> None:
    assert words in "\n".join(state([], space)["problems"])


def planned(**concurrency: int) -> list[dict[str, Any]]:
    """Return loads by scenario as module benchmark_run does."""
    return [{"scenario": name, "tool": "aiperf", "concurrency": users} for name, users in concurrency.items()]


def loads_for(space: Any, users: int, tool: str = "aiperf", instances: int = 1) -> list[str]:
    small, large = planned(smoke=1, large=users)
    return load_problems(space, [small, {**large, "tool": tool}], gpus=8, instances=instances)


@pytest.mark.parametrize(("users", "enough"), [(2, False), (1024, False), (8191, False), (8192, True)])
def test_a_load_has_to_reach_what_is_tried(users: int, enough: bool) -> None:
    found = loads_for(SPACE, users)
    assert (not found) == enough
    if not enough:
        assert (
            f"benchmark_scenarios (smoke, large) has at most {users} requests at a time; tune_space tries" in found[0]
        )
        assert "max_batch_size 1024 on 8 instance(s), so it needs 8192" in found[0]


def test_random_arrivals_rank_nothing() -> None:
    (problem,) = load_problems({}, planned(smoke=8, arrivals=0), gpus=1, instances=1)
    assert problem.startswith("benchmark_scenarios has arrivals with a request_rate")


def test_a_load_has_to_reach_each_instance() -> None:
    assert loads_for({"layout": SPACE["layout"]}, 7)
    assert not loads_for({"layout": SPACE["layout"]}, 8)
    # Nothing that a load would have to reach is tried.
    assert not loads_for({"prefill": SPACE["prefill"]}, 1, instances=8)


def test_a_tool_for_one_instance_is_refused_for_several() -> None:
    (found,) = loads_for({"prefill": SPACE["prefill"]}, 8, "benchmark_serving", instances=2)
    assert found.startswith("benchmark_serving measures one instance; 2 are tried. Set the scenario's tool to aiperf")
    assert not loads_for({"prefill": SPACE["prefill"]}, 8, "benchmark_serving")


def point(per_user: float, per_gpu: float) -> dict[str, Any]:
    return {"scenario": "smoke", "users": 2, "per_user": per_user, "per_gpu": per_gpu}


def test_the_pareto_set() -> None:
    one = {"points": [point(10, 100), point(5, 300)]}
    two = {"points": [point(10, 90), point(7, 200), point(5, 300), point(4, 299)]}
    found = [(one["trial"], one["per_user"], one["per_gpu"]) for one in pareto([one, two])]
    # Of two equal loads both stay.
    assert found == [(0, 10, 100), (1, 7, 200), (0, 5, 300), (1, 5, 300)]


def document(rates: dict[int, list[float]], slo: dict[str, float] | None = None) -> dict[str, Any]:
    return {
        "slo": slo or {},
        "ended": "2026-11-29T10:00:00+00:00",
        "problems": [],
        "points": [
            {
                "scenario": "smoke",
                "concurrency": users,
                "problems": [],
                "throughput": {PER_GPU: rate, "output_tokens_per_second_per_user": 1000 / users},
                "ttft_ms": {"p99": 10.0 * users},
            }
            for users, rounds in rates.items()
            for rate in rounds
        ],
    }


def test_the_score_is_of_the_best_load_that_meets_the_objectives() -> None:
    rates = {1: [10.0, 11.0, 12.0], 8: [60.0, 50.0, 70.0], 64: [90.0, 91.0, 92.0]}
    assert score(document(rates), PER_GPU) == 91
    assert score(document(rates, {"ttft_ms.p99": 100}), PER_GPU) == 60
    assert score(document(rates, {"ttft_ms.p99": 1}), PER_GPU) is None


STEP = {"stage": "search", "choice": {}, "variables": {}}


def test_a_trial_with_a_problem_has_no_score() -> None:
    good = document({1: [10.0]})
    result = {"result": good, "path": "results/1", "seconds": 3}
    assert trial(STEP, result, PER_GPU)["score"] == 10
    lost = {**result, "result": {**good, "problems": ["1 of 20 requests failed"]}}
    assert trial(STEP, lost, PER_GPU)["score"] is None
    assert trial(STEP, {"problem": "no memory", "seconds": 3}, PER_GPU)["problem"] == "no memory"
    # Of the wrong release, as its host restored another one.
    wrong = trial(STEP, {**result, "problem": "the last measurement is not valid"}, PER_GPU)
    assert (wrong["measured"], wrong["score"], wrong["points"]) == (False, None, [])


def test_a_trial_that_misses_the_objectives_keeps_its_points() -> None:
    missed = {"result": document({1: [10.0]}, {"ttft_ms.p99": 1}), "missed": ["smoke, 1 at once: too slow"]}
    found = trial(STEP, {**missed, "path": "results/1", "seconds": 3}, PER_GPU)
    assert (found["score"], found["problem"]) == (None, "smoke, 1 at once: too slow")
    assert [one["per_gpu"] for one in found["points"]] == [10.0]


def test_starts_are_pooled_by_their_medians() -> None:
    """Three rounds of one start are one observation of how starts differ."""
    starts = [document({1: [10.0, 11.0, 90.0], 8: [50.0]}), document({1: [12.0, 13.0, 14.0], 8: [60.0]})]
    found = pooled(starts, "variation")
    assert (found["name"], found["repeat"]) == ("variation", 2)
    rounds = {users: [one["throughput"][PER_GPU] for one in points] for _name, users, points in loads(found)}
    assert rounds == {1: [11.0, 13.0], 8: [50.0, 60.0]}
    assert median(found["points"][:1], "ttft_ms.p99") == 10


def test_the_name_of_a_choice() -> None:
    assert named(SPACE, {}) == "the inventory's recipe"
    assert named(SPACE, {"prefill": 0, "layout": 1}) == (
        "layout: gpus_per_instance=2; prefill: enable_chunked_prefill=true"
    )
    space: dict[str, list[dict[str, Any]]] = {
        "graphs": [{"engine_options": {"cuda_graph_config": {"max_batch_size": 8}}}]
    }
    assert named(space, {"graphs": 0}) == "graphs: cuda_graph_config.max_batch_size=8"
