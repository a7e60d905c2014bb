# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw the charts of one result, or of two that are compared, with matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.compare import shape_differences
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.figures import (
    PER_GPU,
    PER_USER,
    TOTAL,
    Spread,
    number,
    spread,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.published import FIGURE, matching
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import Point, loads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOOD = "throughput.good_requests_per_second"
SIDES = ("this run", "baseline")
# The same bytes on every run, and no formulas in the names of scenarios.
SETTINGS = {"svg.hashsalt": "trtllm.fleet", "text.parse_math": False}
LATENCIES = {
    "ttft": ("Time to first token (TTFT)", {f"TTFT p{part}": f"ttft_ms.p{part}" for part in (50, 90, 99)}),
    "tpot": (
        "Time per output token (TPOT, ITL)",
        {**{f"TPOT p{part}": f"tpot_ms.p{part}" for part in (50, 90, 99)}, "ITL p99": "itl_ms.p99"},
    ),
    "e2e": ("Request latency", {f"Request p{part}": f"e2e_ms.p{part}" for part in (50, 90, 99)}),
}

Document = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Series:
    """A curve: for each load its concurrency, x and y."""

    label: str
    points: list[tuple[int, Spread, Spread]]


@dataclass(frozen=True)
class Chart:
    """A chart of one scenario, or of all where ``scenario`` is empty. ``levels`` are horizontal lines by label."""

    kind: str
    scenario: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    levels: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """A file name."""
        return re.sub(r"[^\w.-]+", "-", f"{self.kind}-{self.scenario}" if self.scenario else self.kind)


def charts(documents: Sequence[Document], published: Rows) -> list[Chart]:
    """Return the charts of one result or two. Of two, only a scenario with the same load in both has its own charts."""
    shapes = [{scenario["name"]: scenario for scenario in document["scenarios"]} for document in documents]
    found = [_pareto(documents)]
    for name, shape in shapes[0].items():
        if all(name in other and not shape_differences(shape, other[name]) for other in shapes[1:]):
            found.append(_throughput(documents, name, published))
            found += [_latency(documents, name, kind) for kind in LATENCIES]
    return [chart for chart in found if chart.series]


def _total(documents: Sequence[Document]) -> tuple[str, str]:
    """Return the path and the unit of the throughput: per GPU where all results have the number of GPUs."""
    known = all(document["target"].get("gpus") for document in documents)
    return (PER_GPU, "tokens/s per GPU") if known else (TOTAL, "tokens/s")


def _pareto(documents: Sequence[Document]) -> Chart:
    total, unit = _total(documents)
    series = []
    for name in dict.fromkeys(scenario["name"] for document in documents for scenario in document["scenarios"]):
        for label, document in _sides(documents, name):
            points = [
                (users, x, y)
                for users, rounds in _loads(document, name)
                if (x := spread(rounds, PER_USER)) and (y := spread(rounds, total))
            ]
            series += [Series(label, points)] if points else []
    note = "Each point is a load, labelled with its concurrency. Higher and farther right is better."
    return Chart("pareto", "", "Throughput and speed per user", "tokens/s per user", unit, series, notes=[note])


def _throughput(documents: Sequence[Document], name: str, published: Rows) -> Chart:
    total, unit = _total(documents)
    series = _by_users(documents, name, "all requests", lambda _document, rounds: spread(rounds, total))
    good = _by_users(
        documents,
        name,
        "goodput",
        lambda document, rounds: _goodput(rounds, document["target"]["gpus"] if total == PER_GPU else 1),
    )
    same = [row for one in documents for row in matching(published, one, name)] if total == PER_GPU else []
    rows = [row for row in published if row in same]
    notes = [
        f"Published: {number(row[FIGURE])} tokens/s per GPU for {row['model']} on {row['gpu_type']} "
        f"({row['layout']}), {row['input_tokens']} tokens in and {row['output_tokens']} out. {row['source']}"
        for row in rows
    ]
    if good:
        notes.append("Goodput: tokens of the requests that meet the objectives.")
    levels = {f"published ({row['layout']})": row[FIGURE] for row in rows}
    return Chart("throughput", name, "Output tokens", "concurrency", unit, series + good, levels, notes)


def _latency(documents: Sequence[Document], name: str, kind: str) -> Chart:
    title, paths = LATENCIES[kind]
    if len(documents) > 1:
        paths = {label: path for label, path in paths.items() if not path.endswith("p90")}
    series = []
    for label, path in paths.items():
        series += _by_users(documents, name, label, lambda _document, rounds, path=path: spread(rounds, path))
    objectives = documents[0]["slo"]
    levels = {f"SLO {label}": objectives[path] for label, path in paths.items() if path in objectives}
    return Chart(kind, name, title, "concurrency", "ms", series, levels)


def _by_users(documents: Sequence[Document], name: str, what: str, measure: Any) -> list[Series]:
    """Return a series over the concurrency for each result that has the figure."""
    found = []
    for label, document in _sides(documents, what):
        points = [
            (users, Spread(users, users, users), y)
            for users, rounds in _loads(document, name)
            if (y := measure(document, rounds))
        ]
        found += [Series(label, points)] if points else []
    return found


def _goodput(rounds: Sequence[Point], gpus: int) -> Spread | None:
    """Return the tokens/s of the requests that meet the objectives; all requests of a load have the same length."""
    requests = spread(rounds, GOOD)
    answered = sum(point["requests"]["answered"] for point in rounds)
    if not requests or not answered:
        return None
    each = sum(point["tokens"]["output"] for point in rounds) / answered / gpus
    return Spread(requests.median * each, requests.low * each, requests.high * each)


def _sides(documents: Sequence[Document], label: str) -> Iterator[tuple[str, Document]]:
    for side, document in zip(SIDES, documents, strict=False):
        yield f"{label}, {side}" if len(documents) > 1 else label, document


def _loads(document: Document, name: str) -> Iterator[tuple[int, list[Point]]]:
    return ((users, rounds) for scenario, users, rounds in loads(document) if scenario == name)


def draw(chart: Chart, caption: str) -> tuple[bytes, bytes]:
    """Return a chart as SVG, and as PNG with a caption."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(SETTINGS, after_reset=True):
        figure = Figure(layout="constrained")
        plot(figure, chart)
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        figure.suptitle(caption, fontsize="small", wrap=True)
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


def plot(figure: Figure, chart: Chart) -> None:
    """Add a chart's axes to a figure; error bars are the lowest and the highest round."""
    from matplotlib.ticker import LogFormatter

    axes = figure.subplots()
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(alpha=0.4)
    for series, marker in zip(chart.series, cycle("os^Dv*PX"), strict=False):
        x, y = [x for _users, x, _y in series.points], [y for _users, _x, y in series.points]
        axes.errorbar(
            [one.median for one in x],
            [one.median for one in y],
            xerr=_reach(x),
            yerr=_reach(y),
            marker=marker,
            capsize=3,
            label=series.label,
        )
        if chart.kind == "pareto":
            for users, x_spread, y_spread in series.points:
                place = (x_spread.median, y_spread.median)
                axes.annotate(number(users), place, (4, 4), textcoords="offset points", fontsize="small")
    for count, (label, level) in enumerate(chart.levels.items()):
        axes.axhline(level, linestyle="--", color=f"C{len(chart.series) + count}", label=f"{label}: {number(level)}")
    if chart.x_label == "concurrency":
        ticks = sorted({users for series in chart.series for users, _x, _y in series.points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [number(tick) for tick in ticks])
        axes.minorticks_off()
    if chart.y_label == "ms":
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(LogFormatter())
    else:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    axes.yaxis.set_major_formatter(lambda value, _place: number(value))
    axes.legend(fontsize="small")


def _reach(spreads: Sequence[Spread]) -> list[list[float]]:
    """Return how far the rounds reach below and above the median."""
    return [[one.median - one.low for one in spreads], [one.high - one.median for one in spreads]]
