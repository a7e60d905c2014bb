"""Module benchmark_load with a scripted tool, and action benchmark_run with a scripted module."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.trtllm.fleet.plugins.action.benchmark_run import ActionModule, Pace, figures, line
from ansible_collections.trtllm.fleet.plugins.doc_fragments import load_tool
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import background_command
from ansible_collections.trtllm.fleet.plugins.modules import benchmark_load
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import read_run
from ansible_collections.trtllm.fleet.tests.unit.paths import FIXTURES

BENCHMARK = FIXTURES / "benchmark"
KEY = "sk-canary"

# --- the module -----------------------------------------------------------------------------------------------------

# Answers to aiperf's command line, and to docker's.
TOOL = """#!{python}
import json, os, pathlib, shutil, sys, time
folder = pathlib.Path.cwd()
with open({calls!r}, "a") as calls:
    print(json.dumps([sys.argv, {{name: os.environ.get(name) for name in {names!r}}}]), file=calls)
if "rm" in sys.argv:
    sys.exit("no such container")
{script}
"""
NAMES = (
    "OPENAI_API_KEY",
    "SSL_CERT_FILE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "AIPERF_DATASET_MMAP_BASE_PATH",
)


class Tool:
    """A program for the module to run, and the module."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.directory, self._calls = folder, folder / "runs" / "load", folder / "calls"
        self._capsys = capsys
        (folder / "bin").mkdir()

    def does(self, script: str, name: str = "aiperf") -> None:
        path = self.folder / "bin" / name
        path.write_text(TOOL.format(python=sys.executable, calls=str(self._calls), names=NAMES, script=script))
        path.chmod(0o755)

    def calls(self) -> list[Any]:
        return [json.loads(line) for line in self._calls.read_text().splitlines()] if self._calls.exists() else []

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {
            "tool": "aiperf",
            "directory": str(self.directory),
            "base_urls": ["http://gpu1:8000"],
            "model": "openai/gpt-oss-120b",
            "tokenizer": "/models/gpt-oss",
            "aiperf": str(self.folder / "bin" / "aiperf"),
            "concurrency": 4,
            "requests": 20,
            "input_tokens": 100,
            "output_tokens": 16,
            "turn": 30,
            **options,
        }

    def load(self, **options: Any) -> dict[str, Any]:
        """What one call of the module returns."""
        with patch_module_args(self.arguments(**options)), pytest.raises(SystemExit):
            benchmark_load.main()
        printed = self._capsys.readouterr()
        found: dict[str, Any] = json.loads(printed.out)
        assert KEY not in printed.out + printed.err
        del found["invocation"]
        return found


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(background_command, "LOOK_SECONDS", 0.05)
    return Tool(tmp_path, capsys)


def leaves(name: str, file: str = "profile_export_aiperf.json") -> str:
    return f"shutil.copy({str(BENCHMARK / name)!r}, folder / {file!r})\n"


def test_a_load(tool: Tool) -> None:
    tool.does("print('Profiling: 20/20 |')\n" + leaves("aiperf-0.13.0-good.json"))
    result = tool.load(gpus=8, api_key=KEY, ca_path="/etc/ca.crt", warm_up=2, limits={"ttft_ms": 80})
    assert (result["changed"], result["finished"], result["problems"]) == (True, True, [])
    assert result["progress"] == {"phase": "load", "done": 20, "total": 20}
    assert result["measured"]["requests"] == {"asked": 20, "answered": 20, "failed": 0}
    assert result["measured"]["throughput"]["output_tokens_per_second_per_gpu"] == 34.02
    assert (result["version"], result["raw"]["aiperf_version"]) == ("0.13.0", "0.13.0")
    ((argv, environment),) = tool.calls()
    configuration = tool.directory / "aiperf.json"
    assert argv[1:4] == ["profile", "--config", str(configuration)]
    assert environment == {
        "OPENAI_API_KEY": KEY,
        "SSL_CERT_FILE": "/etc/ca.crt",
        "HF_HUB_OFFLINE": None,
        "TRANSFORMERS_OFFLINE": None,
        "AIPERF_DATASET_MMAP_BASE_PATH": str(tool.directory),
    }
    asked = json.loads(configuration.read_text())["benchmark"]
    assert [phase["requests"] for phase in asked["phases"]] == [2, 20]
    assert asked["slos"] == {"time_to_first_token": 80}


def test_the_key_is_in_no_file_and_on_no_command_line(tool: Tool) -> None:
    tool.does("print('Profiling: 20/20 |')\n" + leaves("aiperf-0.13.0-good.json"))
    tool.load(api_key=KEY)
    ((argv, environment),) = tool.calls()
    assert environment["OPENAI_API_KEY"] == KEY
    assert KEY not in " ".join(argv)
    for path in tool.directory.rglob("*"):
        assert KEY.encode() not in path.read_bytes()
    assert tool.directory.stat().st_mode & 0o777 == 0o700


def test_the_key_that_the_tool_prints_is_starred_out(tool: Tool) -> None:
    tool.does("sys.exit('401 for ' + os.environ['OPENAI_API_KEY'])")
    result = tool.load(api_key=KEY)
    assert "401 for ********" in result["msg"]


def test_a_load_takes_several_turns(tool: Tool) -> None:
    go_on = tool.folder / "go_on"
    wait = f"print('Warmup: 1/4 |', flush=True)\nwhile not pathlib.Path({str(go_on)!r}).exists(): time.sleep(.05)\n"
    tool.does(wait + leaves("aiperf-0.13.0-good.json"))
    result = tool.load(turn=0)
    assert (result["changed"], result["finished"]) == (True, False)
    deadline = time.monotonic() + 30
    while not (result := tool.load(turn=0))["progress"]:
        assert time.monotonic() < deadline
    assert result == {"changed": True, "finished": False, "progress": {"phase": "warm-up", "done": 1, "total": 4}}
    go_on.touch()
    assert tool.load()["finished"] is True
    assert len(tool.calls()) == 1


def test_requests_that_failed_are_a_problem_and_no_failure(tool: Tool) -> None:
    tool.does(leaves("aiperf-0.13.0-partial.json"))
    result = tool.load()
    assert "failed" not in result
    assert result["problems"][0].startswith("4 of 20 requests failed: 4 x 503 Service Unavailable")
    assert result["measured"]["errors"]


def test_requests_that_all_failed_are_a_problem_though_the_tool_fails(tool: Tool) -> None:
    tool.does(leaves("aiperf-0.13.0-all_failed.jsonl", "profile_export.jsonl") + "sys.exit(1)")
    result = tool.load(requests=3)
    assert "failed" not in result
    assert result["problems"] == [
        '3 of 3 requests failed: 3 x 503 Service Unavailable {"error":{"message":"overloaded"}}'
    ]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "sys.exit('boom')",
            ["aiperf left no profile_export_aiperf.json (aiperf ended with 1). Last output:", "boom"],
        ),
        (
            leaves("aiperf-0.13.0-cancelled.json"),
            ["aiperf was cancelled before its last request (aiperf ended with 0)."],
        ),
        (
            leaves("aiperf-0.13.0-all_failed.jsonl", "profile_export.jsonl") + "sys.exit(1)",
            ["aiperf left no profile_export_aiperf.json (aiperf ended with 1)."],  # of 17 nothing is known
        ),
        ("(folder / 'profile_export_aiperf.json').write_text('{')", ["cannot be read", "(aiperf ended with 0)"]),
        ("os.kill(os.getpid(), 9)", ["(aiperf was killed by signal 9)"]),
        ("print('\\n'.join(map(str, range(60)))); sys.exit(2)", ["output:\n30\n31", "\n59"]),
    ],
)
def test_a_tool_that_fails(tool: Tool, script: str, message: list[str]) -> None:
    tool.does(script)
    result = tool.load()
    assert (result["failed"], result["finished"]) == (True, True)
    for part in message:
        assert part in result["msg"]


def test_a_tool_that_is_not_there(tool: Tool) -> None:
    result = tool.load()
    assert result["failed"] is True
    assert "aiperf ended with 127" in result["msg"]
    assert "No such file or directory" in result["msg"]


def test_a_tool_that_takes_too_long(tool: Tool) -> None:
    tool.does("print('Profiling: 3/20 |', flush=True); time.sleep(60)")
    result = tool.load(timeout=1.5)
    assert result["failed"] is True
    assert result["msg"].startswith("aiperf was ended after ")
    assert result["progress"] == {"phase": "load", "done": 3, "total": 20}


def test_a_directory_that_cannot_be_made(tool: Tool) -> None:
    (tool.folder / "file").touch()
    result = tool.load(directory=str(tool.folder / "file" / "load"))
    assert result["failed"] is True
    assert result["msg"].startswith(f"aiperf cannot be run in {tool.folder}/file/load: ")


def test_benchmark_serving_in_its_container(tool: Tool) -> None:
    tool.does(
        "print('Benchmarking: 100%|##| 20/20 [')\n" + leaves("benchmark_serving-good.json", "benchmark_serving.json"),
        "docker",
    )
    result = tool.load(
        tool="benchmark_serving",
        image="registry/release:1.2.1",
        container_options=["--device", "nvidia.com/gpu=all"],
        api_key=KEY,
        gpus=4,
    )
    assert (result["finished"], result["problems"], result["version"]) == (True, [], "registry/release:1.2.1")
    assert result["progress"] == {"phase": "load", "done": 20, "total": 20}
    assert result["measured"]["throughput"]["output_tokens_per_second_per_gpu"] == 66.828
    (before, __), (run, environment), (after, __) = tool.calls()
    assert before == after
    assert before[1:] == ["rm", "--force", "trtllm-benchmark"]
    assert run[1:3] == ["run", "--rm"]
    assert run[run.index("--name") + 1] == "trtllm-benchmark"
    assert {"--device", "registry/release:1.2.1", f"{tool.directory}:/benchmark"} <= set(run)
    assert environment["OPENAI_API_KEY"] == KEY
    assert KEY not in " ".join(run)


def test_benchmark_serving_wants_an_image(tool: Tool) -> None:
    result = tool.load(tool="benchmark_serving")
    assert (result["failed"], tool.calls()) == (True, [])


# --- the action -----------------------------------------------------------------------------------------------------

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
    throughput = {"output_tokens_per_second": 1234.5678, "output_tokens_per_second_per_gpu": 154.32}
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
        ": 1,234.6 tokens/s, 154.32 tokens/s per GPU, first token 100 ms, p99 150 ms, 5 of 5 answered"
    )
    assert len(lines) == 5


def test_the_options_of_the_module(tmp_path: Path) -> None:
    loads = Loads(tmp_path, done(), done(), done(), slo={"ttft_ms.p99": 500.0})
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
        ("output_tokens_per_second", "output_tokens_per_second_per_gpu", "output_tokens_per_second_per_user")
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
