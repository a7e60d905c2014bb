"""Whatever is killed, the endpoint answers again by itself; and a second run finds nothing to do."""

import re
import subprocess
import time

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import UNIT, Fleet

CONTAINER = UNIT.removesuffix(".service")
PATIENCE = 120  # seconds


def container(fleet: Fleet) -> str:
    """Id of the server's container; empty while there is none."""
    return fleet.shell(f"docker inspect --format '{{{{.Id}}}}' {CONTAINER} 2>/dev/null", check=False).strip()


def comes_back(fleet: Fleet, before: str) -> bool:
    """Whether another container answers in time; that of ``before`` may answer a while longer than its daemon lives."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if container(fleet) not in ("", before) and fleet.chat() == 200:
            return True
        time.sleep(1)
    return False


@pytest.mark.parametrize(
    "script",
    [
        f"docker kill {CONTAINER}",
        "systemctl kill --kill-whom=main --signal=KILL docker.service",
        "systemctl stop docker.service docker.socket && systemctl start docker.service",
    ],
)
def test_what_is_killed_comes_back(fleet: Fleet, script: str) -> None:
    before = container(fleet)
    # The starts of a minute ago count against systemd's limit, and they are not what is tried here.
    fleet.shell("systemctl reset-failed docker.service")
    fleet.shell(script)
    assert comes_back(fleet, before)


def test_host_restarted(fleet: Fleet) -> None:
    before = container(fleet)
    subprocess.run(["docker", "restart", fleet.host], check=True, stdout=subprocess.DEVNULL)
    assert comes_back(fleet, before)


@pytest.mark.parametrize("arguments", [[], ["--check", "--diff"]], ids=["run", "dry-run"])
def test_second_run_changes_nothing(fleet: Fleet, arguments: list[str]) -> None:
    run = fleet.playbook("site.yml", *arguments)
    assert run.status == 0, run.output
    assert re.findall(r"changed=(\d+)", run.output) == ["0"], run.output
