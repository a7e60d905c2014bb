# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The legs of a run by host: roles, and systemd units that work while roles run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]

# Actions that wait for work which something else does.
WAITS = frozenset(
    f"{collection}.{name}"
    for collection, names in {
        "ansible.builtin": ("pause", "reboot", "wait_for", "wait_for_connection"),
        "trtllm.fleet": ("endpoint_check", "unit_wait"),
    }.items()
    for name in names
)
ANSWER = "trtllm.fleet.endpoint_check"
START, WAIT = "ansible.builtin.systemd_service", "trtllm.fleet.unit_wait"


@dataclass(frozen=True)
class Span:
    """A task on a host. Times are seconds since the start of the run."""

    role: str
    action: str
    start: float
    end: float


@dataclass(frozen=True)
class Work:
    """A systemd unit that a task started without waiting for it."""

    unit: str
    start: float
    end: float


class Timeline:
    """The tasks of a run as they start and end. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._running: dict[tuple[str, str], float] = {}
        self._started: dict[tuple[str, str], float] = {}
        self._spans: dict[str, list[Span]] = defaultdict(list)
        self._works: dict[str, list[Work]] = defaultdict(list)

    def now(self) -> float:
        """Return the seconds since the start of the run."""
        return self._clock() - self._began

    def begin(self, host: str, task: str) -> None:
        """Add the start of a task, by its identifier."""
        self._running[host, task] = self.now()

    def end(self, host: str, task: str, role: str, action: str, result: Result) -> None:
        """Add the end of a task of a role; ``role`` is empty for a task of a play."""
        now = self.now()
        self._spans[host].append(Span(role, action, self._running.pop((host, task), now), now))
        items = result.get("results")
        for item in items if isinstance(items, list) else [result]:
            self._unit(host, action, item, now)

    def _unit(self, host: str, action: str, item: Result, now: float) -> None:
        if action == START:
            given = (item.get("invocation") or {}).get("module_args") or {}
            if given.get("no_block") and item.get("changed"):
                self._started[host, given["name"].removesuffix(".service")] = now
        elif action == WAIT and item.get("finished") and item.get("ended_ago") is not None:
            name = item["unit"]["name"].removesuffix(".service")
            began = self._started.pop((host, name), None)
            if began is not None:
                self._works[host].append(Work(name, began, max(began, now - item["ended_ago"])))

    def document(self, started: str) -> dict[str, Any]:
        """Return the legs of all hosts that ran roles; ``started`` is the time of the start in ISO 8601."""
        hosts = {host: self._host(host) for host in sorted(self._spans)}
        return {
            "started": started,
            "seconds": round(self.now(), 1),
            "hosts": {host: found for host, found in hosts.items() if found["legs"]},
        }

    def _host(self, host: str) -> dict[str, Any]:
        spans = self._spans[host]
        answers = [span.end for span in spans if span.action == ANSWER]
        works = [
            {"name": work.unit, "kind": "unit", **_times(work.start, work.end), "waited": 0.0}
            for work in self._works[host]
        ]
        return {"answered": round(answers[-1], 1) if answers else None, "legs": [*_legs(spans), *works]}


def _legs(spans: list[Span]) -> Iterator[dict[str, Any]]:
    """Yield the roles of a host in the order of their tasks."""
    leg: list[Span] = []
    for span in [*spans, Span("", "", 0, 0)]:
        if leg and span.role != leg[0].role:
            waited = sum(one.end - one.start for one in leg if one.action in WAITS)
            times = _times(leg[0].start, leg[-1].end)
            yield {"name": leg[0].role, "kind": "role", **times, "waited": round(waited, 1)}
            leg = []
        if span.role:
            leg.append(span)


def _times(start: float, end: float) -> dict[str, float]:
    return {"start": round(start, 1), "end": round(end, 1)}
