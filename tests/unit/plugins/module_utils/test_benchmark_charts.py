"""What the charts of results show, and that their pictures are the same on every run and at home in a page."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import drawing
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.charts import Chart, charts
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.drawing import SERIES, SERIES_DARK, to_png, to_svg
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.figures import number
from ansible_collections.trtllm.fleet.tests.unit.benchmark_sample import PUBLISHED, ROOT, SLO, document

Documents = Sequence[dict[str, Any]]


def by_name(documents: Documents, published: Sequence[dict[str, Any]] = PUBLISHED) -> dict[str, Chart]:
    return {chart.name: chart for _scenario, of in charts(documents, published) for chart in of}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two sweeps, of which the second ends where it misses its objectives."""
    return document(tmp_path_factory.mktemp("results"), slo=SLO)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return document(tmp_path_factory.mktemp("results"), "smoke")


# --- what they show ---------------------------------------------------------------------------------------------------


def test_every_scenario_has_its_charts_and_all_together_one(sweep: dict[str, Any]) -> None:
    assert [(name, [chart.name for chart in of]) for name, of in charts([sweep], [])] == [
        ("", ["pareto"]),
        *(
            (name, [f"{of}-{name}" for of in ("throughput", "ttft", "tpot", "e2e")])
            for name in ("low_latency", "quick_start")
        ),
    ]


def test_pareto_has_the_figures_of_each_load(sweep: dict[str, Any]) -> None:
    chart = by_name([sweep])["pareto"]
    assert [line.label for line in chart.lines] == ["low_latency", "quick_start"]
    assert [dot.label for dot in chart.lines[1].dots] == ["32", "64", "128", "256"]
    rounds = [point for point in sweep["points"] if (point["scenario"], point["concurrency"]) == ("quick_start", 64)]
    found = sorted(point["throughput"]["output_tokens_per_second_per_gpu"] for point in rounds)
    dot = chart.lines[1].dots[1]
    assert [dot.y.low, dot.y.median, dot.y.high] == found
    assert [dot.missed for dot in chart.lines[1].dots] == [False, False, False, True]


def test_throughput_has_goodput_where_it_was_measured(sweep: dict[str, Any], single: dict[str, Any]) -> None:
    lines = by_name([sweep])["throughput-quick_start"].lines
    assert [line.label for line in lines] == ["all requests", "goodput"]
    point = next(point for point in sweep["points"] if (point["scenario"], point["concurrency"]) == ("quick_start", 32))
    assert lines[1].dots[0].y.high <= lines[0].dots[0].y.high * 1.001
    good = [dot.y.median / point["tokens"]["output"] * point["requests"]["answered"] for dot in lines[1].dots]
    assert good[0] == pytest.approx(point["throughput"]["good_requests_per_second"], rel=0.05)
    assert by_name([single])["throughput-smoke"].categories == ("all requests",)


def test_published_figures_are_those_of_the_same_gpu_model_and_lengths(sweep: dict[str, Any]) -> None:
    (level,) = by_name([sweep])["throughput-quick_start"].levels
    assert (level.y, level.limit) == (6798, False)
    chart = by_name([sweep])["throughput-low_latency"]
    assert chart.levels == (), "twice as high as anything measured, and more"
    assert "published, 6,798 tokens/s per GPU, is above the chart." in chart.notes
    (source,) = [note for note in chart.notes if "gpt-oss-120b on h200 (TP1), 1024 tokens in and 1024 out" in note]
    assert PUBLISHED[0]["source"] in source
    for change in ({"gpu_type": "h100"}, {"model": "openai/gpt-oss-20b"}):
        rows = [row for row in PUBLISHED if {**row, **change} == row]
        assert rows
        assert by_name([sweep], rows)["throughput-quick_start"].levels == ()
    shorter = [{**one, "output_tokens": 1000} for one in sweep["scenarios"]]
    assert by_name([{**sweep, "scenarios": shorter}])["throughput-quick_start"].levels == ()


def test_objectives_are_lines_where_their_figure_is_drawn(sweep: dict[str, Any]) -> None:
    found = by_name([sweep])
    assert [(level.label, level.y) for level in found["ttft-quick_start"].levels] == [("SLO p99", 2000)]
    assert [(level.label, level.y) for level in found["tpot-quick_start"].levels] == [("SLO TPOT p50", 30)]
    assert found["ttft-low_latency"].notes == ("SLO p99, 2,000 ms, is above the chart.",)


def test_long_times_are_in_seconds_and_far_apart_ones_on_a_logarithmic_axis(sweep: dict[str, Any]) -> None:
    found = by_name([sweep])
    assert (found["e2e-quick_start"].y_label, found["e2e-low_latency"].y_label) == ("s", "ms")
    longest = max(point["e2e_ms"]["p99"] for point in sweep["points"])
    assert max(dot.y.high for line in found["e2e-quick_start"].lines for dot in line.dots) == longest / 1000
    assert not found["ttft-low_latency"].log
    apart = [
        {**point, "ttft_ms": {**point["ttft_ms"], "p99": 50 * point["ttft_ms"]["p99"]}} for point in sweep["points"]
    ]
    assert by_name([{**sweep, "points": apart}])["ttft-quick_start"].log


def test_one_number_of_users_makes_bars(single: dict[str, Any]) -> None:
    chart = by_name([single])["ttft-smoke"]
    assert (chart.kind, chart.categories, chart.x_label) == ("bars", ("p50", "p90", "p99"), "2 users at once")
    assert [dot.label for dot in chart.lines[0].dots] == [number(dot.y.median) for dot in chart.lines[0].dots]
    both = by_name([single, single])["tpot-smoke"]
    assert [(line.label, line.colour, len(line.dots)) for line in both.lines] == [
        ("this run", 0, 3),
        ("baseline", 1, 3),
    ]


def test_two_results_have_their_lines_in_one_chart(sweep: dict[str, Any], single: dict[str, Any]) -> None:
    found = by_name([sweep, sweep])
    assert [line.label for line in found["pareto"].lines[::2]] == ["low_latency, this run", "low_latency, baseline"]
    lines = found["ttft-quick_start"].lines
    assert [(line.label, line.colour, line.style) for line in lines] == [
        ("p50, this run", 0, 0),
        ("p99, this run", 0, 1),
        ("p50, baseline", 1, 0),
        ("p99, baseline", 1, 1),
    ]
    assert set(by_name([sweep, single])) == {"pareto"}
    longer = [{**one, "output_tokens": 2048} for one in sweep["scenarios"] if one["name"] == "quick_start"]
    assert set(by_name([sweep, {**sweep, "scenarios": [sweep["scenarios"][0], *longer]}])) == {
        "pareto",
        *(f"{of}-low_latency" for of in ("throughput", "ttft", "tpot", "e2e")),
    }


def test_nothing_measured_nothing_drawn(single: dict[str, Any]) -> None:
    assert charts([{**single, "points": []}], PUBLISHED) == []
    failed = [{**point, "problems": ["x"]} for point in single["points"]]
    assert charts([{**single, "points": failed}], PUBLISHED) == []
    without = [{**point, "itl_ms": {}} for point in single["points"]]
    assert by_name([{**single, "points": without}])["tpot-smoke"].categories == ("TPOT p50", "TPOT p90", "TPOT p99")


def test_with_an_unknown_number_of_gpus_it_is_tokens_of_all(single: dict[str, Any]) -> None:
    outside = {**single, "target": {**single["target"], "gpus": 0}, "ran_on": {}}
    assert by_name([outside])["throughput-smoke"].y_label == "tokens/s"


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (None, "-"),
        (0, "0"),
        (25870, "25,870"),
        (61.34, "61.3"),
        (100, "100"),
        (0.04213, "0.0421"),
        (1.0, "1"),
        (-2.5, "-2.5"),
    ],
)
def test_number(figure: float | None, text: str) -> None:
    assert number(figure) == text


# --- the pictures -----------------------------------------------------------------------------------------------------


def test_pictures_are_the_same_on_every_run(sweep: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    chart = by_name([sweep])["throughput-quick_start"]
    before = to_svg(chart), to_png(chart, ["a run"])
    # Whatever else somebody draws, and whatever they have set.
    drawing.rcParams["font.size"] = 30
    try:
        assert (to_svg(chart), to_png(chart, ["a run"])) == before
        assert drawing.rcParams["font.size"] == 30, "and theirs stays"
    finally:
        drawing.rcdefaults()
    assert before[1].startswith(b"\x89PNG")
    assert to_png(chart, ["another run"]) != before[1]


def test_svg_is_at_home_in_a_page(sweep: dict[str, Any]) -> None:
    found = [to_svg(chart) for chart in by_name([sweep, sweep]).values()]
    ids = [name for svg in found for name in re.findall(r'\bid="([^"]+)"', svg)]
    assert len(ids) == len(set(ids)) > 0
    for svg in found:
        root = ElementTree.fromstring(svg)
        assert {part.tag.rpartition("}")[2] for part in root.iter()} <= {
            "svg",
            "g",
            "defs",
            "clipPath",
            "rect",
            "path",
            "use",
            "text",
        }
        assert not re.search(r"#[0-9a-f]{6}", svg), "a colour that is not the page's"
        named = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        assert named <= set(re.findall(r'\bid="([^"]+)"', svg))
        assert set(re.findall(r"var\(--([\w-]+)\)", svg)) <= set(drawing.LIGHT)
        assert "viewBox" in root.attrib
        assert "width" not in root.attrib


def test_text_of_a_chart_is_text(single: dict[str, Any]) -> None:
    name = "a$b$ <script>alert(1)</script> & c"
    evil = json.loads(json.dumps(single).replace('"smoke"', json.dumps(name)))
    for chart in by_name([evil, evil]).values():
        svg = to_svg(chart)
        assert "<script" not in svg
        assert ElementTree.fromstring(svg) is not None
    assert name in "".join(ElementTree.fromstring(to_svg(by_name([evil])["pareto"])).itertext())


# --- colours ----------------------------------------------------------------------------------------------------------

# What is left of red, green and blue (Machado, Oliveira, Fernandes 2009, all of the defect).
SIGHT = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}


def linear(colour: str) -> list[float]:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def lab(colour: str, sight: str) -> list[float]:
    """CIE L*a*b* of a colour as somebody sees it."""
    red, green, blue = (
        min(1.0, max(0.0, sum(share * part for share, part in zip(row, linear(colour), strict=True))))
        for row in SIGHT[sight]
    )
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("palette", [SERIES, SERIES_DARK], ids=["light", "dark"])
def test_colours_can_be_told_apart(palette: Sequence[str], sight: str) -> None:
    # Charts have two to four most often; each has a mark of its own, too.
    for count, least in ((2, 60), (4, 30), (6, 20)):
        for one, other in itertools.combinations(palette[:count], 2):
            distance = sum((a - b) ** 2 for a, b in zip(lab(one, sight), lab(other, sight), strict=True)) ** 0.5
            assert distance >= least, (one, other)


@pytest.mark.parametrize(("palette", "card"), [(SERIES, "#ffffff"), (SERIES_DARK, "#1a2029")], ids=["light", "dark"])
def test_colours_stand_out_from_the_card(palette: Sequence[str], card: str) -> None:
    def luminance(colour: str) -> float:
        red, green, blue = linear(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for colour in palette:
        low, high = sorted((luminance(colour), luminance(card)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour  # the labels of points have them


# --- published figures ------------------------------------------------------------------------------------------------


def test_published_figures_are_plausible() -> None:
    known = {path.stem for path in Path(ROOT / "roles/serving_recipe/vars/models").glob("*.yml")}
    rows = {(row["model"], row["gpu_type"], row["input_tokens"], row["output_tokens"]): row for row in PUBLISHED}
    assert len(rows) == len(PUBLISHED) == 44
    assert {row["model"].rpartition("/")[2] for row in PUBLISHED} <= known
    assert rows["openai/gpt-oss-120b", "h100", 1024, 32768]["layout"] == "DEP4"
    for (model, gpu, fed, made), row in rows.items():
        # The longer a request, the fewer requests fit, and the larger model is the slower one.
        for longer in ((fed * 8, made), (fed, made * 8), (fed * 4, made)):
            if other := rows.get((model, gpu, *longer)):
                assert other["output_tokens_per_second_per_gpu"] < row["output_tokens_per_second_per_gpu"]
        if smaller := rows.get((model.replace("120b", "20b"), gpu, fed, made)) if "120b" in model else None:
            assert smaller["output_tokens_per_second_per_gpu"] > row["output_tokens_per_second_per_gpu"]


def test_published_figures_are_of_gpus_that_the_hardware_table_has() -> None:
    table = yaml.safe_load((ROOT / "roles/serving_recipe/vars/hardware.yml").read_text())
    (rows,) = table.values()
    assert {row["gpu_type"] for row in PUBLISHED} <= {row["gpu_type"] for row in rows}
