"""restore_verified: end a temporary release on the host alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.unit.zipapps import zipapp
from roles.trtllm_server.files import restore_verified
from roles.trtllm_server.files.restore_verified import TIMER

UNIT, OTHER = "trtllm-serve-0.service", "trtllm-serve-1.service"
# A systemctl with a file in $ACTIVE for each active unit. It logs its arguments to $LOG, and fails for verb $FAILS.
SYSTEMCTL = r"""#!/bin/sh
echo "$@" >> "$LOG"
[ "$1" = "$FAILS" ] && exit 1
verb=$1; shift
for word; do
    case $verb,$word in
        *,--*) ;;
        show,*)
            [ -e "$ACTIVE/$word" ] && state=active || state=inactive
            printf 'ActiveState=%s\nUnitFileState=enabled\n\n' $state ;;
        start,*) touch "$ACTIVE/$word" ;;
        stop,*) rm -f "$ACTIVE/$word" ;;
    esac
done
exit 0
"""


class Host:
    """A host with the verified release aaa, the running release bbb and the old release ccc."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.units, self.log, self.active = (folder / name for name in ("etc", "units", "log", "active"))
        for release, units in (("aaa", [UNIT]), ("bbb", [UNIT, OTHER]), ("ccc", [UNIT])):
            directory = self.root / "releases" / release
            directory.mkdir(parents=True)
            for unit in units:
                (directory / unit).touch()
        (self.root / "verified").symlink_to(self.root / "releases/aaa")
        (self.root / "history.json").write_text(json.dumps([{"release": "ccc"}, {"release": "aaa"}]))
        (self.root / "temporary").mkdir()
        self.units.mkdir()
        self.active.mkdir()
        (self.units / "ssh.service").symlink_to("/usr/lib/systemd/system/ssh.service")
        for name in (restore_verified.SERVICE, restore_verified.TIMER):
            (self.units / name).touch()
        for unit in (UNIT, OTHER):
            self.link(unit, "bbb")
            (self.active / unit).touch()
        program = folder / "bin/systemctl"
        program.parent.mkdir()
        program.write_text(SYSTEMCTL)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        monkeypatch.setenv("LOG", str(self.log))
        monkeypatch.setenv("ACTIVE", str(self.active))
        monkeypatch.setenv("FAILS", "")

    def link(self, unit: str, release: str) -> None:
        (self.units / unit).unlink(missing_ok=True)
        (self.units / unit).symlink_to(self.root / "releases" / release / unit)

    def mark_temporary(self, *releases: str) -> None:
        for release in releases:
            (self.root / "temporary" / release).touch()

    def run(self) -> int:
        command = [sys.executable, "-I", str(zipapp(Path(restore_verified.__file__))), str(self.root), str(self.units)]
        return subprocess.run(command, check=False).returncode

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()

    def links(self) -> dict[str, str]:
        return {path.name: path.readlink().parent.name for path in self.units.glob("trtllm-serve-*")}

    def releases(self) -> list[str]:
        return sorted(path.name for path in (self.root / "releases").iterdir())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_the_verified_release_is_restored_and_the_temporary_one_removed(host: Host) -> None:
    host.mark_temporary("bbb")
    assert host.run() == 0
    assert host.links() == {UNIT: "aaa"}
    assert host.releases() == ["aaa", "ccc"]
    assert not (host.root / "temporary").exists()
    assert sorted(path.name for path in host.units.iterdir()) == ["ssh.service", UNIT]
    calls = host.calls()
    # Both releases need the same GPUs, so one stops before the other starts.
    order = [
        f"stop -- {UNIT} {OTHER}",
        "daemon-reload",
        f"start --no-block -- {UNIT}",
        f"stop {TIMER}",
        "daemon-reload",
    ]
    assert [line for line in calls if line in order] == order


def test_a_verified_release_marked_as_temporary_stays(host: Host) -> None:
    """A temporary release may have been verified before or since."""
    host.mark_temporary("ccc", "aaa", "gone")
    assert host.run() == 0
    assert host.releases() == ["aaa", "bbb", "ccc"]


def test_units_of_the_verified_release_are_not_stopped(host: Host) -> None:
    (host.units / OTHER).unlink()
    host.link(UNIT, "aaa")
    assert host.run() == 0
    assert not [line for line in host.calls() if line.startswith(("stop --", "start"))]
    assert host.links() == {UNIT: "aaa"}


@pytest.mark.parametrize("verb", ["stop", "enable", "daemon-reload", "start"])
def test_a_failed_step_is_repeated(host: Host, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """The restore unit stays for systemd and the next boot until the program succeeds."""
    host.mark_temporary("bbb")
    monkeypatch.setenv("FAILS", verb)
    assert host.run() != 0
    assert (host.units / restore_verified.SERVICE).exists()
    assert host.releases() == ["aaa", "bbb", "ccc"]
    monkeypatch.setenv("FAILS", "")
    assert host.run() == 0
    assert (host.links(), host.releases()) == ({UNIT: "aaa"}, ["aaa", "ccc"])


def test_a_verified_release_without_units_changes_nothing(host: Host) -> None:
    (host.root / "releases/aaa" / UNIT).unlink()
    assert host.run() != 0
    assert host.links() == {UNIT: "bbb", OTHER: "bbb"}
    assert not host.log.exists()
