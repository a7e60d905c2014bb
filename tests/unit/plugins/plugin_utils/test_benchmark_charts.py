"""Test which figures the charts of results show, and that equal charts are drawn as equal files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
import yaml
from matplotlib.figure import Figure

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.figures import number
from ansible_collections.trtllm.fleet.plugins.plugin_utils.report.charts import Chart, charts, draw, plot
from ansible_collections.trtllm.fleet.tests.unit.benchmark_sample import PUBLISHED, ROOT, SLO, document

Documents = Sequence[dict[str, Any]]
PER_SCENARIO = ("throughput", "ttft", "tpot", "e2e")


def by_name(documents: Documents, published: Sequence[dict[str, Any]] = PUBLISHED) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts(documents, published)}


def labels(chart: Chart) -> list[str]:
    return [series.label for series in chart.series]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two sweeps, of which the second ends at the first load that misses its objectives."""
    return document(tmp_path_factory.mktemp("results"), slo=SLO)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return document(tmp_path_factory.mktemp("results"), "smoke")


def test_charts_of_all_scenarios_and_of_each(sweep: dict[str, Any]) -> None:
    each = [f"{kind}-{name}" for name in ("low_latency", "quick_start") for kind in PER_SCENARIO]
    assert list(by_name([sweep])) == ["pareto", *each]


def test_pareto_has_the_figures_of_each_load(sweep: dict[str, Any]) -> None:
    chart = by_name([sweep])["pareto"]
    assert labels(chart) == ["low_latency", "quick_start"]
    assert [users for users, _x, _y in chart.series[1].points] == [32, 64, 128, 256]
    rounds = [point for point in sweep["points"] if (point["scenario"], point["concurrency"]) == ("quick_start", 64)]
    found = sorted(point["throughput"]["output_tokens_per_second_per_gpu"] for point in rounds)
    _users, _x, y = chart.series[1].points[1]
    assert [y.low, y.median, y.high] == found


def test_throughput_has_goodput_where_it_was_measured(sweep: dict[str, Any], single: dict[str, Any]) -> None:
    chart = by_name([sweep])["throughput-quick_start"]
    assert labels(chart) == ["all requests", "goodput"]
    point = next(point for point in sweep["points"] if (point["scenario"], point["concurrency"]) == ("quick_start", 32))
    (_users, _x, y), *_more = chart.series[1].points
    good = y.median / point["tokens"]["output"] * point["requests"]["answered"]
    assert good == pytest.approx(point["throughput"]["good_requests_per_second"], rel=0.05)
    assert labels(by_name([single])["throughput-smoke"]) == ["all requests"]


def test_published_figures_are_those_of_the_same_gpu_model_and_lengths(sweep: dict[str, Any]) -> None:
    chart = by_name([sweep])["throughput-quick_start"]
    assert chart.levels == {"published (TP1)": 6798}
    (source,) = [note for note in chart.notes if "gpt-oss-120b on h200 (TP1), 1024 tokens in and 1024 out" in note]
    assert PUBLISHED[0]["source"] in source
    for change in ({"gpu_type": "h100"}, {"model": "openai/gpt-oss-20b"}):
        rows = [row for row in PUBLISHED if {**row, **change} == row]
        assert rows
        assert by_name([sweep], rows)["throughput-quick_start"].levels == {}
    for name, value in (("output_tokens", 1000), ("range_ratio", 0.8), ("request_rate", 2)):
        others = [{**one, name: value} for one in sweep["scenarios"]]
        assert by_name([{**sweep, "scenarios": others}])["throughput-quick_start"].levels == {}


def test_objectives_are_levels_of_the_chart_of_their_figure(sweep: dict[str, Any]) -> None:
    found = by_name([sweep])
    assert found["ttft-quick_start"].levels == {"SLO TTFT p99": 2000}
    assert found["tpot-quick_start"].levels == {"SLO TPOT p50": 30}


def test_two_results_have_their_series_in_one_chart(sweep: dict[str, Any], single: dict[str, Any]) -> None:
    found = by_name([sweep, sweep])
    assert labels(found["pareto"])[:2] == ["low_latency, this run", "low_latency, baseline"]
    assert labels(found["ttft-quick_start"]) == [
        f"TTFT {part}, {side}" for part in ("p50", "p99") for side in ("this run", "baseline")
    ]
    assert set(by_name([sweep, single])) == {"pareto"}
    longer = [{**one, "output_tokens": 2048} for one in sweep["scenarios"] if one["name"] == "quick_start"]
    assert set(by_name([sweep, {**sweep, "scenarios": [sweep["scenarios"][0], *longer]}])) == {
        "pareto",
        *(f"{kind}-low_latency" for kind in PER_SCENARIO),
    }


def test_figures_without_measurement_have_no_chart(single: dict[str, Any]) -> None:
    assert charts([{**single, "points": []}], PUBLISHED) == []
    failed = [{**point, "problems": ["x"]} for point in single["points"]]
    assert charts([{**single, "points": failed}], PUBLISHED) == []
    without = [{**point, "itl_ms": {}} for point in single["points"]]
    assert labels(by_name([{**single, "points": without}])["tpot-smoke"]) == ["TPOT p50", "TPOT p90", "TPOT p99"]


def test_without_the_number_of_gpus_throughput_is_the_total(single: dict[str, Any]) -> None:
    outside = {**single, "target": {**single["target"], "gpus": 0}, "ran_on": {}}
    assert by_name([outside])["throughput-smoke"].y_label == "tokens/s"


def test_a_plot_has_all_series_and_levels_of_the_chart(sweep: dict[str, Any]) -> None:
    chart = by_name([sweep])["ttft-quick_start"]
    figure = Figure()
    plot(figure, chart)
    (axes,) = figure.axes
    assert axes.get_legend_handles_labels()[1] == ["SLO TTFT p99: 2,000", *labels(chart)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "64", "128", "256"]
    y_data: Any = axes.lines[0].get_ydata()
    assert list(y_data) == [y.median for _users, _x, y in chart.series[0].points]


def test_equal_charts_are_equal_files_whatever_is_set(single: dict[str, Any]) -> None:
    chart = by_name([single])["pareto"]
    before = draw(chart, "a run")
    with matplotlib.rc_context({"font.size": 30}):
        assert draw(chart, "a run") == before
        assert matplotlib.rcParams["font.size"] == 30
    assert before[1].startswith(b"\x89PNG")
    assert draw(chart, "another run")[1] != before[1]


def test_text_of_a_chart_is_plain_text(single: dict[str, Any]) -> None:
    name = "../a$b$ <script>alert(1)</script> & c"
    evil = json.loads(json.dumps(single).replace('"smoke"', json.dumps(name)))
    for chart in charts([evil], PUBLISHED):
        assert "/" not in chart.name
        svg = draw(chart, name)[0].decode()
        assert "<script" not in svg
        assert ElementTree.fromstring(svg) is not None


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


def test_published_figures_are_plausible() -> None:
    known = {path.stem for path in Path(ROOT / "roles/serving_recipe/vars/models").glob("*.yml")}
    rows = {(row["model"], row["gpu_type"], row["input_tokens"], row["output_tokens"]): row for row in PUBLISHED}
    assert len(rows) == len(PUBLISHED) == 44
    assert {row["model"].rpartition("/")[2] for row in PUBLISHED} <= known
    assert rows["openai/gpt-oss-120b", "h100", 1024, 32768]["layout"] == "DEP4"
    for (model, gpu, fed, made), row in rows.items():
        # Longer requests and the larger model are slower.
        for longer in ((fed * 8, made), (fed, made * 8), (fed * 4, made)):
            if other := rows.get((model, gpu, *longer)):
                assert other["output_tokens_per_second_per_gpu"] < row["output_tokens_per_second_per_gpu"]
        if smaller := rows.get((model.replace("120b", "20b"), gpu, fed, made)) if "120b" in model else None:
            assert smaller["output_tokens_per_second_per_gpu"] > row["output_tokens_per_second_per_gpu"]


def test_published_figures_are_of_gpus_that_the_hardware_table_has() -> None:
    table = yaml.safe_load((ROOT / "roles/serving_recipe/vars/hardware.yml").read_text())
    (rows,) = table.values()
    assert {row["gpu_type"] for row in PUBLISHED} <= {row["gpu_type"] for row in rows}
