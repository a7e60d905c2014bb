"""Two hosts behind a gateway, measured through it and separately; a rollout with SLOs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Run
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY, ONE, Fleet
from ansible_collections.trtllm.fleet.tests.e2e.test_benchmark import AIPERF
from ansible_collections.trtllm.fleet.tests.schemas import valid

FLEET = Fleet("measure-", gpus=2, gateways=1)
GPUS = 8
REQUESTS = 12
SHORT = {"smoke": {"requests": REQUESTS, "warm_up": 2, "input_tokens": 64, "output_tokens": 16}}


@dataclass(frozen=True)
class Measured:
    """The fleet and the folder of results."""

    fleet: Fleet
    folder: Path

    def play(self, playbook: str, *arguments: str, **variables: Any) -> Run:
        options = {
            "benchmark_load_host": "localhost",
            "benchmark_aiperf_dir": str(AIPERF),
            "benchmark_pip_index_url": "",
            "benchmark_results_dir": str(self.folder),
            "benchmark_scenario_options": SHORT,
            "benchmark_repeat": 1,
        }
        return self.fleet.play(playbook, *arguments, **{**options, **variables})

    def take(self) -> dict[str, dict[str, Any]]:
        """Return the results since the last call by system under test, and remove them."""
        found = {}
        for path in self.folder.glob("*/result.json"):
            document = valid(json.loads(path.read_text()))
            found[document["target"]["name"]] = document
            path.unlink()
        return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with FLEET.serving(**ONE) as fleet:
        yield Measured(fleet, tmp_path_factory.mktemp("results"))


def check(document: dict[str, Any], hosts: list[str]) -> None:
    assert document["state"] == "complete"
    (point,) = document["points"]
    assert (point["requests"]["asked"], point["requests"]["answered"]) == (REQUESTS, REQUESTS)
    assert sorted(document["ran_on"]) == hosts
    assert {one["model"] for one in document["ran_on"].values()} == {"openai/gpt-oss-120b"}
    assert document["target"]["gpus"] == GPUS * len(hosts)
    assert document["target"]["note"].startswith("Simulated")
    rates = point["throughput"]
    assert rates["output_tokens_per_second_per_gpu"] == pytest.approx(
        rates["output_tokens_per_second"] / GPUS / len(hosts), rel=1e-3
    )


def test_benchmark_through_the_gateway(measured: Measured) -> None:
    run = measured.play("benchmark", benchmark_target="gateway", benchmark_api_key=KEY)
    assert run.status == 0, run.output
    found = measured.take()
    gateway = measured.fleet.gateway_names[0]
    assert list(found) == [gateway]
    assert found[gateway]["target"]["kind"] == "gateway"
    check(found[gateway], measured.fleet.gpu_names)
    assert KEY not in json.dumps(found) + run.output


def test_wrong_gateway_key_fails(measured: Measured) -> None:
    run = measured.play("benchmark", benchmark_target="gateway", benchmark_api_key="wrong")
    assert run.status != 0
    (document,) = measured.take().values()
    assert document["state"] == "failed"
    assert f"{REQUESTS} of {REQUESTS} requests failed" in run.output, run.output


def test_benchmark_of_each_host(measured: Measured) -> None:
    run = measured.play("benchmark", benchmark_target="hosts")
    assert run.status == 0, run.output
    found = measured.take()
    assert sorted(found) == measured.fleet.gpu_names
    for name, document in found.items():
        assert document["target"]["kind"] == "host"
        check(document, [name])


def test_too_small_share_of_the_published_figure_fails(measured: Measured) -> None:
    published = {"smoke": {**SHORT["smoke"], "input_tokens": 1000, "output_tokens": 1000, "requests": 2, "warm_up": 0}}
    host = measured.fleet.gpu_names[0]
    run = measured.play(
        "benchmark", "--limit", host, benchmark_scenario_options=published, benchmark_published_share=0.5
    )
    assert run.status != 0
    assert "tokens/s per GPU, less than 0.5 of the" in run.output
    run = measured.play("benchmark", "--limit", host, benchmark_published_share=0.5)
    assert run.status != 0
    assert "smoke: no figure is published for this model, GPU type and these lengths" in run.output
    measured.take()


def test_rollout_stops_at_a_missed_slo(measured: Measured) -> None:
    fleet = measured.fleet
    wanted, before = fleet.another(), fleet.releases()
    held = {"rollout_benchmark": ["smoke"], **wanted}
    run = measured.play("rollout", benchmark_slo={"ttft_ms.p50": 0.001}, **held)
    assert run.status != 0
    assert "misses benchmark_slo" in run.output
    assert "The host serves its previous release" in run.output
    assert fleet.releases() == before
    assert fleet.in_service() == fleet.all_instances
    # Of the canary only: the other hosts were not updated.
    (canary,) = measured.take()
    assert canary in {f"{name}-serve-0" for name in fleet.gpu_names}
    run = measured.play("rollout", benchmark_slo={"ttft_ms.p50": 60000}, **held)
    assert run.status == 0, run.output
    assert fleet.now() == wanted
    found = measured.take()
    assert sorted(found) == [f"{name}-serve-0" for name in fleet.gpu_names]
    for name, release in zip(fleet.gpu_names, fleet.releases(), strict=True):
        document = found[f"{name}-serve-0"]
        assert document["ran_on"][name]["release"] == release
        assert document["points"][0]["requests"]["failed"] == 0


def test_python_api_benchmark_runs_while_the_host_is_drained(measured: Measured) -> None:
    """The lab's engine lacks this API; the host returns to service despite the failure."""
    fleet = measured.fleet
    before, wanted = fleet.releases(), fleet.now()
    run = fleet.play("verify", "--limit", fleet.gpu_names[0], verify_llm_api=True, **wanted)
    assert run.status != 0
    assert "this is the lab's simulated engine, which has no LLM API" in run.output
    assert fleet.releases() == before
    assert fleet.in_service() == fleet.all_instances
    units = fleet.shell(fleet.gpu_names[0], "ls /etc/systemd/system | grep trtllm-restore || true")
    assert units == ""
