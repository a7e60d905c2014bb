# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the timeline of a run as a Gantt chart, from timeline.html.j2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TICKS = 12  # at most, on the axis
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)


def ticks(seconds: float) -> list[int]:
    """Return the seconds to mark on an axis: whole steps, at most ``TICKS``."""
    step = next((step for step in STEPS if seconds / step <= TICKS), int(seconds / TICKS) + 1)
    return list(range(0, int(seconds) + 1, step))


def page(document: Mapping[str, Any]) -> str:
    """Return the page of what ``Timeline.document`` returned."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("timeline.html.j2").render(document=document, ticks=ticks(document["seconds"]))
