# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which charts a result has, or two beside each other: what is drawn, and no pixel of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import slo
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.compare import shape_differences
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.figures import (
    PER_GPU,
    PER_USER,
    TOTAL,
    Spread,
    number,
    spread,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.published import FIGURE, matching
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.run import Point, loads

GOOD = "throughput.good_requests_per_second"
# A level that is so many times as high as all of ours would leave no room for ours.
OFF_SCALE = 2.0
# The result itself, and the one that it is compared with.
SIDES = ("this run", "baseline")
LOG_FROM = 20  # times that the highest latency is the lowest
SECONDS_FROM = 10_000  # milliseconds; with fewer at most a chart has milliseconds

Documents = Sequence[Mapping[str, Any]]  # one, or two to be compared
Kind = Literal["curve", "sweep", "bars"]


@dataclass(frozen=True)
class Dot:
    """A load at ``x`` and ``y``, each with the least and the most of its rounds."""

    x: Spread
    y: Spread
    label: str
    missed: bool


@dataclass(frozen=True)
class Line:
    """Loads that belong together. Its ``colour`` is counted from 0, and so is its ``style``: solid, dashed, dotted."""

    label: str
    colour: int
    style: int
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Level:
    """A figure that is no load of ours: a published one, or the ``limit`` of an objective."""

    label: str
    y: float
    limit: bool = False


@dataclass(frozen=True)
class Chart:
    """One picture, whose ``name`` is fit for a file.

    A ``curve`` has two figures against each other, a ``sweep`` one by the number of users. ``bars`` have x as the place
    among ``categories``. ``notes`` are said below it. ``log`` is of the upward axis.
    """

    name: str
    title: str
    kind: Kind
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    categories: tuple[str, ...] = ()
    levels: tuple[Level, ...] = ()
    notes: tuple[str, ...] = ()
    log: bool = False


@dataclass(frozen=True)
class _Series:
    """One figure of one side over the numbers of users that were measured."""

    what: str
    place: int  # among the figures of the chart
    side: int
    loads: tuple[tuple[int, Spread, bool], ...]  # users, measured, whether it misses an objective
    dashed: bool = False  # where nothing is compared; lines may lie on each other


def charts(documents: Documents, published: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Chart]]]:
    """All charts by scenario; those of all scenarios are first, without a name. What was not measured has none.

    Of two results only the scenarios with the same load have charts of their own.
    """
    first = [pareto(documents)]
    found = [("", [chart for chart in first if chart])]
    found += [(name, list(_of_scenario(documents, name, published))) for name in _shared(documents)]
    return [(name, of) for name, of in found if of]


def pareto(documents: Documents) -> Chart | None:
    """What all users together get against what each of them gets; None where that was not measured."""
    total, unit = _total(documents)
    lines = []
    for side, document in enumerate(documents):
        for place, name in enumerate(_names(documents)):
            dots = [
                Dot(x, y, number(users), missed)
                for users, points, missed in _loads(document, name)
                if (x := spread(points, PER_USER)) and (y := spread(points, total))
            ]
            if dots:
                label = f"{name}, {SIDES[side]}" if len(documents) > 1 else name
                lines.append(Line(label, place, side, tuple(dots)))
    if not lines:
        return None
    note = "A point is a load, with its number of users. Farther up and to the right is better."
    title = "Throughput against pace"
    return Chart("pareto", title, "curve", USER_UNIT, unit, tuple(lines), notes=(note,))


USER_UNIT = "tokens/s per user"


def _total(documents: Documents) -> tuple[str, str]:
    """What is told of the throughput, and its unit: for each GPU where it is known how many there are."""
    known = all(document["target"].get("gpus") for document in documents)
    return (PER_GPU, "tokens/s per GPU") if known else (TOTAL, "tokens/s")


def _of_scenario(documents: Documents, name: str, published: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    parts = (50, 90, 99) if len(documents) == 1 else (50, 99)
    ttft, tpot, e2e = (
        {f"p{part}": f"{metric}.p{part}" for part in parts} for metric in ("ttft_ms", "tpot_ms", "e2e_ms")
    )
    tpot = {**{f"TPOT {part}": path for part, path in tpot.items()}, "ITL p99": "itl_ms.p99"}
    for chart in (
        _throughput(documents, name, published),
        _latency(documents, name, "ttft", "Time to the first token (TTFT)", ttft),
        _latency(documents, name, "tpot", "Time for each further token (TPOT, ITL)", tpot),
        _latency(documents, name, "e2e", "Time for the whole request", e2e),
    ):
        if chart:
            yield chart


def _throughput(documents: Documents, name: str, published: Sequence[Mapping[str, Any]]) -> Chart | None:
    total, unit = _total(documents)
    series = []
    for side, document in enumerate(documents):
        gpus = document["target"]["gpus"] if total == PER_GPU else 1
        for place, what in enumerate(("all requests", "goodput")):
            found = [
                (users, measured, missed)
                for users, points, missed in _loads(document, name)
                if (measured := _good_tokens(points, gpus) if place else spread(points, total))
            ]
            if found:
                series.append(_Series(what, place, side, tuple(found), bool(place)))
    if not series:
        return None
    same = [row for one in documents for row in matching(published, one, name)] if total == PER_GPU else []
    rows = [row for row in published if row in same]
    levels = [Level("published", row[FIGURE]) for row in rows]
    notes = [_credit(row) for row in rows]
    if any(one.place for one in series):
        notes.append("Goodput: tokens of the requests that are within the objectives.")
    return _by_users(f"throughput-{name}", "Output tokens", unit, series, levels, notes)


def _credit(row: Mapping[str, Any]) -> str:
    return (
        f"Published: {number(row[FIGURE])} tokens/s per GPU for {row['model']} on {row['gpu_type']} "
        f"({row['layout']}), {row['input_tokens']} tokens in and {row['output_tokens']} out. {row['source']}"
    )


def _good_tokens(points: Sequence[Point], gpus: int) -> Spread | None:
    """Tokens a second of the requests within the objectives, as all requests of a load have equally many."""
    requests = spread(points, GOOD)
    answered = sum(point["requests"]["answered"] for point in points)
    if not requests or not answered:
        return None
    each = sum(point["tokens"]["output"] for point in points) / answered / gpus
    return _scaled(requests, each)


def _latency(documents: Documents, name: str, of: str, title: str, paths: Mapping[str, str]) -> Chart | None:
    series = []
    for side, document in enumerate(documents):
        for place, (what, path) in enumerate(paths.items()):
            found = [
                (users, measured, missed)
                for users, points, missed in _loads(document, name)
                if (measured := spread(points, path))
            ]
            if found:
                series.append(_Series(what, place, side, tuple(found)))
    if not series:
        return None
    unit, scale = ("s", 0.001) if _top(series) >= SECONDS_FROM else ("ms", 1.0)
    series = [
        _Series(
            one.what, one.place, one.side, tuple((users, _scaled(of, scale), missed) for users, of, missed in one.loads)
        )
        for one in series
    ]
    objectives = documents[0]["slo"]
    levels = [
        Level(f"SLO {what}", objectives[path] * scale, limit=True) for what, path in paths.items() if path in objectives
    ]
    chart = _by_users(f"{of}-{name}", title, unit, series, levels, [])
    least = min(measured.low for one in series for _users, measured, _missed in one.loads)
    return replace(chart, log=chart.kind == "sweep" and 0 < LOG_FROM * least < _top(series))


def _by_users(
    name: str, title: str, unit: str, series: Sequence[_Series], levels: Sequence[Level], notes: Sequence[str]
) -> Chart:
    """A line for each series; where all have one and the same number of users, bars, a group for each figure."""
    most = OFF_SCALE * _top(series)
    drawn = tuple(level for level in levels if level.y <= most)
    said = (
        *notes,
        *(f"{level.label}, {number(level.y)} {unit}, is above the chart." for level in levels if level.y > most),
    )
    compared = any(one.side for one in series)
    users = sorted({count for one in series for count, _measured, _missed in one.loads})
    if len(users) > 1:
        lines = [
            Line(
                f"{one.what}, {SIDES[one.side]}" if compared else one.what,
                one.side if compared else one.place,
                one.place if compared else int(one.dashed),
                tuple(Dot(_exactly(count), measured, "", missed) for count, measured, missed in one.loads),
            )
            for one in series
        ]
        return Chart(name, title, "sweep", "users at once", unit, tuple(lines), (), drawn, said)
    categories = tuple(dict.fromkeys(one.what for one in series))
    lines = [
        Line(
            SIDES[side] if compared else "",
            side,
            0,
            tuple(
                Dot(_exactly(categories.index(one.what)), measured, number(measured.median), missed)
                for one in series
                if one.side == side
                for _count, measured, missed in one.loads
            ),
        )
        for side in sorted({one.side for one in series})
    ]
    at = f"{users[0]} user{'' if users[0] == 1 else 's'} at once"
    return Chart(name, title, "bars", at, unit, tuple(lines), categories, drawn, said)


def _shared(documents: Documents) -> list[str]:
    shapes = [{one["name"]: one for one in document["scenarios"]} for document in documents]
    return [
        name
        for name, shape in shapes[0].items()
        if all(name in others and not shape_differences(shape, others[name]) for others in shapes[1:])
    ]


def _names(documents: Documents) -> list[str]:
    return list(dict.fromkeys(scenario["name"] for document in documents for scenario in document["scenarios"]))


def _loads(document: Mapping[str, Any], name: str) -> Iterator[tuple[int, list[Point], bool]]:
    for scenario, users, points in loads(document):
        if scenario == name:
            yield users, points, bool(slo.misses(points, document["slo"]))


def _top(series: Sequence[_Series]) -> float:
    return max(measured.high for one in series for _users, measured, _missed in one.loads)


def _scaled(of: Spread, factor: float) -> Spread:
    return Spread(of.median * factor, of.low * factor, of.high * factor)


def _exactly(at: float) -> Spread:
    return Spread(at, at, at)
