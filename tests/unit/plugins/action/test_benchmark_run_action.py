"""Test action benchmark_run with a scripted module."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.action.benchmark_run import ActionModule, Pace, figures, line
from ansible_collections.trtllm.fleet.plugins.doc_fragments import load_tool
from ansible_collections.trtllm.fleet.plugins.modules import benchmark_load
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import read_run

KEY = "sk-canary"

TABLE = {
    "smoke": {
        "source": "ours",
        "tool": "aiperf",
        "endpoint": "chat",
        "input_tokens": 128,
        "output_tokens": 32,
        "concurrency": [1, 2, 4],
        "requests_per_user": 5,
        "warm_up": 2,
    },
    "guide": {
        "source": "a guide",
        "tool": "benchmark_serving",
        "endpoint": "completions",
        "input_tokens": 1024,
        "output_tokens": 1024,
        "concurrency": [32],
        "requests": 160,
        "warm_up": 8,
    },
}
AT_WORK = {"finished": False, "progress": {"phase": "load", "done": 3, "total": 5}}
STARTING: dict[str, Any] = {"finished": False, "progress": {}}


def done(ttft: float = 100.0, problems: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the module returns of a load that ended."""
    throughput = {
        "output_tokens_per_second": 1234.5678,
        "steady_output_tokens_per_second": 1300.0,
        "output_tokens_per_second_per_gpu": 154.32,
    }
    return {
        "finished": True,
        "progress": {},
        "version": "0.13.0",
        "problems": list(problems),
        "raw": {"of": ttft},
        "measured": {
            "requests": {"asked": 5, "answered": 5 - len(problems), "failed": len(problems)},
            "throughput": {**throughput, "output_tokens_per_second_per_user": None},
            "ttft_ms": {"mean": ttft, "p50": ttft, "p99": ttft * 1.5},
        },
    }


class Loads(ActionModule):
    """The action plugin on a module that gives these results; a function is called for its."""

    def __init__(self, folder: Path, *results: Any, check_mode: bool = False, **arguments: Any) -> None:
        self.folder = folder
        args = {
            "scenarios": ["smoke"],
            "table": TABLE,
            "repeat": 1,
            "target": {"name": "gpu1", "base_urls": ["http://gpu1:8000"], "model": "gpt-oss-120b", "gpus": 8},
            "results_dir": str(folder),
            "load": {"directory": "/tmp/b", "tokenizer": "/models/m", "api_key": KEY, "image": "release:1.2.1"},
            **arguments,
        }
        task = SimpleNamespace(args=args, check_mode=check_mode, async_val=0)
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"))
        super().__init__(task, connection, None, None, None, None)
        self.results, self.asked = list(results), list[dict[str, Any]]()

    def _execute_module(self, module_name: str, module_args: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert module_name == "trtllm.fleet.benchmark_load"
        self.asked.append(module_args)
        result: dict[str, Any] = self.results.pop(0)
        return result() if callable(result) else result

    def go(self) -> dict[str, Any]:
        result: dict[str, Any] = self.run(task_vars={"inventory_hostname": "gpu1"})
        return result

    def asked_for(self, name: str) -> list[Any]:
        return [asked[name] for asked in self.asked]


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loads = Loads(tmp_path, STARTING, AT_WORK, done(), done(110.0), done(120.0))
    result = loads.go()
    assert "failed" not in result
    assert (result["changed"], result["result"]["state"], result["result"]["problems"]) == (True, "complete", [])
    document = read_run(Path(result["path"]))
    assert document == json.loads(json.dumps(result["result"]))
    assert [(point["concurrency"], point["ttft_ms"]["mean"]) for point in document["points"]] == [
        (1, 100.0),
        (2, 110.0),
        (4, 120.0),
    ]
    assert loads.asked_for("concurrency") == [1, 1, 1, 2, 4]
    assert loads.asked_for("requests") == [5, 5, 5, 10, 20]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gpu1: scenario 1 of 1, smoke, load 1 of 3 (1 at once, round 1 of 1): starting, 0 s"
    assert lines[1].endswith(": load, 3 of 5 requests after 0 s")
    assert lines[2].endswith(
        ": 1,234.6 tokens/s, 1,300 tokens/s steady, 154.32 tokens/s per GPU, first token 100 ms, p99 150 ms, 5 of 5"
        " answered"
    )
    assert len(lines) == 5


def test_the_options_of_the_module(tmp_path: Path) -> None:
    loads = Loads(tmp_path, done(), done(), done(), slo={"ttft_ms.p50": 500.0})
    path = loads.go()["path"]
    asked = loads.asked[0]
    assert asked["directory"] == f"/tmp/b/{Path(path).name}/smoke-1-1"
    assert (asked["base_urls"], asked["model"], asked["gpus"]) == (["http://gpu1:8000"], "gpt-oss-120b", 8)
    assert (asked["tool"], asked["endpoint"], asked["tokenizer"], asked["api_key"]) == (
        "aiperf",
        "chat",
        "/models/m",
        KEY,
    )
    assert (asked["input_tokens"], asked["output_tokens"], asked["warm_up"], asked["entries"]) == (128, 32, 2, 7)
    assert (asked["limits"], asked["turn"]) == ({"ttft_ms": 500.0}, 10)
    assert len(set(loads.asked_for("directory"))) == len(set(loads.asked_for("seed"))) == 3
    # Nothing that the module does not take.
    assert set(asked) < set(options_of_the_module())


def options_of_the_module() -> dict[str, Any]:
    documented = (benchmark_load.DOCUMENTATION, load_tool.ModuleDocFragment.DOCUMENTATION)
    return {name: option for text in documented for name, option in yaml.safe_load(text)["options"].items()}


def test_the_key_is_in_no_result(tmp_path: Path) -> None:
    Loads(tmp_path, done(), done(), done()).go()
    for path in tmp_path.rglob("*.json"):
        assert KEY not in path.read_text()


def test_each_load_is_kept_before_the_next(tmp_path: Path) -> None:
    kept = []

    def look() -> dict[str, Any]:
        (path,) = tmp_path.iterdir()
        kept.append((read_run(path)["state"], len(read_run(path)["points"])))
        return done()

    Loads(tmp_path, look, look, look).go()
    assert kept == [("running", 0), ("running", 1), ("running", 2)]


def test_rounds_of_a_load_are_together(tmp_path: Path) -> None:
    loads = Loads(tmp_path, *[done()] * 6, repeat="2")
    loads.go()
    assert loads.asked_for("concurrency") == [1, 1, 2, 2, 4, 4]
    assert len(set(loads.asked_for("directory"))) == 6


def test_benchmark_serving_s_warm_up_is_a_load_of_its_own_that_is_not_kept(tmp_path: Path) -> None:
    loads = Loads(tmp_path, done(), done(222.0), scenarios=["guide"])
    result = loads.go()
    first, second = loads.asked
    assert (first["requests"], second["requests"]) == (8, 160)
    assert (first["warm_up"], second["warm_up"]) == (0, 0)
    assert first["directory"] == second["directory"] + "-warm-up"
    assert first["image"] == "release:1.2.1"
    assert [point["ttft_ms"]["mean"] for point in result["result"]["points"]] == [222.0]


def test_a_sweep_stops_at_the_first_number_that_misses(tmp_path: Path) -> None:
    loads = Loads(
        tmp_path, done(90.0), done(500.0), done(), done(), scenarios=["smoke", "guide"], slo={"ttft_ms.mean": 100.0}
    )
    result = loads.go()
    # Not 4 at once, and then the other scenario.
    assert loads.asked_for("concurrency") == [1, 2, 32, 32]
    document = read_run(Path(result["path"]))
    assert document["stopped"] == {"smoke": ["ttft_ms.mean is 500, above 100"]}
    assert (document["state"], result["missed"]) == ("complete", [])
    assert "failed" not in result


def test_the_median_of_the_rounds_decides(tmp_path: Path) -> None:
    slow = [done(90.0), done(500.0), done(91.0)]
    loads = Loads(tmp_path, *slow, *[done(300.0)] * 3, repeat=3, slo={"ttft_ms.mean": 100.0})
    assert loads.go()["missed"] == []
    assert loads.asked_for("concurrency") == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("users", "missed"),
    [
        (1, []),
        (2, ["smoke, 2 at once: ttft_ms.mean is 500, above 100"]),
        (4, ["smoke: no load of 4 or more users was measured; the highest is 2"]),
    ],
)
def test_the_verdict_is_for_as_many_users_as_are_wanted(tmp_path: Path, users: int, missed: list[str]) -> None:
    result = Loads(tmp_path, done(90.0), done(500.0), slo={"ttft_ms.mean": 100.0}, min_users=users).go()
    assert result["missed"] == missed


def test_without_objectives_there_is_no_verdict(tmp_path: Path) -> None:
    assert Loads(tmp_path, done(), done(), done(), min_users=500).go()["missed"] == []


def test_requests_that_failed_end_their_scenario_and_fail_the_run(tmp_path: Path) -> None:
    loads = Loads(
        tmp_path, done(), done(problems=("1 of 5 requests failed",)), done(), done(), scenarios=["smoke", "guide"]
    )
    result = loads.go()
    assert loads.asked_for("concurrency") == [1, 2, 32, 32]
    assert result["failed"] is True
    problem = "smoke, 2 at once, round 1: 1 of 5 requests failed"
    assert result["msg"] == f"{problem}\nThe results are in {result['path']}."
    document = read_run(Path(result["path"]))
    assert (document["state"], document["problems"], len(document["points"])) == ("failed", [problem], 3)


@pytest.mark.parametrize(
    "failure", [{"failed": True, "msg": "aiperf ended with 1"}, {"unreachable": True, "msg": "aiperf ended with 1"}]
)
def test_a_failed_tool_keeps_earlier_loads(tmp_path: Path, failure: dict[str, Any]) -> None:
    loads = Loads(tmp_path, done(), AT_WORK, failure, scenarios=["smoke", "guide"])
    result = loads.go()
    assert result["failed"] is True
    assert result["unreachable"] is failure.get("unreachable", False)
    assert result["msg"].startswith("aiperf ended with 1\nThe results are in ")
    document = read_run(Path(result["path"]))
    assert (document["state"], document["problems"]) == ("failed", ["aiperf ended with 1"])
    assert [point["concurrency"] for point in document["points"]] == [1]
    assert loads.asked_for("concurrency") == [1, 2, 2]


def test_check_mode_runs_nothing_and_tells_the_plan(tmp_path: Path) -> None:
    loads = Loads(tmp_path, check_mode=True, repeat=3, scenarios=["smoke", "guide"])
    result = loads.go()
    assert (result["changed"], loads.asked, list(tmp_path.iterdir())) == (True, [], [])
    assert result["plan"] == [
        "smoke (ours): 128 tokens in and 32 out, 1, 2, 4 at once, 3 rounds each, 123 requests by aiperf",
        "guide (a guide): 1024 tokens in and 1024 out, 32 at once, 3 rounds each, 504 requests by benchmark_serving",
    ]


@pytest.mark.parametrize("check_mode", [False, True])
def test_bad_input_is_rejected_before_any_load(tmp_path: Path, check_mode: bool) -> None:
    loads = Loads(tmp_path, scenarios=["smok"], slo={"ttft": 1, "ttft_ms.p99": -1}, check_mode=check_mode)
    result = loads.go()
    assert (result["failed"], loads.asked, list(tmp_path.iterdir())) == (True, [], [])
    first, second, third = result["msg"].splitlines()
    assert first.startswith("benchmark_slo has 'ttft'.")
    assert second.startswith("benchmark_slo.ttft_ms.p99 is -1;")
    assert third.startswith("benchmark_scenarios has 'smok'; allowed are smoke, guide. Did you mean 'smoke'?")


def test_figures_where_nothing_was_answered() -> None:
    nothing = dict.fromkeys(
        (
            "output_tokens_per_second",
            "steady_output_tokens_per_second",
            "output_tokens_per_second_per_gpu",
            "output_tokens_per_second_per_user",
        )
    )
    measured = {
        "requests": {"asked": 5, "answered": 0, "failed": 5},
        "throughput": nothing,
        "ttft_ms": dict.fromkeys(("p50", "p99")),
    }
    assert figures(measured, ["5 of 5 requests failed"]) == "0 of 5 answered, 5 of 5 requests failed"


def test_progress_tells_pace_and_time_left() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])

    def told(seconds: float, **progress: Any) -> str:
        now[0] = seconds
        return line(progress, pace, 32)

    assert told(10) == "starting, 10 s"
    assert told(20, phase="warm-up", done=2, total=4) == "warm-up, 2 of 4 requests after 20 s"
    # Of another phase the pace is another.
    assert told(30, phase="load", done=0, total=100) == "load, 0 of 100 requests after 30 s"
    assert told(40, phase="load", done=20, total=100) == "load, 20 of 100 requests after 40 s, 64 tokens/s, 40 s left"
    assert told(50, phase="load", done=100, total=100).endswith(", 160 tokens/s, 0 s left")
