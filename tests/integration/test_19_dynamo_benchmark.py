"""The benchmark of NVIDIA's guide for gpt-oss-120b: its tool and its shape, for fewer requests; what fails is counted.

The lab's workers make up their times as well as their words: only the counts say something.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import REPO, lab
from tests.integration.dynamo_fleet import GUIDE, PREFIX, Dynamo, all_on, docker, wait_for
from tests.integration.dynamo_load import MODEL

HOST = f"{PREFIX}1"
TOOL = "aiperf==0.13.0"
# Of the guide: 256 at once, 6144 in all, and 1000 before that to warm up.
CONCURRENCY, REQUESTS, WARM_UP = 4, 24, 4
PROMPT, ANSWER = 32_000, 256
SHAPE = {
    "endpoint-type": "chat",
    "endpoint": "/v1/chat/completions",
    "synthetic-input-tokens-mean": PROMPT,
    "synthetic-input-tokens-stddev": 0,
    "output-tokens-mean": ANSWER,
    "output-tokens-stddev": 0,
    "concurrency": CONCURRENCY,
    "request-count": REQUESTS,
    "warmup-request-count": WARM_UP,
    "num-dataset-entries": REQUESTS,
    "random-seed": 100,
    "ui": "none",
}
# The guide's nvext.ignore_eos is left out: releases since 1.3 refuse it with status 400.
INPUTS = {"max_tokens": ANSWER, "min_tokens": ANSWER, "ignore_eos": "true"}


@dataclass(frozen=True)
class Result:
    """Counts of one run. status: aiperf's, which is 0 also where requests failed."""

    status: int
    answered: int
    failed: int
    prompt_tokens: float
    answer_tokens: float


@dataclass
class Benchmark:
    """aiperf against a frontend, with the model's tokenizer from the host that serves it."""

    tool: Path
    tokenizer: Path
    api: str

    def start(self, results: Path) -> subprocess.Popen[str]:
        command = [str(self.tool), "profile", "--streaming", "--model", MODEL, "--tokenizer", str(self.tokenizer)]
        command += ["--url", self.api, "--artifact-dir", str(results)]
        for option, value in SHAPE.items():
            command += [f"--{option}", str(value)]
        for field, value in INPUTS.items():
            command += ["--extra-inputs", f"{field}:{value}"]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def result(self, process: subprocess.Popen[str], results: Path) -> Result:
        """Wait for the end and count."""
        said = process.communicate(timeout=900)[0]
        file = next(results.rglob("profile_export_aiperf.json"), None)
        assert file, said
        found: dict[str, Any] = json.loads(file.read_text())
        assert not found["was_cancelled"], said

        def metric(name: str) -> float:
            return float(found.get(name, {"avg": 0})["avg"])

        return Result(
            process.returncode,
            int(metric("request_count")),
            int(metric("error_request_count")),
            metric("input_sequence_length"),
            metric("output_sequence_length"),
        )


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    dynamo = Dynamo(1, tmp_path_factory.mktemp("benchmark"), all_on(HOST), gpu="b200x8", variables=dict(GUIDE))
    lab("up", "--extra-vars", f"lab_recreate={HOST}", environment=dynamo.environment)
    dynamo.deploy()
    yield dynamo
    lab("down", environment=dynamo.environment)


@pytest.fixture(scope="module")
def benchmark(dynamo: Dynamo, tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    environment = REPO / ".cache/aiperf"
    tool = environment / "bin/aiperf"
    if not tool.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(environment / "bin/pip"), "install", "--quiet", TOOL], check=True)
    model = dynamo.shell(HOST, "echo /srv/trtllm-fleet/models/openai/gpt-oss-120b/*").strip()
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        docker("cp", f"{HOST}:{model}/{name}", str(tokenizer / name))
    return Benchmark(tool, tokenizer, dynamo.apis()[0])


def test_the_guides_shape_is_answered_to_the_last_request(benchmark: Benchmark, tmp_path: Path) -> None:
    result = benchmark.result(benchmark.start(tmp_path), tmp_path)
    print(result)
    assert (result.status, result.answered, result.failed) == (0, REQUESTS, 0)
    assert abs(result.prompt_tokens - PROMPT) < PROMPT / 100
    assert result.answer_tokens == ANSWER


def test_requests_that_fail_are_counted(dynamo: Dynamo, benchmark: Benchmark, tmp_path: Path) -> None:
    process = benchmark.start(tmp_path)
    served = f"curl --silent {benchmark.api}/metrics | grep --extended-regexp 'requests_total.*success'"
    before = dynamo.shell(HOST, served, check=False)
    assert wait_for(lambda: dynamo.shell(HOST, served, check=False) != before, 120), "no request was answered"
    time.sleep(2)
    dynamo.kill(HOST, "decode")
    result = benchmark.result(process, tmp_path)
    print(result)
    assert result.failed > 0
    assert result.answered + result.failed == REQUESTS
