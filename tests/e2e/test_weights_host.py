"""Faults of hosts and disks during the download of weights: power, space, shared paths, and a moving branch."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.weights import snapshot
from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, Hub, Run, docker, lab

LAB = {**os.environ, "LAB_PREFIX": "storage-"}
HOSTS = [Fleet("storage-1", LAB), Fleet("storage-2", LAB)]
FIRST = HOSTS[0]
ALONE = ("--limit", FIRST.host)
PLAYBOOK = "tests/e2e/weights.yml"
MODEL = "openai/gpt-oss-120b"
GATED = "lab/gpt-oss-20b-gated"
SHARD = "model-00014-of-00014.safetensors"
USUAL = "/srv/trtllm-fleet"
SHARED = "/mnt/disk"
QUICK = {"model_weights_stall_timeout": 20, "model_weights_attempts": 2}
MB = 1_000_000
# Share of the model that may be downloaded again per interruption.
AGAIN = 0.05
# For ext4 and XFS: end all input and output, and lose unwritten data, in the journal too.
SHUT_DOWN, AT_ONCE = 0x8004587D, 2


@dataclass(frozen=True)
class Disk:
    """A file system that both hosts have at SHARED; ``place`` is its path on this machine."""

    image: Path
    place: Path

    def mount(self) -> None:
        subprocess.run(["mount", "--options", "loop", self.image, self.place], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", self.place], check=True)
        wait_for(lambda: not subprocess.check_output(["losetup", "--associated", self.image]), "the disk to be let go")

    def sync(self) -> None:
        subprocess.run(["sync", "--file-system", self.place], check=True)

    def crash(self) -> None:
        place = os.open(self.place, os.O_RDONLY)
        fcntl.ioctl(place, SHUT_DOWN, struct.pack("I", AT_ONCE))
        os.close(place)

    @contextmanager
    def filled(self, left: int) -> Iterator[None]:
        """Fill all space except this many bytes."""
        room = os.statvfs(self.place)
        other = self.place / "other"
        subprocess.run(["fallocate", f"--length={room.f_bavail * room.f_frsize - left}", other], check=True)
        try:
            yield
        finally:
            other.unlink()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    disk = Disk(tmp_path_factory.mktemp("disk") / "image", tmp_path_factory.mktemp("place"))
    with disk.image.open("wb") as image:
        image.truncate(300 * MB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", disk.image], check=True)
    disk.mount()
    yield disk
    disk.unmount()


@pytest.fixture(scope="module", autouse=True)
def hosts(disk: Disk) -> Iterator[None]:
    mounts = [{"type": "bind", "source": str(disk.place), "target": SHARED}]
    wanted = [
        {"name": fleet.host, "os": release, "gpu": "rtx_pro_6000x1", "mounts": mounts}
        for fleet, release in zip(HOSTS, ("bookworm", "trixie"), strict=True)
    ]
    recreated = ",".join(fleet.host for fleet in HOSTS)
    lab("up", "--extra-vars", json.dumps({"lab_hosts": wanted, "lab_recreate": recreated}), environment=LAB)
    yield
    lab("down", environment=LAB)


@dataclass(frozen=True)
class Branch:
    """The branch main of the model, which has two commits."""

    hub: Hub
    older: str
    newer: str

    def move(self, commit: str) -> None:
        self.hub.call("POST", "refs", {"repository": MODEL, "ref": "main", "commit": commit})


@pytest.fixture
def branch(hub: Hub) -> Iterator[Branch]:
    branch = Branch(hub, *json.loads(hub.call("GET", "refs"))[MODEL]["commits"])
    yield branch
    branch.move(branch.newer)


def play(*arguments: str, **variables: Any) -> Run:
    return FIRST.playbook(PLAYBOOK, *arguments, **{**QUICK, **variables})


def refused(*arguments: str, **variables: Any) -> str:
    """Return the output of a failed play on one line, because Ansible folds long lines."""
    run = play(*arguments, **variables)
    assert run.status != 0, run.output
    return " ".join(run.output.split())


def changes(run: Run) -> set[str]:
    return set(re.findall(r"changed=(\d+)", run.output))


def wait_for(condition: Callable[[], object], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def served(hub: Hub) -> int:
    """Return the bytes of files that the hub has sent since its log was emptied."""
    return sum(hub.fetched().values())


def paths(hub: Hub) -> list[str]:
    """Return the requests to the hub since its log was emptied."""
    return [entry["path"] for entry in json.loads(hub.call("GET", "requests"))]


def wait_until_served(hub: Hub, percent: int, total: int) -> None:
    wait_for(lambda: served(hub) >= total * percent // 100, f"{percent} percent to be served")


def place_of(commit: str, directory: str = USUAL, model: str = MODEL) -> str:
    return f"{directory}/models/{model}/{commit}"


FILES = r"find . -type d \( -name .cache -o -name original -o -name metal \) -prune -o -type f"


def checksums(fleet: Fleet, place: str) -> str:
    return fleet.shell(f"cd {place} && {FILES} -exec sha256sum {{}} + | sort")


def at_hub(commit: str, model: str = MODEL) -> tuple[str, int]:
    """Return the checksums of a commit's files on the hub, and their bytes."""
    hub = Fleet("trtllm-lab-origin")
    place = f"/srv/hub/repositories/{model}/snapshots/{commit}"
    return checksums(hub, place), sum(map(int, hub.shell(f"cd {place} && {FILES} -printf '%s\\n'").split()))


def kill(*fleets: Fleet) -> None:
    """Kill all processes on the hosts at once."""
    docker("kill", *(fleet.host for fleet in fleets))


def lose_power(disk: Disk) -> None:
    """Switch hosts off without closing connections or writing data to the disk."""
    for fleet in HOSTS:
        fleet.shell("ip link set eth0 down")
    disk.crash()
    kill(*HOSTS)
    disk.unmount()
    disk.mount()


def active(fleet: Fleet, unit: str) -> bool:
    return fleet.shell(f"systemctl is-active {unit}", check=False).strip() == "active"


def boot(*fleets: Fleet) -> None:
    docker("start", *(fleet.host for fleet in fleets))
    for fleet in fleets:
        wait_for(partial(active, fleet, "ssh"), f"{fleet.host} to boot")


def test_killed_host_resumes_without_ansible(hub: Hub, branch: Branch) -> None:
    expected, total = at_hub(branch.newer)
    hub.fault(kind="slow", bytes_per_second=MB)
    hub.clear_log()
    with ThreadPoolExecutor(1) as pool:
        # Ansible waits for the download the first time only.
        pool.submit(play, *ALONE)
        for percent in (10, 50, 90):
            wait_until_served(hub, percent, total)
            kill(FIRST)
            boot(FIRST)
    wait_for(partial(active, FIRST, "trtllm-weights"), "the download to end")
    assert checksums(FIRST, place_of(branch.newer)) == expected
    assert served(hub) <= (1 + 3 * AGAIN) * total

    hub.clear_log()
    assert play(*ALONE).status == 0
    assert hub.fetched() == {}
    assert "enabled" not in FIRST.shell("systemctl is-enabled trtllm-weights", check=False)
    assert "hub-token" not in FIRST.shell("ls /run")
    assert changes(play(*ALONE)) == {"0"}


def test_power_loss_loses_unwritten_data_only(hub: Hub, branch: Branch, disk: Disk) -> None:
    expected, total = at_hub(branch.newer)
    place = Path(place_of(branch.newer, str(disk.place)))
    hub.fault(kind="slow", bytes_per_second=MB)
    hub.clear_log()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(play, *ALONE, model_weights_dir=SHARED)
        wait_until_served(hub, 40, total)
        disk.sync()
        spoilt = min(place.glob("*.safetensors"))
        wait_until_served(hub, 80, total)
        arrived = {path: path.stat().st_size for path in place.rglob("*") if path.is_file()}
        lose_power(disk)
        assert any(not path.exists() or path.stat().st_size < size for path, size in arrived.items())
        # A file system other than ext4 leaves zeros at the end of a new file.
        size = spoilt.stat().st_size
        os.truncate(spoilt, size - 100_000)
        os.truncate(spoilt, size)
        manifest = snapshot.read_manifest(place)
        assert snapshot.look(place, manifest).good == []
        boot(*HOSTS)
        running.result()  # The play's wait for the host has a timeout.
    assert play(*ALONE, model_weights_dir=SHARED).status == 0
    assert checksums(FIRST, place_of(branch.newer, SHARED)) == expected
    assert hub.fetched()[spoilt.name] == 2 * size

    # Files verified by a play are on the disk.
    lose_power(disk)
    assert snapshot.look(place, manifest).verified
    boot(*HOSTS)
    assert checksums(FIRST, place_of(branch.newer, SHARED)) == expected
    assert changes(play(*ALONE, model_weights_dir=SHARED)) == {"0"}


def test_full_disk(hub: Hub, branch: Branch, disk: Disk) -> None:
    expected, total = at_hub(branch.newer)
    directory = f"{SHARED}/full"
    hub.clear_log()
    with disk.filled(left=total):
        said = refused(*ALONE, model_weights_dir=directory)
    assert "model_weights_disk_margin 1.1" in said
    assert "free some, or set model_weights_dir" in said
    assert hub.fetched() == {}, "not a byte"

    hub.fault(kind="slow", bytes_per_second=MB)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(refused, *ALONE, model_weights_dir=directory)
        wait_until_served(hub, 30, total)
        with disk.filled(left=3 * MB):
            said = running.result()
    assert re.search(r"The disk is full: \d+ MB are still missing, and /mnt/disk\S* has .* left\.", said)
    assert "set model_weights_dir to a larger one" in said

    hub.clear_faults()
    assert play(*ALONE, model_weights_dir=directory).status == 0
    assert checksums(FIRST, place_of(branch.newer, directory)) == expected
    assert served(hub) <= (1 + AGAIN) * total


def test_two_hosts_on_one_path(hub: Hub, branch: Branch) -> None:
    expected, total = at_hub(branch.newer)
    # Hosts do not share on a network file system. This one is not detected as one.
    both = {"model_weights_dir": f"{SHARED}/both", "model_weights_share": False}
    hub.clear_log()
    run = play(**both)
    assert run.status == 0, run.output
    assert served(hub) == total, "once for both"
    for fleet in HOSTS:
        assert checksums(fleet, place_of(branch.newer, f"{SHARED}/both")) == expected
    assert changes(play(**both, model_weights_verify="full")) == {"0"}


def test_moved_branch(hub: Hub, branch: Branch) -> None:
    older, newer = place_of(branch.older), place_of(branch.newer)
    FIRST.shell(f"rm -rf {USUAL}/models")
    branch.move(branch.older)
    assert play(*ALONE).status == 0
    assert checksums(FIRST, older) == at_hub(branch.older)[0]

    branch.move(branch.newer)
    hub.fault(kind="corrupt", path_glob=f"*{SHARD}")
    hub.clear_log()
    assert play(*ALONE, model_weights_keep=0).status != 0
    assert checksums(FIRST, older) == at_hub(branch.older)[0], "it goes when there is another one, not before"

    hub.clear_faults()
    unit = "/etc/systemd/system/trtllm-serve-0.service"
    FIRST.shell(f"echo 'ExecStart=true {older}' > {unit}")
    assert play(*ALONE, model_weights_keep=0).status == 0
    assert checksums(FIRST, newer) == at_hub(branch.newer)[0]
    assert hub.fetched().keys() == {"README.md", SHARD}, "only what the two differ in"
    assert checksums(FIRST, older) == at_hub(branch.older)[0], "it is served"

    FIRST.shell(f"rm {unit}")
    assert play(*ALONE, model_weights_keep=0).status == 0
    assert FIRST.shell(f"ls {Path(newer).parent}").split() == [branch.newer]


def test_branch_moved_during_the_requests_of_two_hosts(hub: Hub, branch: Branch) -> None:
    for fleet in HOSTS:
        fleet.shell(f"rm -rf {USUAL}/models")
    branch.move(branch.older)
    # The hub answers one of the two; the other has to repeat its request.
    hub.fault(kind="429", path_glob="*/revision/main", retry_after=5, times=1)
    hub.clear_log()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(play)
        wait_for(lambda: any("/tree/" in path for path in paths(hub)), "a host to be answered")
        branch.move(branch.newer)
        assert running.result().status == 0, running.result().output
    # The client also requests a tree, with other parameters.
    told = {path for path in paths(hub) if path.endswith("?recursive=true")}
    assert len(told) == 2, "the two hosts resolved different commits"
    commit = FIRST.shell(f"ls {USUAL}/models/{MODEL}").strip()
    for fleet in HOSTS:
        assert checksums(fleet, place_of(commit)) == at_hub(commit)[0]


def test_gated_model_without_a_token(hub: Hub) -> None:
    hub.clear_log()
    said = refused(*ALONE, model_weights_repository=GATED, model_weights_token="")
    assert f"{GATED} is gated. Request access at https://hub.origin.test/{GATED} and set model_weights_token." in said
    assert hub.fetched() == {}
    run = play(*ALONE, model_weights_repository=GATED)
    assert run.status == 0, run.output
    commit = FIRST.shell(f"ls {USUAL}/models/{GATED}").strip()
    assert checksums(FIRST, place_of(commit, model=GATED)) == at_hub(commit, GATED)[0]
