"""Test the comparison of results: error rates, verdicts and other differences."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from scipy.stats import ttest_ind

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.compare import (
    MARGIN,
    METRICS,
    RISK,
    Pair,
    compare,
    judge,
    shift_errors,
)

Rounds = Sequence[Mapping[str, float]]
SCENARIO = {
    "name": "sweep",
    "source": "a test",
    "tool": "aiperf",
    "endpoint": "chat",
    "input_tokens": 1024,
    "output_tokens": 1024,
    "concurrency": [1, 2],
    "requests": 100,
    "requests_per_user": 0,
    "warm_up": 0,
    "entries": 0,
    "seed": 0,
}
USUAL = dict.fromkeys(METRICS, 100.0)


def point(values: Mapping[str, float], scenario: str = "sweep", users: int = 1, **changes: Any) -> dict[str, Any]:
    """One round with these values by path."""
    found: dict[str, Any] = {"scenario": scenario, "tool": "aiperf", "version": "0.13.0", "concurrency": users}
    for path, value in values.items():
        group, _dot, name = path.partition(".")
        found.setdefault(group, {})[name] = value
    return {**found, "problems": [], **changes}


def document(points: Sequence[Mapping[str, Any]], **changes: Any) -> dict[str, Any]:
    target = {"name": "gpu1-serve-0", "kind": "instance", "base_urls": ["http://h:8000"], "model": "m", "gpus": 1}
    return {
        "name": "a run",
        "target": target,
        "ran_on": {"gpu1": {"driver": "580.1", "sources": {"x": "one"}}},
        "scenarios": [SCENARIO],
        "points": list(points),
        **changes,
    }


def rounds(*factors: float, metric: str = "ttft_ms.p99", **where: Any) -> list[dict[str, Any]]:
    """Rounds in which all is as usual but a metric, which is so many times as high."""
    return [point({**USUAL, metric: USUAL[metric] * factor}, **where) for factor in factors]


def verdicts(run: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, str]:
    """By metric, of the only load."""
    (load,) = compare(document(run), document(baseline), **options)["loads"]
    return {row["metric"]: row["verdict"] for row in load["metrics"]}


def draw(noise: random.Random, count: int, shift: float, spreads: tuple[float, float], sides: int = 3) -> list[Pair]:
    """Pairs of sides whose logarithms differ by ``shift``, and from round to round by ``spreads``."""
    return [
        (
            [math.exp(shift + noise.gauss(0, spreads[0])) for _round in range(sides)],
            [math.exp(noise.gauss(0, spreads[1])) for _round in range(sides)],
        )
        for _pair in range(count)
    ]


# --- error rates, as in docs/design/benchmark-comparison.md -----------------------------------------------------------


@pytest.mark.parametrize("sides", [2, 3, 5])
@pytest.mark.parametrize("spreads", [(0.02, 0.02), (0.1, 0.1), (0.4, 0.4), (0.4, 0.0), (0.02, 0.4)])
def test_equal_runs_raise_few_false_alarms(spreads: tuple[float, float], sides: int) -> None:
    noise = random.Random(7)
    comparisons = 150
    alarms = sum(
        any(one.side for one in judge(draw(noise, 22, 0.0, spreads, sides))) for _comparison in range(comparisons)
    )
    # Of 150 with a chance of 5 % each, more than 14 are as good as impossible.
    assert alarms <= 14


def sweep(noise: random.Random, factor: float, spread: float, sides: int, loads: int) -> dict[str, Any]:
    """A scenario in which all is so many times as slow."""
    return document(
        [
            point(
                {
                    path: 100 * factor ** (-1 if more else 1) * math.exp(noise.gauss(0, spread))
                    for path, more in METRICS.items()
                },
                users=2**load,
            )
            for load in range(loads)
            for _round in range(sides)
        ]
    )


@pytest.mark.parametrize(
    ("slower", "spread", "sides", "loads", "single", "whole"),
    [
        (1.3, 0.02, 3, 1, 0.99, None),
        (1.3, 0.02, 3, 8, 0.8, 0.99),
        (1.3, 0.02, 5, 8, 0.99, 0.99),
        (1.12, 0.02, 3, 8, 0.0, 0.9),
        (1.12, 0.02, 5, 8, 0.3, 0.99),
    ],
)
def test_a_slowdown_is_found(
    slower: float, spread: float, sides: int, loads: int, single: float, whole: float | None
) -> None:
    """Of so many figures at least, of single loads and of the scenario as a whole."""
    noise = random.Random(11)
    found: dict[bool, list[bool]] = {True: [], False: []}
    for _comparison in range(80 // loads):
        slow, usual = (sweep(noise, factor, spread, sides, loads) for factor in (slower, 1.0))
        compared = compare(slow, usual)
        assert not compared["counts"]["better"]
        for load in compared["loads"]:
            found[load["users"] is None] += [row["verdict"] == "worse" for row in load["metrics"]]
    assert sum(found[False]) / len(found[False]) >= single
    assert not found[True] if whole is None else sum(found[True]) / len(found[True]) >= whole


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_the_interval_is_welch_s_on_logarithms() -> None:
    ours, theirs = [1.31, 1.38, 1.29], [1.0, 1.004, 0.93, 1.08]
    (found,) = judge([(ours, theirs)])
    wanted = ttest_ind([math.log(one) for one in ours], [math.log(one) for one in theirs], equal_var=False)
    interval = wanted.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert found.low < found.ratio < found.high
    assert found.side == 1


def test_each_of_several_has_to_be_surer_and_the_last_ones_less() -> None:
    clear, nothing = ([2.0, 2.02, 1.98], [1.0, 1.01, 0.99]), ([1.0, 1.02, 0.98], [1.0, 1.01, 0.99])
    alone = judge([clear])[0]
    both = judge([nothing, clear])
    assert both[1].low < alone.low, "half of the risk for the first of two"
    assert both[0] == judge([nothing])[0], "all of it for the second, once the first is beyond"
    assert judge([nothing, nothing])[0].low < both[0].low, "and not before"
    assert judge([]) == []


def test_direction_follows_the_metric() -> None:
    slower = [point({path: 70.0 + n if more else 140.0 + n for path, more in METRICS.items()}) for n in range(3)]
    as_usual = [point({**USUAL, "ttft_ms.p99": 100.0 + n}) for n in range(3)]
    assert set(verdicts(slower, as_usual).values()) == {"worse"}
    assert set(verdicts(as_usual, slower).values()) == {"better"}
    found = compare(document(slower), document(as_usual))
    assert (found["verdict"], found["counts"]["worse"]) == ("worse", len(METRICS))


def test_within_the_margin_is_no_difference_however_sure() -> None:
    slower = rounds(1.04, 1.04, 1.04)
    assert verdicts(slower, rounds(1, 1, 1))["ttft_ms.p99"] == "within noise"
    assert verdicts(slower, rounds(1, 1, 1), margin=0.03)["ttft_ms.p99"] == "worse"
    assert verdicts(rounds(0.96, 0.96, 0.96), rounds(1, 1, 1))["ttft_ms.p99"] == "within noise"


def test_rounds_that_are_all_alike_can_be_compared() -> None:
    found = verdicts(rounds(1.2, 1.2, 1.2), rounds(1, 1, 1))
    assert found.pop("ttft_ms.p99") == "worse"
    assert set(found.values()) == {"within noise"}


def test_a_wide_spread_is_noise() -> None:
    assert verdicts(rounds(1.0, 1.3, 2.1), rounds(0.9, 1, 1.1))["ttft_ms.p99"] == "within noise"


def test_too_few_rounds_or_no_figure_is_unknown() -> None:
    (load,) = compare(document(rounds(2)), document(rounds(1, 1, 1)))["loads"]
    assert {row["verdict"] for row in load["metrics"]} == {"unknown"}
    assert load["metrics"][0]["reason"] == "only one round in the run"
    without = [point({path: 1.0 for path in METRICS if path != "itl_ms.p99"}) for _round in range(3)]
    (load,) = compare(document(rounds(1, 1, 1)), document(without))["loads"]
    (row,) = [row for row in load["metrics"] if row["metric"] == "itl_ms.p99"]
    assert (row["verdict"], row["reason"], row["ratio"]) == ("unknown", "not measured in the baseline", None)
    # A figure that neither result has, and a failed load, are omitted.
    assert "itl_ms.p99" not in verdicts(without, without)
    assert compare(document([point(USUAL, problems=["x"])]), document(rounds(1, 1)))["verdict"] == "unknown"


def test_two_rounds_can_be_compared_only_roughly() -> None:
    assert verdicts(rounds(1.5, 1.52), rounds(1, 1.02))["ttft_ms.p99"] == "within noise"


def test_the_loads_of_a_scenario_together() -> None:
    def loads(factor: float) -> list[dict[str, Any]]:
        noise = random.Random(round(factor * 100))
        return [
            load
            for users in (1, 2, 4, 8)
            for load in rounds(*(factor * noise.gauss(1, 0.02) for _round in range(3)), users=users)
        ]

    found = compare(document(loads(1.25)), document(loads(1)))
    assert [load["users"] for load in found["loads"]] == [None, 1, 2, 4, 8]
    whole, *single = [row for load in found["loads"] for row in load["metrics"] if row["metric"] == "ttft_ms.p99"]
    assert whole["verdict"] == "worse"
    assert whole["ratio"] == pytest.approx(math.prod(row["ratio"] for row in single) ** 0.25, rel=1e-3)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


GATE: list[tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]] = [
    (rounds(1, 1.01, 0.99), rounds(1, 1.01, 0.99), []),
    (rounds(0.5, 0.51, 0.49), rounds(1, 1.01, 0.99), []),
    (rounds(2, 2.01, 1.99), rounds(1, 1.01, 0.99), ["1 of 11 figures are worse"]),
    (
        rounds(1, 1.01),
        rounds(1, 1.01, 0.99),
        ["the run has 2 rounds of a load, and 3 are needed (benchmark_repeat)"],
    ),
    (rounds(1, 1.01, 0.99), rounds(1), ["11 of 11 figures cannot be compared: only one round in the baseline"]),
    (
        rounds(1, 1.01, 0.99),
        [*rounds(1, 1.01, 0.99), *rounds(1, 1.01, 0.99, users=8)],
        ["loads of the baseline were not measured: sweep, 8 at once"],
    ),
    (rounds(1, 1.01, 0.99), rounds(1, 1.01, 0.99, users=8), ["it has no load in common with the baseline"]),
]


@pytest.mark.parametrize(("run", "baseline", "problems"), GATE)
def test_what_passes_a_gate(run: list[dict[str, Any]], baseline: list[dict[str, Any]], problems: list[str]) -> None:
    assert compare(document(run), document(baseline))["gate"] == problems


def test_a_sweep_that_ends_earlier_at_its_objectives_passes_the_gate() -> None:
    """benchmark_slo_concurrency says how far it has to come."""
    usual = [*rounds(1, 1.01, 0.99), *rounds(1, 1.01, 0.99, users=8)]
    stopped = document(rounds(1, 1.01, 0.99), stopped={"sweep": ["ttft_ms.p50 is 101, above 100"]})
    found = compare(stopped, document(usual))
    assert (found["gate"], found["only_baseline"]) == ([], ["sweep, 8 at once"])


def test_the_power_is_that_of_the_rounds() -> None:
    few, many = (compare(document(one), document(one)) for one in (rounds(1, 1.02, 0.98), rounds(*[1, 1.02, 0.98] * 3)))
    found = [{row["metric"]: row["detectable"] for row in one["loads"][0]["metrics"]} for one in (few, many)]
    assert found[0]["ttft_ms.p99"] > found[1]["ttft_ms.p99"] > 1.05
    assert few["power"][0] == "sweep, 1 at once: tokens/s lower by 5% would be found in 80% of comparisons"


@pytest.mark.parametrize(("sides", "figures"), [(3, 1), (3, 22), (5, 1), (5, 22)])
def test_a_change_of_the_detectable_size_is_found_in_four_of_five(sides: int, figures: int) -> None:
    noise, spread = random.Random(3), 0.02
    shift = math.log1p(MARGIN) + shift_errors(sides, RISK / figures) * spread * math.sqrt(2 / sides)
    # Of many figures, the one that changed has to be beyond the strictest level.
    hits = 0
    for _trial in range(300):
        pairs = [
            *draw(noise, 1, shift, (spread, spread), sides),
            *draw(noise, figures - 1, 0.0, (spread, spread), sides),
        ]
        hits += judge(pairs)[0].side == 1
    assert 0.75 < hits / 300 < 0.98


def test_mixed() -> None:
    run = [point({**USUAL, "ttft_ms.p99": 200.0, "tpot_ms.p99": 50.0}) for _round in range(3)]
    assert compare(document(run), document(rounds(1, 1, 1)))["verdict"] == "mixed"


# --- what else differs ------------------------------------------------------------------------------------------------


def test_loads_that_only_one_has() -> None:
    other = {**SCENARIO, "name": "other"}
    longer = {**SCENARIO, "output_tokens": 2048}
    run = document([*rounds(1, 1), *rounds(1, 1, users=2), *rounds(1, scenario="other")], scenarios=[SCENARIO, other])
    found = compare(run, document(rounds(1, 1)))
    assert (found["only_run"], found["only_baseline"]) == (["other", "sweep, 2 at once"][::-1], [])
    found = compare(document(rounds(1, 1), scenarios=[longer]), run)
    assert found["loads"] == []
    assert found["only_run"] == ["sweep in another shape: output_tokens: 2048, 1024"]
    assert found["only_baseline"] == ["sweep in another shape: output_tokens: 2048, 1024", "other"]
    # Other numbers of users, or another text about it, are the same load.
    more = {**SCENARIO, "concurrency": [1, 2, 4], "source": "another", "seed": 5}
    assert len(compare(document(rounds(1, 1), scenarios=[more]), run)["loads"]) == 1


def test_differences_of_the_systems_under_test() -> None:
    one = {"driver": "580.1", "gpus": {"count": 8, "power_limit_watts": 700}, "sources": {"x": "one"}}
    two = {**one, "driver": "575.2", "sources": {"x": "two"}}
    capped = {**one, "gpus": {"count": 8, "power_limit_watts": 500}}

    def differ(ours: Mapping[str, Any], theirs: Mapping[str, Any], **changes: Any) -> list[str]:
        baseline = document(rounds(1), ran_on=theirs)
        found: list[str] = compare(document(rounds(1), ran_on=ours, **changes), baseline)["differences"]
        return found

    assert differ({"gpu1": one}, {"gpu1": one}) == []
    assert differ({"gpu1": two}, {"gpu1": one}) == ["driver: 575.2, 580.1"]
    assert differ({"gpu1": one, "gpu2": capped}, {"gpu1": one, "gpu2": one}) == [
        "gpu2: gpus.power_limit_watts: 500, 700"
    ]
    assert differ({"gpu7": two}, {"gpu1": one, "gpu2": one}) == ["driver: 575.2, 580.1"], "hosts of other names"
    target = {**document([])["target"], "kind": "gateway", "gpus": 2}
    assert differ({}, {}, target=target) == ["target.kind: gateway, instance", "target.gpus: 2, 1"]
    newer = document(rounds(1, version="0.14.0"))
    assert compare(newer, document(rounds(1)))["differences"] == ["tools.aiperf: 0.14.0, 0.13.0"]
