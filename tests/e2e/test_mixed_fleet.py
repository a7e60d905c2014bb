"""One inventory with six kinds of hosts, planned and then deployed in one run, each with its recipe."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, lab
from ansible_collections.trtllm.fleet.tests.schemas import valid

PREFIX = "mixed-"
# The GPUs of each host and the best recipe for them: GPUs per instance, MoE backend, KV cache type.
KINDS = {
    "b200x8": ([8], "TRTLLM", "fp8"),
    "gb200x4": ([4], "TRTLLM", "fp8"),
    "h200x8": ([8], "TRITON", "auto"),
    "h200x1": ([1], "TRITON", "auto"),
    "h100x2": ([2], "TRITON", "auto"),
    "rtx_pro_6000x1": ([1], "CUTLASS", "auto"),
}
LAB = {**os.environ, "LAB_PREFIX": PREFIX, "LAB_HOSTS": str(len(KINDS)), "LAB_GPU": ",".join(KINDS)}
HOSTS = {kind: Fleet(f"{PREFIX}{number}", LAB) for number, kind in enumerate(KINDS, 1)}


@pytest.fixture(scope="module", autouse=True)
def six_hosts() -> Iterator[None]:
    lab("up", environment=LAB)
    yield
    lab("down", environment=LAB)


def states(tmp_path: Path) -> dict[str, str]:
    """Return the planned state of each of the six hosts."""
    file = tmp_path / "plan.json"
    run = HOSTS["b200x8"].playbook("playbooks/plan.yml", plan_file=str(file))
    assert run.status == 0, run.output
    plan: dict[str, Any] = valid(json.loads(file.read_text()))
    return {host: now["state"] for group in plan["groups"] for now in group["now"] for host in now["hosts"]}


def test_plan_of_bare_hosts(tmp_path: Path) -> None:
    assert states(tmp_path) == {fleet.host: "nothing runs" for fleet in HOSTS.values()}


def test_all_hosts_are_deployed_in_one_run(tmp_path: Path) -> None:
    run = HOSTS["b200x8"].playbook("site.yml")
    assert run.status == 0, run.output
    for kind, fleet in HOSTS.items():
        sizes, backend, dtype = KINDS[kind]
        engine = yaml.safe_load(fleet.shell("cat /etc/trtllm-fleet/verified/engine.yaml"))
        assert engine["tensor_parallel_size"] == sizes[0], kind
        assert (engine["moe_config"]["backend"], engine["kv_cache_config"]["dtype"]) == (backend, dtype), kind
        assert [fleet.chat(8000 + number) for number in range(len(sizes) + 1)] == [200] * len(sizes) + [0], kind
        seen = fleet.shell("docker exec trtllm-serve-0 nvidia-smi -L").splitlines()
        assert len(seen) == sizes[0], kind
    assert states(tmp_path) == {fleet.host: "runs this recipe already" for fleet in HOSTS.values()}
