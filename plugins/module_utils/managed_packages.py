# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove the packages that this collection installed on a host, and no others.

Role apt_packages configures apt to record each new package in a file, the note, before it is installed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner, output, run

NOTE = "/var/lib/trtllm-fleet/packages"
# Downloaded packages of apt.
ARCHIVES = Path("/var/cache/apt/archives")
# Seconds. Another apt may hold the lock. Removing a driver takes long: its module is removed from each kernel.
LOCK = ("-o", "DPkg::Lock::Timeout=600")
TIMEOUT = 1800.0
LOOK_TIMEOUT = 120.0
# By default apt keeps recommended, suggested and held packages. The packages of the note were not needed before, and
# their holds are removed first.
STRICT: tuple[str, ...] = ("-o", "APT::AutoRemove::RecommendsImportant=false")
STRICT += ("-o", "APT::AutoRemove::SuggestsImportant=false", "-o", "APT::Ignore-Hold=true")


class ManagedPackagesError(Exception):
    """Packages cannot be removed; the message says why."""


@dataclass
class Note:
    """The content of the note in its order: new packages, packages that roles installed by name, held packages."""

    came: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Note:
        """Parse a note: one package in a line, or several after the word ``asked`` or ``held``."""
        note = cls()
        kinds = {"asked": note.asked, "held": note.held}
        for line in text.splitlines():
            words = line.split()
            names = kinds[words.pop(0)] if words and words[0] in kinds else note.came
            names += [name for name in words if name not in names]
        return note


@dataclass(frozen=True)
class Outcome:
    """Packages that were removed, that stay because others need them, and whose hold was removed."""

    removed: list[str]
    kept: list[str]
    released: list[str]
    cleared: bool  # whether a note was removed


def remove(note: Path, check_mode: bool, runner: Runner = run) -> Outcome:
    """Remove the packages of the note, except those that other packages need or that were requested since.

    These stay as automatically installed dependencies. Raises ManagedPackagesError and OSError.
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
    # Of packages that were removed before, the configuration is left.
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
    """Wait for another apt, such as that of an interrupted run, and complete an interrupted dpkg."""
    done = runner(["apt-get", *LOCK, "check"], TIMEOUT)
    if done.rc != 0 and "dpkg --configure -a" in done.text:
        _check(runner, ["dpkg", "--configure", "-a"], TIMEOUT)


def _unneeded(ours: Sequence[str], asked: Sequence[str], states: Path, runner: Runner) -> list[str]:
    """Return the managed packages that apt would remove automatically if they had not been requested.

    apt simulates with a copy of its marks. Other packages that are already unneeded count as requested in the copy, so
    that their dependencies stay.
    """
    known = ["-o", f"Dir::State::extended_states={states}"]
    strangers = sorted(set(_autoremovable(known, runner)) - set(ours))
    for mark, names in (("manual", strangers), ("auto", asked)):
        if names:
            _check(runner, ["apt-mark", *known, mark, *names])
    unneeded = set(_autoremovable(known, runner))
    return [name for name in ours if name in unneeded]


def _autoremovable(known: Sequence[str], runner: Runner) -> Iterator[str]:
    """Return the packages that apt would remove automatically."""
    simulated = _check(runner, ["apt-get", "--simulate", *known, *STRICT, "autoremove"], LOOK_TIMEOUT)
    return (line.split()[1] for line in simulated.splitlines() if line.startswith("Remv "))


def _there(runner: Runner) -> dict[str, bool]:
    """Return by package whether it is installed; False if only its configuration is left."""
    form = "${db:Status-Status} ${Package}:${Architecture}\n"
    native = _check(runner, ["dpkg", "--print-architecture"]).strip()
    found = {}
    for line in _check(runner, ["dpkg-query", "--show", f"--showformat={form}"]).splitlines():
        status, name = line.split()
        plain, _colon, architecture = name.partition(":")
        if status != "not-installed":
            # The form that apt uses.
            found[plain if architecture in (native, "all") else name] = status != "config-files"
    return found


@contextmanager
def _states(runner: Runner) -> Iterator[Path]:
    """Yield a copy of the file in which apt marks requested packages."""
    settings = _check(runner, ["apt-config", "shell", "states", "Dir::State::extended_states/f"])
    real = Path(settings.partition("=")[2].strip().strip("'"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "extended_states")
        if real.exists():
            shutil.copyfile(real, copy)
        yield copy


def _check(runner: Runner, argv: Sequence[str], timeout: float = LOOK_TIMEOUT) -> str:
    return output(argv, timeout, runner, ManagedPackagesError)
