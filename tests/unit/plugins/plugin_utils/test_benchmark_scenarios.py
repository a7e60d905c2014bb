"""Scenarios: what is taken and what refused, and the loads that the documents end in, with their numbers."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import Scenario, ScenarioError, choose
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

TABLE = yaml.safe_load((ROOT / "roles/benchmark/vars/main/scenarios.yml").read_text())["__benchmark_scenarios"]
OWN = {
    "tool": "aiperf",
    "endpoint": "chat",
    "input_tokens": 100,
    "output_tokens": 10,
    "concurrency": [1, 2],
    "requests_per_user": 5,
}


def one(name: str, **options: Any) -> Scenario:
    (scenario,) = choose([name], TABLE, {name: options} if options else {})
    return scenario


# --- the documents --------------------------------------------------------------------------------------------------


def test_quick_start_is_the_recipe_s_bench_sh() -> None:
    scenario = one("quick_start")
    assert (scenario.tool, scenario.input_tokens, scenario.output_tokens) == ("benchmark_serving", 1024, 1024)
    loads = [(point["concurrency"], point["requests"]) for point in scenario.points(1, 0)]
    assert loads == [
        (32, 160),
        (64, 320),
        (128, 640),
        (256, 1280),
        (512, 2560),
        (1024, 5120),
        (2048, 10240),
        (4096, 20480),
    ]


def test_dynamo_guide_is_its_aiperf_command() -> None:
    (point,) = one("dynamo_guide").points(1, 12345)
    assert point == {
        "scenario": "dynamo_guide",
        "tool": "aiperf",
        "endpoint": "chat",
        "input_tokens": 32000,
        "output_tokens": 256,
        "concurrency": 256,
        "requests": 6144,
        "warm_up": 1000,
        "entries": 8000,
        "seed": 100,
        "request_rate": 0,
        "range_ratio": 1,
        "round": 1,
    }


def test_h100_template_is_its_load() -> None:
    (point,) = one("h100_template").points(1, 0)
    assert (point["requests"], point["concurrency"], point["input_tokens"]) == (150, 16, 4000)


def test_low_latency_has_the_blog_s_users() -> None:
    assert one("low_latency").concurrency == (1, 2, 4, 8, 16)


@pytest.mark.parametrize("name", TABLE)
def test_each_scenario_is_one(name: str) -> None:
    scenario = one(name)
    assert (scenario.name, scenario.source) == (name, TABLE[name]["source"])
    for point in scenario.points(2, 7):
        assert point["requests"] >= point["concurrency"]


# --- loads ----------------------------------------------------------------------------------------------------------


def test_rounds_of_a_load_are_together_and_no_two_ask_the_same() -> None:
    points = list(one("mine", **OWN, warm_up=3).points(3, 5000))
    assert [(point["concurrency"], point["round"]) for point in points] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    assert [point["requests"] for point in points] == [5, 5, 5, 10, 10, 10]
    # Every prompt is another one, those of the warm-up, too.
    assert [point["entries"] for point in points] == [8, 8, 8, 13, 13, 13]
    assert len({point["seed"] for point in points}) == 6


def test_a_seed_and_entries_of_one_s_own_are_kept() -> None:
    points = list(one("mine", **OWN, seed=100, entries=4).points(2, 5000))
    assert [point["seed"] for point in points if point["concurrency"] == 1] == [100, 101]
    assert {point["entries"] for point in points} == {4}


# --- what is chosen -------------------------------------------------------------------------------------------------


def test_chosen_in_their_order_and_once() -> None:
    assert [scenario.name for scenario in choose(["smoke", "h100_template", "smoke"], TABLE, {})] == [
        "smoke",
        "h100_template",
    ]


def test_options_are_put_on_top_of_the_document_s() -> None:
    scenario = one("dynamo_guide", concurrency=[8, 16], requests=64)
    assert (scenario.concurrency, scenario.requests, scenario.input_tokens) == ((8, 16), 64, 32000)
    assert scenario.source == "NVIDIA's Dynamo guide, changed: concurrency, requests"


def test_options_that_change_nothing_keep_the_source() -> None:
    assert one("dynamo_guide", requests=6144).source == "NVIDIA's Dynamo guide"
    assert one("dynamo_guide", requests=640, source="mine").source == "mine"


def test_a_scenario_of_one_s_own() -> None:
    assert one("mine", **OWN).source == "benchmark_scenario_options"


def test_options_of_a_scenario_that_is_not_chosen_are_left_alone() -> None:
    choose(["smoke"], TABLE, {"quick_start": {"tool": "wrk"}})


def refused(names: list[str], options: dict[str, Any]) -> list[str]:
    with pytest.raises(ScenarioError) as error:
        choose(names, TABLE, options)
    return str(error.value).splitlines()


KNOWN = "smoke, rollout, quick_start, dynamo_guide, h100_template, low_latency"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], f"benchmark_scenarios is empty; allowed are {KNOWN}."),
        (["quickstart"], f"benchmark_scenarios has 'quickstart'; allowed are {KNOWN}. Did you mean 'quick_start'?"),
        (["zzz"], f"benchmark_scenarios has 'zzz'; allowed are {KNOWN}."),
    ],
)
def test_a_name_that_is_not_known(names: list[str], message: str) -> None:
    assert refused(names, {}) == [message]


PARTS = "source, tool, endpoint, input_tokens, output_tokens, concurrency, requests, requests_per_user, "
PARTS += "warm_up, entries, seed, request_rate, range_ratio"
BOTH = "either requests or requests_per_user must be a whole number of 1 or more, and the other 0."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": 3}, f"'users' is not a key of a scenario; allowed are {PARTS}."),
        (
            {"inputtokens": 3},
            f"'inputtokens' is not a key of a scenario; allowed are {PARTS}. Did you mean 'input_tokens'?",
        ),
        ({"tool": "wrk"}, "tool is 'wrk'; allowed are aiperf, benchmark_serving."),
        ({"tool": None}, "tool is None; allowed are aiperf, benchmark_serving."),
        ({"endpoint": "responses"}, "endpoint is 'responses'; allowed are chat, completions."),
        ({"input_tokens": 0}, "input_tokens is 0; it must be a whole number of 1 or more."),
        ({"input_tokens": "1024"}, "input_tokens is '1024'; it must be a whole number of 1 or more."),
        ({"output_tokens": 1.5}, "output_tokens is 1.5; it must be a whole number of 1 or more."),
        ({"output_tokens": True}, "output_tokens is True; it must be a whole number of 1 or more."),
        ({"output_tokens": None}, "output_tokens is None; it must be a whole number of 1 or more."),
        ({"warm_up": -1}, "warm_up is -1; it must be a whole number of 0 or more."),
        ({"entries": "all"}, "entries is 'all'; it must be a whole number of 0 or more."),
        ({"seed": -5}, "seed is -5; it must be a whole number of 0 or more."),
        ({"concurrency": 4}, "concurrency is 4; it must be a list of whole numbers of 1 or more."),
        ({"concurrency": "4"}, "concurrency is '4'; it must be a list of whole numbers of 1 or more."),
        ({"concurrency": []}, "concurrency is []; it must be a list of whole numbers of 1 or more."),
        ({"concurrency": [1, 0]}, "concurrency is [1, 0]; it must be a list of whole numbers of 1 or more."),
        ({"concurrency": [1, "2"]}, "concurrency is [1, '2']; it must be a list of whole numbers of 1 or more."),
        (
            {"concurrency": [4, 2]},
            "concurrency is [4, 2]; it must increase; a sweep ends at the first concurrency that misses its SLO.",
        ),
        (
            {"concurrency": [2, 2]},
            "concurrency is [2, 2]; it must increase; a sweep ends at the first concurrency that misses its SLO.",
        ),
        ({"requests": 10}, BOTH),
        ({"requests_per_user": 0}, BOTH),
        ({"requests_per_user": -2}, BOTH),
        ({"requests_per_user": "5"}, BOTH),
        ({"requests_per_user": 0, "requests": 1}, "requests is 1, fewer than the concurrency 2."),
        (
            {"request_rate": -1},
            "request_rate is -1; it must be a number of requests/s, or 0 for users that wait for answers.",
        ),
        (
            {"request_rate": "2"},
            "request_rate is '2'; it must be a number of requests/s, or 0 for users that wait for answers.",
        ),
        (
            {"request_rate": 2, "tool": "benchmark_serving"},
            "request_rate is 2 with tool benchmark_serving; set tool to aiperf, which records when each request was "
            "sent.",
        ),
        ({"request_rate": 2, "tool": "aiperf"}, "request_rate is 2 with requests_per_user; set requests instead."),
        ({"range_ratio": 0}, "range_ratio is 0; it must be a number above 0, at most 1."),
        ({"range_ratio": 1.1}, "range_ratio is 1.1; it must be a number above 0, at most 1."),
        ({"range_ratio": float("nan")}, "range_ratio is nan; it must be a number above 0, at most 1."),
    ],
)
def test_a_scenario_that_cannot_be_run(changes: dict[str, Any], message: str) -> None:
    assert refused(["mine"], {"mine": {**OWN, **changes}}) == [f"benchmark_scenario_options.mine: {message}"]


def test_random_arrivals_need_not_be_more_than_the_most_at_a_time() -> None:
    given = {**OWN, "tool": "aiperf", "requests_per_user": 0, "requests": 1, "request_rate": 0.5}
    (scenario,) = choose(["mine"], TABLE, {"mine": given})
    assert [(point["request_rate"], point["concurrency"]) for point in scenario.points(1, 0)] == [(0.5, 1), (0.5, 2)]


@pytest.mark.parametrize(
    "missing", ["tool", "endpoint", "input_tokens", "output_tokens", "concurrency", "requests_per_user"]
)
def test_a_scenario_of_one_s_own_that_lacks_something(missing: str) -> None:
    options = {name: value for name, value in OWN.items() if name != missing}
    (problem,) = refused(["mine"], {"mine": options})
    assert missing in problem


def test_no_options_at_all_lack_everything() -> None:
    assert len(refused(["mine"], {"mine": None})) == 6


def test_options_that_are_no_dictionary() -> None:
    (problem,) = refused(["smoke"], {"smoke": [1, 2]})
    assert problem == "benchmark_scenario_options.smoke is [1, 2]; it must be a dictionary."


@pytest.mark.parametrize("name", ["a/b", "../a", "", ".", "two words"])
def test_a_name_that_no_file_can_have(name: str) -> None:
    (problem,) = refused([name], {name: OWN})
    assert problem.startswith(f"benchmark_scenario_options.{name}: its name is used in file names; allowed are ")


def test_all_problems_at_once() -> None:
    problems = refused(["smok", "mine"], {"mine": {**OWN, "tool": "wrk", "seed": -1}})
    assert [problem.split(" ")[0] for problem in problems] == [
        "benchmark_scenarios",
        "benchmark_scenario_options.mine:",
        "benchmark_scenario_options.mine:",
    ]
