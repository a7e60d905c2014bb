# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Charts as pictures: SVG that is part of a page and has its colours, and PNG. The same chart has the same bytes."""

from __future__ import annotations

import io
import re
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

IMPORT_ERROR = None
try:
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
    from matplotlib.transforms import Bbox
except ImportError:
    IMPORT_ERROR = traceback.format_exc()

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.charts import Chart, Level, Line, Spread
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.figures import number

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
# Inches. As wide as a telephone's page, so that text is as large there as it is here, and larger elsewhere.
SIZE = (4.4, 2.95)
DOTS_PER_INCH = 200  # of a PNG
FONT = "DejaVu Sans"  # comes with matplotlib
TEXT = 9.0  # points
WIDTH = 56  # characters
LINE = 0.16  # inches
# On white and on dark cards; with any of the usual defects of colour sight they can be told apart, the first ones best.
SERIES = ("#0b62c4", "#b34a00", "#058364", "#41153c", "#483205", "#3706d6")
SERIES_DARK = ("#62b4f5", "#ffa24d", "#b3fee9", "#fa377f", "#d8fd13", "#9371f9")
MARKERS = ("o", "s", "^", "D", "v", "P")
STEPS = 24  # of a line between two dots
STYLES = ("solid", (0, (4, 2)), (0, (1, 1.5)))
# Names of colours in the style sheet of a page, and what they are in a PNG, which has the light ones.
LIGHT = {
    "text": "#1a2230",
    "quiet": "#5a6678",
    "line": "#d9dfe7",
    "card": "#ffffff",
    "down": "#9d1519",
    **{f"series-{place}": colour for place, colour in enumerate(SERIES)},
}
# What stands for each until the SVG is written: no two alike, and none that anything else would have.
STAND_INS = {name: f"#01fe{place:02x}" for place, name in enumerate(LIGHT)}
SETTINGS: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.sans-serif": [FONT],
    "font.size": TEXT,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    # Text as text, also where it has dollars, and the same names of parts on every run.
    "svg.fonttype": "none",
    "svg.hashsalt": "trtllm.fleet",
    "text.parse_math": False,
}
INKS: dict[Any, str] = {
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), "line"),
    **dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "legend.labelcolor", "text.color"), "text"),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), "text"),
}


def to_svg(chart: Chart) -> str:
    """An ``svg`` element whose ids are its own among the charts of a page, with the colours of its style sheet."""
    written = io.BytesIO()
    with rc_context():
        figure = _figure(chart, STAND_INS, "")
        FigureCanvasSVG(figure)
        _finish(figure, chart, STAND_INS)
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())
    # What is no picture; a style sheet in here would be one for the whole page.
    for parent in list(root.iter()):
        for part in [one for one in parent if one.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style")]:
            parent.remove(part)
    text = " ".join(value for part in root.iter() for name, value in part.attrib.items() if name != "id")
    named = set(re.findall(r"#([\w.-]+)", text))
    for part in root.iter():
        if part.get("id") not in named:
            part.attrib.pop("id", None)
        for name, value in part.attrib.items():
            part.set(name, _in_page(value, chart.name, name == "id"))
    for name in ("width", "height", "version"):
        del root.attrib[name]
    root.attrib.update({"class": "chart", "role": "img", "aria-label": f"{chart.title}, {chart.y_label}"})
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _in_page(value: str, prefix: str, is_id: bool) -> str:
    if is_id:
        return f"{prefix}-{value}"
    for name, colour in STAND_INS.items():
        value = value.replace(colour, f"var(--{name})")
    value = value.replace(f"'{FONT}', sans-serif", "inherit").replace(f"'{FONT}'", "inherit")
    return re.sub(r"(^|url\()#", rf"\1#{prefix}-", value)


def to_png(chart: Chart, of: Sequence[str]) -> bytes:
    """A picture by itself, on white, with its title and with lines that tell whose it is."""
    written = io.BytesIO()
    with rc_context():
        figure = _figure(
            chart, LIGHT, "\n".join(line for one in (chart.title, *of) for line in textwrap.wrap(one, WIDTH))
        )
        FigureCanvasAgg(figure)
        _finish(figure, chart, LIGHT)
        figure.savefig(written, format="png", dpi=DOTS_PER_INCH, facecolor="white", metadata={"Software": None})
    return written.getvalue()


def _figure(chart: Chart, colours: Mapping[str, str], title: str) -> Figure:
    # Not the settings of whoever draws it.
    rcdefaults()
    rcParams.update({**SETTINGS, **{setting: colours[name] for setting, name in INKS.items()}})
    width, height = SIZE
    figure = Figure(figsize=(width, height + LINE * len(title.splitlines())), layout="constrained")
    axes = figure.subplots()
    axes.set_title(chart.y_label, loc="left", fontsize=TEXT)
    axes.set_xlabel(chart.x_label)
    axes.grid(axis="y", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=3)
    (_draw_bars if chart.kind == "bars" else _draw_lines)(axes, chart, colours)
    _draw_levels(axes, chart, colours)
    _scale(axes, chart)
    _draw_legend(figure, chart, colours, title)
    return figure


def _draw_lines(axes: Axes, chart: Chart, colours: Mapping[str, str]) -> None:
    for line in chart.lines:
        look = _look(line, colours)
        x, y = [dot.x.median for dot in line.dots], [dot.y.median for dot in line.dots]
        axes.plot(x, y, color=look["color"], linestyle=look["linestyle"], zorder=3)
        if chart.kind == "sweep":
            low, high = [dot.y.low for dot in line.dots], [dot.y.high for dot in line.dots]
            axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0, zorder=2)
        for dot in line.dots:
            face = colours["card"] if dot.missed else look["color"]
            axes.plot([dot.x.median], [dot.y.median], **{**look, "markerfacecolor": face}, zorder=4)
        if chart.kind == "curve" or len(line.dots) == 1:
            axes.errorbar(
                x,
                y,
                xerr=_reach(line, "x"),
                yerr=_reach(line, "y"),
                fmt="none",
                ecolor=look["color"],
                elinewidth=1,
                zorder=3,
            )


def _look(line: Line, colours: Mapping[str, str]) -> dict[str, Any]:
    place = line.colour % len(SERIES)
    return {
        "color": colours[f"series-{place}"],
        "linestyle": STYLES[line.style % len(STYLES)],
        "marker": MARKERS[(line.colour + 2 * line.style) % len(MARKERS)],
    }


def _reach(line: Line, axis: str) -> list[list[float]]:
    """How far the rounds go below and above the median."""
    spreads: list[Spread] = [getattr(dot, axis) for dot in line.dots]
    return [[one.median - one.low for one in spreads], [one.high - one.median for one in spreads]]


def _draw_bars(axes: Axes, chart: Chart, colours: Mapping[str, str]) -> None:
    width = 0.7 / len(chart.lines)
    for place, line in enumerate(chart.lines):
        shift = (place - (len(chart.lines) - 1) / 2) * width
        for dot in line.dots:
            at = dot.x.median + shift
            colour = _look(line, colours)["color"]
            face = colours["card"] if dot.missed else colour
            axes.bar([at], [dot.y.median], width * 0.9, color=face, edgecolor=colour, linewidth=1.5, zorder=2)
            axes.plot([at, at], [dot.y.low, dot.y.high], color=colours["text"], linewidth=1.2, zorder=3)
            axes.annotate(
                dot.label, (at, dot.y.high), (0, 3), textcoords="offset points", horizontalalignment="center", zorder=4
            )
    axes.set_xticks(range(len(chart.categories)), chart.categories)
    axes.set_xlim(-0.6, max(len(chart.categories), 2) - 0.4)


def _draw_levels(axes: Axes, chart: Chart, colours: Mapping[str, str]) -> None:
    for level in chart.levels:
        axes.axhline(level.y, zorder=2.5, **_level_look(level, colours))


def _level_look(level: Level, colours: Mapping[str, str]) -> dict[str, Any]:
    return {"color": colours["down" if level.limit else "quiet"], "linestyle": (0, (5, 2)), "linewidth": 1.2}


def _scale(axes: Axes, chart: Chart) -> None:
    values = [one for line in chart.lines for dot in line.dots for one in (dot.y.low, dot.y.high)]
    values += [level.y for level in chart.levels]
    formatter = FuncFormatter(lambda value, _place: number(value))
    if chart.log:
        low, high = min(values) / 1.3, max(values) * 1.4
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(FixedLocator(_round_numbers(low, high)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, max(values) * 1.13 or 1)
    axes.yaxis.set_major_formatter(formatter)
    if chart.kind == "sweep":
        users = sorted({dot.x.median for line in chart.lines for dot in line.dots})
        axes.set_xscale("log", base=2)
        axes.set_xlim(users[0] / 1.15, users[-1] * 1.15)
        axes.xaxis.set_major_locator(FixedLocator(_apart(users)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(formatter)
    if chart.kind == "curve":
        axes.set_xlim(0, max(dot.x.high for line in chart.lines for dot in line.dots) * 1.08)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: number(value)))


def _apart(users: Sequence[float]) -> list[float]:
    """The numbers that were measured, from the highest, as many as there is room for."""
    room = (users[-1] / users[0]) ** (1 / 9)
    found = [users[-1]]
    for count in reversed(users[:-1]):
        if found[-1] / count >= room:
            found.append(count)
    return found


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 and their tens, or only 1 and its tens where these are many."""
    tens = [10.0**power for power in range(-6, 10)]
    found = [ten * digit for ten in tens for digit in (1, 2, 5) if low <= ten * digit <= high]
    return found if len(found) <= 8 else [one for one in found if one in tens]


def _draw_legend(figure: Figure, chart: Chart, colours: Mapping[str, str], title: str) -> None:
    handles: list[Any] = []
    for line in chart.lines:
        if not line.label:
            continue
        if chart.kind == "bars":
            colour = _look(line, colours)["color"]
            handles.append(Line2D([], [], color=colour, marker="s", markersize=7, linestyle="none", label=line.label))
        else:
            handles.append(Line2D([], [], **_look(line, colours), label=line.label))
    if any(dot.missed for line in chart.lines for dot in line.dots):
        marker = "s" if chart.kind == "bars" else "o"
        look: dict[str, Any] = {"color": colours["text"], "markerfacecolor": colours["card"], "linestyle": "none"}
        handles.append(Line2D([], [], marker=marker, label="misses the SLO", **look))
    for level in chart.levels:
        handles.append(Line2D([], [], label=f"{level.label}: {number(level.y)}", **_level_look(level, colours)))
    if not handles:
        figure.suptitle(title, fontsize=TEXT, x=0.01, horizontalalignment="left")
    else:
        longest = max(len(handle.get_label()) for handle in handles)
        columns = max(1, min(len(handles), int(60 / (longest + 6))))
        figure.legend(
            handles=handles,
            title=title or None,
            title_fontsize=TEXT,
            alignment="left",
            loc="outside upper left",
            ncols=columns,
            handlelength=1.8,
            columnspacing=1.2,
            handletextpad=0.5,
            borderpad=0.1,
            labelspacing=0.25,
        )


def _finish(figure: Figure, chart: Chart, colours: Mapping[str, str]) -> None:
    """Write the points' labels where they hide nothing; one that has no such place is left out."""
    if chart.kind != "curve":
        return
    figure.draw_without_rendering()
    (axes,) = figure.axes
    bounds = axes.get_window_extent().padded(4)
    points = figure.dpi / 72
    dots = [(line, dot) for line in chart.lines for dot in line.dots]
    places = [axes.transData.transform((dot.x.median, dot.y.median)) for _line, dot in dots]
    taken = [Bbox.from_bounds(x - 3 * points, y - 3 * points, 6 * points, 6 * points) for x, y in places]
    drawn = [box for line in chart.lines for box in _along(axes, line)]
    for (line, dot), own in zip(dots, list(taken)):
        label = axes.annotate(
            dot.label,
            (dot.x.median, dot.y.median),
            (0, 0),
            textcoords="offset points",
            color=_look(line, colours)["color"],
            zorder=5,
        )
        label.set_in_layout(False)
        # Better on a line than nowhere.
        for lines, (x, y, beside, above) in ((lines, way) for lines in (drawn, []) for way in _ways()):
            label.xyann = (x, y)
            label.set(horizontalalignment=beside, verticalalignment=above)
            box = label.get_window_extent()
            others = [one for one in taken if one is not own]
            inside = bounds.contains(box.x0, box.y0) and bounds.contains(box.x1, box.y1)
            if inside and not box.count_overlaps([*others, *lines]):
                taken.append(box)
                break
        else:
            label.remove()


def _along(axes: Axes, line: Line) -> Iterator[Bbox]:
    """Where a line runs between its dots, in small steps."""
    places = [axes.transData.transform((dot.x.median, dot.y.median)) for dot in line.dots]
    for begin, end in zip(places, places[1:]):
        for step in range(1, STEPS):
            x, y = begin + (end - begin) * step / STEPS
            yield Bbox.from_bounds(x - 1, y - 1, 2, 2)


def _ways() -> Iterator[tuple[float, float, str, str]]:
    """Where a label may be, in points from its dot, and what of it is there."""
    for distance in (4, 8):
        yield distance, distance / 2, "left", "bottom"
        yield -distance, -distance / 2, "right", "top"
        yield 0, distance + 1, "center", "bottom"
        yield 0, -distance - 1, "center", "top"
        yield distance, -distance / 2, "left", "top"
        yield -distance, distance / 2, "right", "bottom"
