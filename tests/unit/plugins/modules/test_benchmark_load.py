"""Test module benchmark_load with a scripted tool."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import background_command
from ansible_collections.trtllm.fleet.plugins.modules import benchmark_load
from ansible_collections.trtllm.fleet.tests.unit.paths import FIXTURES

BENCHMARK = FIXTURES / "benchmark"
KEY = "sk-canary"

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
    assert result["measured"]["requests"] == {"asked": 20, "answered": 20, "failed": 0, "most_at_once": None}
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
