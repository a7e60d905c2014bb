"""The endpoint recovers from each kill without Ansible, and a second run changes nothing."""

import re

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import CONTAINER, Fleet, docker, wait_for

PATIENCE = 120  # seconds


def comes_back(fleet: Fleet, before: str) -> bool:
    """Return True if another container responds in time; the old one may outlive its daemon for a while."""
    return wait_for(lambda: fleet.container() not in ("", before) and fleet.chat() == 200, PATIENCE)


@pytest.mark.parametrize(
    "script",
    [
        f"docker kill {CONTAINER}",
        "systemctl kill --kill-whom=main --signal=KILL docker.service",
        "systemctl stop docker.service docker.socket && systemctl start docker.service",
    ],
)
def test_killed_process_is_restarted(fleet: Fleet, script: str) -> None:
    before = fleet.container()
    # Earlier starts count against systemd's start limit, which is not under test here.
    fleet.shell("systemctl reset-failed docker.service")
    fleet.shell(script)
    assert comes_back(fleet, before)


def test_endpoint_recovers_after_a_reboot(fleet: Fleet) -> None:
    before = fleet.container()
    docker("restart", fleet.host)
    assert comes_back(fleet, before)


def test_cdi_devices_of_a_driver_that_is_not_in_lib_modules(fleet: Fleet) -> None:
    """As on a virtual machine whose kernel image brings the driver: an H100, 2026-11-25."""
    modules = "/lib/modules/$(uname -r)/modules.dep"
    fleet.shell(f"mv {modules} {modules}.away && rm /var/run/cdi/nvidia.yaml")
    try:
        fleet.shell("systemctl restart nvidia-cdi-refresh.service")
        assert "nvidia.com/gpu=0" in fleet.shell("nvidia-ctk cdi list")
    finally:
        fleet.shell(f"mv {modules}.away {modules} && systemctl restart nvidia-cdi-refresh.service")


@pytest.mark.parametrize("arguments", [[], ["--check", "--diff"]], ids=["run", "check"])
def test_second_run_changes_nothing(fleet: Fleet, arguments: list[str]) -> None:
    run = fleet.playbook("site.yml", *arguments)
    assert run.status == 0, run.output
    assert re.findall(r"changed=(\d+)", run.output) == ["0"], run.output
