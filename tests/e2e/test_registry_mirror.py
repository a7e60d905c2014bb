"""Two hosts pull an image through a mirror on one of them: once over the WAN, and around the mirror on faults."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, Run, docker, lab
from ansible_collections.trtllm.fleet.tests.e2e.test_secrets import canaries

LAB = {**os.environ, "LAB_PREFIX": "mirror-", "LAB_HOSTS": "2", "LAB_GPU": "b200x8"}
MIRROR, OTHER = Fleet("mirror-1", LAB), Fleet("mirror-2", LAB)
ORIGIN = "trtllm-lab-origin"
REPOSITORY = "nvidia/tensorrt-llm/release"
IMAGE = f"registry.origin.test/{REPOSITORY}:1.2.1"
UNIT = "trtllm-registry-mirror.service"
PLAYBOOK = "tests/e2e/image.yml"


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return two bare hosts, with the lab's inventory and the mirror's group."""
    lab("up", "--extra-vars", "lab_recreate=mirror-1,mirror-2", environment=LAB)
    path = tmp_path_factory.mktemp("inventory") / "mirror.yml"
    path.write_text(json.dumps({"registry_mirror": {"hosts": {MIRROR.host: {}}}}))
    yield path
    lab("down", environment=LAB)


def play(inventory: Path, *arguments: str, **variables: object) -> Run:
    run = OTHER.playbook(PLAYBOOK, "-i", str(inventory), *arguments, **variables)
    assert run.status == 0, run.output
    return run


def changed(run: Run) -> list[str]:
    return re.findall(r"changed=(\d+)", run.output)


def digests(fleet: Fleet) -> list[str]:
    """Return the digests of the host's image, which has no other name there."""
    (shown,) = json.loads(fleet.shell(f"docker image inspect {IMAGE}"))
    assert shown["RepoTags"] == [IMAGE]
    return [digest.replace(f"registry.origin.test/{REPOSITORY}@", "") for digest in shown["RepoDigests"]]


def pull_again(fleet: Fleet) -> str:
    """Run the pull's unit again; return its log."""
    fleet.shell(f"docker rmi --force {IMAGE}; systemctl start trtllm-image-release.service")
    return fleet.shell("cat /var/lib/trtllm-fleet/trtllm-image-release", check=False)


def origin(script: str) -> str:
    return docker("exec", ORIGIN, "sh", "-c", script)


def sent(since: float) -> Counter[str]:
    """Return the bytes sent by the origin to the two hosts, by digest of the layer."""
    command = ["docker", "logs", "--since", f"{since:.3f}", ORIGIN]
    log = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    hosts = [fleet.shell("hostname --ip-address").split()[0] for fleet in (MIRROR, OTHER)]
    layer = r'"GET /layers/v2/\S+/blobs/(sha256:\w+)\?\S+ HTTP/[\d.]+" 20[06] (\d+)'
    layers: Counter[str] = Counter()
    for client, digest, count in re.findall(rf"(?m)^(\S+) .*{layer}", log):
        if client in hosts:
            layers[digest] += int(count)
    return layers


@contextmanager
def cut_off() -> Iterator[None]:
    """Disconnect the registry from all hosts."""
    docker("pause", ORIGIN)
    try:
        yield
    finally:
        docker("unpause", ORIGIN)


def test_check_mode_on_bare_hosts(inventory: Path) -> None:
    play(inventory, "--check", "--diff")
    for fleet in (MIRROR, OTHER):
        assert fleet.shell("ls /etc/trtllm-fleet /etc/docker/certs.d /usr/sbin/nginx 2>/dev/null", check=False) == ""


def test_image_crosses_the_wan_once(inventory: Path) -> None:
    began = time.time()
    play(inventory)
    headers = "Accept: application/vnd.docker.distribution.manifest.v2+json"
    asked = origin(
        f"curl --silent --include --header '{headers}' http://127.0.0.1:5000/v2/{REPOSITORY}/manifests/1.2.1"
    )
    head, _blank, body = asked.partition("\n\n")
    manifest = json.loads(body)
    assert sent(began) == {layer["digest"]: layer["size"] for layer in [manifest["config"], *manifest["layers"]]}

    (digest,) = re.findall(r"(?i)^docker-content-digest: (\S+)", head, re.MULTILINE)
    for fleet in (MIRROR, OTHER):
        assert digests(fleet) == [digest]
        left = "ls -d /run/trtllm-image-release /var/lib/trtllm-fleet/trtllm-image-release 2>/dev/null"
        assert fleet.shell(left, check=False) == ""


def test_only_the_mirror_listens(inventory: Path) -> None:
    listening = MIRROR.shell("ss --listening --tcp --numeric --processes | grep nginx | awk '{ print $4 }'")
    (address,) = listening.split()
    assert address.endswith(":5000")
    assert not address.startswith(("0.0.0.0", "*", "[::]"))
    assert MIRROR.shell("systemctl is-enabled nginx.service", check=False).strip() == "masked"


@pytest.mark.parametrize("arguments", [[], ["--check", "--diff"]], ids=["run", "check"])
def test_second_run_changes_nothing(inventory: Path, arguments: list[str]) -> None:
    pid = MIRROR.shell(f"systemctl show --property=MainPID {UNIT}")
    assert changed(play(inventory, *arguments)) == ["0", "0"]
    assert MIRROR.shell(f"systemctl show --property=MainPID {UNIT}") == pid


def test_changed_setting_restarts_the_mirror(inventory: Path) -> None:
    pid = MIRROR.shell(f"systemctl show --property=MainPID {UNIT}")
    # The configuration, the record removed, the restart, the record written.
    assert changed(play(inventory, registry_mirror_max_size="50g")) == ["4", "0"]
    assert MIRROR.shell(f"systemctl show --property=MainPID {UNIT}") != pid


def test_docker_restarts_in_the_run_after_an_interrupted_one(inventory: Path) -> None:
    """The role fails after it has written daemon.json, and before its handlers."""
    options = {"docker_engine_options": {"shutdown-timeout": 20}}
    pid = OTHER.shell("systemctl show --property=MainPID docker.service")
    run = OTHER.playbook(PLAYBOOK, "-i", str(inventory), docker_engine_client_config_dir="/proc/none", **options)
    assert run.status != 0, run.output
    assert "shutdown-timeout" in OTHER.shell("cat /etc/docker/daemon.json")
    assert OTHER.shell("systemctl show --property=MainPID docker.service") == pid
    play(inventory, **options)
    assert OTHER.shell("systemctl show --property=MainPID docker.service") != pid
    assert changed(play(inventory, **options)) == ["0", "0"]
    play(inventory)


def test_setting_that_nginx_rejects_is_an_error(inventory: Path) -> None:
    pid = MIRROR.shell(f"systemctl show --property=MainPID {UNIT}")
    run = play(inventory, registry_mirror_certificate="/etc/hostname", registry_mirror_key="/etc/hostname")
    assert "The registry mirror does not run" in " ".join(run.output.split())
    assert "cannot load certificate" in " ".join(run.output.split())
    assert MIRROR.shell(f"systemctl show --property=MainPID {UNIT}") == pid
    assert pull_again(OTHER) == ""


def test_image_of_another_registry_bypasses_the_mirror(inventory: Path) -> None:
    note = "/etc/trtllm-fleet/registry-mirror/mirror.json"
    MIRROR.shell(f"sed --in-place=.kept s/registry.origin.test/other.example/ {note}")
    try:
        OTHER.shell(f"docker rmi --force {IMAGE}")
        play(inventory, "--limit", OTHER.host)
        assert ":5000" not in OTHER.shell("systemctl cat trtllm-image-release.service")
        assert digests(OTHER)
    finally:
        MIRROR.shell(f"mv {note}.kept {note}")
    OTHER.shell(f"docker rmi --force {IMAGE}")
    play(inventory)
    assert ":5000" in OTHER.shell("systemctl cat trtllm-image-release.service")


def test_cached_layers_come_from_the_mirror(inventory: Path) -> None:
    before, began = digests(OTHER), time.time()
    assert pull_again(OTHER) == ""
    assert sent(began) == {}
    assert digests(OTHER) == before


def test_disconnected_registry(inventory: Path) -> None:
    before = digests(OTHER)
    with cut_off():
        said = pull_again(OTHER)
        assert digests(OTHER) == []
    assert said.startswith(f"Registry registry.origin.test did not return the manifest of {IMAGE}.")
    # The next run of the playbook shows it, once.
    told = "The image is that of mirror"
    assert told in " ".join(play(inventory).output.split())
    assert told not in " ".join(play(inventory).output.split())
    assert pull_again(OTHER) == ""
    assert digests(OTHER) == before


def test_missing_mirror(inventory: Path) -> None:
    before, began = digests(OTHER), time.time()
    MIRROR.shell(f"systemctl stop {UNIT}")
    OTHER.shell(f"docker rmi --force {IMAGE}")
    # The run excludes the mirror, which would start it.
    run = play(inventory, "--limit", OTHER.host)
    assert f"did not return {IMAGE}. The image is from registry.origin.test." in " ".join(run.output.split())
    assert "did not return" in OTHER.shell("journalctl --unit=trtllm-image-release --priority=warning --output=cat")
    assert sent(began)
    assert digests(OTHER) == before


def test_missing_host_of_the_mirror(inventory: Path) -> None:
    docker("stop", MIRROR.host)
    try:
        run = OTHER.playbook(PLAYBOOK, "-i", str(inventory))
        assert run.status == 4, "one host could not be reached"
        assert re.search(rf"{OTHER.host} .*unreachable=0 +failed=0", run.output), run.output
        assert f"The registry mirror on {MIRROR.host} has no published address" in " ".join(run.output.split())
    finally:
        lab("up", environment=LAB)


def test_full_disk(inventory: Path) -> None:
    play(inventory)
    folder = "/srv/trtllm-fleet/registry-mirror"
    MIRROR.shell(f"systemctl stop {UNIT}; mount -t tmpfs -o size=40m tmpfs {folder}; systemctl start {UNIT}")
    try:
        assert "did not return" in pull_again(OTHER)
        assert digests(OTHER)
    finally:
        MIRROR.shell(f"systemctl stop {UNIT}; umount {folder}; systemctl start {UNIT}")
    assert pull_again(OTHER) == ""


def test_mirror_stores_no_login(inventory: Path) -> None:
    for secret in canaries():
        found = MIRROR.shell(
            f"grep --recursive --files-with-matches --fixed-strings -e '{secret}' /srv /etc /var/log /run 2>/dev/null; "
            f"journalctl --no-pager | grep --fixed-strings '{secret}'",
            check=False,
        )
        assert found.splitlines() in ([], ["/etc/trtllm-fleet/docker/config.json"])
