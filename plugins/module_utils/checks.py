# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of a verifying module: an ordered list of checks and their verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "unknown"]


@dataclass(frozen=True)
class Check:
    """Result of a check: observed and expected value, hint.

    ``hint`` names the role variable to change where there is one. ``duration`` is in seconds.
    """

    id: str
    status: Status
    observed: str
    expected: str
    hint: str = ""
    duration: float = 0.0

    def __str__(self) -> str:
        """Return the check as one line for people."""
        line = f"{self.id}: found {self.observed}; expected {self.expected}"
        return f"{line}. {self.hint}" if self.hint else line


def failures(checks: Sequence[Check]) -> list[Check]:
    """Return the checks that did not pass, in order. ``unknown`` is not a pass."""
    return [check for check in checks if check.status != "pass"]


def summarise(checks: Sequence[Check]) -> dict[str, Any]:
    """Return ``{ok, stage, checks}``; ``stage`` is the id of the first check that did not pass, or ``done``.

    Raises ValueError for an empty list, which is not a success.
    """
    if not checks:
        raise ValueError("no check ran; a verdict needs one")
    failed = failures(checks)
    return {
        "ok": not failed,
        "stage": failed[0].id if failed else "done",
        "checks": [dict(asdict(check), duration=round(check.duration, 3)) for check in checks],
    }
