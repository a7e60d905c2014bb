"""Rollouts on two hosts with a real GPU each, and on one host with an instance per GPU: make real-gpus.

As in test_real_gpus.py, LAB_GPU=h100 rehearses it with simulated GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import ONE, TWO, Fleet

KIND = os.environ.get("LAB_GPU", "real")
RATE = 2.0  # requests/s
# The faults of the simulated engine are not those of CUDA.
OUT_OF_MEMORY = "oom" if KIND == "real" else "die"


@dataclass(frozen=True)
class RealFleet(Fleet):
    """A fleet of hosts that share the machine's GPUs."""

    gpus_per_host: int = 1

    @property
    def environment(self) -> Mapping[str, str]:
        kind = KIND if KIND == "real" else f"{KIND}x{self.gpus_per_host}"
        return {
            **super().environment,
            "LAB_GPU": ",".join([kind] * self.gpus + ["none"] * self.gateways),
            "LAB_OS": "trixie",
        }

    def uuids(self, host: str) -> list[str]:
        """Return the UUIDs that the containers of a host's instances see."""
        script = "for name in $(docker ps --format '{{.Names}}' | sort); do docker exec $name nvidia-smi -L; done"
        return re.findall(r"UUID: (GPU-[0-9a-f-]+)", self.shell(host, script))


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[RealFleet]:
    with RealFleet("pair-", 2, 1).serving(**ONE) as fleet:
        yield fleet


def test_each_host_has_its_own_gpu(two_hosts: RealFleet) -> None:
    seen = [two_hosts.uuids(host) for host in two_hosts.gpu_names]
    assert [len(each) for each in seen] == [1, 1]
    if KIND == "real":
        assert seen[0] != seen[1]


def test_rollout_and_back_lose_no_request(two_hosts: RealFleet) -> None:
    with two_hosts.load(RATE, long_every=0) as load:
        run = two_hosts.play("rollout", **TWO)
        assert run.status == 0, run.output
        assert two_hosts.options() == [4096] * 2
        back = two_hosts.play("rollback")
        assert back.status == 0, back.output
    print(f"{len(load.requests)} requests, errors {load.errors()}")
    assert load.errors() == {}
    assert two_hosts.options() == [8192] * 2


def test_canary_without_gpu_memory_is_rolled_back(two_hosts: RealFleet) -> None:
    before = two_hosts.releases()
    with two_hosts.load(RATE, long_every=0) as load:
        run = two_hosts.play(
            "rollout",
            **TWO,
            serving_recipe_environment={"LAB_ENGINE_FAULT": OUT_OF_MEMORY},
            trtllm_server_start_timeout=90,
        )
    print(run.output[-3000:])
    assert run.status != 0
    assert "The host serves its previous release" in run.output
    assert load.errors() == {}
    assert two_hosts.releases() == before
    assert two_hosts.in_service() == two_hosts.all_instances


@pytest.fixture(scope="module")
def two_instances() -> Iterator[tuple[RealFleet, dict[str, Any]]]:
    fleet = RealFleet("duo-", 1, 1, gpus_per_host=2)
    variables = {"serving_recipe_gpus_per_instance": 1}
    fleet.up()
    run = fleet.play("site", **ONE, **variables)
    assert run.status == 0, run.output
    yield fleet, variables
    fleet.down()


def test_instances_of_a_host_are_updated_one_by_one(two_instances: tuple[RealFleet, dict[str, Any]]) -> None:
    fleet, variables = two_instances
    (host,) = fleet.gpu_names
    seen = fleet.uuids(host)
    assert len(set(seen)) == 2
    with fleet.load(RATE, long_every=0) as load:
        run = fleet.play("rollout", **TWO, **variables)
    assert run.status == 0, run.output
    assert "1 of 2 instances serve" in run.output
    assert load.errors() == {}
    assert fleet.uuids(host) == seen
