# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each host of a run is doing, and for how long: text for callback trtllm_fleet_progress."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible import constants as C
from ansible.utils.display import Display

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import shorten

# Seconds between two queries of a host. A query takes about 0.3 s of CPU time on the control node, so a play of many
# hosts queries less often: it uses at most a third of a core.
TURN = 10.0
TURN_PER_HOST = 1.0
# Seconds after which an amount is shown with its age.
RECENT = 60.0
# Lines for the hosts of a task, each with its amount.
LINES = 8


def turn(variables: Mapping[str, Any]) -> float:
    """Return the seconds between two queries of a host, by the number of hosts in the play."""
    return max(TURN, TURN_PER_HOST * len(variables.get("ansible_play_batch", [])))


def _directory() -> Path:
    """Return where tasks leave their amounts for the callback: the run's own directory, which its forks share."""
    return Path(C.DEFAULT_LOCAL_TMP) / "trtllm-fleet-progress"


def _file(host: str) -> Path:
    return _directory() / quote(host, safe="")


def show(host: str, text: str) -> None:
    """Show how far the task of a host is: in the next table of the callback, or at once without it.

    A log line may have control characters.
    """
    text = "".join(character if character.isprintable() else " " for character in text)
    if not _directory().is_dir():
        Display().display(f"{host}: {text}")
        return
    target = _file(host)
    target.with_name(f"{target.name}.new").write_text(text, encoding="utf-8")
    target.with_name(f"{target.name}.new").replace(target)


@dataclass(frozen=True)
class Work:
    """A task on a host. ``began`` is in seconds of the clock."""

    began: float
    task: str


class Progress:
    """The tasks that run. ``clock`` returns seconds. ``amount`` returns how far the task of a host is that has
    run for some seconds, or nothing.
    """

    def __init__(self, clock: Callable[[], float], amount: Callable[[str, float], str]) -> None:
        self._clock = clock
        self._amount = amount
        self._began = clock()
        self._running: dict[str, Work] = {}
        self._hosts: set[str] = set()

    def play(self) -> None:
        """Begin a play."""
        self._hosts.clear()
        self._running.clear()

    def begin(self, host: str, task: str) -> None:
        """Add a task that starts on a host."""
        self._running[host] = Work(self._clock(), task)
        self._hosts.add(host)

    def end(self, host: str) -> None:
        """Remove the task of a host."""
        self._running.pop(host, None)

    def table(self, seconds: float) -> list[str]:
        """Return the lines of the running tasks; none if none has run for ``seconds``.

        Hosts with the same task are one line, unless their amounts are known.
        """
        now = self._clock()
        running = dict(self._running)
        if not any(now - work.began >= seconds for work in running.values()):
            return []
        lines = [f"{duration(now - self._began)} after the start:"]
        lines += [f"  {line}" for line in self._groups(running, now)]
        waiting = len(self._hosts - running.keys())
        if waiting:
            lines.append(f"  {waiting} of {len(self._hosts)} hosts of the play have no task at the moment")
        return lines

    def _groups(self, running: dict[str, Work], now: float) -> Iterator[str]:
        groups: dict[tuple[str, str], list[str]] = {}
        lines = Counter[str]()
        for host, work in sorted(running.items()):
            amount = self._amount(host, now - work.began) if lines[work.task] < LINES else ""
            lines[work.task] += bool(amount)
            groups.setdefault((work.task, amount), []).append(host)
        for (task, amount), hosts in groups.items():
            longest = max(now - running[host].began for host in hosts)
            yield f"{shorten(hosts)}: {task}, for {duration(longest)}" + (f": {amount}" if amount else "")


def amount_of(host: str, seconds: float) -> str:
    """Return what ``show`` left since the task began, ``seconds`` ago; empty if there is nothing."""
    try:
        age = time.time() - _file(host).stat().st_mtime
        text = _file(host).read_text(encoding="utf-8") if age <= seconds else ""
    except OSError:
        return ""
    return f"{text} ({duration(age)} ago)" if text and age > RECENT else text


def prepare() -> None:
    """Have ``show`` leave its text for the callback."""
    _directory().mkdir(exist_ok=True)


def duration(seconds: float) -> str:
    """Return a duration as text, such as ``1 h 02 min`` or ``4 min 30 s``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
