"""Test the order of the variations and the outcome of a search."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils import tuning

SPACE: dict[str, list[dict[str, Any]]] = {
    "batch size": [{"engine_options": {"max_batch_size": size}} for size in (16, 256, 1024)],
    "layout": [{"gpus_per_instance": gpus} for gpus in (1, 2)],
    "prefill": [{"engine_options": {"enable_chunked_prefill": True}}],
}
PER_GPU = "output_tokens_per_second_per_gpu"
Speed = Callable[[dict[str, Any]], float | None]


def trial(choice: tuning.Choice, score: float | None, seconds: float = 10) -> dict[str, Any]:
    wanted = tuning.variables(SPACE, choice)
    points = [{"scenario": "smoke", "users": 2, "per_user": 10.0, "per_gpu": score}] if score else []
    return {"choice": choice, "variables": wanted, "score": score, "points": points, "seconds": seconds, "problem": ""}


def state(space: Any, trials: list[dict[str, Any]], max_trials: int = 99, budget: float = 1e9) -> dict[str, Any]:
    return tuning.search(space, trials, PER_GPU, 0.02, max_trials, sum(one["seconds"] for one in trials), budget)


def search(speed: Speed, max_trials: int = 99, budget: float = 1e9, seconds: float = 10) -> list[dict[str, Any]]:
    trials: list[dict[str, Any]] = []
    for _turn in range(50):
        found = state(SPACE, trials, max_trials, budget)
        if found["done"]:
            assert found["next"] == {}
            return trials
        trials.append(trial(found["next"]["choice"], speed(found["next"]["variables"]), seconds))
    raise AssertionError("the search does not end")


def independent(wanted: dict[str, Any]) -> float:
    options = wanted.get("engine_options", {})
    return (
        {16: 0.5, 256: 1.4, 1024: 1.2}.get(options.get("max_batch_size", 0), 1.0)
        * {1: 1.3, 2: 1.1}.get(wanted.get("gpus_per_instance", 8), 1.0)
        * (0.9 if options.get("enable_chunked_prefill") else 1.0)
    )


def test_the_best_of_independent_dimensions_is_found_in_as_many_trials_as_values() -> None:
    trials = search(independent)
    assert len(trials) == 1 + 3 + 2 + 1
    best = tuning.best(trials, 0.02)
    assert best is not None
    # Every combination, not only the tried ones.
    axes = [[None, *range(len(values))] for values in SPACE.values()]
    every = [
        {name: index for name, index in zip(SPACE, indexes, strict=True) if index is not None}
        for indexes in itertools.product(*axes)
    ]
    assert trials[best]["score"] == max(independent(tuning.variables(SPACE, choice)) for choice in every)
    assert trials[best]["choice"] == {"batch size": 1, "layout": 0}


def test_the_inventory_s_recipe_is_first_and_no_choice_is_repeated() -> None:
    choices = [one["choice"] for one in search(independent)]
    assert choices[0] == {}
    assert all(choices.count(choice) == 1 for choice in choices)


def test_a_failed_trial_does_not_end_the_search() -> None:
    trials = search(lambda wanted: None if "gpus_per_instance" in wanted else independent(wanted))
    assert [one["score"] for one in trials].count(None) == 2
    best = tuning.best(trials, 0.02)
    assert best is not None
    assert trials[best]["choice"] == {"batch size": 1}


def test_a_search_without_a_score_has_no_best_trial() -> None:
    trials = search(lambda wanted: None)
    outcome = state(SPACE, trials)["outcome"]
    assert (outcome["best"], outcome["variables"], outcome["pareto"]) == (None, {}, [])


def test_a_lead_within_the_margin_is_not_better() -> None:
    assert tuning.best([trial({}, 100), trial({"layout": 0}, 101.9)], 0.02) == 0
    assert tuning.best([trial({}, 100), trial({"layout": 0}, 102.1)], 0.02) == 1


@pytest.mark.parametrize(("budget", "trials"), [(65, 6), (59, 5), (9, 1), (0, 1)])
def test_no_trial_starts_that_would_not_end_in_time(budget: float, trials: int) -> None:
    """The first is tried anyway, because the length of a trial is unknown."""
    assert len(search(independent, budget=budget)) == trials


def test_the_maximum_number_of_trials() -> None:
    assert len(search(independent, max_trials=3)) == 3
    assert "tune_max_trials" in state(SPACE, search(independent, max_trials=3), max_trials=3)["done"]


def test_later_dimensions_are_merged_on_top() -> None:
    space: dict[str, list[dict[str, Any]]] = {
        "one": [{"engine_options": {"a": {"x": 1, "y": 1}, "b": 1}}],
        "two": [{"engine_options": {"a": {"y": 2}}, "use_case": "max_throughput"}],
    }
    assert tuning.variables(space, {"two": 0, "one": 0}) == {
        "engine_options": {"a": {"x": 1, "y": 2}, "b": 1},
        "use_case": "max_throughput",
    }


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "must have dimensions"),
        ([1], "must have dimensions"),
        ({"batch": []}, "tune_space.batch is []"),
        ({"batch": 64}, "tune_space.batch is 64"),
        ({"batch": [64]}, "tune_space.batch has 64"),
        ({"batch": [{"engine_option": {}}]}, "Did you mean 'engine_options'?"),
    ],
)
def test_an_invalid_space_is_rejected(space: Any, words: str) -> None:
    assert words in "\n".join(state(space, [])["problems"])


def point(per_user: float, per_gpu: float) -> dict[str, Any]:
    return {"scenario": "smoke", "users": 2, "per_user": per_user, "per_gpu": per_gpu}


def test_the_pareto_set() -> None:
    one = {"points": [point(10, 100), point(5, 300)]}
    two = {"points": [point(10, 90), point(7, 200), point(5, 300), point(4, 299)]}
    found = [(one["trial"], one["per_user"], one["per_gpu"]) for one in tuning.pareto([one, two])]
    # Of two equal loads both stay.
    assert found == [(0, 10, 100), (1, 7, 200), (0, 5, 300), (1, 5, 300)]


def document(rates: dict[int, list[float]], slo: dict[str, float] | None = None) -> dict[str, Any]:
    return {
        "slo": slo or {},
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
    assert tuning.score(document(rates), PER_GPU) == 91
    assert tuning.score(document(rates, {"ttft_ms.p99": 100}), PER_GPU) == 60
    assert tuning.score(document(rates, {"ttft_ms.p99": 1}), PER_GPU) is None


def test_a_trial_with_a_problem_has_no_score() -> None:
    good = document({1: [10.0]})
    result = {"result": good, "path": "results/1", "seconds": 3}
    assert tuning.trial({}, {}, result, PER_GPU)["score"] == 10
    lost = {**result, "result": {**good, "problems": ["1 of 20 requests failed"]}}
    assert tuning.trial({}, {}, lost, PER_GPU)["score"] is None
    assert tuning.trial({}, {}, {"problem": "no memory", "seconds": 3}, PER_GPU)["problem"] == "no memory"


def test_a_trial_that_misses_the_objectives_keeps_its_points() -> None:
    missed = {"result": document({1: [10.0]}, {"ttft_ms.p99": 1}), "missed": ["smoke, 1 at once: too slow"]}
    found = tuning.trial({}, {}, {**missed, "path": "results/1", "seconds": 3}, PER_GPU)
    assert (found["score"], found["problem"]) == (None, "smoke, 1 at once: too slow")
    assert [one["per_gpu"] for one in found["points"]] == [10.0]


def test_the_name_of_a_choice() -> None:
    assert tuning.named(SPACE, {}) == "the inventory's recipe"
    assert tuning.named(SPACE, {"prefill": 0, "layout": 1}) == (
        "layout: gpus_per_instance=2; prefill: enable_chunked_prefill=true"
    )
    space: dict[str, list[dict[str, Any]]] = {
        "graphs": [{"engine_options": {"cuda_graph_config": {"max_batch_size": 8}}}]
    }
    assert tuning.named(space, {"graphs": 0}) == "graphs: cuda_graph_config.max_batch_size=8"
