# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result contract of every verifying module: an ordered list of checks and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "unknown"]


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, what would have passed, and what to change.

    ``hint`` names the role variable to change where there is one. ``duration`` is in seconds.
    """

    id: str
    status: Status
    observed: str
    expected: str
    hint: str = ""
    duration: float = 0.0

    def __str__(self) -> str:
        """The check as one line for people."""
        line = f"{self.id}: found {self.observed}; expected {self.expected}"
        return f"{line}. {self.hint}" if self.hint else line


def failures(checks: Sequence[Check]) -> list[Check]:
    """The checks that did not pass, in order. ``unknown`` is not a pass."""
    return [check for check in checks if check.status != "pass"]


def summarise(checks: Sequence[Check]) -> dict[str, Any]:
    """The contract ``{ok, stage, checks}``; ``stage`` is the id of the first check not passed, or ``done``.

    Raises ValueError for an empty list: nothing looked at is not a success.
    """
    if not checks:
        raise ValueError("no check ran, so nothing is proven")
    failed = failures(checks)
    return {
        "ok": not failed,
        "stage": failed[0].id if failed else "done",
        "checks": [dict(asdict(check), duration=round(check.duration, 3)) for check in checks],
    }
