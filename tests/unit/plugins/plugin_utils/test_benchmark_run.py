"""Test a benchmark's files, objectives and systems under test."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import run as runs
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import slo
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import Run, RunError, read_run
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import Scenario
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.system_under_test import differences, subject

STARTED = datetime(2026, 11, 23, 16, 45, 7, tzinfo=UTC)
SCENARIO = Scenario("smoke", "ours", "aiperf", "chat", 128, 32, (1, 2), requests_per_user=5)
TARGET = {"name": "gpu1, port 8000", "base_urls": ["http://gpu1:8000"], "model": "gpt-oss-120b", "gpus": 8}


def measured(ttft: float = 100.0, tokens: float = 1000.0) -> dict[str, Any]:
    return {
        "requests": {"asked": 5, "answered": 5, "failed": 0},
        "throughput": {"output_tokens_per_second": tokens, "output_tokens_per_second_per_gpu": None},
        "ttft_ms": {"mean": ttft, "p50": ttft, "p99": ttft * 2},
        "tpot_ms": {"mean": 9.0, "p99": 11.0},
    }


def load(*problems: str, **changes: Any) -> dict[str, Any]:
    """What module benchmark_load returns."""
    result = measured(**changes)
    return {"measured": result, "problems": list(problems), "raw": {"figure": 1}, "version": "0.13.0"}


def begin(folder: Path, objectives: dict[str, float] | None = None) -> Run:
    minutes = iter(range(1000))
    return Run(
        folder,
        TARGET,
        [SCENARIO],
        2,
        {"release": "a"},
        objectives or {},
        lambda: STARTED + timedelta(minutes=next(minutes)),
    )


# --- the files of a run ---------------------------------------------------------------------------------------------


def test_a_run_is_on_disk_from_its_start_on(tmp_path: Path) -> None:
    run = begin(tmp_path / "results", {"ttft_ms.p99": 200.0})
    assert run.folder == tmp_path / "results" / "20261123T164507Z-gpu1-port-8000"
    document = read_run(run.folder)
    assert document == json.loads(json.dumps(run.document))
    assert (document["state"], document["started"], document["ended"]) == ("running", "2026-11-23T16:45:07+00:00", None)
    assert (document["target"], document["ran_on"], document["slo"]) == (
        TARGET,
        {"release": "a"},
        {"ttft_ms.p99": 200.0},
    )
    assert (document["points"], document["problems"]) == ([], [])
    assert document["scenarios"][0]["concurrency"] == [1, 2]


def test_each_load_is_on_disk_before_the_next(tmp_path: Path) -> None:
    run = begin(tmp_path)
    points = list(SCENARIO.points(2, run.seed))
    for count, point in enumerate(points, 1):
        run.add(point, load(ttft=100.0 + count))
        document = read_run(run.folder)
        assert [one["ttft_ms"]["mean"] for one in document["points"]] == [101.0 + number for number in range(count)]
        raw = run.folder / "raw" / f"smoke-{point['concurrency']}-{point['round']}.json"
        assert json.loads(raw.read_text()) == {"figure": 1}
    first = document["points"][0]
    assert (first["scenario"], first["tool"], first["concurrency"], first["round"]) == ("smoke", "aiperf", 1, 1)
    assert (first["seed"], first["ended"]) == (points[0]["seed"], "2026-11-23T16:46:07+00:00")
    assert document["state"] == "running"


def test_the_file_is_complete_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that fails while a file is written leaves the one before."""
    run = begin(tmp_path)
    run.add(next(SCENARIO.points(1, 1)), load())
    before = (run.folder / "result.json").read_text()

    def fails(source: Any, target: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no space left"):
        run.problem("something")
    assert (run.folder / "result.json").read_text() == before
    assert sorted(path.name for path in run.folder.iterdir()) == ["raw", "result.json"]


def test_problems_and_notes_and_the_end(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.add(next(SCENARIO.points(1, 1)), load("3 of 5 requests failed"))
    run.problem("unreachable")
    run.note(stopped={"smoke": ["ttft_ms.p99 is 300, above 200"]})
    run.end("failed")
    document = read_run(run.folder / "result.json")
    assert document["problems"] == ["smoke, 1 at once, round 1: 3 of 5 requests failed", "unreachable"]
    assert document["points"][0]["problems"] == ["3 of 5 requests failed"]
    assert document["stopped"] == {"smoke": ["ttft_ms.p99 is 300, above 200"]}
    assert (document["state"], document["ended"]) == ("failed", "2026-11-23T16:47:07+00:00")


def test_two_runs_of_one_second_do_not_mix(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(FileExistsError):
        begin(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ("", "is not JSON: Expecting value"),
        ('{"schema": 1, "points": [', "is not JSON"),
        ("[]", "is not a readable benchmark result: kind None, schema None; supported is kind benchmark, schema 1"),
        ('{"kind": "benchmark", "schema": 2}', "kind benchmark, schema 2; supported is kind benchmark, schema 1"),
        ('{"kind": "plan", "schema": 1}', "kind plan, schema 1; supported is kind benchmark, schema 1"),
    ],
)
def test_a_file_that_is_no_result(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(RunError) as error:
        read_run(tmp_path)
    assert str(tmp_path / "result.json") in str(error.value)
    assert message in str(error.value)


def test_a_result_from_before_there_were_kinds_is_read(tmp_path: Path) -> None:
    run = begin(tmp_path)
    old = {name: value for name, value in run.document.items() if name != "kind"}
    (run.folder / "result.json").write_text(json.dumps(old))
    assert read_run(run.folder) == json.loads(json.dumps(old))


def test_loads_leave_out_rounds_that_failed(tmp_path: Path) -> None:
    run = begin(tmp_path)
    for point, problems in zip(SCENARIO.points(2, 1), ([], ["x"], [], []), strict=True):
        run.add(point, load(*problems))
    found = [(name, users, [point["round"] for point in points]) for name, users, points in runs.loads(run.document)]
    assert found == [("smoke", 1, [1]), ("smoke", 2, [1, 2])]


def test_median_of_the_rounds() -> None:
    rounds = [measured(ttft=ttft) for ttft in (100.0, 500.0, 120.0)]
    assert runs.median(rounds, "ttft_ms.mean") == 120.0
    assert runs.median([*rounds, {**measured(), "ttft_ms": {"mean": None}}], "ttft_ms.mean") is None
    assert runs.median(rounds, "e2e_ms.p99") is None
    assert runs.median([], "ttft_ms.mean") is None


# --- objectives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ({"ttft.p99": 200}, "benchmark_slo has 'ttft.p99'. Did you mean 'ttft_ms.p99'? Allowed are ttft_ms.mean, "),
        ({"ttft_ms.std": 200}, "benchmark_slo has 'ttft_ms.std'."),
        ({"ttft_ms.p99": 0}, "benchmark_slo.ttft_ms.p99 is 0; it must be a number above 0."),
        ({"ttft_ms.p99": "200"}, "benchmark_slo.ttft_ms.p99 is '200'; it must be a number above 0."),
        ({"tpot_ms.p50": True}, "benchmark_slo.tpot_ms.p50 is True; it must be a number above 0."),
        ({"tpot_ms.p50": None}, "benchmark_slo.tpot_ms.p50 is None; it must be a number above 0."),
        ({"ttft_ms.p99": float("inf")}, "benchmark_slo.ttft_ms.p99 is inf; it must be a number above 0."),
        ({"ttft_ms.p99": float("nan")}, "benchmark_slo.ttft_ms.p99 is nan; it must be a number above 0."),
    ],
)
def test_objectives_that_are_none(objectives: dict[str, Any], message: str) -> None:
    (problem,) = slo.problems(objectives)
    assert problem.startswith(message)


def test_objectives() -> None:
    good = {"ttft_ms.p99": 200, "tpot_ms.mean": 9.5, "throughput.output_tokens_per_second_per_gpu": 100}
    assert list(slo.problems(good)) == []
    assert list(slo.problems({})) == []


def test_limits_of_a_request_are_the_strictest() -> None:
    objectives = {"ttft_ms.p99": 300.0, "ttft_ms.p50": 200.0, "itl_ms.p99": 5.0, "throughput.requests_per_second": 1.0}
    assert slo.limits(objectives) == {"ttft_ms": 200.0}
    assert slo.limits({"e2e_ms.max": 9.0, "tpot_ms.mean": 8.0}) == {"e2e_ms": 9.0, "tpot_ms": 8.0}


@pytest.mark.parametrize(
    ("objectives", "missed"),
    [
        ({"ttft_ms.mean": 100.0}, []),
        ({"ttft_ms.mean": 99.9}, ["ttft_ms.mean is 100, above 99.9"]),
        ({"ttft_ms.p99": 150.0}, ["ttft_ms.p99 is 200, above 150"]),
        ({"throughput.output_tokens_per_second": 1000.0}, []),
        (
            {"throughput.output_tokens_per_second": 1001.0},
            ["throughput.output_tokens_per_second is 1000, below 1001"],
        ),
        (
            {"throughput.output_tokens_per_second_per_gpu": 1.0},
            ["throughput.output_tokens_per_second_per_gpu was not measured"],
        ),
        ({"e2e_ms.p50": 1e9}, ["e2e_ms.p50 was not measured"]),
    ],
)
def test_misses(objectives: dict[str, float], missed: list[str]) -> None:
    assert slo.misses([measured()], objectives) == missed


def test_one_slow_round_of_three_misses_nothing() -> None:
    rounds = [measured(ttft=ttft) for ttft in (100.0, 900.0, 110.0)]
    assert slo.misses(rounds, {"ttft_ms.mean": 120.0}) == []
    assert slo.misses([*rounds[:2], measured(ttft=800.0)], {"ttft_ms.mean": 120.0}) == [
        "ttft_ms.mean is 800, above 120"
    ]


def document(*ttfts: float) -> dict[str, Any]:
    """Of 1, 2, 4 … users at once, as far as they go, in a scenario that goes to 8."""
    points = [
        {"scenario": "s", "concurrency": 2**number, "round": 1, "problems": [], **measured(ttft=ttft)}
        for number, ttft in enumerate(ttfts)
    ]
    return {"scenarios": [{"name": "s", "concurrency": [1, 2, 4, 8]}], "slo": {"ttft_ms.mean": 100.0}, "points": points}


@pytest.mark.parametrize(
    ("ttfts", "users", "verdict"),
    [
        ((50, 60, 70, 80), 8, []),
        # A sweep that stopped beyond what is wanted, where fewer meet it.
        ((50, 60, 300), 2, []),
        ((50, 60, 300), 4, ["s, 4 at once: ttft_ms.mean is 300, above 100"]),
        # Three are served as well as four are.
        ((50, 60, 70), 3, []),
        ((50, 60, 300), 3, ["s, 4 at once: ttft_ms.mean is 300, above 100"]),
        ((50, 300), 8, ["s: no load of 8 or more users was measured; the highest is 2"]),
        ((), 1, ["s: no load of 1 or more users was measured; the highest is 0"]),
        ((50, 60, 70, 80), 500, ["s: no load of 500 or more users was measured; the highest is 8"]),
    ],
)
def test_verdict(ttfts: tuple[float, ...], users: int, verdict: list[str]) -> None:
    assert slo.verdict(document(*ttfts), users) == verdict


@pytest.mark.parametrize(("most", "passed"), [((9, 12), False), ((20, 16), True), ((None, 16), False)])
def test_random_arrivals_count_by_the_most_in_flight(most: tuple[int | None, ...], passed: bool) -> None:
    """Not by the limit of the scenario, which they need not reach."""
    found = document(50, 60)
    found["scenarios"][0]["request_rate"] = 2
    for point, value in zip(found["points"], most, strict=True):
        point["requests"] = {"most_at_once": value}
    found["points"][1]["concurrency"] = found["points"][0]["concurrency"]
    assert (slo.verdict(found, 16) == []) is passed


def test_loads_with_as_many_requests_in_flight_are_judged_apart() -> None:
    found = document(50, 300)
    found["scenarios"][0]["request_rate"] = 2
    for point in found["points"]:
        point["requests"] = {"most_at_once": 20}
    assert slo.verdict(found, 16) == []


# --- subjects -------------------------------------------------------------------------------------------------------

RUNS = {
    "verified": "3f786850e387",
    "description": {
        "name": "gpt-oss-120b-h200x8-low_latency",
        "model": "openai/gpt-oss-120b",
        "image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        "digest": "sha256:1",
        "engine_options": {"max_batch_size": 8},
        "weights": "/srv/models/openai/gpt-oss-120b/57476bb",
        "provenance": [{"option": "max_batch_size", "value": 8, "source": "blog 9"}],
    },
}


def gpus(**changes: list[Any]) -> dict[str, Any]:
    two: list[dict[str, Any]] = [{"product_name": "NVIDIA H200", "power_limit_watts": 700.0} for __ in range(2)]
    for name, values in changes.items():
        for gpu, value in zip(two, values, strict=True):
            gpu[name] = value
    return {"count": 2, "driver": {"version": "580.159.04"}, "kernel_module": "open", "gpus": two}


def test_subject() -> None:
    found = subject(RUNS, gpus())
    assert (found["release"], found["recipe"]) == ("3f786850e387", "gpt-oss-120b-h200x8-low_latency")
    assert (found["model"], found["revision"], found["digest"]) == ("openai/gpt-oss-120b", "57476bb", "sha256:1")
    assert found["sources"] == {"max_batch_size": "blog 9"}
    assert (found["driver"], found["kernel_module"], found["use_case"]) == ("580.159.04", "open", None)
    assert (found["gpus"]["count"], found["gpus"]["product_name"], found["gpus"]["mig"]) == (2, "NVIDIA H200", None)


def test_different_gpus_are_listed_each() -> None:
    assert subject(RUNS, gpus(power_limit_watts=[700.0, 600.0]))["gpus"]["power_limit_watts"] == [700.0, 600.0]


def test_subject_of_a_host_that_runs_nothing() -> None:
    found = subject({"verified": ""}, {})
    assert (found["release"], found["recipe"], found["revision"], found["driver"]) == ("", None, None, None)
    assert (found["gpus"]["count"], found["gpus"]["product_name"], found["sources"]) == (0, None, {})


def test_no_difference() -> None:
    # The current clock is ignored.
    assert (
        differences(subject(RUNS, gpus(sm_clock_mhz=[345, 345])), subject(RUNS, gpus(sm_clock_mhz=[1980, 345]))) == []
    )


def test_differences_by_path() -> None:
    other = json.loads(json.dumps(RUNS))
    other["description"].update(image="release:1.2.2", use_case="low_latency", provenance=[])
    other["description"]["engine_options"].update(max_batch_size=16, stream_interval=20)
    assert differences(subject(RUNS, gpus()), subject(other, gpus(power_limit_watts=[500.0, 500.0]))) == [
        "use_case: none, low_latency",
        "image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1, release:1.2.2",
        "engine_options.max_batch_size: 8, 16",
        "engine_options.stream_interval: none, 20",
        "gpus.power_limit_watts: 700.0, 500.0",
    ]


def scenario(**given: Any) -> Scenario:
    kept = {"source": "x", "tool": "aiperf", "endpoint": "chat", "input_tokens": 8, "output_tokens": 8}
    return Scenario(**{"name": "s", **kept, "concurrency": (1, 8), "requests": 100, **given})


@pytest.mark.parametrize(
    ("objectives", "given", "users", "words"),
    [
        ({"ttft_ms.p99": 2000}, {}, 8, ""),
        ({"ttft_ms.p99": 2000}, {"requests": 99}, 8, "needs 100 requests in a round; s has 99"),
        ({"ttft_ms.p95": 2000}, {"requests": 20}, 8, ""),
        ({"ttft_ms.p95": 2000}, {"requests": 0, "requests_per_user": 2}, 8, "needs 20 requests in a round; s has 16"),
        ({"ttft_ms.p95": 2000}, {"requests": 0, "requests_per_user": 3}, 8, ""),
        ({"ttft_ms.p95": 2000}, {"requests": 0, "requests_per_user": 3}, 1, "Set requests_per_user of s"),
        ({"ttft_ms.mean": 2000, "throughput.requests_per_second": 1}, {"requests": 1}, 8, ""),
        ({"ttft_ms.p50": 2000}, {}, 9, "benchmark_slo_concurrency is 9; s has at most 8 requests at a time"),
        ({}, {}, 9, ""),
    ],
)
def test_objectives_that_a_load_cannot_decide(objectives: Any, given: Any, users: int, words: str) -> None:
    found = list(slo.load_problems(objectives, [scenario(**given)], users))
    assert len(found) == bool(words)
    assert words in "".join(found)
