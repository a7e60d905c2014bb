"""The benchmark of NVIDIA's guide for gpt-oss-120b against a frontend, with fewer requests.

The lab's workers invent times and words: only counts are meaningful.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Run, lab, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import GUIDE, PREFIX, Dynamo, all_on, said
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_load import MODEL
from ansible_collections.trtllm.fleet.tests.e2e.test_benchmark import AIPERF
from ansible_collections.trtllm.fleet.tests.schemas import valid

HOST = f"{PREFIX}1"
GPUS = 8
# The guide's: 256 at once, 6144 in all, and 1000 before that to warm up.
CONCURRENCY, REQUESTS, WARM_UP = 4, 24, 4
PROMPT, ANSWER = 32_000, 256
REDUCED = {"concurrency": [CONCURRENCY], "requests": REQUESTS, "warm_up": WARM_UP, "entries": REQUESTS + WARM_UP}


@dataclass
class Benchmark:
    """Runs of the playbook against a frontend, and their results."""

    dynamo: Dynamo
    folder: Path
    tokenizer: str

    def run(self) -> Run:
        return self.dynamo.play(
            playbook="playbooks/benchmark.yml",
            benchmark_target="endpoint",
            benchmark_endpoint={
                "name": "frontend",
                "base_urls": self.dynamo.apis(),
                "model": MODEL,
                "gpus": GPUS,
                "tokenizer": self.tokenizer,
                "tokenizer_host": HOST,
            },
            benchmark_scenarios=["dynamo_guide"],
            benchmark_scenario_options={"dynamo_guide": REDUCED},
            benchmark_repeat=1,
            benchmark_aiperf_dir=str(AIPERF),
            benchmark_pip_index_url="",
            benchmark_results_dir=str(self.folder),
        )

    def point(self) -> dict[str, Any]:
        """Return the only load of the newest result."""
        (point,) = valid(json.loads(max(self.folder.glob("*/result.json")).read_text()))["points"]
        return dict(point)


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    dynamo = Dynamo(1, tmp_path_factory.mktemp("benchmark"), all_on(HOST), gpu=f"b200x{GPUS}", variables=dict(GUIDE))
    lab("up", "--extra-vars", f"lab_recreate={HOST}", environment=dynamo.environment)
    dynamo.deploy()
    yield dynamo
    lab("down", environment=dynamo.environment)


@pytest.fixture(scope="module")
def benchmark(dynamo: Dynamo, tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    tokenizer = dynamo.shell(HOST, "echo /srv/trtllm-fleet/models/openai/gpt-oss-120b/*").strip()
    return Benchmark(dynamo, tmp_path_factory.mktemp("results"), tokenizer)


def test_all_requests_of_the_guides_shape_succeed(benchmark: Benchmark) -> None:
    run = benchmark.run()
    assert run.status == 0, run.output
    point = benchmark.point()
    assert (point["requests"]["asked"], point["requests"]["answered"]) == (REQUESTS, REQUESTS)
    assert abs(point["tokens"]["input"] / REQUESTS - PROMPT) < PROMPT / 100
    assert point["tokens"]["output"] == REQUESTS * ANSWER
    rates = point["throughput"]
    assert rates["output_tokens_per_second_per_gpu"] == pytest.approx(
        rates["output_tokens_per_second"] / GPUS, rel=1e-3
    )


def test_failed_requests_fail_the_run(benchmark: Benchmark) -> None:
    dynamo = benchmark.dynamo
    served = f"curl --silent {dynamo.apis()[0]}/metrics | grep --extended-regexp 'requests_total.*success'"
    before = dynamo.shell(HOST, served, check=False)
    runs: list[Run] = []
    thread = threading.Thread(target=lambda: runs.append(benchmark.run()))
    thread.start()
    assert wait_for(lambda: dynamo.shell(HOST, served, check=False) != before, 180), "no request has succeeded"
    time.sleep(2)
    dynamo.kill(HOST, "decode")
    thread.join()
    (run,) = runs
    assert run.status != 0
    counts = benchmark.point()["requests"]
    assert counts["failed"] > 0
    assert counts["answered"] + counts["failed"] == counts["asked"] == REQUESTS
    assert f"{counts['failed']} of {REQUESTS} requests failed" in said(run)
