"""Test the pages in a browser: results, their comparison and index, and the status of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import Page as Tab

from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.status import charts
from ansible_collections.trtllm.fleet.plugins.plugin_utils.report import pages as reports
from ansible_collections.trtllm.fleet.tests.unit.benchmark_sample import BEGAN, PUBLISHED, SLO, SUBJECT, sample
from ansible_collections.trtllm.fleet.tests.unit.browser import LEAST_CONTRAST, LOOK, contrast, started
from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils import test_monitoring_status as monitored
from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils.test_status import (
    UNREACHABLE,
    gateway,
    html,
    look,
    status,
)

CHARTS = {"report": 9, "single": 5, "comparison": 5, "index": 0, "status": 0, "monitored": 0}
PHONE: Any = {"width": 360, "height": 740}
DESK: Any = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of this file, each by its name."""
    folder = tmp_path_factory.mktemp("results")
    earlier = sample(folder, ["quick_start"], slo=SLO, began=BEGAN - timedelta(days=20))
    hosts = {"gpu1": SUBJECT, "gpu2": SUBJECT, "gpu3": {**SUBJECT, "driver": "575.57.08"}}
    run = sample(folder, ["smoke", "quick_start"], slo=SLO, speed=0.8, seed=2, ran_on=hosts)
    single = sample(folder, ["smoke"], state="failed", seed=3, began=BEGAN + timedelta(days=1))
    (folder / "half").mkdir()
    (folder / "half/result.json").write_text("{")
    files = {
        **reports.report(run, run, PUBLISHED),
        **reports.report(single, single, PUBLISHED),
        **reports.comparison(earlier, run, earlier, PUBLISHED)[0],
    }
    files.update(reports.index(folder, list(files)))
    drift = [{"about": "engine.yaml", "sentence": "it was changed"}]
    fleet = {"gpu1": look(8), "gpu2": look(drift=drift), "gpu3": UNREACHABLE}
    files[folder / "status.html"] = html(status(fleet, {"gw1": gateway("gpu1", "gpu2")})).encode()
    day = monitored.status(monitored.answer())
    files[folder / "monitored.html"] = html(day, charts(day["monitoring"])).encode()
    for path, content in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return {
        "report": run / "report.html",
        "single": single / "report.html",
        "comparison": earlier / "comparison.html",
        "index": folder / "index.html",
        "status": folder / "status.html",
        "monitored": folder / "monitored.html",
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@contextmanager
def opened(browser: Browser, page: Path, scheme: Any = "light", view: Any = None) -> Iterator[Tab]:
    """Open a page that must have no error and load no other file."""
    context = browser.new_context(color_scheme=scheme, viewport=DESK if view is None else view)
    tab, troubles = context.new_page(), []
    tab.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    own = (page.as_uri(), "data:image/svg+xml;base64,")
    tab.on("request", lambda request: None if request.url.startswith(own) else troubles.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    assert troubles == []
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", CHARTS)
def test_all_text_is_readable_and_all_charts_are_drawn(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str
) -> None:
    with opened(browser, pages[name], scheme) as tab:
        found = tab.evaluate(LOOK)
    assert len(found["texts"]) > 20
    assert [one for one in found["texts"] if contrast(one["ink"], one["ground"]) < LEAST_CONTRAST] == []
    grounds = {sum(one["ground"][:3]) > 3 * 128 for one in found["texts"]}
    assert (scheme == "light") in grounds
    assert len(found["charts"]) == CHARTS[name]
    assert all(width > 300 for width in found["charts"])


@pytest.mark.parametrize("name", CHARTS)
def test_pages_fit_a_phone(browser: Browser, pages: dict[str, Path], name: str) -> None:
    with opened(browser, pages[name], view=PHONE) as tab:
        found = tab.evaluate(LOOK)
    assert found["width"] == 360
    assert all(250 < width < 360 for width in found["charts"])


def test_the_status_page_finds_hosts(browser: Browser, pages: dict[str, Path]) -> None:
    """Its script runs under its own policy."""
    with opened(browser, pages["status"]) as tab:
        rows = tab.locator("#hosts > tbody > tr")
        assert rows.filter(visible=True).count() == 3
        tab.fill("#find", "gpu2")
        assert rows.filter(visible=True).count() == 1
        assert tab.inner_text("#since").startswith(", ")


def test_links_of_the_index_lead_to_the_pages(browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(pages["index"].as_uri())
    tab.click("a:text-is('comparison')")
    assert tab.url == pages["comparison"].as_uri()
    assert "compared with" in tab.inner_text("h1")
    context.close()


# Returns the box of each chart and of its texts, and the colour of each line with the one behind it.
DRAWN = """() => [...document.querySelectorAll('svg.chart')].map(chart => {
  const box = element => (at => [at.left, at.top, at.right, at.bottom])(element.getBoundingClientRect());
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const ground = parts(getComputedStyle(chart.closest('.card')).backgroundColor);
  return {
    box: box(chart),
    texts: [...chart.querySelectorAll('text')].map(text => ({ words: text.textContent, box: box(text) })),
    lines: [...chart.querySelectorAll('.series')].map(line => ({ ink: parts(getComputedStyle(line).stroke), ground })),
  };
})"""
LEAST_LINE_CONTRAST = 3  # WCAG 2.1, non-text contrast


@pytest.mark.parametrize("view", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_of_the_history(browser: Browser, pages: dict[str, Path], scheme: str, view: Any) -> None:
    with opened(browser, pages["monitored"], scheme, view) as tab:
        drawn = tab.evaluate(DRAWN)
    assert len(drawn) == 11
    for chart in drawn:
        left, top, right, bottom = chart["box"]
        assert right - left > 250
        assert chart["lines"]
        assert all(contrast(line["ink"], line["ground"]) >= LEAST_LINE_CONTRAST for line in chart["lines"])
        boxes = [text["box"] for text in chart["texts"]]
        assert all(left <= one[0] and one[2] <= right and top <= one[1] and one[3] <= bottom for one in boxes)
        for place, one in enumerate(boxes):
            for other in boxes[place + 1 :]:
                assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] + 3 or other[3] <= one[1] + 3
