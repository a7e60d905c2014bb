"""A fleet that an earlier version of the collection deployed: this version takes it over without a restart."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, Run, begin, finish
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import ONE, TWO, Fleet

FLEET = Fleet("upgrade-", gpus=2, gateways=1)
# The version before, if there is no tag yet: the last commit before version 1.0.
UNTAGGED = "6f52c8be38ed948fcb8bd0373b96ddeac0e284db"
# What serves, and what a restart of would end answers.
SERVING = {"gpu": ("trtllm-serve-0", "docker"), "gateway": ("trtllm-gateway",)}
STARTED = "systemctl show --property=ActiveEnterTimestampMonotonic --value {unit}.service"
RATE = 4


def before() -> str:
    """Return the last tag of a version, or the commit that stands for it."""
    described = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match=[0-9]*", "HEAD^"],
        cwd=REPO,
        text=True,
        capture_output=True,
        check=False,
    )
    return described.stdout.strip() or UNTAGGED


def started() -> dict[str, str]:
    """Return when each unit that serves was started, by host and unit."""
    return {
        f"{host} {unit}": FLEET.shell(host, STARTED.format(unit=unit))
        for kind, hosts in {"gpu": FLEET.gpu_names, "gateway": FLEET.gateway_names}.items()
        for host in hosts
        for unit in SERVING[kind]
    }


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a checkout of the version before, which has deployed one release after another."""
    checkout = tmp_path_factory.mktemp("before")
    archive = subprocess.run(["git", "archive", before()], cwd=REPO, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x"], cwd=checkout, input=archive.stdout, check=True)
    (checkout / ".lab").symlink_to((REPO / ".lab").resolve())

    def play(name: str, **variables: object) -> Run:
        run = finish(begin(FLEET.command(name, **variables), FLEET.environment, directory=checkout))
        assert run.status == 0, run.output
        return run

    FLEET.down()
    FLEET.up()
    play("site", **ONE)
    play("rollout", **TWO)
    assert FLEET.options() == [4096, 4096]
    yield checkout
    FLEET.down()


def test_first_run_restarts_nothing_that_serves(deployed: Path) -> None:
    then = started()
    with FLEET.load(RATE) as load:
        load.wait(2)
        run = FLEET.play("site", **TWO)
        load.wait(2)
    assert run.status == 0, run.output
    assert started() == then
    assert load.errors() == {}
    assert FLEET.in_service() == FLEET.all_instances


def test_second_run_changes_nothing(deployed: Path) -> None:
    run = FLEET.play("site", **TWO)
    assert run.status == 0, run.output
    assert set(re.findall(r"changed=(\d+)", run.output)) == {"0"}


def test_reports_read_what_the_version_before_left(deployed: Path, tmp_path: Path) -> None:
    run = FLEET.play("status", status_file=str(tmp_path / "status.json"), status_page=str(tmp_path / "status.html"))
    assert run.status == 0, run.output
    run = FLEET.play("doctor", doctor_file=str(tmp_path / "faults.json"))
    assert run.status == 0, run.output


def test_rollback_to_a_release_of_the_version_before(deployed: Path) -> None:
    with FLEET.load(RATE) as load:
        load.wait(2)
        run = FLEET.play("rollback")
    assert run.status == 0, run.output
    assert FLEET.options() == [8192, 8192]
    assert load.errors() == {}
