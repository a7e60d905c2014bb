"""Decommissioning a host loses no request and leaves nothing on the host."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import Fleet, until

# Debian 13 (decommissioned last), Debian 12 (first), and a gateway.
FLEET = Fleet("gone-", gpus=2, gateways=1)
LAST, FIRST = FLEET.gpu_names
RATE = 4
TAKEN = ("--limit", FIRST)
ALL = {"decommission_all": True, "rollout_min_capacity": 0}
WEIGHTS = "/srv/trtllm-fleet"
THEIRS = f"{WEIGHTS}/theirs/notes.txt"
IMAGE = "registry.origin.test/nvidia/tensorrt-llm/release:1.2.1"
# A host's files without those that each use changes: caches, logs, lists, temporary files, also of Ansible and
# sudo. For /etc with contents.
SNAPSHOT = r"""
find / /srv /var/lib/docker -xdev \
  \( -path /tmp -o -path /var/tmp -o -path /var/log -o -path /var/cache -o -path /var/lib/apt/lists \
    -o -path '/home/*/.ansible' -o -path /root/.ansible -o -path /var/lib/sudo \
    -o -path '/home/*/.sudo_as_admin_successful' \) -prune \
  -o -type f -path '/etc/*' -exec sha256sum {} + -o -printf '%y %m %p %l\n'
apt-mark showhold | sed 's/^/held /'
apt-mark showmanual | sed 's/^/asked for /'
dpkg-query --show --showformat='package ${db:Status-Abbrev} ${Package} ${Version}\n'
systemctl list-unit-files --state=enabled --no-legend | sed 's/^/enabled /'
systemctl list-units --failed --no-legend --plain | sed 's/^/failed /'
getent passwd
getent group
"""
# Known differences with their reasons.
KNOWN = {
    r" /etc/(group|gshadow)-$": "the copy that groupadd and groupdel make of what they change",
    r" d 7[015]\d /var/lib/(docker|containerd) $": "disks of their own in the lab, with the mode that Docker gave them",
    r" /usr/lib/modules\b": "depmod's files, of a kernel that no package of a lab host brought",
    r" /var/lib/dkms\b": "what the lab's dkms leaves",
    r" /usr/lib/nvidia-container-toolkit\b": "compiled Python of the lab's nvidia-ctk",
}
STARTED = "systemctl show --property=ActiveEnterTimestampMonotonic --value trtllm-serve-0.service"


def snapshot(fleet: Fleet, host: str) -> set[str]:
    return set(fleet.shell(host, SNAPSHOT).splitlines())


def differences(before: set[str], after: set[str]) -> list[str]:
    """Return unknown differences: leftovers with a plus, missing files with a minus."""
    lines = [f"+ {line}" for line in after - before] + [f"- {line}" for line in before - after]
    return sorted(line for line in lines if not any(re.search(known, line) for known in KNOWN))


def break_off(moment: str) -> None:
    """Run the playbook until it prints these words, and kill it a little later."""
    process = FLEET.start("decommission", *TAKEN)
    until(process, moment)
    time.sleep(2)
    process.kill()
    process.communicate()


Bare = dict[str, set[str]]


@pytest.fixture(scope="module")
def bare() -> Iterator[Bare]:
    """List the files of the bare hosts, then deploy to them."""
    FLEET.down()
    FLEET.up()
    found = {host: snapshot(FLEET, host) for host in FLEET.gpu_names}
    run = FLEET.play("site")
    assert run.status == 0, run.output
    assert FLEET.in_service() == FLEET.all_instances
    yield found
    FLEET.down()


@pytest.mark.parametrize("arguments", [(), ("--limit", "gpu_hosts")])
def test_all_hosts_at_once_are_rejected(bare: Bare, arguments: tuple[str, ...]) -> None:
    run = FLEET.play("decommission", *arguments)
    assert run.status != 0
    assert "decommission_all" in run.output
    assert FLEET.in_service() == FLEET.all_instances


def test_required_host_is_rejected(bare: Bare) -> None:
    unit = "/etc/systemd/system/trtllm-registry-mirror.service"
    FLEET.shell(FIRST, f"touch {unit}")
    run = FLEET.play("decommission", *TAKEN)
    FLEET.shell(FIRST, f"rm {unit}")
    assert run.status != 0
    assert "trtllm-registry-mirror.service" in run.output
    assert FLEET.in_service() == FLEET.all_instances


def test_check_mode_lists_removals_and_changes_nothing(bare: Bare) -> None:
    before = snapshot(FLEET, FIRST)
    run = FLEET.play("decommission", *TAKEN, "--check", "--diff")
    assert run.status == 0, run.output
    for gone in ("-docker.io", "-nvidia-kernel-open-dkms", "-python3-venv", "remove trtllm-serve-0.service", WEIGHTS):
        assert gone in run.output
    assert snapshot(FLEET, FIRST) == before
    assert FLEET.in_service() == FLEET.all_instances


def test_decommissioned_host_has_no_leftovers(bare: Bare) -> None:
    """Interrupt it at each stage, under load, with a foreign file in the weights directory."""
    FLEET.shell(FIRST, f"mkdir {WEIGHTS}/theirs && touch {THEIRS}")
    started = FLEET.shell(LAST, STARTED)
    with FLEET.load(RATE) as load:
        for moment in (
            "gateway : Register, drain or return the host at each gateway",
            "trtllm_server : Remove the releases and their history",
            "model_weights : Remove the models and the vocabulary",
            "docker_engine : Stop Docker and remove its data",
            "apt_packages : Remove the packages that came with this collection",
        ):
            break_off(moment)
        run = FLEET.play("decommission", *TAKEN)
        assert run.status == 0, run.output
    assert load.errors() == {}
    assert f"model_weights_dir: {WEIGHTS}/theirs." in run.output
    FLEET.shell(FIRST, f"rm {THEIRS} && rmdir {WEIGHTS}/theirs {WEIGHTS}")
    assert differences(bare[FIRST], snapshot(FLEET, FIRST)) == []
    # No client of the other hosts has an error.
    assert FLEET.shell(LAST, STARTED) == started
    assert FLEET.in_service() == {name: [f"{LAST}.serve-0"] for name in FLEET.gateway_names}


def test_second_run_changes_nothing(bare: Bare) -> None:
    run = FLEET.play("decommission", *TAKEN)
    assert run.status == 0, run.output
    assert "Nothing stays." in run.output
    assert re.search(rf"{FIRST} .*changed=0 ", run.output)
    assert differences(bare[FIRST], snapshot(FLEET, FIRST)) == []


def test_shared_software_stays_until_its_last_user_is_removed(bare: Bare) -> None:
    FLEET.shell(LAST, f"docker run --detach --name web --network host --entrypoint sleep {IMAGE} infinity")
    run = FLEET.play("decommission", **ALL)
    assert run.status == 0, run.output
    assert "container web" in run.output
    assert FLEET.shell(LAST, "docker ps --format '{{.Names}}'") == "web"
    assert "H200" in FLEET.shell(LAST, "nvidia-smi --list-gpus")
    assert (
        FLEET.shell(LAST, "ls -d /etc/trtllm-fleet /srv/trtllm-fleet /etc/systemd/system/trtllm-*", check=False) == ""
    )
    assert FLEET.in_service() == {name: [] for name in FLEET.gateway_names}

    FLEET.shell(LAST, "docker rm --force web")
    run = FLEET.play("decommission", **ALL)
    assert run.status == 0, run.output
    assert differences(bare[LAST], snapshot(FLEET, LAST)) == []
