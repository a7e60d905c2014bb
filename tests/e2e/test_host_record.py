"""A host that is as its last complete run left it skips the roles, and nothing is overlooked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, UNIT, Fleet, Run, docker, lab
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import until

HOST = "record-1"
ENVIRONMENT = {
    **os.environ,
    "ANSIBLE_NOCOLOR": "true",
    # As beside the playbooks of the collection.
    "ANSIBLE_CALLBACK_PLUGINS": str(REPO / "playbooks/callback_plugins"),
    "LAB_PREFIX": "record-",
    "LAB_HOSTS": "1",
    "LAB_GPU": "h200x8",
    "LAB_OS": "trixie",
}
RECORD = "/var/lib/trtllm-fleet/record.json"
# Prints each file outside of packages, with its mode, owner and content.
SNAPSHOT = r"""
import glob, hashlib, json, os
packaged = set()
for name in glob.glob("/var/lib/dpkg/info/*.list"):
    packaged.update(open(name).read().splitlines())
found = {}
for top in ("/etc", "/opt", "/root", "/srv", "/usr", "/var/lib"):
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name != "__pycache__" and os.path.join(folder, name) not in SKIPPED]
        for name in [*files, *folders]:
            path = os.path.join(folder, name)
            if path in packaged or path.replace("/usr/", "/", 1) in packaged:
                continue
            status = os.lstat(path)
            value = [oct(status.st_mode), status.st_uid]
            if os.path.islink(path):
                value.append(os.readlink(path))
            elif os.path.isfile(path):
                value.append(hashlib.sha256(open(path, "rb").read()).hexdigest())
            found[path] = value
print(json.dumps(found))
"""
# What a run changes besides its own: written by packages, or state that changes while the host serves.
NOT_RECORDED = {
    r"/var/lib/(dpkg|apt|dkms|ucf|python|pam|systemd)(/|$)": "state of packages and systemd",
    r"/etc/cni(/|$)": "directory of package containerd",
    r"/var/lib/(docker|containerd)(/|$)": "data of Docker: the image is recorded by its ID",
    r"/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$": "users and groups of packages",
    r"/etc/(ld\.so\.cache|mtab|\.pwd\.lock)$": "caches and locks of the system",
    r"/etc/alternatives/|/usr/s?bin/|/usr/share/|/usr/lib/": "alternatives, links and files that packages make",
    r"/etc/systemd/system/.*\.(wants|requires)(/|$)": "enablement, which is recorded by unit",
    r"/etc/systemd/system/nvidia-.*\.(service|path)$": "aliases of packages' units",
    r"/etc/docker(/key\.json|/daemon\.json)?$": "identity of Docker; the keys of daemon.json are recorded",
    r"/etc/(rc\d|init|default|modprobe|udev|cdi|nvidia|modules-load|apparmor)[.\w-]*(/|$)": "of packages",
    r"/etc/(ssl|ca-certificates)[.\w-]*(/|$)": "certificates of package ca-certificates",
    r"/srv/trtllm-fleet(/models.*|$)": "the model, which is recorded as a snapshot",
    r"/opt/trtllm-fleet(/|$)": "the hub's client, which is recorded as a program",
    rf"{RECORD}$": "the record",
    r"/var/lib/trtllm-fleet/(verified|apt)": "marks of verified weights, which change with the files",
    r"/(root|etc)/\.(docker|cache|ansible)": "caches of programs",
}
# What differs after a run in which the item was changed by hand: found, and not restored by it.
NOT_RESTORED = {
    r"file /etc/systemd/system/trtllm-(image|weights).*\.service": "written again before each transfer",
    r"file /etc/trtllm-fleet/weights\.json": "written again before each transfer",
    r"file /usr/local/lib/trtllm-fleet/(pull-image|weights\.pyz)": "written again before each transfer",
    r"unit (nvidia-cdi-refresh|trtllm-weights|trtllm-image)": "states of oneshot units",
}
# Notes of earlier runs: damaged ones end the run with an error that names the file, and without its mark a driver or
# toolkit counts as not managed.
NOTES = ("daemon.json.state", "history.json", "/images", "/packages", "/nvidia_driver", "/nvidia_container_toolkit")


@pytest.fixture(scope="module")
def bare() -> Iterator[tuple[Fleet, dict[str, Any]]]:
    lab("up", "--extra-vars", f"lab_recreate={HOST}", environment=ENVIRONMENT)
    host = Fleet(HOST, ENVIRONMENT)
    yield host, snapshot(host)
    lab("down", environment=ENVIRONMENT)


@pytest.fixture(scope="module")
def fleet(bare: tuple[Fleet, dict[str, Any]]) -> Fleet:
    host, _before = bare
    run = site(host)
    assert run.status == 0, run.output
    assert changed(run) > 20
    return host


def snapshot(host: Fleet) -> dict[str, Any]:
    # The data of Docker and the simulated driver's pseudo files.
    program = f"SKIPPED = {{'/var/lib/docker', '/var/lib/containerd'}}\n{SNAPSHOT}"
    return dict(json.loads(docker("exec", host.host, "python3", "-c", program)))


def site(host: Fleet, *arguments: str, **variables: Any) -> Run:
    return host.playbook("site.yml", *arguments, **variables)


def changed(run: Run) -> int:
    return sum(map(int, re.findall(r" changed=(\d+)", run.output)))


def skipped_roles(run: Run) -> bool:
    return "TASK [trtllm.fleet." not in run.output


def items(host: Fleet) -> dict[str, str]:
    """Return the items of the record."""
    record = json.loads(host.shell(f"cat {RECORD}"))
    assert record["run"] == ""  # complete
    return dict(record["items"])


def differences(host: Fleet, tmp_path: Path) -> set[str]:
    """Return what differs from the record, without changing it."""
    file = tmp_path / "differences.json"
    run = host.playbook("tests/e2e/host_record.yml", "--check", differences=str(file))
    assert run.status == 0, run.output
    return {difference["about"] for difference in json.loads(file.read_text())}


def listed(path: str, reasons: dict[str, str]) -> bool:
    return any(re.match(pattern, path) for pattern in reasons)


def test_second_run_skips_the_roles_and_shows_the_completion(fleet: Fleet) -> None:
    run = site(fleet)
    assert (run.status, changed(run)) == (0, 0), run.output
    assert skipped_roles(run)
    assert re.search(rf"{HOST} +serve-0 .* verified", run.output)
    assert "prompt: Where is New York?" in run.output


def test_full_run_runs_the_roles_and_changes_nothing(fleet: Fleet) -> None:
    run = site(fleet, site_full=True)
    assert (run.status, changed(run)) == (0, 0), run.output
    assert not skipped_roles(run)
    assert skipped_roles(site(fleet))


def test_everything_that_differs_from_a_bare_host_is_recorded(bare: tuple[Fleet, dict[str, Any]], fleet: Fleet) -> None:
    _host, before = bare
    now, recorded = snapshot(fleet), items(fleet)
    differs = sorted(path for path in {*before, *now} if before.get(path) != now.get(path))
    overlooked = [path for path in differs if f"file {path}" not in recorded and not listed(path, NOT_RECORDED)]
    print(f"{len(differs)} paths differ from a bare host; {len(recorded)} items are recorded")
    assert "\n".join(overlooked) == ""


def alter(fleet: Fleet, script: str, paths: list[str]) -> None:
    fleet.shell("\n".join(script.format(path=path) for path in paths))


@pytest.mark.parametrize(
    "script", ["echo '# changed' >> {path}", "rm {path}", "chmod 0440 {path}"], ids=["content", "deletion", "mode"]
)
def test_change_of_each_file_is_found_and_put_right(fleet: Fleet, tmp_path: Path, script: str) -> None:
    before = items(fleet)
    paths = [name[5:] for name, value in before.items() if name.startswith("file ") and value.startswith("mode")]
    paths = [path for path in paths if not path.endswith(NOTES)]
    if "chmod" in script:
        # apt cannot read a key of this mode, and the first role needs all sources; one by one below.
        paths = [path for path in paths if "/keyrings/" not in path]
    alter(fleet, script, paths)
    found = differences(fleet, tmp_path)
    print(f"{len(paths)} files")
    assert set(paths) <= found
    run = site(fleet)
    assert run.status == 0, run.output
    after = items(fleet)
    left = [name for name in before if after.get(name) != before[name] and "history.json" not in name]
    assert [name for name in left if not listed(name, NOT_RESTORED)] == []
    assert skipped_roles(site(fleet))


@pytest.mark.parametrize(
    "script", ["echo '# changed' >> {path}", "rm {path}", "chmod 0440 {path}"], ids=["content", "deletion", "mode"]
)
def test_change_of_each_note_is_found(fleet: Fleet, tmp_path: Path, script: str) -> None:
    before = items(fleet)
    paths = [name[5:] for name in before if name.startswith("file ") and name.endswith(NOTES)]
    fleet.shell("rm -rf /root/notes && mkdir /root/notes && cp -a " + " ".join(paths) + " /root/notes")
    alter(fleet, script, paths)
    assert set(paths) <= differences(fleet, tmp_path)
    alter(fleet, "cp -a /root/notes/$(basename {path}) {path}", paths)
    assert differences(fleet, tmp_path) == set()


@pytest.mark.parametrize(
    ("script", "about"),
    [
        ("systemctl disable docker.service", "docker.service"),
        ("systemctl disable --now nvidia-persistenced.service", "nvidia-persistenced.service"),
        (f"systemctl stop {UNIT}", UNIT),
        ("systemctl mask nvidia-persistenced.service", "nvidia-persistenced.service"),
        ("apt-mark unhold nvidia-driver-cuda", "nvidia-driver-cuda"),
        ("dpkg --purge --force-depends nvidia-container-toolkit", "nvidia-container-toolkit"),
        ("""echo '{"debug": true, "features": {"cdi": false}}' > /etc/docker/daemon.json""", "/etc/docker/daemon.json"),
        (
            "systemctl stop trtllm-serve-0; docker image rm --force $(docker image ls --quiet)",
            "sha256",
        ),
        ("chmod 0440 /etc/apt/keyrings/nvidia-cuda.asc", "/etc/apt/keyrings/nvidia-cuda.asc"),
        ("chmod 0440 /etc/apt/keyrings/nvidia-container-toolkit.asc", "/etc/apt/keyrings/nvidia-container-toolkit.asc"),
        ("truncate --size=10 /srv/trtllm-fleet/models/openai/*/*/config.json", "/srv/trtllm-fleet/models"),
        (f"mkdir -p /etc/systemd/system/{UNIT}.d && echo > /etc/systemd/system/{UNIT}.d/own.conf", UNIT),
    ],
)
def test_change_of_a_unit_package_setting_image_or_model_is_found(
    fleet: Fleet, tmp_path: Path, script: str, about: str
) -> None:
    fleet.shell(script)
    found = differences(fleet, tmp_path)
    assert any(about in one for one in found), found
    if ".d/own.conf" in script:  # an operator's own drop-in stays
        fleet.shell(f"rm -r /etc/systemd/system/{UNIT}.d; systemctl daemon-reload")
    if "mask" in script:
        fleet.shell("systemctl unmask nvidia-persistenced.service")  # a role does not unmask it
    run = site(fleet)
    assert run.status == 0, run.output
    assert differences(fleet, tmp_path) == set()


def test_interrupted_run_leaves_no_complete_record(fleet: Fleet) -> None:
    command = ["ansible-playbook", "site.yml", "-i", "inventory/local", "-e", '{"site_full": true}']
    process = subprocess.Popen(
        command, cwd=REPO, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    until(process, "TASK [trtllm.fleet.docker_engine")
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2)
    assert json.loads(fleet.shell(f"cat {RECORD}"))["run"]
    run = site(fleet)
    assert run.status == 0, run.output
    assert not skipped_roles(run)
    assert skipped_roles(site(fleet))


def test_tags_run_what_they_say(fleet: Fleet) -> None:
    run = site(fleet, "--tags", "docker_engine_configure")
    assert run.status == 0, run.output
    assert "TASK [trtllm.fleet.docker_engine : " in run.output
    # It was not complete.
    run = site(fleet)
    assert (run.status, changed(run), skipped_roles(run)) == (0, 0, False), run.output
    assert skipped_roles(site(fleet))


def test_changed_input_runs_the_roles(fleet: Fleet) -> None:
    variables = {"serving_recipe_engine_options": {"max_batch_size": 16}}
    run = site(fleet, **variables)
    assert run.status == 0, run.output
    assert not skipped_roles(run)
    assert skipped_roles(site(fleet, **variables))
    assert not skipped_roles(site(fleet))


def test_record_of_another_collection_is_not_believed(fleet: Fleet) -> None:
    fleet.shell(f"""sed -i 's/"collection": "./"collection": "x/' {RECORD}""")
    run = site(fleet)
    assert run.status == 0, run.output
    assert not skipped_roles(run)
    assert (changed(run), skipped_roles(site(fleet))) == (0, True)
