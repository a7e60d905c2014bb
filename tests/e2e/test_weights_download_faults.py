"""Hub faults during a download, for longer than the real client retries. Needs no fleet and no root."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.unit.weights_hub import LARGE, LAST, MB, Host, LabHub, build

# Maximum bytes downloaded with interruptions, as a multiple of the model.
AGAIN = 1.05


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> LabHub:
    return LabHub(build(tmp_path_factory.mktemp("hub")))


@pytest.fixture
def hub(running: LabHub) -> LabHub:
    running.heal()
    return running


@pytest.fixture
def host(hub: LabHub, tmp_path: Path) -> Host:
    return Host(tmp_path, hub)


# The client retries five times in as many seconds.
def test_hub_that_disconnects_three_times_costs_only_time(hub: LabHub, host: Host) -> None:
    host.plan["stall_timeout"] = 12
    total = host.manifest.total_bytes
    hub.fault(kind="slow", bytes_per_second=20 * MB)
    for percent in (10, 40, 40):
        hub.fault(kind="outage", after_bytes=total * percent // 100, seconds=7)
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cannot be reached") >= 3
    host.assert_whole()
    assert hub.served() <= AGAIN * total


def test_client_disables_xet_after_two_stalls(hub: LabHub, host: Host, tmp_path: Path) -> None:
    client = tmp_path / "client/bin/python"
    client.parent.mkdir(parents=True)
    note = f'echo "${{HF_HUB_DISABLE_XET:-with}}" >> {tmp_path}/runs'
    client.write_text(f'#!/bin/sh\n{note}\nexec {host.plan["client"]}/bin/python "$@"\n')
    client.chmod(0o755)
    host.plan.update(client=str(tmp_path / "client"), stall_timeout=2)
    hub.fault(kind="stall", path_glob=f"*{LAST}", after_bytes=4 * MB, times=3)
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs").read_text().split() == ["with", "with", "1", "1"]
    host.assert_whole()
    assert hub.served() <= AGAIN * host.manifest.total_bytes


def test_rate_limited_download_waits_as_long_as_the_hub_requests(hub: LabHub, host: Host) -> None:
    # Longer than the stall timeout. The client makes two requests at once, retries five times, and fails.
    host.plan["stall_timeout"] = 2
    hub.fault(kind="429", path_glob=f"*{LARGE}", retry_after=3, times=8)
    began = time.monotonic()
    done = host.fetch()
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began > 6 * 3
    assert "No byte for" not in done.stdout
    assert "limits the rate of requests" in done.stdout
    assert "Again in 4 s." in done.stdout
    host.assert_whole()


def test_two_runs_on_one_directory_run_in_turn(hub: LabHub, host: Host) -> None:
    hub.fault(kind="slow", bytes_per_second=20 * MB)
    with host.start() as first:
        while hub.served() < MB:
            time.sleep(0.02)
        other = Host.__new__(Host)
        other.__dict__.update(host.__dict__, run_dir=host.run_dir.with_name("other"))
        with other.start() as second:
            states = set()
            while second.poll() is None:
                states.add(other.status.get("state"))
                time.sleep(0.02)
            assert (first.wait(), second.wait()) == (0, 0)
    assert "waiting" in states
    assert "hub" not in states
    assert hub.served() == host.manifest.total_bytes
    host.assert_whole()
