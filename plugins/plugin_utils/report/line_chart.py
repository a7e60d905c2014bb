# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw series over time as SVG for a page that has the colours, without matplotlib.

The page sets ``--c0`` to ``--c9`` for lines, ``--line`` for the grid and ``--quiet`` for text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 480, 200
LEFT, RIGHT, TOP, BOTTOM = 66, 28, 26, 24  # margins, wide enough for labels of 15 px
COLOURS = 10
Y_TICKS = 5
X_TICKS = 6
HOUR = 3600
X_STEPS = tuple(hours * HOUR for hours in (1 / 12, 1 / 6, 1 / 4, 1 / 2, 1, 2, 3, 4, 6, 12, 24))
# From this value on, with its factor and name.
SCALES: dict[str, Sequence[tuple[float, float, str]]] = {
    "bytes": [(1024.0**power, 1024.0**-power, name) for power, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))],
    "bytes/s": [(1024.0**power, 1024.0**-power, f"{name}/s") for power, name in enumerate(("B", "KiB", "MiB", "GiB"))],
    "celsius": [(0, 1, "°C")],
    "count": [(0, 1, "")],
    "requests/s": [(0, 1, "requests/s")],
    "seconds": [(0, 1000, "ms"), (1, 1, "s"), (300, 1 / 60, "min"), (7200, 1 / 3600, "h")],
    "share": [(0, 100, "%")],
    "tokens/s": [(0, 1, "tokens/s"), (1e6, 1e-6, "million tokens/s")],
    "watts": [(0, 1, "W")],
}


class Line(NamedTuple):
    """A series: a point is a time in seconds since 1970 and a finite value in the unit of the chart."""

    legend: str
    points: Sequence[Sequence[float]]


def scale(unit: str, largest: float) -> tuple[float, str]:
    """Return the factor and the name of the unit for values up to ``largest``."""
    steps = SCALES[unit]
    return next(((factor, name) for least, factor, name in reversed(steps) if largest >= least), steps[0][1:])


def text(value: float, unit: str) -> str:
    """Return a value with its unit, with three digits."""
    factor, name = scale(unit, abs(value))
    return f"{number(value * factor)} {name}".strip()


def number(value: float) -> str:
    """Return a number with three digits, or all those before the point."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    shown = f"{value:,.{max(0, digits)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def levels(low: float, high: float, least: float = 0.0) -> list[float]:
    """Return the values to mark on an axis: 1, 2 or 5 times a power of ten apart, at least ``least``, 0 among them."""
    low, high = min(0.0, low), max(0.0, high)
    if low == high:
        high = 1.0
    rough = max(least, (high - low) / (Y_TICKS - 1))
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [place * step for place in range(first, last + 1)]


def moments(start: float, end: float) -> list[int]:
    """Return the times to mark on an axis: whole steps of the clock in UTC."""
    step = next((step for step in X_STEPS if (end - start) / step <= X_TICKS), 24 * HOUR)
    first = math.ceil(start / step)
    return [int(place * step) for place in range(first, math.floor(end / step) + 1)]


def moment(seconds: float) -> str:
    """Return a time for an axis: the date at midnight."""
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at:%H:%M}" if at.hour or at.minute else f"{at.day} {at:%b}"


def line_chart(name: str, title: str, unit: str, lines: Sequence[Line], times: tuple[float, float, float]) -> str:
    """Return a chart as an SVG element, in which a line has a gap where points are missing.

    ``name``: unique in the page. ``times``: start, end, and the seconds between points.
    """
    start, end, step = times
    values = [value for line in lines for _at, value in line.points]
    factor, unit_name = scale(unit, max(map(abs, values), default=0.0))
    whole = 1.0 if unit == "count" else 0.0
    marks = levels(min(values, default=0.0) * factor, max(values, default=0.0) * factor, whole)

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at - start) / max(end - start, 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - marks[0]) / (marks[-1] - marks[0])

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-title {name}-desc">',
        f'<title id="{name}-title">{escape(title)}</title>',
        f'<desc id="{name}-desc">{escape(description(unit, lines, times))}</desc>',
        f'<text class="quiet" x="4" y="16">{escape(unit_name or "number")}</text>',
        f'<text class="quiet" x="4" y="{HEIGHT - 6}">UTC</text>',
    ]
    digits = max(0, -math.floor(math.log10(marks[1] - marks[0]) + 1e-9))
    for mark in marks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}"/>')
        label = f"{mark:,.{digits}f}"
        parts.append(f'<text class="quiet" x="{LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{label}</text>')
    for at in moments(start, end):
        parts.append(f'<path class="grid" d="M{x(at):.1f} {HEIGHT - BOTTOM}v4"/>')
        parts.append(
            f'<text class="quiet" x="{x(at):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(moment(at))}</text>'
        )
    for place, line in enumerate(lines):
        for piece in pieces(line.points, step):
            shape = "L".join(f"{x(at):.1f} {y(value * factor):.1f}" for at, value in piece)
            # A line of no length is a dot by its round ends.
            kind, end_of_line = ("series", "") if piece[1:] else ("series dot", "h0")
            parts.append(f'<path class="{kind} {style(place)}" d="M{shape}{end_of_line}"/>')
    if not values:
        middle = (WIDTH + LEFT - RIGHT) / 2
        parts.append(f'<text class="quiet" x="{middle:.0f}" y="{HEIGHT / 2:.0f}" text-anchor="middle">no data</text>')
    return "".join([*parts, "</svg>"])


def style(place: int) -> str:
    """Return the CSS classes of a line: its colour, and every second one is dashed."""
    return f"c{place % COLOURS}{' dashed' if place % 2 else ''}"


def pieces(points: Sequence[Sequence[float]], step: float) -> Iterator[Sequence[Sequence[float]]]:
    """Yield the parts of a line without a gap."""
    begin = 0
    for place in range(1, len(points) + 1):
        if place == len(points) or points[place][0] - points[place - 1][0] > 1.5 * step:
            if points[begin:place]:
                yield points[begin:place]
            begin = place


def description(unit: str, lines: Sequence[Line], times: tuple[float, float, float]) -> str:
    """Return a chart in words, for a reader who does not see it."""
    drawn = [line for line in lines if line.points]
    if not drawn:
        return "There is no data."
    begin, end = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in times[:2])
    told = [
        f"{line.legend or 'value'}: last {text(line.points[-1][1], unit)}, "
        f"highest {text(max(value for _at, value in line.points), unit)}"
        for line in drawn
    ]
    return f"From {begin} to {end} UTC. {'; '.join(told)}."
