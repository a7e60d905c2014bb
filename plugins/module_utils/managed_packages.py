# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removing the packages that came to a host with this collection, and no others.

The note that says which these are is apt's own: role apt_packages has apt write a line for each package that is new to
the host, before it is installed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner, output, run

# Where apt keeps what it fetched.
ARCHIVES = Path("/var/cache/apt/archives")
# Seconds. Another apt is waited for. A driver is removed from each kernel that has its module.
LOCK = ("-o", "DPkg::Lock::Timeout=600")
TIMEOUT = 1800.0
LOOK_TIMEOUT = 120.0
# apt keeps what another package recommends or suggests, but none was there for it before ours came; and what is held,
# which ours are no longer when they are removed.
STRICT: tuple[str, ...] = ("-o", "APT::AutoRemove::RecommendsImportant=false")
STRICT += ("-o", "APT::AutoRemove::SuggestsImportant=false", "-o", "APT::Ignore-Hold=true")


class NotedPackagesError(Exception):
    """Packages cannot be removed; the message says why."""


@dataclass
class Note:
    """What was noted, in the order of the note: what came, of it and beside it what roles asked for, what was held."""

    came: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Note:
        """The note in ``text``: a package a line, and lines of several after the words ``asked`` and ``held``."""
        note = cls()
        kinds = {"asked": note.asked, "held": note.held}
        for line in text.splitlines():
            words = line.split()
            names = kinds[words.pop(0)] if words and words[0] in kinds else note.came
            names += [name for name in words if name not in names]
        return note


@dataclass(frozen=True)
class Outcome:
    """What was removed, what came with us and stays because others need it, and whose hold was taken off."""

    removed: list[str]
    kept: list[str]
    released: list[str]
    cleared: bool  # whether there was a note, which is gone


def remove(note: Path, check_mode: bool, runner: Runner = run) -> Outcome:
    """Remove what came, but for what packages of others depend on or somebody has asked apt for since.

    Those stay as what they would be without us, dependencies of others. Raises NotedPackagesError and OSError.
    """
    if not note.exists():
        return Outcome([], [], [], cleared=False)
    noted = Note.parse(note.read_text(encoding="utf-8"))
    if not check_mode:
        _finish(runner)
    there = _there(runner)
    ours = [name for name in noted.came if name in there]
    released = sorted(set(noted.held) & set(_check(runner, ["apt-mark", "showhold"]).split()))
    asked = [name for name in ours if name in noted.asked and there[name]]
    with _states(runner) as states:
        removed = _unneeded(ours, asked, states, runner)
    # Of what somebody removed already its configuration is left.
    removed += [name for name in ours if not there[name]]
    kept = [name for name in ours if name not in removed]
    if not check_mode:
        if released:
            _check(runner, ["apt-mark", "unhold", *released])
        if removed:
            _check(runner, ["apt-get", *LOCK, "--yes", "purge", *removed], TIMEOUT)
        for archive in (path for name in removed for path in ARCHIVES.glob(f"{name.split(':')[0]}_*.deb")):
            archive.unlink(missing_ok=True)
        handed_over = [name for name in kept if name in asked]
        if handed_over:
            _check(runner, ["apt-mark", "auto", *handed_over])
        note.unlink(missing_ok=True)
    return Outcome(sorted(removed), sorted(kept), released, cleared=True)


def _finish(runner: Runner) -> None:
    """Wait for another apt, as of a run that broke off, and have dpkg finish what it was kept from."""
    done = runner(["apt-get", *LOCK, "check"], TIMEOUT)
    if done.rc != 0 and "dpkg --configure -a" in done.text:
        _check(runner, ["dpkg", "--configure", "-a"], TIMEOUT)


def _unneeded(ours: Sequence[str], asked: Sequence[str], states: Path, runner: Runner) -> list[str]:
    """Those of our packages that apt would call unneeded if nobody had asked for them.

    apt judges by a copy of what it knows of who asked for what. What was unneeded before, and is not ours, counts as
    asked for there, so that nothing is taken from under it.
    """
    known = ["-o", f"Dir::State::extended_states={states}"]
    strangers = sorted(set(_autoremovable(known, runner)) - set(ours))
    for mark, names in (("manual", strangers), ("auto", asked)):
        if names:
            _check(runner, ["apt-mark", *known, mark, *names])
    unneeded = set(_autoremovable(known, runner))
    return [name for name in ours if name in unneeded]


def _autoremovable(known: Sequence[str], runner: Runner) -> Iterator[str]:
    """The packages that apt calls unneeded."""
    simulated = _check(runner, ["apt-get", "--simulate", *known, *STRICT, "autoremove"], LOOK_TIMEOUT)
    return (line.split()[1] for line in simulated.splitlines() if line.startswith("Remv "))


def _there(runner: Runner) -> dict[str, bool]:
    """By package, whether it is installed; not, if only its configuration is left."""
    form = "${db:Status-Status} ${Package}:${Architecture}\n"
    native = _check(runner, ["dpkg", "--print-architecture"]).strip()
    found = {}
    for line in _check(runner, ["dpkg-query", "--show", f"--showformat={form}"]).splitlines():
        status, name = line.split()
        plain, _colon, architecture = name.partition(":")
        if status != "not-installed":
            # As apt writes them.
            found[plain if architecture in (native, "all") else name] = status != "config-files"
    return found


@contextmanager
def _states(runner: Runner) -> Iterator[Path]:
    """A copy of the file in which apt has who asked for what."""
    settings = _check(runner, ["apt-config", "shell", "states", "Dir::State::extended_states/f"])
    real = Path(settings.partition("=")[2].strip().strip("'"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "extended_states")
        if real.exists():
            shutil.copyfile(real, copy)
        yield copy


def _check(runner: Runner, argv: Sequence[str], timeout: float = LOOK_TIMEOUT) -> str:
    return output(argv, timeout, runner, NotedPackagesError)
