"""Test the action benchmark_report: its files, the content of its pages, and that text of a result is escaped."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.trtllm.fleet.plugins.action import benchmark_report
from ansible_collections.trtllm.fleet.tests.unit.benchmark_sample import BEGAN, PUBLISHED, SUBJECT, TARGET, sample
from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils.test_status import Page


def report(*, check: bool = False, **options: Any) -> dict[str, Any]:
    """Run the action and return its result."""
    given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    task = SimpleNamespace(args=given, check_mode=check, async_val=0, action="benchmark_report", diff=False)
    found: dict[str, Any] = benchmark_report.ActionModule(task, *[MagicMock() for _other in range(5)]).run()
    return found


def edit(folder: Path, **changes: Any) -> None:
    """Change a written result."""
    file = folder / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_report_its_charts_and_the_index(tmp_path: Path) -> None:
    folder = sample(tmp_path, ["smoke"])
    before = contents(tmp_path)
    assert report(run=folder, index=tmp_path, check=True)["changed"]
    assert contents(tmp_path) == before, "check mode"
    found = report(run=folder, index=tmp_path, published=PUBLISHED)
    assert found["changed"]
    assert found["page"] == str(folder / "report.html")
    names = ("pareto", "throughput-smoke", "ttft-smoke", "tpot-smoke", "e2e-smoke")
    assert found["charts"] == [str(folder / f"charts/{name}.png") for name in names]
    written = contents(tmp_path)
    assert set(written) - set(before) == {
        "index.html",
        f"{folder.name}/report.html",
        *(f"{folder.name}/charts/{name}.png" for name in names),
    }
    again = report(run=folder, index=tmp_path, published=PUBLISHED)
    assert not again["changed"]
    assert contents(tmp_path) == written
    edit(folder, problems=["something"])
    assert report(run=folder, published=PUBLISHED)["changed"]


def test_a_comparison_beside_the_report(tmp_path: Path) -> None:
    baseline = sample(tmp_path, ["smoke"], began=BEGAN - timedelta(days=1))
    run = sample(tmp_path, ["smoke"], speed=0.6, seed=2, ran_on={"gpu1": {**SUBJECT, "driver": "575.57.08"}})
    report(run=run)
    found = report(run=run, baseline=baseline, index=tmp_path)
    assert found["page"] == str(run / "comparison.html")
    assert (run / "comparison-charts/pareto.png").exists()
    assert found["comparison"]["verdict"] == "worse"
    assert found["comparison"]["differences"] == ["driver: 575.57.08, 580.159.04"]
    page = Page((run / "comparison.html").read_text())
    assert "driver: 575.57.08, 580.159.04" in page.text
    counts = found["comparison"]["counts"]
    assert f"Worse {counts['worse']} of {sum(counts.values())} figures" in page.text
    assert page.text.index("Other differences") < page.text.index("Figures A ratio")
    assert report(run=run, baseline=baseline, margin=0.9)["comparison"]["verdict"] == "within noise"
    links = [value for name, value in Page((tmp_path / "index.html").read_text()).attributes if name == "href"]
    assert links == [
        *(f"{run.name}/{page}" for page in ("report.html", "comparison.html", "result.json")),
        f"{baseline.name}/result.json",
    ]
    assert all((tmp_path / link).exists() for link in links)


def test_another_directory(tmp_path: Path) -> None:
    folder = sample(tmp_path / "results", ["smoke"])
    before = contents(folder)
    found = report(run=folder / "result.json", dest=tmp_path / "pages")
    assert found["page"] == str(tmp_path / "pages/report.html")
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of the following is required: run, index"),
        ({"baseline": "x"}, "one of the following is required: run, index"),
        ({"run": "/nowhere"}, "/nowhere"),
        ({"index": "/", "dest": "/"}, "missing parameter(s) required by 'dest': run"),
        ({"run": "x", "margin": -1}, "margin is -1; it must be 0 or more"),
        ({"run": "x", "unknown": 1}, "Unsupported parameters"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AnsibleActionFail) as error:
        report(**options)
    assert message in str(error.value)


def test_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sample(tmp_path, ["smoke"])
    missing = {"scipy"}

    def find(name: str) -> None:
        if name in missing:
            raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(benchmark_report, "import_module", find)
    assert not report(run=folder).get("failed"), "not needed"
    with pytest.raises(AnsibleActionFail, match=r"needs scipy on the control node .* Run 'pip install scipy'"):
        report(run=folder, baseline=folder)
    missing.add("matplotlib")
    with pytest.raises(AnsibleActionFail, match=r"Run 'pip install matplotlib'"):
        report(run=folder)
    assert report(index=tmp_path)["index"], "not needed"


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_report_has_the_figures_and_the_system_under_test(tmp_path: Path) -> None:
    folder = sample(tmp_path, slo={"ttft_ms.p99": 2000, "tpot_ms.p50": 30})
    report(run=folder, published=PUBLISHED)
    text = Page((folder / "report.html").read_text()).text
    measured = json.loads((folder / "result.json").read_text())
    best = max(
        sorted(
            point["throughput"]["output_tokens_per_second_per_gpu"]
            for point in measured["points"]
            if (point["scenario"], point["concurrency"]) == load
        )[1]
        for load in {(point["scenario"], point["concurrency"]) for point in measured["points"]}
    )
    for words in (
        "Benchmark of simulated-gpu1 complete",
        f"Best tokens/s per GPU {best:,.0f}",
        "Users within the SLO 128 low_latency 16, quick_start 128. SLO: ttft_ms.p99 2,000, tpot_ms.p50 30",
        "The sweep ended there: ttft_ms.p99 is",
        "Published: 6,798 tokens/s per GPU",
        "tool.benchmark_serving 1.2.1",
        "digest sha256:e35ea1320d51e7c066134a52391d50eb294b7a75c37c1a736f68132956832174",
        "engine_options.moe_config.backend TRITON TensorRT-LLM deployment guide for gpt-oss, Hopper",
        "gpus.power_limit_watts 700",
        "gpus.product_name NVIDIA H200 (simulated)",
    ):
        assert words in text, words
    order = [text.index(words) for words in ("Best tokens", "All scenarios", "Loads", "System under test")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("state", "changes", "badge", "sentence"),
    [
        ("running", {}, "interrupted", "The run was interrupted, or is still running."),
        ("failed", {}, "failed", "The run failed. The loads measured before are below."),
        ("complete", {"problems": ["a thing"]}, "complete", "Not all results count."),
    ],
)
def test_an_incomplete_run_starts_with_an_alert(
    tmp_path: Path, state: str, changes: dict[str, Any], badge: str, sentence: str
) -> None:
    folder = sample(tmp_path, ["smoke"], state=state)
    edit(folder, **changes)
    report(run=folder, index=tmp_path)
    page = Page((folder / "report.html").read_text())
    assert page.text.index(sentence) < page.text.index("Best tokens")
    assert f"Benchmark of simulated-gpu1 {badge}" in page.text
    assert ("role", "alert") in page.attributes
    listed = Page((tmp_path / "index.html").read_text()).text
    assert f"UTC {badge}" in listed


def test_a_run_without_any_load(tmp_path: Path) -> None:
    folder = sample(tmp_path, ["smoke"], state="failed")
    edit(folder, points=[], ran_on={}, problems=["the tool was not there"])
    found = report(run=folder, index=tmp_path)
    assert found["charts"] == []
    text = Page((folder / "report.html").read_text()).text
    assert "the tool was not there" in text
    assert "No load was measured." in text
    assert report(run=folder, baseline=folder)["comparison"]["verdict"] == "unknown"


def test_the_index_starts_with_the_newest_and_has_unreadable_results(tmp_path: Path) -> None:
    for day in (1, 3, 2):
        sample(tmp_path, ["smoke"], began=BEGAN + timedelta(days=day), target={**TARGET, "name": f"gpu{day}"})
    (tmp_path / "half").mkdir()
    (tmp_path / "half/result.json").write_text("{")
    text = Page(Path(report(index=tmp_path)["index"]).read_text()).text
    places = [text.index(name) for name in ("gpu3", "gpu2", "gpu1", "half unreadable")]
    assert places == sorted(places)
    assert "4 runs" in text
    assert not report(index=tmp_path)["changed"]


def test_a_foreign_endpoint(tmp_path: Path) -> None:
    """Its system under test is unknown."""
    target = {"name": "outside", "kind": "endpoint", "base_urls": ["https://api.example.org"], "model": "m", "gpus": 0}
    folder = sample(tmp_path, ["smoke"], target={**target, "load_from": None}, ran_on={})
    report(run=folder, index=tmp_path)
    text = Page((folder / "report.html").read_text()).text
    assert "at endpoint https://api.example.org" in text
    assert "Best tokens/s " in text


# --- escaping ------------------------------------------------------------------------------------------


def hostile(value: Any) -> Any:
    """Return the value with a script in each text except times, states and kinds."""
    if isinstance(value, dict):
        return {name: hostile(one) for name, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    keep = not isinstance(value, str) or re.fullmatch(r"\d{4}-.*|complete|benchmark", value)
    return value if keep else f"""{value}'"></style></svg><script>alert(1)</script>"""


def test_every_page_escapes_everything(tmp_path: Path) -> None:
    folder = sample(tmp_path, ["smoke"], slo={"ttft_ms.p99": 1})
    document = json.loads((folder / "result.json").read_text())
    evil = {**hostile(document), "problems": ["<script>problem"], "slo": document["slo"]}
    evil["ran_on"] = {"<script>gpu1": hostile(SUBJECT)}
    evil["stopped"] = {evil["scenarios"][0]["name"]: ["<script>stopped"]}
    same = {"gpu_type": evil["ran_on"]["<script>gpu1"]["gpu_type"], "model": evil["target"]["model"]}
    lengths = {"input_tokens": 128, "output_tokens": 32, "output_tokens_per_second_per_gpu": 600}
    published = [{**PUBLISHED[0], **same, **lengths, "layout": "<script>layout", "source": "<script>source"}]
    edit(folder, **evil)
    other = sample(tmp_path, ["smoke"], began=BEGAN + timedelta(days=1))
    shown = []
    for sides in ({"run": folder}, {"run": folder, "baseline": other}, {"run": other, "baseline": folder}):
        options: dict[str, Any] = {**sides, "published": published}
        shown.append(Path(report(**options)["page"]).read_text())
    assert "&lt;script&gt;source" in shown[0]
    (tmp_path / "<script>").mkdir()
    (tmp_path / "<script>/result.json").write_text("no JSON")
    shown.append(Path(report(index=tmp_path)["index"]).read_text())
    for text in shown:
        assert "alert(1)" in text
        assert "<script" not in text
        page = Page(text)
        assert not [name for name, _value in page.attributes if name.startswith("on")]
        assert page.tags.count("style") == 1


def test_pages_need_nothing_from_elsewhere(tmp_path: Path) -> None:
    folder = sample(tmp_path, ["smoke"])
    report(run=folder, index=tmp_path)
    for path in (folder / "report.html", tmp_path / "index.html"):
        text = path.read_text()
        own = r'http://127\.0\.0\.1:8000|src="data:image/svg\+xml;base64,'
        assert not re.search(r"https?:|@import|<link|\bsrc=|url\(", re.sub(own, "", text))
        assert ("content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in Page(text).attributes
