# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Status files of the weights programs, which exchange their state through them, and the figures in these."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RUN_DIR = "/run/trtllm-fleet"
FETCH_STATUS = "weights.json"
SHARE_STATUS = "weights-share.json"
FRESH = 10.0  # seconds; an older status is of a program that has ended
SPEED_WINDOW = 20.0


@dataclass
class FetchStatus:
    """Progress of the snapshot.

    ``hub_bytes``: bytes that came from the hub in this run; ``rate``: bytes per second.
    """

    state: str = "waiting"
    message: str = ""
    total_bytes: int = 0
    done_bytes: int = 0
    files: int = 0
    files_done: int = 0
    rate: int = 0
    seconds_left: int | None = None
    hub_bytes: int = 0


@dataclass
class ShareStatus:
    """Progress of the fleet, which the fetch program reads.

    ``progress``: time of the last byte gained in the whole fleet as far as known. ``connected``: number of hosts that
    answer. ``asked``: every host has been queried once; ``offered``: paths of missing files that another host has.
    """

    message: str = ""
    peer_bytes: int = 0
    sent_bytes: int = 0
    files: int = 0
    connected: int = 0
    progress: float = 0
    asked: bool = False
    offered: list[str] = field(default_factory=list)


def write_status(path: str, status: Mapping[str, Any]) -> None:
    """Replace a status file atomically, with the time of writing in it. Raises OSError.

    The time is time.monotonic(), which all processes of a boot share and no administrator sets. The file does not
    survive a reboot.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as target:
        json.dump({**status, "updated": time.monotonic()}, target)
    os.replace(path + ".new", path)


def read_status(path: str) -> dict[str, Any]:
    """Return the status of a running program; empty if there is none."""
    try:
        with open(path, encoding="utf-8") as source:
            document = dict(json.load(source))
    except (OSError, ValueError, TypeError):
        return {}
    return document if time.monotonic() - document.get("updated", -FRESH) <= FRESH else {}


class Speed:
    """Bytes per second over the last SPEED_WINDOW seconds."""

    def __init__(self) -> None:
        self.samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, done: int) -> None:
        self.samples.append((now, done))
        while self.samples[0][0] < now - SPEED_WINDOW:
            self.samples.popleft()

    @property
    def rate(self) -> int:
        (start, had), (end, has) = self.samples[0], self.samples[-1]
        return max(0, round((has - had) / (end - start))) if end > start else 0


def size_text(count: float) -> str:
    """Format bytes: 12.3 GB, or a smaller unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def time_text(seconds: int) -> str:
    """Format seconds: 75 s, 12 min or 3 h 5 min."""
    if seconds < 120:
        return f"{seconds} s"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
