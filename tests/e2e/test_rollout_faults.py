"""Faults at each moment of a rollout under load: which requests are lost, and whether the next run completes it.

Prints the matrix after each of them, and writes rollout-faults.md to the folder ROLLOUT_DOCUMENTS if set.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import docker, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import ONE, Fleet, publish, until

FLEET = Fleet("roll-", gpus=2, gateways=2)
# Requests per second that two cores can serve beside Ansible.
RATE = 6
# Ansible's output at the moment.
MOMENTS = {
    "before the drain": "rollout : Drain the instances",
    "during the start": "trtllm_server : Start the instances",
    "during the verification": "trtllm_server : Verify each instance",
    "during the canary analysis": "rollout : Wait for the bake time",
}
SMALL = "/run/small"
FLEET_DIRECTORY = "/etc/trtllm-fleet"
# Seconds.
BOOT_TIMEOUT = 180


@dataclass(frozen=True)
class Scene:
    """The host in update and the run that updates it."""

    fleet: Fleet
    victim: str
    controller: subprocess.Popen[str]

    @property
    def gateway(self) -> str:
        return self.fleet.gateway_names[0]

    def boot(self, host: str) -> None:
        docker("start", host)
        check = partial(self.fleet.shell, host, "systemctl is-system-running", check=False)
        assert wait_for(lambda: check() in ("running", "degraded"), BOOT_TIMEOUT), f"{host} does not boot"

    def everywhere(self, script: str) -> None:
        for host in self.fleet.gpu_names:
            self.fleet.shell(host, script)


@dataclass(frozen=True)
class Fault:
    """How a fault is caused and repaired, and the host whose requests may be lost, if any."""

    make: Callable[[Scene], object]
    repair: Callable[[Scene], object]
    lost: Callable[[Scene], str]
    # Cleanup after the next run has ended.
    after: Callable[[Scene], object] = lambda scene: None


def fill(scene: Scene) -> None:
    """Fill the disk of the host's releases."""
    scene.fleet.shell(
        scene.victim,
        f"mkdir -p {SMALL} && mount -t tmpfs -o size=4m tmpfs {SMALL} && cp -a {FLEET_DIRECTORY}/. {SMALL}/"
        f" && mount --bind {SMALL} {FLEET_DIRECTORY} && ! dd if=/dev/zero of={SMALL}/filler bs=1k 2>/dev/null",
    )


def put_back(scene: Scene) -> None:
    scene.fleet.shell(
        scene.victim,
        f"umount {FLEET_DIRECTORY} && find {FLEET_DIRECTORY} -mindepth 1 -delete"
        f" && cp -a {SMALL}/. {FLEET_DIRECTORY}/ && umount {SMALL}",
    )


SSH = "INPUT --protocol tcp --dport 22 --jump DROP"
REGISTRY = "OUTPUT --destination registry.origin.test --jump REJECT"
FAULTS = {
    "host lost": Fault(
        lambda scene: docker("kill", scene.victim),
        lambda scene: scene.boot(scene.victim),
        lambda scene: scene.victim,
    ),
    "SSH lost": Fault(
        lambda scene: scene.fleet.shell(scene.victim, f"iptables --insert {SSH}"),
        lambda scene: scene.fleet.shell(scene.victim, f"iptables --delete {SSH}"),
        lambda scene: "",
    ),
    "disk full": Fault(
        fill, lambda scene: scene.fleet.shell(scene.victim, f"rm {SMALL}/filler"), lambda scene: "", put_back
    ),
    "controller killed": Fault(
        lambda scene: scene.controller.send_signal(signal.SIGKILL), lambda scene: None, lambda scene: ""
    ),
    "gateway killed": Fault(
        lambda scene: docker("kill", scene.gateway),
        lambda scene: scene.boot(scene.gateway),
        lambda scene: scene.gateway,
    ),
    "registry down": Fault(
        lambda scene: scene.everywhere(f"iptables --insert {REGISTRY}"),
        lambda scene: scene.everywhere(f"iptables --delete {REGISTRY}"),
        lambda scene: "",
    ),
}


@dataclass
class Cell:
    """Result of a fault at a moment."""

    requests: int = 0
    lost: int = 0
    stray: int = 0
    first: str = ""
    second: str = "not run"

    def __str__(self) -> str:
        lost = (
            f"{self.lost} of {self.requests} lost, all on the lost host" if self.lost else f"0 of {self.requests} lost"
        )
        return f"{lost + (f', {self.stray} elsewhere' if self.stray else '')}; {self.first}, then {self.second}"


MATRIX: dict[tuple[str, str], Cell] = {}


def page() -> str:
    """Return the matrix as Markdown."""
    lines = [
        "# Faults during a rollout",
        "",
        f"Run on {datetime.now(UTC):%Y-%m-%d}, with `make faults-rollout`, in the lab: {FLEET.gpus} simulated GPU hosts"
        f" and {FLEET.gateways} gateways on {os.cpu_count()} cores, {RATE} requests/s of the OpenAI client.",
        "",
        "Each cell: lost requests, the result of the interrupted run, and the result of the next run.",
        "",
        "| | " + " | ".join(MOMENTS) + " |",
        "|---" * (len(MOMENTS) + 1) + "|",
    ]
    for fault in FAULTS:
        cells = [str(MATRIX.get((fault, moment), "not run")) for moment in MOMENTS]
        lines.append(f"| **{fault}** | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with FLEET.serving(**ONE) as fleet:
        yield fleet


def instances(fleet: Fleet) -> dict[str, str]:
    """Return the instance of each request by its id, from the gateways' logs."""
    found = {}
    for gateway in fleet.gateway_names:
        for line in fleet.shell(gateway, "journalctl --unit trtllm-gateway --output cat | grep '^{'").splitlines():
            entry = json.loads(line)
            found[entry["id"]] = entry["instance"]
    return found


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fleet: Fleet, fault: str, moment: str) -> None:
    wanted = fleet.another()
    cell = MATRIX[fault, moment] = Cell()
    made = FAULTS[fault]
    with fleet.load(RATE) as load:
        process = fleet.start("rollout", **wanted)
        seen = until(process, "step 1 ")
        scene = Scene(fleet, seen.rpartition("step 1 ")[2].split(":")[0].strip(), process)
        seen += until(process, MOMENTS[moment])
        time.sleep(0.5)
        made.make(scene)
        lost = made.lost(scene)
        seen += process.communicate()[0]
        cell.first = {0: "ended well", -signal.SIGKILL: "was killed"}.get(process.returncode, "stopped")
        made.repair(scene)
        began = time.monotonic()
        run = fleet.play("rollout", **wanted)
        cell.second = f"ended well after {time.monotonic() - began:.0f} s" if run.status == 0 else "failed"
        made.after(scene)
    known = instances(fleet)
    failed = [one for one in load.since(0) if one.error]
    ours = [
        one
        for one in failed
        if lost and (known.get(one.request_id, "").startswith(f"{lost}.") or fleet.address(lost) in one.url)
    ]
    cell.requests, cell.lost, cell.stray = len(load.since(0)), len(failed), len(failed) - len(ours)
    publish("rollout-faults.md", page())
    assert run.status == 0, f"{seen}\n{run.output}"
    assert failed == ours, load.errors()
    assert fleet.in_service() == fleet.all_instances
    assert fleet.options() == [wanted["serving_recipe_engine_options"]["max_num_tokens"]] * fleet.gpus
