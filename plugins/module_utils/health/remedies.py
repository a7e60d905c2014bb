# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remedies of a host: those that were applied, and which may be applied next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import REMEDIES

HISTORY = Path("/var/lib/trtllm-fleet/remedies.json")
KEPT = 100  # entries in the record
# Rungs that a mode allows, each with those before it. ``observe`` and ``drain`` allow none.
MODES: Mapping[str, str] = {
    "observe": "none",
    "drain": "none",
    "restart": "restart_engine",
    "reset": "reload_driver",
    "reboot": "reboot",
}
COOL_DOWN = 1800  # seconds between two equal remedies
DAY = 86400  # seconds
# Times that a remedy may be applied to one target in a day. A fault that comes back needs a person.
TRIES = {"reboot": 1}
DEFAULT_TRIES = 2
# Results of a remedy that may still turn out to have failed.
RAN = ("started", "applied")


@dataclass(frozen=True)
class Remedy:
    """A remedy that was applied.

    ``action``: a rung of the ladder. ``target``: a unit or ``host``. ``fault``: id of the fault.
    ``at``: seconds since 1970. ``result``: ``started``, ``applied`` (its commands succeeded), ``verified`` (the host
    serves, and no burn-in failed) or ``failed``.
    """

    action: str
    target: str
    fault: str
    at: float
    result: str


class HistoryError(Exception):
    """The record cannot be read or written; the message gives the cause."""


def load_remedies(path: Path = HISTORY) -> list[Remedy]:
    """Return the recorded remedies, oldest first; none without a file. Raises HistoryError."""
    try:
        return [Remedy(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise HistoryError(f"{path} cannot be read, so the limits of remedies are not known: {error}") from None


def read_remedies(path: Path = HISTORY) -> list[Remedy]:
    """Return the recorded remedies, oldest first; none from a file that is missing or damaged."""
    try:
        return load_remedies(path)
    except HistoryError:
        return []


def add_remedy(known: Sequence[Remedy], remedy: Remedy) -> list[Remedy]:
    """Return the remedies with another one, or with the result of the one that was started.

    What happened after a remedy was applied is not cured by it, so a later result does not change its time. Without one
    that was started or applied, none failed: it would count for the limits, and end the cure of the one before.
    """
    same = [number for number, one in enumerate(known) if (one.action, one.target) == (remedy.action, remedy.target)]
    last = known[same[-1]] if same else None
    if remedy.result == "failed" and (last is None or last.result not in RAN):
        return list(known)
    if remedy.result == "started" or last is None:
        return [*known, remedy]
    others = [one for number, one in enumerate(known) if number != same[-1]]
    return [*others, remedy if remedy.result == "applied" else replace(remedy, at=last.at)]


def record_remedy(remedy: Remedy, path: Path = HISTORY) -> None:
    """Record a remedy, or the result of the one that was started. Raises HistoryError."""
    content = json.dumps([asdict(one) for one in add_remedy(load_remedies(path), remedy)[-KEPT:]], indent=1)
    try:
        write_file(path, f"{content}\n", 0o644)
    except OSError as error:
        raise HistoryError(f"{path} cannot be written: {error}") from None


def remedy_signals(remedies: Sequence[Remedy], now: float) -> Iterator[dict[str, Any]]:
    """Yield a signal for each remedy."""
    for one in remedies:
        hours = round(max(0.0, now - one.at) / 3600, 2)
        evidence = f"{one.action} of {one.target} {hours:g} h ago for {one.fault}: {one.result}"
        yield {"signal": "remedy", **asdict(one), "age_hours": hours, "evidence": evidence}


def mode_problem(action: str, mode: str) -> str:
    """Return why a mode does not allow a remedy; empty if it does."""
    if action in REMEDIES[: REMEDIES.index(MODES[mode]) + 1]:
        return ""
    needed = next((name for name, rung in MODES.items() if REMEDIES.index(rung) >= REMEDIES.index(action)), None)
    return f"mode {mode} does not allow {action}; " + (f"mode {needed} does" if needed else "a person has to do it")


def limit_problem(action: str, target: str, remedies: Sequence[Remedy], now: float) -> str:
    """Return why a remedy may not be applied again yet; empty if it may."""
    times = [one.at for one in remedies if (one.action, one.target) == (action, target) and now - one.at < DAY]
    if len(times) >= TRIES.get(action, DEFAULT_TRIES):
        return f"{action} was applied to {target} {len(times)} times within 24 h"
    if times and now - times[-1] < COOL_DOWN:
        return f"{action} was applied to {target} {now - times[-1]:.0f} s ago; {COOL_DOWN} s have to pass"
    return ""
