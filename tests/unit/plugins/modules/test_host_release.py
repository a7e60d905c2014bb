"""host_release: files, links and units of releases, on a real file system with a scripted systemctl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release import releases as host_releases
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import (
    ReleaseError,
    has_secrets,
    release_name,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.units import (
    UnitChanges,
    UnitState,
    unit_changes,
)
from ansible_collections.trtllm.fleet.plugins.modules import host_release, host_release_info
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

ONE = {"engine.yaml": "tp: 8\n", "release.json": '{"model": "m"}', "a-0.service": "run @release@/engine.yaml\n"}
TWO = {**ONE, "engine.yaml": "tp: 4\n", "a-1.service": "run @release@/engine.yaml too\n"}


class Docker:
    """Images by each of their names, as in the classic image store: the last tag is removed with its digest."""

    def __init__(self) -> None:
        self.images: dict[str, str] = {}
        self.used: set[str] = set()

    def pull(self, image: str, digest: str) -> None:
        self.images[image] = self.images[f"{image.rpartition(':')[0]}@{digest}"] = digest

    def load(self, image: str, image_id: str) -> None:
        """Load an image from a file, without a digest. Its ID is a name, and the last one once its tag moved."""
        self.images[image] = self.images[image_id] = image_id

    def __call__(self, verb: str, name: str) -> CommandResult:
        if name not in self.images:
            return CommandResult(1, "", f"Error response from daemon: No such image: {name}")
        if verb == "rm":
            image = self.images[name]
            if image in self.used:
                return CommandResult(1, "", f"Error response from daemon: conflict: unable to remove {name}")
            del self.images[name]
            names = [other for other, found in self.images.items() if found == image]
            if all("@" in other for other in names):
                self.images = {other: found for other, found in self.images.items() if found != image}
        return CommandResult(0, self.images.get(name, ""))


class Systemctl:
    """A systemd with running units, and by the links in ``units`` enabled ones."""

    def __init__(self, units: Path) -> None:
        self.units = units
        self.active: dict[str, str] = {}
        self.calls: list[str] = []
        self.fails: str | None = None
        self.docker = Docker()

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        if argv[:2] == ["docker", "image"]:
            return self.docker(argv[2], argv[-1])
        options, units = list(argv[1:]), []
        if "--" in options:
            units = options[options.index("--") + 1 :]
            options = options[: options.index("--")]
        verb = options[0]
        if verb == self.fails:
            return CommandResult(1, "", f"cannot {verb}")
        wants = self.units / "multi-user.target.wants"
        if verb == "show":
            paragraphs = [
                f"ActiveState={self.active.get(unit, 'inactive')}\n"
                f"UnitFileState={'enabled' if (wants / unit).is_symlink() else ''}\n"
                for unit in units
            ]
            return CommandResult(0, "\n".join(paragraphs))
        self.calls.append(" ".join([verb, *units]))
        if verb == "enable":
            wants.mkdir(exist_ok=True)
            for unit in units:
                (wants / unit).unlink(missing_ok=True)
                (wants / unit).symlink_to(os.readlink(self.units / unit))
        if verb in ("start", "stop"):
            self.active.update(dict.fromkeys(units, "active" if verb == "start" else "inactive"))
        return CommandResult(0)


class Host:
    """Directories and systemd of a host."""

    def __init__(self, path: Path) -> None:
        self.root, self.units, self.noted = path / "fleet", path / "system", path / "images"
        self.units.mkdir()
        self.systemctl = Systemctl(self.units)

    def releases(self, check_mode: bool = False) -> HostReleases:
        return HostReleases(self.root, self.units, check_mode, self.systemctl, self.noted)

    def run(self, files: dict[str, str], verify: bool = True) -> str:
        """Write, start and verify a release, as a play does. Returns its name."""
        name = self.releases().stage(files).name
        self.releases().start(name, restart=True)
        if verify:
            self.releases().mark_verified(name, 5)
        return name

    def links(self) -> dict[str, str]:
        return {path.name: os.readlink(path) for path in self.units.glob("*.service")}

    def running(self) -> set[str]:
        return {unit for unit, state in self.systemctl.active.items() if state == "active"}

    def tree(self) -> dict[str, str]:
        """Return all files and links below both directories, with their times or targets."""
        return {
            str(path): os.readlink(path) if path.is_symlink() else f"{path.lstat().st_mtime_ns}"
            for top in (self.root, self.units)
            for path in top.rglob("*")
        }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_changed_units_stop_before_the_first_start() -> None:
    states = {
        "a-0": UnitState("active", "enabled", "/old/a-0"),
        "a-1": UnitState("activating", "enabled", "/old/a-1"),
        "a-2": UnitState("failed", "enabled", "/old/a-2"),
    }
    todo = unit_changes(states, {"a-0": "/new/a-0"}, restart=True)
    assert todo == UnitChanges(
        stop=("a-0", "a-1"), remove=("a-1", "a-2"), link=("a-0",), enable=("a-0",), start=("a-0",)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(UnitState("active", "enabled", "/new/a"), UnitChanges(), id="as wanted"),
        pytest.param(UnitState("activating", "enabled", "/new/a", "start-post"), UnitChanges(), id="starts"),
        pytest.param(
            UnitState("activating", "enabled", "/new/a", "auto-restart"),
            UnitChanges(stop=("a",), start=("a",)),
            id="waits for a restart",
        ),
        pytest.param(
            UnitState("deactivating", "enabled", "/new/a", "stop-sigterm"),
            UnitChanges(stop=("a",), start=("a",)),
            id="stops",
        ),
        pytest.param(
            UnitState("activating", "enabled", "/old/a", "auto-restart"),
            UnitChanges(stop=("a",), link=("a",), enable=("a",), start=("a",)),
            id="waits for a restart of another release",
        ),
        pytest.param(UnitState("inactive", "enabled", "/new/a"), UnitChanges(start=("a",)), id="stopped"),
        pytest.param(UnitState("failed", "enabled", "/new/a"), UnitChanges(start=("a",)), id="failed"),
        pytest.param(UnitState("active", "linked", "/new/a"), UnitChanges(enable=("a",)), id="disabled"),
        pytest.param(
            UnitState("active", "enabled", "/old/a"),
            UnitChanges(stop=("a",), link=("a",), enable=("a",), start=("a",)),
            id="of another release",
        ),
        pytest.param(
            UnitState("active", "enabled", None),
            UnitChanges(stop=("a",), link=("a",), enable=("a",), start=("a",)),
            id="a file instead of a link",
        ),
        pytest.param(
            UnitState("inactive", "", None), UnitChanges(link=("a",), enable=("a",), start=("a",)), id="missing"
        ),
    ],
)
def test_changes_from_a_state(state: UnitState, expected: UnitChanges) -> None:
    assert unit_changes({"a": state}, {"a": "/new/a"}, restart=False) == expected


# --- staged -----------------------------------------------------------------------------------------------------------


def test_stage_writes_the_files_once(host: Host) -> None:
    staged = host.releases().stage(ONE)
    directory = host.root / "releases" / staged.name
    assert (directory / "a-0.service").read_text() == f"run {directory}/engine.yaml\n"
    assert [oct(path.stat().st_mode & 0o777) for path in (directory, directory / "engine.yaml")] == ["0o755", "0o644"]
    before = host.tree()
    again = host.releases().stage(ONE)
    assert (again.name, again.intact, again.differences) == (staged.name, True, [])
    assert host.tree() == before


def test_secrets_are_readable_for_root_and_not_in_diffs(host: Host) -> None:
    staged = host.releases().stage(ONE, {"password": "open sesame"})
    path = host.releases().path(staged.name) / "password"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("open sesame", 0o640)
    assert host.releases().stage(ONE, {"password": "open sesame"}).differences == []
    other = host.releases(True).stage(ONE, {"password": "abracadabra"})
    assert other.name != staged.name
    shown = json.dumps([*staged.differences, *other.differences])
    assert "password" in shown
    assert "sesame" not in shown
    assert "abracadabra" not in shown
    host.releases().mark_verified(staged.name, 5)
    (found,) = (
        f for f in host.releases(True).stage({**ONE, "password": "none"}).differences if "password" in f["after_header"]
    )
    assert (found["before"], found["after"]) == ("(a secret)", "none")
    path.chmod(0o644)
    assert [
        Path(found["after_header"]).name
        for found in host.releases().stage(ONE, {"password": "open sesame"}).differences
    ] == ["password"]


def test_the_name_follows_from_the_files() -> None:
    assert release_name(ONE) == release_name({**ONE, "release.json": "{}"})
    assert release_name(ONE) != release_name(TWO)
    assert release_name(ONE) != release_name({**ONE, "environment": ""})


@pytest.mark.parametrize(
    ("file", "intact"), [("engine.yaml", False), ("a-0.service", False), ("release.json", True)]
)  # fmt: skip
def test_drift_is_shown_and_corrected(host: Host, file: str, intact: bool) -> None:
    name = host.run(ONE)
    path = host.root / "releases" / name / file
    good = path.read_text()
    path.write_text("edited\n")
    staged = host.releases().stage(ONE)
    assert staged.intact is intact
    (difference,) = staged.differences
    assert (difference["before"], difference["after"]) == ("edited\n", good)
    assert path.read_text() == good


def test_foreign_files_modes_and_links_are_drift(host: Host) -> None:
    name = host.run(ONE)
    directory = host.root / "releases" / name
    (directory / "a-9.service").write_text("not ours\n")
    (directory / "engine.yaml").chmod(0o666)
    (directory / "release.json").unlink()
    (directory / "release.json").symlink_to("/dev/null")
    staged = host.releases().stage(ONE)
    assert not staged.intact
    assert len(staged.differences) == 3
    assert sorted(path.name for path in directory.iterdir()) == sorted([*ONE, "SHA256SUMS"])
    assert (directory / "release.json").read_text() == ONE["release.json"]
    assert not host.releases().stage(ONE).differences


def test_checksums_are_in_the_format_of_sha256sum(host: Host) -> None:
    name = host.run(ONE)
    directory = host.releases().path(name)
    sums = directory / "SHA256SUMS"
    assert [line.split("  ")[1] for line in sums.read_text().splitlines()] == ["a-0.service", "engine.yaml"]
    check = ["sha256sum", "-c", "--strict", "--quiet", sums.name]
    subprocess.run(check, cwd=directory, check=True)
    (directory / "release.json").write_text("{}")
    subprocess.run(check, cwd=directory, check=True)  # no unit reads it
    (directory / "engine.yaml").write_text("edited\n")
    assert subprocess.run(check, cwd=directory, check=False).returncode == 1
    assert not host.releases().stage(ONE).intact
    subprocess.run(check, cwd=directory, check=True)


def test_a_release_without_checksums_gets_them_at_the_next_write(host: Host) -> None:
    name = host.run(ONE)
    sums = host.releases().path(name) / "SHA256SUMS"
    written = sums.read_text()
    sums.unlink()
    (sums.parent / "engine.yaml").write_text("edited\n")
    (sums.parent / "engine.yaml").write_text(ONE["engine.yaml"])
    assert [found["after"] for found in host.releases(True).stage(ONE).differences] == [written]
    assert not sums.exists()
    staged = host.releases().stage(ONE)
    assert (staged.name, staged.intact, len(staged.differences)) == (name, True, 1)
    assert sums.read_text() == written
    assert host.releases().stage(ONE).differences == []


def test_edited_checksums_are_corrected(host: Host) -> None:
    sums = host.releases().path(host.run(ONE)) / "SHA256SUMS"
    good = sums.read_text()
    sums.write_text("0  engine.yaml\nno sum\n")
    (difference,) = host.releases().stage(ONE).differences
    assert (difference["before"], difference["after"]) == ("0  engine.yaml\nno sum\n", good)


def test_checksums_of_secrets_are_readable_for_root_and_not_secrets(host: Host) -> None:
    name = host.releases().stage(ONE, {"token": "1234"}).name
    sums = host.releases().path(name) / "SHA256SUMS"
    assert sums.stat().st_mode & 0o777 == 0o640
    assert "  token\n" in sums.read_text()
    assert has_secrets(sums.parent, {"token": "1234"})
    assert host.releases().stage(ONE, {"token": "1234"}).differences == []


def test_other_files_are_removed_without_a_restart(host: Host) -> None:
    """Files of an editor or a full disk, a unit and a directory: no unit uses them."""
    directory = host.releases().path(host.run(ONE))
    for other in (".engine.yaml.swp", ".engine.yaml.new", "engine.yaml~", "a-9.service"):
        (directory / other).write_text("stray")
    (directory / "old").mkdir()
    check = host.releases(check_mode=True)
    assert (check.stage(ONE).intact, check.start(directory.name, False, ["a-0.service"]).changed) == (True, False)
    staged = host.releases().stage(ONE)
    assert (staged.intact, len(staged.differences)) == (True, 5)
    assert sorted(path.name for path in directory.iterdir()) == sorted([*ONE, "SHA256SUMS"])
    assert not host.releases().start(staged.name, restart=not staged.intact).changed


def test_differences_are_to_the_release_verified_last(host: Host) -> None:
    host.run(ONE)
    shown = {
        Path(d["after_header"]).name: (d["before"], d["after"]) for d in host.releases(True).stage(TWO).differences
    }
    assert shown["engine.yaml"] == ("tp: 8\n", "tp: 4\n")
    assert shown["a-1.service"][0] == ""


@pytest.mark.parametrize("file", ["../passwd", "a/b", "", ".", ".hidden"])
def test_names_of_files_stay_in_the_directory(host: Host, file: str) -> None:
    with pytest.raises(ReleaseError, match="is not a file name"):
        host.releases().stage({file: ""})


@pytest.mark.parametrize("text", [5, None, True, {"tp": 8}])
def test_contents_are_strings(module: Module, host: Host, text: Any) -> None:
    failed = module(state="staged", files={"engine.yaml": text})
    assert failed["msg"] == f"files: the content of 'engine.yaml' is {text!r}; it must be a string. Put it in quotes"
    assert not host.root.exists()


# --- started ----------------------------------------------------------------------------------------------------------


def test_from_one_instance_to_two_and_to_one_again(host: Host) -> None:
    one = host.run(ONE)
    assert host.links() == {"a-0.service": f"{host.root}/releases/{one}/a-0.service"}
    host.systemctl.calls.clear()
    host.run(TWO)
    assert host.running() == {"a-0.service", "a-1.service"}
    assert host.systemctl.calls == [
        "stop a-0.service",
        "enable a-0.service a-1.service",
        "daemon-reload",
        "reset-failed a-0.service a-1.service",
        "start a-0.service a-1.service",
    ]
    host.systemctl.calls.clear()
    host.run(ONE)
    assert host.running() == {"a-0.service"}
    assert host.systemctl.calls == [
        "stop a-0.service a-1.service",
        "enable a-0.service",
        "daemon-reload",
        "reset-failed a-0.service a-1.service",
        "start a-0.service",
    ]
    assert host.links() == {"a-0.service": f"{host.root}/releases/{one}/a-0.service"}
    assert [path.name for path in (host.units / "multi-user.target.wants").iterdir()] == ["a-0.service"]


def test_a_running_release_is_not_changed(host: Host) -> None:
    name = host.run(TWO)
    before = host.tree()
    host.systemctl.calls.clear()
    assert not host.releases().start(name, restart=False).changed
    assert host.releases().mark_verified(name, 5) == (False, [])
    assert (host.tree(), host.systemctl.calls) == (before, [])


def test_units_of_an_interrupted_switch_are_removed(host: Host) -> None:
    one = host.run(ONE)
    host.run(TWO, verify=False)
    assert host.releases().verified() == one
    host.releases().start(one, restart=False)
    assert host.running() == {"a-0.service"}
    assert set(host.links()) == {"a-0.service"}


def test_other_units_stay(host: Host) -> None:
    (host.units / "sshd.service").symlink_to("/usr/lib/systemd/system/ssh.service")
    (host.units / "mine.service").write_text("")
    host.run(TWO)
    host.releases().stop()
    assert {path.name for path in host.units.glob("*.service")} == {"sshd.service", "mine.service"}
    assert host.running() == set()


def test_only_the_changed_unit_restarts(host: Host) -> None:
    name = host.run(TWO)
    (host.units / "a-1.service").unlink()
    (host.units / "a-1.service").write_text("edited")
    host.systemctl.calls.clear()
    host.releases().start(name, restart=False)
    assert host.systemctl.calls == [
        "stop a-1.service",
        "enable a-1.service",
        "daemon-reload",
        "reset-failed a-1.service",
        "start a-1.service",
    ]


def test_a_unit_at_its_start_limit_is_started_again(host: Host) -> None:
    name = host.run(TWO)
    host.systemctl.active["a-1.service"] = "failed"
    host.systemctl.calls.clear()
    host.releases().start(name, restart=False)
    assert host.systemctl.calls == ["daemon-reload", "reset-failed a-1.service", "start a-1.service"]


def test_check_mode_changes_nothing_and_returns_all_changes(host: Host) -> None:
    one = host.run(ONE)
    before = host.tree()
    host.systemctl.calls.clear()
    releases = host.releases(check_mode=True)
    name = releases.stage(TWO).name
    assert releases.start(name, restart=True, units=["a-0.service", "a-1.service"]).steps().splitlines() == [
        "stop a-0.service",
        "link a-0.service",
        "link a-1.service",
        "enable a-0.service",
        "enable a-1.service",
        "start a-0.service",
        "start a-1.service",
    ]
    assert releases.description(name) is None
    assert releases.mark_verified(name, 1) == (True, [])
    assert releases.stop().remove == ("a-0.service",)
    assert (host.tree(), host.systemctl.calls) == (before, [])
    assert releases.verified() == one


def test_check_mode_on_an_untouched_host(host: Host) -> None:
    releases = host.releases(check_mode=True)
    name = releases.stage(ONE).name
    assert releases.start(name, restart=True, units=["a-0.service"]).start == ("a-0.service",)
    assert releases.mark_verified(name, 5) == (True, [])
    assert not host.root.exists()


def test_an_error_of_systemd_is_raised(host: Host) -> None:
    name = host.releases().stage(ONE).name
    host.systemctl.fails = "start"
    with pytest.raises(ReleaseError, match=r"systemctl start --no-block -- a-0.service: cannot start"):
        host.releases().start(name, restart=False)


def test_a_missing_release_is_not_started(host: Host) -> None:
    with pytest.raises(ReleaseError, match="has no unit to start"):
        host.releases().start("0123456789ab", restart=True)


# --- verified ---------------------------------------------------------------------------------------------------------


def release(number: int) -> dict[str, str]:
    return {**ONE, "engine.yaml": f"{number}"}


@pytest.mark.parametrize(("keep", "kept"), [(0, 2), (2, 2), (3, 3), (9, 5)])
def test_the_last_used_releases_are_kept(host: Host, keep: int, kept: int) -> None:
    names = []
    for number in range(5):
        names.append(host.run(release(number)))
        os.utime(host.releases().path(names[-1]), (number, number))
    # A rollback to the oldest release makes it the newest.
    releases = host.releases()
    releases.start(names[0], restart=True)
    assert releases.mark_verified(names[0], keep) == (True, sorted(names[1 : 1 + 5 - kept]))
    there = {path.name for path in (host.root / "releases").iterdir()}
    assert there == {names[0], *names[1 + 5 - kept :]}
    assert releases.verified() == names[0]


def test_the_verified_release_is_kept_after_failures(host: Host) -> None:
    good = host.run(release(0))
    os.utime(host.releases().path(good), (0, 0))
    for number in range(1, 9):
        host.run(release(number), verify=False)
    removed = host.releases().mark_verified(release_name(release(8)), 3)[1]
    assert host.releases().path(good).exists()
    assert len(removed) == 6


REPOSITORY = "nvcr.io/nvidia/tensorrt-llm/release"


def of_image(tag: str, digest: str) -> dict[str, str]:
    return {**ONE, "release.json": json.dumps({"image": f"{REPOSITORY}:{tag}", "digest": digest}), "engine.yaml": tag}


def pull(host: Host, tag: str, digest: str) -> None:
    host.systemctl.docker.pull(f"{REPOSITORY}:{tag}", digest)
    with host.noted.open("a") as noted:
        noted.write(f"{REPOSITORY}:{tag}\n")


def verify(host: Host, files: dict[str, str], keep: int = 2, check_mode: bool = False) -> dict[str, Any]:
    name = host.run(files, verify=False)
    given = {"state": "verified", "name": name, "keep": keep, "back": False, "rollout": ""}
    return host_release.apply(host.releases(check_mode), given)


def test_an_image_that_no_kept_release_names_is_removed(host: Host) -> None:
    docker = host.systemctl.docker
    docker.pull("mine:1", "sha256:99")
    docker.pull(f"{REPOSITORY}:0.9", "sha256:09")  # not pulled by this collection
    for number, removed in enumerate([[], [], ["1.0"], ["1.1"]]):
        pull(host, f"1.{number}", f"sha256:{number}0")
        files = of_image(f"1.{number}", f"sha256:{number}0")
        assert verify(host, files, check_mode=True)["images_removed"] == []
        assert verify(host, files)["images_removed"] == [f"{REPOSITORY}:{tag}" for tag in removed]
    assert set(docker.images.values()) == {"sha256:99", "sha256:09", "sha256:20", "sha256:30"}
    assert host.noted.read_text().split() == [f"{REPOSITORY}:1.2", f"{REPOSITORY}:1.3"]


def test_the_image_of_a_removed_unverified_release_is_removed(host: Host) -> None:
    pull(host, "1.0", "sha256:10")
    host.run(of_image("1.0", "sha256:10"), verify=False)
    os.utime(host.releases().path(release_name(of_image("1.0", "sha256:10"))), (0, 0))
    for number in (1, 2):
        pull(host, f"1.{number}", f"sha256:{number}1")
        answer = verify(host, of_image(f"1.{number}", f"sha256:{number}1"))
    assert answer["images_removed"] == [f"{REPOSITORY}:1.0"]


def test_only_the_digest_of_a_moved_tag_is_removed(host: Host) -> None:
    pull(host, "1.0", "sha256:10")
    verify(host, of_image("1.0", "sha256:10"))
    for number in (1, 2):
        pull(host, "1.0", f"sha256:1{number}")
        answer = verify(host, {**of_image("1.0", f"sha256:1{number}"), "engine.yaml": f"{number}"})
    assert answer["images_removed"] == [f"{REPOSITORY}@sha256:10"]
    assert set(host.systemctl.docker.images.values()) == {"sha256:11", "sha256:12"}


def test_a_loaded_image_whose_tag_moved_is_removed_by_its_id(host: Host) -> None:
    image = f"{REPOSITORY}:1.0"
    host.noted.write_text(f"{image}\n")
    for number in range(3):
        host.systemctl.docker.load(image, f"sha256:{number}0")
        described = {"image": image, "digest": None, "image_id": f"sha256:{number}0"}
        answer = verify(host, {**ONE, "release.json": json.dumps(described), "engine.yaml": f"{number}"})
    assert answer["images_removed"] == ["sha256:00"]
    assert set(host.systemctl.docker.images.values()) == {"sha256:10", "sha256:20"}


def test_an_image_that_a_container_uses_stays_with_a_warning(host: Host) -> None:
    for number in range(3):
        pull(host, f"1.{number}", f"sha256:{number}0")
        host.systemctl.docker.used.add(f"sha256:{number}0")
        answer = verify(host, of_image(f"1.{number}", f"sha256:{number}0"))
    assert answer["images_removed"] == []
    assert "conflict: unable to remove" in answer["warnings"][0]
    assert f"{REPOSITORY}:1.0" in host.noted.read_text()


def test_an_image_of_a_dynamo_component_stays(host: Host) -> None:
    component = host.root / "dynamo/worker/releases/1"
    component.mkdir(parents=True)
    (component / "trtllm-dynamo-worker.service").write_text(
        f"ExecStart=docker run {REPOSITORY}@sha256:00\n{REPOSITORY}:1.0"
    )
    for number in range(3):
        pull(host, f"1.{number}", f"sha256:{number}0")
        answer = verify(host, of_image(f"1.{number}", f"sha256:{number}0"))
    assert answer["images_removed"] == []


def test_a_rollback_without_weights_or_image_is_rejected(host: Host, tmp_path: Path) -> None:
    weights = tmp_path / "models/m"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text("{}")
    served = {"image": f"{REPOSITORY}:1.0", "digest": "sha256:10", "weights": str(weights)}
    pull(host, "1.0", "sha256:10")
    one = host.run({**ONE, "release.json": json.dumps(served)})
    host.run(TWO)
    assert host.releases().rollback_target(one)["description"] == served
    (weights / "config.json").unlink()
    with pytest.raises(ReleaseError, match=rf"release {one} has no weights \({weights}\) on the host; .* rollout.yml"):
        host.releases().rollback_target(one)
    host.systemctl.docker.images.clear()
    with pytest.raises(ReleaseError, match=rf"and no image \({REPOSITORY}@sha256:10\) on the host"):
        host.releases().rollback_target(one)


def test_weights_of_all_kept_releases_are_kept() -> None:
    """Role model_weights removes all revisions that no file of its globs names."""
    role = ROOT / "roles/model_weights/tasks/wait_for_download.yml"
    (verify,) = [task for task in yaml.safe_load(role.read_text()) if "trtllm.fleet.model_snapshot" in task]
    globs = verify["trtllm.fleet.model_snapshot"]["keep_named_in"]
    for path in ("releases/87a65c4edc96/release.json", "dynamo/worker/releases/87a65c4edc96/release.json"):
        assert any(PurePath("/etc/trtllm-fleet", path).match(each) for each in globs)


def test_a_removed_verified_release_is_ignored(host: Host) -> None:
    name = host.run(ONE)
    for path in host.releases().path(name).iterdir():
        path.unlink()
    host.releases().path(name).rmdir()
    assert host.releases().verified() == ""


# --- current ----------------------------------------------------------------------------------------------------------


def test_the_verified_release_is_current(host: Host) -> None:
    assert host.releases().current() == ""
    one = host.run(ONE)
    host.run(TWO, verify=False)
    assert host.releases().current() == one


def test_without_a_verified_release_the_linked_one_is_current(host: Host) -> None:
    name = host.run(TWO, verify=False)
    assert host.releases().current() == name


@pytest.mark.parametrize("file", ["release.json", "a-1.service"])
def test_an_incomplete_release_is_not_current(host: Host, file: str) -> None:
    name = host.run(TWO, verify=False)
    (host.releases().path(name) / file).unlink()
    assert host.releases().current() == ""


def test_without_a_verified_release_units_of_two_are_not_current(host: Host) -> None:
    one = host.run(ONE, verify=False)
    host.run(TWO, verify=False)
    (host.units / "a-0.service").unlink()
    (host.units / "a-0.service").symlink_to(host.releases().path(one) / "a-0.service")
    assert host.releases().current() == ""


# --- status -----------------------------------------------------------------------------------------------------------


def unit(name: str, release: str, active: str = "active") -> dict[str, str]:
    return {"name": f"{name}.service", "release": release, "active": active}


def test_status_of_an_untouched_host(host: Host) -> None:
    host.systemctl.fails = "show"
    nothing: dict[str, Any] = {"verified": "", "previous": "", "description": None, "history": [], "units": []}
    nothing["temporary"] = False
    assert host.releases().status(booted=True) == nothing
    host.root.joinpath("releases").mkdir(parents=True)
    host.units.rmdir()
    assert host.releases().status(booted=True) == nothing


def test_status_of_each_unit(host: Host) -> None:
    name = host.run(TWO)
    (host.units / "sshd.service").symlink_to("/usr/lib/systemd/system/ssh.service")
    host.systemctl.active["a-1.service"] = "failed"
    before = host.tree()
    status = host.releases().status(booted=True)
    assert (status["verified"], status["description"]) == (name, {"model": "m"})
    assert status["units"] == [unit("a-0", name), unit("a-1", name, "failed")]
    assert host.tree() == before
    (host.units / "a-0.service").unlink()
    assert host.releases().status(booted=True)["units"][0] == unit("a-0", "")


def test_a_temporary_release_is_known_until_the_verified_one_is_restored(host: Host) -> None:
    host.run(ONE)
    host.root.joinpath("temporary").mkdir()
    assert host.releases().status(booted=True)["temporary"]
    host.root.joinpath("temporary").rmdir()
    assert not host.releases().status(booted=True)["temporary"]


def test_status_of_an_interrupted_switch(host: Host) -> None:
    one = host.run(ONE)
    two = host.run(TWO, verify=False)
    status = host.releases().status(booted=True)
    assert (status["verified"], status["units"]) == (one, [unit("a-0", two), unit("a-1", two)])


def test_status_without_systemd_has_no_active_unit(host: Host) -> None:
    name = host.run(ONE)
    host.systemctl.fails = "show"
    assert host.releases().status(booted=False)["units"] == [unit("a-0", name, "inactive")]
    with pytest.raises(ReleaseError, match="cannot show"):
        host.releases().status(booted=True)


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_status_of_a_release_without_a_description(host: Host, content: str | None) -> None:
    path = host.releases().path(host.run(ONE)) / "release.json"
    path.unlink()
    if content:
        path.write_text(content)
    assert host.releases().status(booted=True)["description"] is None


# --- the modules ------------------------------------------------------------------------------------------------------

Module = Callable[..., "dict[str, Any]"]


@pytest.fixture
def module(host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Module:
    """Return a function that runs the module on ``host`` and returns its result."""

    def run(**options: Any) -> dict[str, Any]:
        monkeypatch.setattr(host_release, "UNITS", host.units)
        monkeypatch.setattr(
            host_release, "HostReleases", lambda root, units, check: HostReleases(root, units, check, host.systemctl)
        )
        return run_module(host_release, capsys, {"root": str(host.root), **options})

    return run


def test_units_are_switched_one_by_one(host: Host) -> None:
    files = {**TWO, "engine.yaml": "tp: 2\n"}
    one = host.run({**TWO})
    two = host.releases().stage(files).name
    done = host.releases().start(two, restart=False, only=["a-1.service"])
    assert (done.stop, done.remove, done.link, done.start) == (("a-1.service",), (), ("a-1.service",), ("a-1.service",))
    assert {unit: Path(link).parent.name for unit, link in host.links().items()} == {
        "a-0.service": one,
        "a-1.service": two,
    }
    assert host.releases().start(two, restart=False, only=["a-1.service"]).changed is False
    assert host.releases().start(two, restart=False).start == ("a-0.service",)
    with pytest.raises(ReleaseError, match=r"has no b\.service; it has a-0\.service, a-1\.service"):
        host.releases().start(two, restart=False, only=["b.service"])


# Two models: each unit has a file of its own, which names another.
PARTS = {
    "release.json": '{"model": "m"}',
    "environment": "A=1\n",
    "start.sh": "exec serve /release/engine.yaml\n",
    "engine.yaml": "tp: 8\n",
    "environment-b": "A=1\n",
    "start-b.sh": "exec serve /release/engine-b.yaml\n",
    "engine-b.yaml": "tp: 1\n",
    "a-0.service": "run @release@/environment /release/start.sh\n",
    "a-1.service": "run @release@/environment-b /release/start-b.sh\n",
}


@pytest.mark.parametrize(
    ("change", "started"),
    [
        pytest.param({"engine.yaml": "tp: 4\n"}, ["a-0.service"], id="a file of one, named by another file"),
        pytest.param({"environment-b": "A=2\n"}, ["a-1.service"], id="a file of one"),
        pytest.param({"a-1.service": f"{PARTS['a-1.service']}more\n"}, ["a-1.service"], id="the unit itself"),
        pytest.param({"certificates.sha1": "1\n"}, ["a-0.service", "a-1.service"], id="a file that no unit names"),
        pytest.param({"a-2.service": "run\n"}, ["a-2.service"], id="a new unit"),
        pytest.param({"release.json": "{}"}, [], id="the description"),
    ],
)
def test_a_unit_that_runs_the_same_does_not_restart(
    module: Module, host: Host, change: dict[str, str], started: list[str]
) -> None:
    host.run(PARTS)
    staged = module(state="staged", files={**PARTS, **change})
    assert staged["alike"] == [unit for unit in ("a-0.service", "a-1.service") if unit not in started]
    if "release.json" not in change:
        assert (
            module(state="started", name=staged["name"], restart=staged["restart"] and staged["begun"])["started"]
            == started
        )
    assert {Path(link).parent.name for link in host.links().values()} == {staged["name"]}
    assert host.releases().rollback_target(host.releases().verified())["alike"] == ["a-0.service", "a-1.service"]


def test_a_change_by_hand_that_the_inventory_takes_over_restarts_the_units(module: Module, host: Host) -> None:
    """They run what the file was before."""
    name = host.run(PARTS)
    (host.releases().path(name) / "engine.yaml").write_text("tp: 4\n")
    staged = module(state="staged", files={**PARTS, "engine.yaml": "tp: 4\n"})
    assert staged["alike"] == []
    started = module(state="started", name=staged["name"], restart=staged["restart"] and staged["begun"])["started"]
    assert started == ["a-0.service", "a-1.service"]


def test_a_restart_is_of_all_units(module: Module, host: Host) -> None:
    host.run(PARTS)
    staged = module(state="staged", files={**PARTS, "engine.yaml": "tp: 4\n"})
    assert module(state="started", name=staged["name"], restart=True)["started"] == ["a-0.service", "a-1.service"]


def test_a_unit_that_runs_the_same_and_is_down_starts(module: Module, host: Host) -> None:
    host.run(PARTS)
    host.systemctl.active["a-1.service"] = "failed"
    staged = module(state="staged", files={**PARTS, "engine.yaml": "tp: 4\n"})
    assert module(state="started", name=staged["name"])["started"] == ["a-0.service", "a-1.service"]


def test_the_history_names_the_rollout(module: Module, host: Host) -> None:
    name = module(state="staged", files=ONE)["name"]
    module(state="started", name=name, only=["a-0.service"])
    module(state="verified", name=name, rollout="2026-11-23T01:47:29Z")
    assert host.releases().history()[-1]["rollout"] == "2026-11-23T01:47:29Z"


def test_changed_secrets(module: Module) -> None:
    def changed(**given: Any) -> bool:
        return bool(module(state="staged", **given)["secrets_changed"])

    first = module(state="staged", files=ONE, secrets={"token": "a @release@"})
    assert first["secrets_changed"] is False
    module(state="verified", name=first["name"])
    assert changed(files=ONE, secrets={"token": "a @release@"}) is False
    assert changed(files=TWO, secrets={"token": "a @release@"}) is False
    assert changed(files=TWO, secrets={"token": "b"}) is True
    assert changed(files=TWO, secrets={"other": "a @release@"}) is True
    assert changed(files=TWO, secrets={"token": "a @release@", "other": "b"}) is True
    assert changed(files=TWO) is True
    assert changed(files={**TWO, "token": "a @release@"}) is True
    assert changed(files=TWO, secrets={"token": "b"}, _ansible_check_mode=True) is True
    assert changed(files=TWO, secrets={"token": "a @release@"}, _ansible_check_mode=True) is False


def test_a_switch(module: Module, host: Host) -> None:
    staged = module(state="staged", files=ONE)
    assert staged["changed"] is True
    assert (staged["previous"], staged["switching"], staged["restart"]) == ("", True, True)
    assert staged["path"] == f"{host.root}/releases/{staged['name']}"

    started = module(state="started", name=staged["name"], restart=staged["restart"])
    assert (started["changed"], started["started"], started["removed"]) == (True, ["a-0.service"], [])
    assert started["description"] == {"model": "m"}
    assert module(state="verified", name=staged["name"])["changed"] is True

    again = module(state="staged", files=ONE)
    assert (again["changed"], again["switching"], again["restart"], again["previous"]) == (False, False, False, "")
    assert module(state="started", name=staged["name"])["changed"] is False
    assert module(state="verified", name=staged["name"])["changed"] is False

    other = module(state="staged", files=TWO)
    assert (other["previous"], other["replaces"]) == (staged["name"], json.loads(ONE["release.json"]))
    stopped = module(state="stopped")
    assert (stopped["removed"], stopped["previous"]) == (["a-0.service"], staged["name"])
    assert module(state="stopped")["changed"] is False


def test_an_edited_file_restarts_and_a_description_does_not(module: Module, host: Host) -> None:
    name = host.run(ONE)
    rewritten = module(state="staged", files={**ONE, "release.json": "{}"})
    assert (rewritten["name"], rewritten["changed"], rewritten["restart"]) == (name, True, False)
    (host.releases().path(name) / "engine.yaml").write_text("edited\n")
    assert module(state="staged", files=ONE)["restart"] is True


def test_a_running_unverified_release_is_verified_without_a_restart(module: Module, host: Host) -> None:
    name = host.run(ONE, verify=False)
    staged = module(state="staged", files=ONE)
    assert (staged["previous"], staged["switching"], staged["restart"]) == ("", True, False)
    assert module(state="started", name=name)["changed"] is False
    assert module(state="verified", name=name)["changed"] is True

    (host.root / "verified").unlink()
    other = module(state="staged", files=TWO)
    assert (other["previous"], other["switching"], other["restart"]) == (name, True, True)
    (host.releases().path(name) / "engine.yaml").write_text("edited\n")
    assert module(state="staged", files=ONE)["restart"] is True


def test_an_interrupted_switch_is_repeated_with_a_restart(module: Module, host: Host) -> None:
    one = host.run(ONE)
    host.run(TWO, verify=False)
    staged = module(state="staged", files=TWO)
    assert (staged["previous"], staged["switching"], staged["restart"]) == (one, True, True)


def test_host_release_info(host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(host_release_info, "UNITS", host.units)
    monkeypatch.setattr(host_release_info, "BOOTED", host.root / "missing")

    def answer() -> dict[str, Any]:
        return run_module(host_release_info, capsys, {"root": str(host.root)})

    assert answer()["units"] == []
    name = host.run(ONE)
    result = answer()
    assert (result["changed"], result["verified"], result["units"]) == (False, name, [unit("a-0", name, "inactive")])
    for path in host.releases().path(name).iterdir():
        path.unlink()
    host.releases().path(name).rmdir()
    (host.root / "releases").rmdir()
    (host.root / "verified").unlink()
    (host.root / "history.json").unlink()
    host.root.rmdir()
    host.root.write_text("not a directory")
    assert str(host.root) in answer()["msg"]


# --- history ----------------------------------------------------------------------------------------------------------

SERVED = {
    "name": "gpt-oss-120b-h200x8-low_latency",
    "model": "openai/gpt-oss-120b",
    "weights": "/srv/models/openai/gpt-oss-120b/57476bb",
    "image": "nvcr.io/x:1.2.1",
    "digest": "sha256:e3",
    "provenance": [
        {"option": "max_batch_size", "value": 7, "source": "serving_recipe_engine_options"},
        {"option": "max_num_tokens", "value": 9, "source": "blog 9"},
    ],
}


def test_history_of_verified_releases(host: Host) -> None:
    one = host.run({**ONE, "release.json": json.dumps(SERVED)})
    two = host.run(TWO)
    again = host.run({**ONE, "release.json": json.dumps(SERVED)})
    assert again == one
    history = host.releases().status(booted=True)["history"]
    assert [(entry["number"], entry["release"], entry["kept"]) for entry in history] == [
        (1, one, True),
        (2, two, True),
        (3, one, True),
    ]
    first = {key: value for key, value in history[0].items() if key != "verified_at"}
    assert first == {
        "number": 1,
        "release": one,
        "recipe": "gpt-oss-120b-h200x8-low_latency",
        "model": "openai/gpt-oss-120b",
        "revision": "57476bb",
        "image": "nvcr.io/x:1.2.1",
        "digest": "sha256:e3",
        "overrides": {"max_batch_size": 7},
        "back": False,
        "rollout": "",
        "kept": True,
    }
    age = datetime.now(timezone.utc) - datetime.fromisoformat(history[0]["verified_at"])
    assert timedelta(0) <= age < timedelta(minutes=10)
    # A second verification of the same release adds no entry.
    host.releases().mark_verified(one, 5)
    assert len(host.releases().history()) == 3


def test_a_rollback_is_recorded_on_a_host_that_the_rollout_did_not_change(host: Host) -> None:
    one = host.run(ONE)
    assert [host.releases().mark_verified(one, 5, True, "r1")[0] for _run in range(2)] == [True, False]
    assert [(entry["release"], entry["back"], entry["rollout"]) for entry in host.releases().history()] == [
        (one, False, ""),
        (one, True, "r1"),
    ]


def test_without_a_history_file_the_verified_release_is_the_history(host: Host) -> None:
    one = host.run(ONE)
    (host.root / "history.json").unlink()
    assert [(entry["number"], entry["release"]) for entry in host.releases().history()] == [(1, one)]
    two = host.run(TWO)
    assert [(entry["number"], entry["release"]) for entry in host.releases().history()] == [(1, one), (2, two)]


def test_history_keeps_its_newest_entries(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_releases, "HISTORY_LENGTH", 3)
    for files in (ONE, TWO, ONE, TWO, ONE):
        host.run(files)
    assert [entry["number"] for entry in host.releases().history()] == [3, 4, 5]


def test_an_invalid_history_is_an_error(host: Host) -> None:
    host.run(ONE)
    (host.root / "history.json").write_text('[{"number": 1}]')
    with pytest.raises(ReleaseError, match=r"history\.json"):
        host.releases().history()


def test_a_rollback_target_is_verified_and_kept(host: Host) -> None:
    with pytest.raises(ReleaseError, match="available releases: none"):
        host.releases().rollback_target("a")
    one, two = host.run(ONE), host.run(TWO)
    assert host.releases().rollback_target(one) == {"name": one, "description": {"model": "m"}, "alike": []}
    assert host.releases().rollback_target(two)["name"] == two
    staged = host.releases().stage({**ONE, "engine.yaml": "not verified"}).name
    with pytest.raises(ReleaseError, match=f"{staged} was not verified on this host"):
        host.releases().rollback_target(staged)
    shutil.rmtree(host.releases().path(one))
    with pytest.raises(ReleaseError, match=f"was removed; available releases: {two}"):
        host.releases().rollback_target(one)


def test_errors_of_the_file_system(module: Module, host: Host) -> None:
    host.root.write_text("not a directory")
    failed = module(state="staged", files=ONE)
    assert failed["failed"] is True
    assert str(host.root) in failed["msg"]
    assert "name" in module(state="started")["msg"]


def test_no_template_uses_ansible_managed() -> None:
    """It can contain a date, a user or a host, and the name of a release follows from its files."""
    templates = list((ROOT / "roles").glob("*/templates/*.j2"))
    assert templates
    assert [path.name for path in templates if "ansible_managed" in path.read_text()] == []


@pytest.mark.parametrize("shown", [False, True])
def test_module_returns_differences_only_for_diff_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shown: bool
) -> None:
    given = {
        "root": str(tmp_path),
        "state": "staged",
        "files": ONE,
        "_ansible_check_mode": True,
        "_ansible_diff": shown,
    }
    result = run_module(host_release, capsys, given)
    assert result["changed"]
    assert ("diff" in result) == shown
