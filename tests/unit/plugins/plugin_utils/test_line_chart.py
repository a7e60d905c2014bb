"""Charts of series over time: axes, gaps, numbers and what a reader without eyes gets."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.report.line_chart import (
    COLOURS,
    HEIGHT,
    SCALES,
    WIDTH,
    Line,
    levels,
    line_chart,
    moment,
    moments,
    number,
    pieces,
    style,
    text,
)
from tools.dashboards import UNITS

START, STEP = 1795730400, 720  # 2026-11-26 22:00 UTC
TIMES = (START, START + 24 * 3600, STEP)


def drawn(*lines: Line, unit: str = "count") -> ElementTree.Element:
    return ElementTree.fromstring(line_chart("a", "A title", unit, lines, TIMES))


def words(chart: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in chart.iter("text")]


def shapes(chart: ElementTree.Element) -> list[str]:
    return [element.attrib["d"] for element in chart.iter("path") if "series" in element.attrib["class"]]


def line(*values: float, legend: str = "x", first: int = 0) -> Line:
    return Line(legend, [[START + (first + place) * STEP, value] for place, value in enumerate(values)])


def test_a_chart_has_axes_with_units_and_a_description() -> None:
    chart = drawn(line(0.5, 2, 1, legend="p50"), line(1, 4, legend="p95"), unit="seconds")
    assert words(chart)[:2] == ["s", "UTC"]
    assert words(chart)[2:7] == ["0", "1", "2", "3", "4"]
    assert words(chart)[7:] == ["27 Nov", "04:00", "08:00", "12:00", "16:00", "20:00"]
    assert chart.attrib["role"] == "img"
    assert chart.attrib["aria-labelledby"] == "a-title a-desc"
    assert [(one.attrib["id"], one.text) for one in chart if one.tag in ("title", "desc")] == [
        ("a-title", "A title"),
        (
            "a-desc",
            "From 2026-11-26 22:00 to 2026-11-27 22:00 UTC. p50: last 1 s, highest 2 s; p95: last 4 s, highest 4 s.",
        ),
    ]
    assert len(shapes(chart)) == 2


def test_without_data() -> None:
    for chart in (drawn(), drawn(Line("x", []))):
        assert words(chart)[-1] == "no data"
        assert shapes(chart) == []
        assert next(chart.iter("desc")).text == "There is no data."


def test_one_point_is_a_dot() -> None:
    (shape,) = shapes(drawn(line(3)))
    assert shape.endswith("h0")


def test_missing_points_are_gaps() -> None:
    half = Line("x", [*line(1, 2).points, *line(3, 4, 5, first=4).points, *line(6, first=9).points])
    assert [len(piece) for piece in pieces(half.points, STEP)] == [2, 3, 1]
    assert len(shapes(drawn(half))) == 3


def test_many_series_have_colours_and_dashes() -> None:
    chart = drawn(*(line(place, place, legend=str(place)) for place in range(25)))
    assert len(shapes(chart)) == 25
    assert len({style(place) for place in range(COLOURS)}) == COLOURS
    assert [style(place) for place in (0, 1, 10, 11)] == ["c0", "c1 dashed", "c0", "c1 dashed"]


def test_all_is_inside_the_picture() -> None:
    chart = drawn(line(-3, 100000, 7), line(5.5))
    places = [float(each) for shape in shapes(chart) for each in re.findall(r"-?[\d.]+", shape.removesuffix("h0"))]
    assert all(0 <= x <= WIDTH for x in places[::2])
    assert all(0 <= y <= HEIGHT for y in places[1::2])


def test_texts_are_escaped() -> None:
    chart = line_chart("a", "<b>", "count", [line(1, legend="<script>&")], TIMES)
    assert "<b>" not in chart
    assert "<script>" not in chart
    assert "&lt;script&gt;&amp;" in chart


@pytest.mark.parametrize(
    ("low", "high", "least", "marks"),
    [
        (0, 0, 0, [0, 0.5, 1]),
        (0, 0, 1, [0, 1]),
        (0, 1, 1, [0, 1]),
        (3, 7.9, 0, [0, 2, 4, 6, 8]),
        (0, 87, 0, [0, 50, 100]),
        (-2, 6, 0, [-2, 0, 2, 4, 6]),
        (0, 0.04, 0, [0, 0.01, 0.02, 0.03, 0.04]),
        (0, 123456, 0, [0, 50000, 100000, 150000]),
    ],
)
def test_levels(low: float, high: float, least: float, marks: list[float]) -> None:
    assert levels(low, high, least) == pytest.approx(marks)


def test_moments_are_whole_hours() -> None:
    assert [moment(at) for at in moments(START + 7, START + 3600)] == [
        "22:10",
        "22:20",
        "22:30",
        "22:40",
        "22:50",
        "23:00",
    ]
    assert [moment(at) for at in moments(START, START + 6 * 86400)] == [f"{day} Nov" for day in range(27, 31)] + [
        "1 Dec",
        "2 Dec",
    ]


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0, "count", "0"),
        (1234567.8, "count", "1,234,568"),
        (0.0421, "seconds", "42.1 ms"),
        (1.9376, "seconds", "1.94 s"),
        (900, "seconds", "15 min"),
        (500000, "seconds", "139 h"),
        (0.8712, "share", "87.1 %"),
        (75e9, "bytes", "69.8 GiB"),
        (512, "bytes", "512 B"),
        (3.5e6, "bytes/s", "3.34 MiB/s"),
        (61, "celsius", "61 °C"),
        (834.368, "tokens/s", "834 tokens/s"),
        (2.5e6, "tokens/s", "2.5 million tokens/s"),
        (-0.5, "requests/s", "-0.5 requests/s"),
    ],
)
def test_values_have_units(value: float, unit: str, shown: str) -> None:
    assert text(value, unit) == shown


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (100, 99.99, 0.001234, 12000)] == ["100", "100", "0.00123", "12,000"]


def test_charts_and_grafana_have_the_same_units() -> None:
    assert set(SCALES) == set(UNITS)
