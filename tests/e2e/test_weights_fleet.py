"""Four hosts get one model: once over the WAN, despite failures, moves and damage during the download."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from threading import Thread

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, Hub, Run, docker, lab

PREFIX = "weights-"
LAB = {**os.environ, "LAB_PREFIX": PREFIX, "LAB_HOSTS": "4", "LAB_GPU": "rtx_pro_6000x1"}
HOSTS = [Fleet(f"{PREFIX}{number}", LAB) for number in range(1, 5)]
PLAYBOOK = "tests/e2e/weights.yml"
MODEL = "/srv/trtllm-fleet/models/openai/gpt-oss-120b/*"
SHARD = "model-00014-of-00014.safetensors"
LATE = HOSTS[-1]
# Shorter than suits a real fleet, longer than a busy lab pauses.
QUICK = {"model_weights_share_fallback": 20, "model_weights_stall_timeout": 20}


@pytest.fixture(scope="module", autouse=True)
def hosts() -> Iterator[None]:
    lab("up", "--extra-vars", f"lab_recreate={','.join(fleet.host for fleet in HOSTS)}", environment=LAB)
    yield
    lab("down", environment=LAB)


def play(*arguments: str, **variables: object) -> Run:
    run = HOSTS[0].playbook(PLAYBOOK, *arguments, **{**QUICK, **variables})
    assert run.status == 0, run.output
    return run


def snapshot(fleet: Fleet) -> str:
    """Return the checksums of the host's only snapshot."""
    return fleet.shell(f"cd {MODEL} && find . -path ./.cache -prune -o -type f -exec sha256sum {{}} + | sort")


def forget_the_model(*fleets: Fleet) -> None:
    for fleet in fleets:
        fleet.shell("rm -rf /srv/trtllm-fleet/models")


def size(fleet: Fleet) -> int:
    """Return the bytes of the model."""
    return int(json.loads(fleet.shell(f"cat {MODEL}/.cache/trtllm-fleet/manifest.json"))["total_bytes"])


def test_fleet_downloads_the_model_once(hub: Hub) -> None:
    hub.clear_log()
    # The play has to wait for the download.
    hub.fault(kind="slow", path_glob="*", bytes_per_second=1_000_000, times=1000)
    run = play("--limit", f"!{LATE.host}")
    first, *others = [snapshot(fleet) for fleet in HOSTS[:-1]]
    assert len(first.splitlines()) > 20
    assert others == [first, first]
    assert sum(hub.fetched().values()) <= 1.05 * size(HOSTS[0])
    assert re.search(rf"{PREFIX}\d: \d+ %, .* of .*", run.output), "progress is shown while the play waits"
    for fleet in HOSTS[:-1]:
        assert fleet.shell("systemctl is-active trtllm-weights-share.service", check=False).strip() == "inactive"
        assert ":688" not in fleet.shell("ss --listening --numeric --tcp --udp")


def test_second_run_changes_nothing() -> None:
    assert set(re.findall(r"changed=(\d+)", play("--limit", f"!{LATE.host}").output)) == {"0"}


def test_new_host_downloads_from_its_peers(hub: Hub) -> None:
    hub.clear_log()
    play()
    assert snapshot(LATE) == snapshot(HOSTS[0])
    assert hub.fetched() == {}


def test_only_the_fleet_is_served() -> None:
    play(model_weights_share_keep=True, model_weights_verify="full")
    forget_the_model(LATE)
    play(model_weights_share_keep=True)
    address = HOSTS[0].shell("hostname --ip-address").split()[0]
    sockets = (
        HOSTS[0].shell("ss --listening --numeric --tcp --udp --no-header | awk '{ print $5 }' | grep ':688'").split()
    )
    assert sockets
    assert {socket.rpartition(":")[0].split("%")[0] for socket in sockets} == {address}
    ask = f"curl --silent --max-time 5 --output /dev/null --write-out '%{{http_code}}' http://{address}:6882/index.json"
    assert LATE.shell(ask) == "200"
    stranger = ["docker", "exec", "trtllm-lab-origin", "sh", "-c", ask]
    assert subprocess.run(stranger, text=True, stdout=subprocess.PIPE, check=False).stdout == "000"
    for fleet in HOSTS:
        fleet.shell("systemctl stop trtllm-weights-share.service")


def test_flipped_bit_is_detected_and_only_its_file_is_downloaded_again(hub: Hub) -> None:
    before = snapshot(HOSTS[1])
    # Size, time and inode stay the same, as after a disk fault.
    HOSTS[1].shell(
        f"cd {MODEL} && touch --reference {SHARD} /tmp/time"
        f" && printf X | dd of={SHARD} bs=1 seek=5000 conv=notrunc status=none && touch --reference /tmp/time {SHARD}"
    )
    hub.clear_log()
    play(model_weights_verify="full")
    assert snapshot(HOSTS[1]) == before
    assert hub.fetched() == {}, "its peers have it"


def test_killed_seed_is_replaced(hub: Hub) -> None:
    expected = snapshot(HOSTS[0])
    forget_the_model(*HOSTS)
    hub.clear_log()
    hub.fault(kind="slow", path_glob="*", bytes_per_second=500_000, times=1000)
    died: list[str] = []

    def kill_the_seed() -> None:
        """Kill the host that downloads from the hub as soon as it has part of the model."""
        while not died:
            time.sleep(0.5)
            for fleet in HOSTS:
                status = json.loads(fleet.shell("cat /run/trtllm-fleet/weights.json || echo '{}'", check=False))
                if status.get("state") == "hub" and status["files_done"] > 5:
                    docker("kill", fleet.host)
                    died.append(fleet.host)
                    hub.clear_faults()

    killer = Thread(target=kill_the_seed, daemon=True)
    killer.start()
    run = HOSTS[0].playbook(PLAYBOOK, **QUICK)
    killer.join(timeout=10)
    assert died, run.output
    assert "unreachable=1" in run.output
    alive = [fleet for fleet in HOSTS if fleet.host not in died]
    assert [snapshot(fleet) for fleet in alive] == [expected] * 3
    docker("start", *died)


def test_killed_seed_completes_after_its_return(hub: Hub) -> None:
    hub.clear_log()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(
        fleet.shell("systemctl is-system-running", check=False).strip() not in ("running", "degraded")
        for fleet in HOSTS
    ):
        time.sleep(1)
    play()
    assert len({snapshot(fleet) for fleet in HOSTS}) == 1
