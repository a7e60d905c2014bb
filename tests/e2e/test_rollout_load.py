"""Six hosts and two gateways under a continuous load, while all layers of the hosts change in turn.

Prints the effects on clients, and writes rollout-load.md to the folder ROLLOUT_DOCUMENTS if set.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import NEWER, TWO, Fleet, publish

FLEET = Fleet("six-", gpus=6, gateways=2)
# Requests per second that two cores can serve beside Ansible.
RATE = 8
REQUESTS = 10000
# Tokens of each 200th response, which takes half a minute.
LONG_TOKENS = 40000
# Seconds of the baseline before each rollout.
BEFORE = 90
OTHER_IMAGE = "registry.origin.test/nvidia/tensorrt-llm/release:1.3.0rc14"


@dataclass(frozen=True)
class Part:
    """Rollout under load; times are of time.monotonic()."""

    change: str
    before: float
    began: float
    ended: float

    def row(self, load: Load) -> str:
        during = [one for one in load.since(self.began) if one.ended <= self.ended]
        failed = sum(bool(one.error) for one in during)
        times = [
            load.percentile(q, *span)
            for q in (50, 99)
            for span in ((self.before, self.began), (self.began, self.ended))
        ]
        cells = [self.change, f"{self.ended - self.began:.0f} s", f"{len(during)}", f"{failed}"]
        return "| " + " | ".join([*cells, *(f"{1000 * one:.0f} ms" for one in times)]) + " |"


def page(parts: list[Part], load: Load) -> str:
    """Return the effects on clients as Markdown."""
    done, errors = load.since(0), load.errors()
    took = load.percentile(50, 0, done[-1].ended, long=True)
    rows = "\n".join(part.row(load) for part in parts)
    return f"""\
# Rollouts under load

Run on {datetime.now(UTC):%Y-%m-%d}, with `make load-rollout`, in the lab: {FLEET.gpus} simulated GPU hosts and
{FLEET.gateways} gateways on {os.cpu_count()} cores, {RATE} requests/s of the OpenAI client,
of which half are streamed.

**{len(done)} requests, {sum(errors.values())} failed, {errors.get("cut", 0)} of them cut.**
{sum(one.long for one in done)} were long, with a median of {took:.0f} s.

| Rollout of | took | requests | failed | p50 before | p50 during | p99 before | p99 during |
|---|---|---|---|---|---|---|---|
{rows}

Times are of complete short responses, for the {BEFORE} s before a rollout and during it. Hosts, gateways, clients and
Ansible share the cores, so the times do not show a fleet's speed: the client started requests up to
{load.late:.2f} s late.
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with FLEET.serving() as fleet:
        yield fleet


def older_revision(fleet: Fleet) -> str:
    """Return the model's second newest commit on the lab's hub."""
    repository = "/srv/hub/repositories/openai/gpt-oss-120b/repository.json"
    return str(json.loads(fleet.shell("trtllm-lab-origin", f"cat {repository}"))["commits"][-2])


def test_changes_of_all_layers_lose_no_request(fleet: Fleet) -> None:
    versions = {host: fleet.shell(host, NEWER) for host in fleet.gpu_names}
    revision = older_revision(fleet)
    changes: dict[str, dict[str, Any]] = {
        "an image": {"serving_recipe_image": OTHER_IMAGE},
        "a recipe": TWO,
        "a model revision": {"model_weights_revision": revision},
        "Docker": {"docker_engine_version": f"{{{{ {versions} [inventory_hostname] }}}}"},
    }
    wanted: dict[str, Any] = {}
    parts: list[Part] = []
    with fleet.load(RATE, long_tokens=LONG_TOKENS) as load:
        for change, variables in changes.items():
            before = time.monotonic()
            load.wait(BEFORE)
            wanted |= variables
            began = time.monotonic()
            run = fleet.play("rollout", **wanted)
            parts.append(Part(change, before, began, time.monotonic()))
            assert run.status == 0, run.output
            assert f"{fleet.gpus} of {fleet.gpus} hosts are updated" in run.output, run.output
        load.wait(max(0, (REQUESTS - len(load.since(0))) / RATE) + 1)
    publish("rollout-load.md", page(parts, load))
    assert len(load.since(0)) >= REQUESTS
    assert load.errors() == {}
    assert fleet.in_service() == fleet.all_instances
    for host in fleet.gpu_names:
        release = fleet.release(host)
        assert release["image"] == OTHER_IMAGE
        assert release["engine_options"]["max_num_tokens"] == 4096
        assert release["weights"].endswith(revision)
        assert fleet.shell(host, "dpkg-query --show --showformat='${Version}' docker.io") == versions[host]
