"""The program that ends a trial: it is all that there is when nobody else does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from roles.trtllm_server.files import restore_verified
from roles.trtllm_server.files.restore_verified import TIMER

UNIT, OTHER = "trtllm-serve-0.service", "trtllm-serve-1.service"
# systemctl as far as links go: what is disabled loses its link, what is enabled gets one. It writes down what it was
# asked for, and fails for the verb in $FAILS.
SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$LOG"
[ "$1" = "$FAILS" ] && exit 1
verb=$1; shift
for word; do
    case $verb,$word in
        *,--*) ;;
        disable,*) [ -L "$UNITS/$word" ] && rm "$UNITS/$word" ;;
        enable,*) ln -s "$word" "$UNITS/${word##*/}" 2>/dev/null || [ -e "$UNITS/${word##*/}" ] ;;
    esac
done
exit 0
"""


class Host:
    """Releases aaa, which is verified, and bbb, which runs, below a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.units, self.log = folder / "etc", folder / "units", folder / "log"
        for release, units in (("aaa", [UNIT]), ("bbb", [UNIT, OTHER]), ("ccc", [UNIT])):
            directory = self.root / "releases" / release
            directory.mkdir(parents=True)
            for unit in units:
                (directory / unit).touch()
        (self.root / "verified").symlink_to(self.root / "releases/aaa")
        (self.root / "history.json").write_text(json.dumps([{"release": "ccc"}, {"release": "aaa"}]))
        (self.root / "trials").mkdir()
        self.units.mkdir()
        (self.units / "ssh.service").symlink_to("/usr/lib/systemd/system/ssh.service")
        for name in (restore_verified.SERVICE, restore_verified.TIMER):
            (self.units / name).touch()
        for unit in (UNIT, OTHER):
            self.link(unit, "bbb")
        program = folder / "bin/systemctl"
        program.parent.mkdir()
        program.write_text(SYSTEMCTL)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        monkeypatch.setenv("LOG", str(self.log))
        monkeypatch.setenv("UNITS", str(self.units))
        monkeypatch.setenv("FAILS", "")

    def link(self, unit: str, release: str) -> None:
        (self.units / unit).unlink(missing_ok=True)
        (self.units / unit).symlink_to(self.root / "releases" / release / unit)

    def tried(self, *releases: str) -> None:
        for release in releases:
            (self.root / "trials" / release).touch()

    def run(self) -> int:
        command = [sys.executable, restore_verified.__file__, str(self.root), str(self.units)]
        return subprocess.run(command, check=False).returncode

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()

    def links(self) -> dict[str, str]:
        return {path.name: path.readlink().parent.name for path in self.units.glob("trtllm-serve-*")}

    def releases(self) -> list[str]:
        return sorted(path.name for path in (self.root / "releases").iterdir())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_the_verified_release_runs_again_and_nothing_of_the_trial_is_left(host: Host) -> None:
    host.tried("bbb")
    assert host.run() == 0
    assert host.links() == {UNIT: "aaa"}
    assert host.releases() == ["aaa", "ccc"]
    assert not (host.root / "trials").exists()
    assert sorted(path.name for path in host.units.iterdir()) == ["ssh.service", UNIT]
    asked = host.asked()
    # The GPUs of one are those of the other, so it is stopped before.
    order = [f"disable --now {UNIT} {OTHER}", f"start --no-block {UNIT}", f"stop {TIMER}", "daemon-reload"]
    assert [line for line in asked if line in order] == order


def test_what_was_there_before_the_trial_stays(host: Host) -> None:
    """A release that was tried may have been there, or have been proven since."""
    host.tried("ccc", "aaa", "gone")
    assert host.run() == 0
    assert host.releases() == ["aaa", "bbb", "ccc"]


def test_what_runs_the_verified_release_is_not_stopped(host: Host) -> None:
    (host.units / OTHER).unlink()
    host.link(UNIT, "aaa")
    assert host.run() == 0
    assert not [line for line in host.asked() if line.startswith("disable --now")]
    assert host.links() == {UNIT: "aaa"}


@pytest.mark.parametrize("verb", ["disable", "enable", "start"])
def test_what_failed_is_done_again(host: Host, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Its unit stays, for systemd and the next boot, until it has succeeded."""
    host.tried("bbb")
    monkeypatch.setenv("FAILS", verb)
    assert host.run() != 0
    assert (host.units / restore_verified.SERVICE).exists()
    assert host.releases() == ["aaa", "bbb", "ccc"]
    monkeypatch.setenv("FAILS", "")
    assert host.run() == 0
    assert (host.links(), host.releases()) == ({UNIT: "aaa"}, ["aaa", "ccc"])


def test_a_verified_release_without_units_takes_nothing_away(host: Host) -> None:
    (host.root / "releases/aaa" / UNIT).unlink()
    assert host.run() != 0
    assert host.links() == {UNIT: "bbb", OTHER: "bbb"}
    assert not host.log.exists()
