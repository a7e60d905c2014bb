"""Benchmarks, SLO gates and tuning on a lab host, with the real aiperf and with the image's tool.

The lab's engine invents times and words: only counts and comparisons of results are meaningful.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, UNIT, Fleet, Run, begin, finish, lab
from ansible_collections.trtllm.fleet.tests.schemas import valid

ENVIRONMENT = {**os.environ, "LAB_PREFIX": "bench-", "LAB_HOSTS": "1", "LAB_OS": "trixie", "LAB_GPU": "h200x8"}
AIPERF = REPO / ".cache/aiperf"
# The speed of the mocker's model of a GPU, so that a token takes much longer than other work on the machine.
SPEEDUP = 1.0
# The documents' scenarios, with all numbers divided.
REDUCED = {
    "smoke": {},
    "quick_start": {"concurrency": [2, 4], "input_tokens": 64, "output_tokens": 16},
    "dynamo_guide": {
        "concurrency": [4],
        "requests": 24,
        "warm_up": 4,
        "entries": 28,
        "input_tokens": 2000,
        "output_tokens": 16,
    },
    "h100_template": {"concurrency": [4], "requests": 20, "warm_up": 4, "input_tokens": 400, "output_tokens": 16},
    "low_latency": {"concurrency": [1, 2, 4], "requests_per_user": 4, "input_tokens": 64, "output_tokens": 16},
}
# Enough for a stable mean: 40 responses of 64 tokens.
STEADY = {"smoke": {"requests": 40, "output_tokens": 64, "warm_up": 8, "concurrency": [4]}}


# A scenario of the operator's own.
NARROW = {"tool": "aiperf", "endpoint": "chat", "input_tokens": 128, "concurrency": [2]}


@dataclass(frozen=True)
class Benchmark:
    """Playbooks for the host with separate inventory variables, and their results."""

    host: Fleet
    folder: Path

    @property
    def variables(self) -> dict[str, Any]:
        return {
            "trtllm_server_listen_address": "0.0.0.0",
            "benchmark_load_host": "localhost",
            "benchmark_aiperf_dir": str(AIPERF),
            # The configured package index: 1.2 GB, once for all tests.
            "benchmark_pip_index_url": "",
            "benchmark_results_dir": str(self.folder / "results"),
            "tune_results_dir": str(self.folder / "tuned"),
            "serving_recipe_environment": {"LAB_ENGINE_SPEEDUP": str(SPEEDUP)},
        }

    def command(self, playbook: str, inventory: dict[str, Any], extra: dict[str, Any]) -> list[str]:
        # Tuned variables must not come from the command line.
        hosts = self.folder / "inventory.yml"
        variables = {**self.variables, **inventory}
        hosts.write_text(yaml.safe_dump({"all": {"hosts": {self.host.host: variables}}}, sort_keys=False))
        command = ["ansible-playbook", playbook, "-i", "inventory/local", "-i", str(hosts)]
        return [*command, "--extra-vars", json.dumps(extra)]

    def start(self, playbook: str, inventory: dict[str, Any] | None = None, **extra: Any) -> subprocess.Popen[str]:
        environment = {**ENVIRONMENT, "ANSIBLE_NOCOLOR": "true"}
        return begin(self.command(playbook, inventory or {}, extra), environment, own_session=True)

    def play(self, playbook: str, inventory: dict[str, Any] | None = None, **extra: Any) -> Run:
        return finish(self.start(playbook, inventory, **extra))

    def measure(self, **extra: Any) -> Run:
        return self.play("playbooks/benchmark.yml", **extra)

    def results(self) -> list[Path]:
        """Return the directories of all results, the newest last."""
        return sorted(path.parent for path in (self.folder / "results").glob("*/result.json"))

    def result(self) -> dict[str, Any]:
        """Return the newest result."""
        document: dict[str, Any] = json.loads((self.results()[-1] / "result.json").read_text())
        return valid(document)

    def release(self) -> str:
        return self.host.shell("readlink /etc/trtllm-fleet/verified").strip()

    def serves(self) -> str:
        """Return the release of the running unit; empty if it does not run."""
        if self.host.shell(f"systemctl is-active {UNIT}", check=False).strip() != "active":
            return ""
        # During a switch there is no unit.
        unit = self.host.shell(f"readlink /etc/systemd/system/{UNIT}", check=False).strip()
        return str(Path(unit).parent) if unit else ""


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benchmark]:
    lab("up", environment=ENVIRONMENT)
    benchmark = Benchmark(Fleet("bench-1", ENVIRONMENT), tmp_path_factory.mktemp("benchmark"))
    run = benchmark.play("site.yml")
    assert run.status == 0, run.output
    yield benchmark
    lab("down", environment=ENVIRONMENT)


def check(document: dict[str, Any], scenario: str, rounds: int) -> None:
    """Check that all loads of a scenario succeeded with the requested lengths."""
    asked = next(one for one in document["scenarios"] if one["name"] == scenario)
    points = [one for one in document["points"] if one["scenario"] == scenario]
    assert [one["concurrency"] for one in points] == [
        users for users in asked["concurrency"] for _round in range(rounds)
    ]
    for point in points:
        requests = asked["requests"] or asked["requests_per_user"] * point["concurrency"]
        assert (point["requests"]["asked"], point["requests"]["answered"]) == (requests, requests)
        if asked["tool"] == "aiperf":
            assert point["requests"]["most_at_once"] == point["concurrency"]
        assert point["tokens"]["output"] == point["tokens"]["requested_output"] == requests * asked["output_tokens"]
        # The server's words have other boundaries than those of the tool's tokenizer.
        assert 0.9 < point["tokens"]["input"] / (requests * asked["input_tokens"]) < 1.6
        rates = point["throughput"]
        assert rates["output_tokens_per_second_per_gpu"] == pytest.approx(
            rates["output_tokens_per_second"] / 8, rel=1e-3
        )
        for latency in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
            assert 0 < point[latency]["p50"] <= point[latency]["p99"]
        assert point["e2e_ms"]["p50"] > point["ttft_ms"]["p50"]


def test_aiperf_runs_the_documents_scenarios(benchmark: Benchmark) -> None:
    names = ["smoke", "dynamo_guide", "h100_template", "low_latency"]
    run = benchmark.measure(benchmark_scenarios=names, benchmark_scenario_options=REDUCED, benchmark_repeat=1)
    assert run.status == 0, run.output
    assert "scenario 4 of 4, low_latency, load 3 of 3 (4 at once, round 1 of 1)" in run.output
    document = benchmark.result()
    assert document["state"] == "complete"
    for name in names:
        check(document, name, 1)
    assert document["ran_on"]["bench-1"]["release"] == Path(benchmark.release()).name
    assert document["ran_on"]["bench-1"]["gpus"]["power_limit_watts"] == 700
    folder = benchmark.results()[-1]
    assert (folder / "report.html").read_text().count("data:image/svg+xml") >= 5
    assert folder.name in (folder.parent / "index.html").read_text()


def test_random_arrivals_and_lengths(benchmark: Benchmark) -> None:
    """Arrivals do not wait for answers, so the rate is theirs, and a limit of two at a time is reached."""
    few = {"requests": 40, "warm_up": 2, "output_tokens": 32, "range_ratio": 0.5, "request_rate": 4}
    run = benchmark.measure(
        benchmark_scenario_options={"smoke": {**few, "concurrency": [64]}, "narrow": {**NARROW, **few}},
        benchmark_scenarios=["smoke", "narrow"],
        benchmark_repeat=1,
    )
    assert run.status != 0
    assert "2 requests were in flight, the most that concurrency allows" in run.output
    arrivals, narrow = benchmark.result()["points"]
    assert arrivals["problems"] == []
    assert 2.5 < arrivals["throughput"]["requests_per_second"] < 6
    assert 2 < arrivals["requests"]["most_at_once"] < 64
    assert arrivals["tokens"]["requested_output"] is None
    assert 16 < arrivals["tokens"]["output"] / 40 < 32
    assert narrow["requests"]["most_at_once"] == 2


def test_image_tool_runs_the_quick_start_sweep(benchmark: Benchmark) -> None:
    """Run it on the host itself, against its instance on loopback."""
    run = benchmark.measure(
        benchmark_scenarios=["quick_start"],
        benchmark_scenario_options=REDUCED,
        benchmark_repeat=2,
        benchmark_load_host="bench-1",
    )
    assert run.status == 0, run.output
    document = benchmark.result()
    check(document, "quick_start", 2)
    assert {point["tool"] for point in document["points"]} == {"benchmark_serving"}
    assert benchmark.host.shell("docker ps --all --format '{{.Names}}'").split() == ["trtllm-serve-0"]
    assert benchmark.host.shell("ls /tmp | grep trtllm-benchmark || true") == ""


def test_failed_requests_fail_the_run(benchmark: Benchmark) -> None:
    options = {"smoke": {"requests": 4000, "concurrency": [4, 8], "output_tokens": 16}}
    process = benchmark.start("playbooks/benchmark.yml", benchmark_scenario_options=options, benchmark_repeat=1)
    assert process.stdout
    seen = ""
    for line in process.stdout:
        seen += line
        if " of 4000 requests after" in line and ": load, 0 of" not in line:
            break
    benchmark.host.shell("docker kill trtllm-serve-0")
    seen += process.communicate()[0]
    assert process.returncode != 0, seen
    document = benchmark.result()
    assert document["state"] == "failed"
    (point,) = document["points"]
    counts = point["requests"]
    assert counts["failed"] > 0
    assert counts["answered"] + counts["failed"] == counts["asked"] == 4000
    assert f"{counts['failed']} of 4000 requests failed" in seen
    assert (benchmark.results()[-1] / "report.html").exists()


def serving(benchmark: Benchmark) -> None:
    deadline = time.monotonic() + 180
    while benchmark.host.chat() != 200:
        assert time.monotonic() < deadline, "the endpoint does not recover"
        time.sleep(2)


def test_killed_run_keeps_its_results(benchmark: Benchmark) -> None:
    serving(benchmark)
    process = benchmark.start("playbooks/benchmark.yml", benchmark_repeat=3)
    assert process.stdout
    for line in process.stdout:
        if "load 1 of 3" in line and "answered" in line:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    document = benchmark.result()
    assert document["state"] == "running"
    assert [point["round"] for point in document["points"]] == [1]
    # The load ends without the playbook.
    deadline = time.monotonic() + 180
    while subprocess.run(["pgrep", "--full", "aiperf profile"], stdout=subprocess.PIPE, check=False).returncode == 0:
        assert time.monotonic() < deadline, "the load continues"
        time.sleep(5)


def test_missed_slo_ends_the_sweep_and_fails_the_run(benchmark: Benchmark) -> None:
    run = benchmark.measure(
        benchmark_scenarios=["low_latency"],
        benchmark_scenario_options=REDUCED,
        benchmark_repeat=1,
        benchmark_slo={"ttft_ms.p50": 0.001},
    )
    assert run.status != 0
    assert "low_latency, 1 at once: ttft_ms.p50 is" in run.output
    document = benchmark.result()
    assert document["state"] == "complete"
    assert [point["concurrency"] for point in document["points"]] == [1]
    assert document["points"][0]["throughput"]["good_requests_per_second"] == 0


def test_comparison_finds_a_slowdown_of_a_third_and_no_difference_in_a_repeat(benchmark: Benchmark) -> None:
    steady = {"benchmark_scenario_options": STEADY, "benchmark_repeat": 4}
    first = benchmark.measure(**steady)
    assert first.status == 0, first.output
    baseline = str(benchmark.results()[-1])
    again = benchmark.measure(benchmark_baseline=baseline, benchmark_margin=0.1, **steady)
    assert again.status == 0, again.output
    slower = {"serving_recipe_environment": {"LAB_ENGINE_SPEEDUP": str(SPEEDUP / 1.3)}}
    assert benchmark.play("site.yml", slower).status == 0
    try:
        run = benchmark.play(
            "playbooks/benchmark.yml", slower, benchmark_baseline=baseline, benchmark_margin=0.1, **steady
        )
        assert run.status != 0
        assert "does not pass benchmark_baseline" in run.output
        assert "TPOT p50" in (benchmark.results()[-1] / "comparison.html").read_text()
    finally:
        assert benchmark.play("site.yml").status == 0


SPACE = {
    "batch size": [{"engine_options": {"max_batch_size": size}} for size in (4, 8)],
    "GPUs per instance": [{"gpus_per_instance": 4}],
    "nonsense": [{"engine_options": {"max_num_tokens": 1}}],
}
# The best setting is a batch of 8 on instances of 4 GPUs each.
FACTORS = {"max_batch_size": {"4": 0.5, "8": 3.0}, "tensor_parallel_size": {"4": 1.4, "8": 1.0}}
# As many requests at a time as two instances take.
FULL = {"smoke": {"requests": 64, "output_tokens": 64, "warm_up": 16, "concurrency": [16]}}
TUNE: dict[str, Any] = {
    "tune_space": SPACE,
    "benchmark_scenario_options": FULL,
    "benchmark_repeat": 1,
    "serving_recipe_environment": {
        "LAB_ENGINE_SPEEDUP": str(SPEEDUP),
        "LAB_ENGINE_SPREAD": "0.02",
        "LAB_ENGINE_FACTORS": json.dumps(FACTORS),
    },
}


@pytest.fixture
def tuned(benchmark: Benchmark) -> Iterator[Benchmark]:
    """Deploy the release that the search starts with; check for the same after the test."""
    run = benchmark.play("site.yml", TUNE)
    assert run.status == 0, run.output
    before = benchmark.release()
    yield benchmark
    assert benchmark.release() == before
    serving(benchmark)
    assert benchmark.serves() == before
    history = json.loads(benchmark.host.shell("cat /etc/trtllm-fleet/history.json"))
    assert history[-1]["release"] == Path(before).name
    assert benchmark.host.shell("ls /etc/systemd/system | grep trtllm-restore || true") == ""


def outcome(benchmark: Benchmark) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the result of the newest search, and its override file."""
    folder = max((benchmark.folder / "tuned").iterdir())
    override = yaml.safe_load((folder / "override.yml").read_text())
    return json.loads((folder / "tune.json").read_text()), override


def test_search_finds_the_planted_optimum(tuned: Benchmark) -> None:
    run = tuned.play("playbooks/tune.yml", TUNE)
    assert run.status == 0, run.output
    found, override = outcome(tuned)
    assert override == {
        "serving_recipe_engine_options": {"max_batch_size": 8},
        "serving_recipe_gpus_per_instance": 4,
    }
    stages = [one["stage"] for one in found["trials"]]
    assert stages == ["baseline"] * 2 + ["search"] * 4 + ["best 2"] * 2 + ["confirmation"] * 6
    # A trial that cannot start is recorded and the search continues.
    assert [bool(one["problem"]) for one in found["trials"]].count(True) == 1
    assert found["trials"][5]["problem"]
    assert found["better"]
    assert found["confirmation"]["low"] > 1.02
    assert 0 < found["spread"] < 0.2
    page = next((tuned.folder / "tuned").glob("*/trials/variation/comparison.html")).read_text()
    assert "better" in page
    # The override file is usable as is.
    plan = tuned.play("playbooks/plan.yml", TUNE, **override)
    assert plan.status == 0, plan.output


def test_variations_that_are_alike_are_not_confirmed(tuned: Benchmark) -> None:
    """Each start has another speed, so one of them always leads."""
    alike = {"tokens of a step": [{"engine_options": {"max_num_tokens": count}} for count in (8192, 9216, 10240)]}
    run = tuned.play("playbooks/tune.yml", TUNE | {"tune_space": alike})
    assert run.status == 0, run.output
    found, override = outcome(tuned)
    assert (found["better"], override) == (False, {})


def test_a_load_that_cannot_rank_the_variations_is_refused(tuned: Benchmark) -> None:
    run = tuned.play("playbooks/tune.yml", TUNE | {"benchmark_scenario_options": STEADY})
    assert run.status != 0
    assert "has at most 4 requests at a time; tune_space tries max_batch_size 8 on 2 instance(s), so it needs 16" in (
        " ".join(run.output.split())
    )


def test_search_keeps_its_budget(tuned: Benchmark) -> None:
    run = tuned.play("playbooks/tune.yml", TUNE | {"tune_seconds": 1})
    assert run.status == 0, run.output
    found, override = outcome(tuned)
    assert len(found["trials"]) == 1
    assert "tune_seconds" in found["done"]
    assert override == {}


def test_host_restores_its_release_after_a_killed_search(tuned: Benchmark) -> None:
    before = tuned.release()
    process = tuned.start("playbooks/tune.yml", TUNE, trtllm_server_temporary_seconds=60)
    deadline = time.monotonic() + 300
    while tuned.serves() in ("", before):
        assert time.monotonic() < deadline, "no trial has run"
        time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 180
    while tuned.serves() != before:
        assert time.monotonic() < deadline, "the verified release was not restored"
        time.sleep(2)


def test_tuned_variables_on_the_command_line_are_rejected(tuned: Benchmark) -> None:
    run = tuned.play("playbooks/tune.yml", TUNE, serving_recipe_engine_options={"max_batch_size": 8})
    assert run.status != 0
    assert "The command line (-e) sets" in run.output
