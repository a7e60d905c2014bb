"""The first run of two hosts: a reboot for the driver during an image pull, and a download that ends after the other
host answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, lab, wait_for

# Newer than the default, which the first host has loaded.
NEWER = "595.71.05"
PULL_SECONDS, DOWNLOAD_SECONDS = 60, 1500
BEFORE = """mkdir -p /etc/systemd/system/{unit}.d
printf '[Service]\\nExecStartPre={command}\\n' > /etc/systemd/system/{unit}.d/slow.conf"""
# The download begins when this file exists, or after DOWNLOAD_SECONDS.
RELEASED = "/etc/trtllm-released"


@dataclass(frozen=True)
class ColdRun:
    """A run of site.yml and what it left."""

    output: str
    timeline: dict[str, Any]
    boots: tuple[str, str]
    hosts: tuple[Fleet, Fleet]

    def legs(self, host: Fleet) -> dict[str, tuple[float, float]]:
        """Return start and end of each role and unit of a host, from its first leg to its last."""
        found: dict[str, tuple[float, float]] = {}
        for leg in self.timeline["hosts"][host.host]["legs"]:
            start, _end = found.get(leg["name"], (leg["start"], 0))
            found[leg["name"]] = start, leg["end"]
        return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ColdRun]:
    folder: Path = tmp_path_factory.mktemp("timeline")
    environment = {
        **os.environ,
        "LAB_PREFIX": "cold-",
        "LAB_HOSTS": "2",
        "LAB_GPU": "h100x1",
        "TRTLLM_FLEET_TIMELINE_DIRECTORY": str(folder),
    }
    first, second = Fleet("cold-1", environment), Fleet("cold-2", environment)
    lab("up", "--extra-vars", "lab_recreate=cold-1,cold-2", environment=environment)
    driver = first.playbook("site.yml", "--limit", "cold-1", "--tags", "nvidia_driver_install,nvidia_driver_run")
    assert driver.status == 0, driver.output
    first.shell(BEFORE.format(unit="trtllm-image-.service", command=f"/bin/sleep {PULL_SECONDS}"))
    wait = f"/bin/sh -c \"timeout {DOWNLOAD_SECONDS} sh -c 'until [ -e {RELEASED} ]; do sleep 1; done' || true\""
    second.shell(BEFORE.format(unit="trtllm-weights.service", command=wait.replace("'", "'\\''")))
    boot = first.shell("cat /proc/sys/kernel/random/boot_id")

    def release() -> None:
        if wait_for(lambda: first.chat() == 200, DOWNLOAD_SECONDS):
            second.shell(f"touch {RELEASED}")

    with ThreadPoolExecutor() as pool:
        pool.submit(release)
        done = first.playbook("site.yml", nvidia_driver_version=NEWER, nvidia_driver_reboot_allowed=True)
    assert done.status == 0, done.output
    boots = boot, first.shell("cat /proc/sys/kernel/random/boot_id")
    yield ColdRun(done.output, json.loads((folder / "fleet-timeline.json").read_text()), boots, (first, second))
    lab("down", environment=environment)


def test_a_reboot_waits_for_the_pull_which_then_is_not_repeated(run: ColdRun) -> None:
    first, _second = run.hosts
    assert run.boots[0] != run.boots[1]
    # The unit notes the image at each start.
    note = first.shell("cat /var/lib/trtllm-fleet/images").split()
    assert len([name for name in note if "@" not in name]) == 1, note
    assert first.chat() == 200


def test_a_host_does_not_wait_for_a_slow_one(run: ColdRun) -> None:
    first, second = run.hosts
    assert second.shell(f"ls {RELEASED}"), f"{first.host} did not answer while {second.host} waited for its weights"
    answers = [run.timeline["hosts"][host.host]["answered"] for host in (first, second)]
    assert answers[0] < answers[1]
    assert second.chat() == 200


def test_the_image_is_pulled_while_toolkit_and_driver_are_installed(run: ColdRun) -> None:
    legs = run.legs(run.hosts[1])
    image, driver = legs["trtllm-image-release"], legs["nvidia_driver"]
    assert legs["docker_engine"][1] <= image[0] < driver[0]


def test_the_timeline_has_the_units(run: ColdRun) -> None:
    """The unit that waited for the other host has a leg from before the image's to after it."""
    legs = run.legs(run.hosts[1])
    start, end = legs["trtllm-weights"]
    assert start < legs["trtllm-image-release"][0] < legs["trtllm-image-release"][1] < end


def test_a_second_run_of_the_roles_changes_nothing(run: ColdRun) -> None:
    first, _second = run.hosts
    again = first.playbook("site.yml", nvidia_driver_version=NEWER, nvidia_driver_reboot_allowed=True, site_full=True)
    assert again.status == 0, again.output
    assert again.output.count("changed=0") == 2, again.output[-3000:]
