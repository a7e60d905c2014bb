"""managed_packages: what goes and what stays, with an apt of a few packages that knows who needs what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import managed_packages as logic
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.modules import managed_packages
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

# As apt wrote it: two runs, of which the second brought nothing that the first had not.
NOTE = """\
containerd
docker.io
iptables
docker.io
asked docker.io
asked docker.io ca-certificates
held docker.io
"""
DEPENDS = {
    "docker.io": ["containerd", "iptables", "libc6"],
    "ufw": ["iptables"],
    "orphan": ["iptables"],
    "compose": ["docker.io"],
}


class Apt:
    """dpkg and apt of one host. ``marks``: the packages that are there because others needed them."""

    def __init__(self, root: Path) -> None:
        self.note = root / "packages"
        self.note.write_text(NOTE)
        self.states = root / "extended_states"
        self.unfinished = False
        self.archives = root / "archives"
        self.archives.mkdir()
        self.status = dict.fromkeys(["docker.io", "containerd", "iptables", "libc6", "ca-certificates"], "installed")
        self.mark(["containerd", "iptables", "libc6"])
        self.held = ["docker.io", "linux-image"]
        self.calls: list[str] = []
        self.refuses = ""

    def mark(self, names: Sequence[str], path: Path | None = None) -> None:
        (path or self.states).write_text(json.dumps(sorted(names)))

    def marks(self, path: Path | None = None) -> set[str]:
        return set(json.loads((path or self.states).read_text()))

    def unneeded(self, path: Path) -> list[str]:
        there = {name for name, status in self.status.items() if status == "installed"}
        needed, wanted = set(), [*there - self.marks(path)]
        while wanted:
            name = wanted.pop()
            if name in there and name not in needed:
                needed.add(name)
                wanted += DEPENDS.get(name, [])
        return sorted(there - needed)

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        assert timeout > 0
        states, words, heeds_holds = self.states, list(argv), True
        while "-o" in words:
            place = words.index("-o")
            option, _equals, value = words[place + 1].partition("=")
            states = Path(value) if option == "Dir::State::extended_states" else states
            heeds_holds = heeds_holds and option != "APT::Ignore-Hold"
            del words[place : place + 2]
        command, names = words[:2], words[2:]
        if command == ["dpkg", "--print-architecture"]:
            return CommandResult(0, "amd64\n")
        if words[0] == "dpkg-query":
            return CommandResult(0, "".join(f"{status} {name}:all\n" for name, status in self.status.items()))
        if words[0] == "apt-config":
            return CommandResult(0, f"states='{self.states}'\n")
        if command == ["apt-get", "check"]:
            return CommandResult(100 * self.unfinished, "", "run 'dpkg --configure -a'" * self.unfinished)
        if command == ["apt-mark", "showhold"]:
            return CommandResult(0, "\n".join(self.held))
        if words == ["apt-get", "--simulate", "autoremove"]:
            unneeded = [name for name in self.unneeded(states) if not (heeds_holds and name in self.held)]
            return CommandResult(0, "".join(f"Remv {name} [1]\n" for name in unneeded))
        if command in (["apt-mark", "auto"], ["apt-mark", "manual"]) and states != self.states:
            known = self.marks(states)
            self.mark([*(known | set(names) if command[1] == "auto" else known - set(names))], states)
            return CommandResult(0)
        self.calls.append(" ".join(words))
        if self.refuses in words:
            return CommandResult(1, "", "no")
        if command == ["apt-mark", "unhold"]:
            self.held = [name for name in self.held if name not in names]
        elif command == ["apt-mark", "auto"]:
            self.mark([*(self.marks() | set(names))])
        elif words[:3] == ["apt-get", "--yes", "purge"]:
            assert not self.unfinished
            for name in words[3:]:
                dependants = [one for one, needs in DEPENDS.items() if name in needs and one not in words[3:]]
                assert not [one for one in dependants if self.status.get(one) == "installed"], "dragged along"
                del self.status[name]
        elif words == ["dpkg", "--configure", "-a"]:
            self.unfinished = False
        else:
            return CommandResult(1, "", f"{words}?")
        return CommandResult(0)


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    apt = Apt(tmp_path)
    monkeypatch.setattr(logic, "ARCHIVES", apt.archives)
    return apt


def test_what_came_goes_and_what_was_there_stays(apt: Apt) -> None:
    for name in ("docker.io_20_amd64.deb", "docker.io-doc_20_all.deb", "libc6_2_amd64.deb"):
        (apt.archives / name).touch()
    outcome = logic.remove(apt.note, False, apt)
    assert outcome.removed == ["containerd", "docker.io", "iptables"]
    assert (outcome.kept, outcome.released) == ([], ["docker.io"])
    assert sorted(apt.status) == ["ca-certificates", "libc6"]
    assert apt.held == ["linux-image"]
    assert sorted(path.name for path in apt.archives.iterdir()) == ["docker.io-doc_20_all.deb", "libc6_2_amd64.deb"]
    assert not apt.note.exists()
    apt.calls.clear()
    assert logic.remove(apt.note, False, apt) == logic.Outcome([], [], [], cleared=False)
    assert apt.calls == []


def test_dry_run_says_the_same_and_changes_nothing(apt: Apt) -> None:
    dry = logic.remove(apt.note, True, apt)
    assert apt.calls == []
    assert apt.note.read_text() == NOTE
    assert logic.remove(apt.note, False, apt) == dry


@pytest.mark.parametrize(
    ("name", "needed"),
    [("ufw", ["iptables"]), ("orphan", ["iptables"]), ("compose", ["containerd", "docker.io", "iptables"])],
)
def test_what_others_depend_on_stays(apt: Apt, name: str, needed: list[str]) -> None:
    apt.status[name] = "installed"
    if name == "orphan":
        apt.mark([*apt.marks(), name])
    outcome = logic.remove(apt.note, False, apt)
    assert outcome.kept == needed
    assert outcome.removed == sorted({"containerd", "docker.io", "iptables"} - set(needed))
    # Nobody asks for it but those who need it.
    assert set(needed) <= apt.marks()


def test_what_somebody_asked_for_since_stays(apt: Apt) -> None:
    apt.mark(sorted(apt.marks() - {"iptables"}))
    assert logic.remove(apt.note, False, apt).kept == ["iptables"]
    assert "iptables" not in apt.marks()


def test_orphans_of_others_stay(apt: Apt) -> None:
    apt.status["leftover"] = "installed"
    apt.mark([*apt.marks(), "leftover"])
    logic.remove(apt.note, False, apt)
    assert "leftover" in apt.status


def test_configuration_of_what_somebody_removed_goes(apt: Apt) -> None:
    apt.status["docker.io"] = "config-files"
    apt.status["containerd"] = "not-installed"
    outcome = logic.remove(apt.note, False, apt)
    assert outcome.removed == ["docker.io", "iptables"]


def test_a_removal_that_broke_off_is_gone_on_with(apt: Apt) -> None:
    del apt.status["docker.io"]
    apt.unfinished = True
    outcome = logic.remove(apt.note, False, apt)
    assert apt.calls[0] == "dpkg --configure -a"
    assert outcome.removed == ["containerd", "iptables"]


def test_module(apt: Apt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(managed_packages, "remove", lambda note, check_mode: logic.remove(note, check_mode, apt))
    monkeypatch.setenv("DEBIAN_FRONTEND", "dialog")

    def play() -> dict[str, Any]:
        return run_module(managed_packages, capsys, {"note": str(apt.note)})

    result = play()
    assert result["changed"]
    assert result["removed"] == ["containerd", "docker.io", "iptables"]
    assert not play()["changed"]
    apt.note.write_text("docker.io\n")
    apt.status["docker.io"] = "installed"
    apt.held = ["docker.io"]
    apt.note.write_text("docker.io\nheld docker.io\n")
    apt.refuses = "unhold"
    assert "apt-mark unhold docker.io: no" in play()["msg"]
