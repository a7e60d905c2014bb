# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Systemd units of releases, which are links into a release's directory."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner, output
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import UNIT_SUFFIX, ReleaseError
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import paragraphs

# Units of the administrator: systemd.unit(5).
UNITS = Path("/etc/systemd/system")
# Seconds. systemctl answers in milliseconds. A stop takes up to the unit's own TimeoutStopSec.
COMMAND_TIMEOUT = 30.0
STOP_TIMEOUT = 3600.0


@dataclass(frozen=True)
class UnitState:
    """A unit's state in systemd's words, and the target of its file if that is a link."""

    active: str
    enabled: str
    link: str | None
    sub: str = ""

    @property
    def stopped(self) -> bool:
        return self.active in ("inactive", "failed")

    @property
    def ending(self) -> bool:
        """Whether the unit stops, or systemd restarts it after a delay, for example after a restart of Docker."""
        return self.active == "deactivating" or self.sub.startswith("auto-restart")


@dataclass(frozen=True)
class UnitChanges:
    """The steps until a host runs exactly the wanted units. Each has sorted names of units."""

    stop: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    start: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return any(vars(self).values())

    def steps(self) -> str:
        """Return the steps, one in a line."""
        return "".join(f"{verb} {unit}\n" for verb, units in vars(self).items() for unit in units)


def unit_changes(
    states: Mapping[str, UnitState], wanted: Mapping[str, str], restart: bool, alike: Collection[str] = ()
) -> UnitChanges:
    """Return the changes from ``states`` to exactly the units in ``wanted``, each with the target of its link.

    All units that are removed or restarted stop before the first start, as units may share GPUs and ports. ``alike``:
    units that do not restart for another target, because they run the same there.
    """
    remove = [unit for unit in states if unit not in wanted]
    link = [unit for unit, file in wanted.items() if states[unit].link != file]
    # "systemctl start" does not end the wait for a restart, so such a unit is stopped, too.
    again = [unit for unit in wanted if restart or (unit in link and unit not in alike) or states[unit].ending]
    start = [unit for unit in wanted if unit in again or states[unit].stopped]
    # systemd's link for the boot names the target of the unit's own link, so it changes with that.
    enable = [unit for unit in wanted if unit in link or states[unit].enabled != "enabled"]
    stop = [unit for unit in (*remove, *again) if not states[unit].stopped]
    return UnitChanges(*(tuple(sorted(units)) for units in (stop, remove, link, enable, start)))


class ReleaseUnits:
    """The units in ``folder`` that are links into a directory below ``releases``."""

    def __init__(self, folder: Path, releases: Path, check_mode: bool, runner: Runner) -> None:
        self._folder = folder
        self._releases = releases
        self._check_mode = check_mode
        self._runner = runner

    def linked(self) -> dict[str, str]:
        """Return the units of all releases, each with the name of its release."""
        directories = {unit: Path(target).parent for unit, target in self._links().items()}
        return {unit: path.name for unit, path in directories.items() if path.parent == self._releases}

    def show(self, units: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return systemd's properties of units."""
        if not units:
            return {}
        shown = self._check("systemctl", "show", "--property=ActiveState,SubState,UnitFileState", "--", *units)
        return paragraphs(units, shown)

    def apply(self, wanted: Mapping[str, str], restart: bool, others: bool, alike: Collection[str] = ()) -> UnitChanges:
        """Start the wanted units, each with the target of its link, without waiting for them.

        ``restart``, ``alike``: as for ``unit_changes``. ``others``: remove the units of releases that are not wanted.
        Units that are not of a release stay.
        """
        changes = unit_changes(self._states(wanted, others), wanted, restart, alike)
        if self._check_mode or not changes.changed:
            return changes
        self._systemctl("stop", changes.stop, STOP_TIMEOUT)
        for unit in changes.remove:
            for path in (self._folder / unit, *self._folder.glob(f"*.wants/{unit}")):
                path.unlink()
        for unit in changes.link:
            replace_link(self._folder / unit, wanted[unit])
        self._systemctl("enable", changes.enable, options=["--no-reload", "--quiet"])
        self._check("systemctl", "daemon-reload")
        reset = sorted({*changes.remove, *changes.start})
        if reset:
            # Removes failed units from systemd's list, and resets the count for the start limit. It fails for a unit
            # that never ran.
            self._runner(["systemctl", "reset-failed", "--", *reset], COMMAND_TIMEOUT)
        self._systemctl("start", changes.start, options=["--no-block"])
        return changes

    def _states(self, wanted: Iterable[str], others: bool) -> dict[str, UnitState]:
        links = self._links()
        shown = self.show(sorted({*wanted, *(self.linked() if others else ())}))
        return {
            unit: UnitState(
                value.get("ActiveState", "inactive"),
                value.get("UnitFileState", ""),
                links.get(unit),
                value.get("SubState", ""),
            )
            for unit, value in shown.items()
        }

    def _links(self) -> dict[str, str]:
        """Return the targets of all units that are links, of releases or not."""
        return {path.name: os.readlink(path) for path in self._folder.glob(f"*{UNIT_SUFFIX}") if path.is_symlink()}

    def _systemctl(
        self, verb: str, units: Sequence[str], timeout: float = COMMAND_TIMEOUT, options: Sequence[str] = ()
    ) -> None:
        if units:
            self._check("systemctl", verb, *options, "--", *units, timeout=timeout)

    def _check(self, *argv: str, timeout: float = COMMAND_TIMEOUT) -> str:
        return output(argv, timeout, self._runner, ReleaseError)


def replace_link(path: Path, target: str) -> None:
    """Create a link atomically in place of a link or a file."""
    new = path.with_name(f".{path.name}.new")
    if new.is_symlink():  # left by an interrupted run
        new.unlink()
    new.symlink_to(target)
    os.replace(new, path)
