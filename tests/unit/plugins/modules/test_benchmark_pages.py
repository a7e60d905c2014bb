"""The pages in a browser: results, their comparison and list, and the status of a fleet."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as Tab

from ansible_collections.trtllm.fleet.plugins.modules import benchmark_report
from ansible_collections.trtllm.fleet.tests.unit.benchmark_sample import BEGAN, PUBLISHED, SLO, SUBJECT, sample
from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils.test_status import (
    UNREACHABLE,
    gateway,
    html,
    look,
    status,
)

Seen = Callable[[str, str, bool], "dict[str, Any]"]
CHARTS = {"report": 9, "single": 5, "comparison": 5, "index": 0, "status": 0}
PAGES = sorted(CHARTS)
PHONE = {"width": 360, "height": 740}
DESK: Any = {"width": 1280, "height": 900}
LEAST_CONTRAST = 4.5
LEAST_TEXT = 8  # pixels

# All that a test needs to know of what is shown: colours are those behind and of each text, with what is see-through.
LOOK = """() => {
  const shown = element => { const box = element.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  const parts = colour => [...colour.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) return colour;
    }
    return [255, 255, 255, 1];
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.tagName == 'SCRIPT' || !shown(element)) continue;
    const style = getComputedStyle(element), svg = element.closest('svg');
    texts.push({
      text: walker.currentNode.data.trim(), ink: parts(svg ? style.fill : style.color), ground: behind(svg || element),
      height: element.getBoundingClientRect().height, chart: svg ? svg.getAttribute('aria-label') : null,
    });
  }
  const charts = [...document.querySelectorAll('svg.chart')].map(svg => {
    const box = svg.getBoundingClientRect();
    const inside = part => {
      const own = part.getBoundingClientRect();
      const beside = Math.max(box.left - own.left, own.right - box.right, box.top - own.top, own.bottom - box.bottom);
      return beside <= 1;
    };
    const drawn = [...svg.querySelectorAll('path, use')].filter(part => {
      const own = part.getBoundingClientRect(), style = getComputedStyle(part);
      return own.width + own.height > 2 && (style.stroke !== 'none' || style.fill !== 'none');
    });
    const ink = ({ stroke, fill }) => stroke !== 'none' ? stroke : fill;
    const lines = drawn.filter(part => /var\\(--series/.test(part.getAttribute('style')));
    return {
      title: svg.getAttribute('aria-label'), width: box.width, height: box.height, drawn: drawn.length,
      lines: lines.length, inks: [...new Set(lines.map(line => ink(getComputedStyle(line))))],
      ground: getComputedStyle(svg.closest('.card')).backgroundColor,
      outside: [...svg.querySelectorAll('text, use')].filter(part => !inside(part)).map(part => part.textContent),
      labels: [...svg.querySelectorAll('text')].map(part => {
        const own = part.getBoundingClientRect();
        return [part.textContent, own.left, own.top, own.right, own.bottom];
      }),
    };
  });
  const tables = [...document.querySelectorAll('.table')].filter(table => table.scrollWidth > table.clientWidth + 1);
  return { texts, charts, tables: tables.length, width: document.documentElement.scrollWidth, view: innerWidth };
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of this file, each by its name."""
    folder = tmp_path_factory.mktemp("results")
    earlier = sample(folder, ["quick_start"], slo=SLO, began=BEGAN - timedelta(days=20))
    run = sample(folder, ["smoke", "quick_start"], slo=SLO, speed=0.8, seed=2, ran_on=two_kinds())
    single = sample(folder, ["smoke"], state="failed", seed=3, began=BEGAN + timedelta(days=1))
    (folder / "half").mkdir()
    (folder / "half/result.json").write_text("{")
    for options in ({"run": run}, {"run": single}, {"run": earlier, "baseline": run, "index": folder}):
        given = {name: str(path) for name, path in options.items()}
        with patch_module_args({**given, "published": PUBLISHED}), pytest.raises(SystemExit) as end:
            benchmark_report.main()
        assert end.value.code == 0
    drift = [{"about": "engine.yaml", "sentence": "it was changed"}]
    hosts = {"gpu1": look(8), "gpu2": look(drift=drift), "gpu3": UNREACHABLE}
    (folder / "status.html").write_text(html(status(hosts, {"gw1": gateway("gpu1", "gpu2")})))
    return {
        "report": run / "report.html",
        "single": single / "report.html",
        "comparison": earlier / "comparison.html",
        "index": folder / "index.html",
        "status": folder / "status.html",
    }


def two_kinds() -> dict[str, Any]:
    return {"gpu1": SUBJECT, "gpu2": SUBJECT, "gpu3": {**SUBJECT, "driver": "575.57.08"}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "run `make browser`"
    with sync_playwright() as playwright:
        # In a container there are no rights for its sandbox; it opens our own files only.
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def opened(browser: Browser, page: Path, scheme: Any = "light", view: Any = None) -> Iterator[tuple[Tab, list[str]]]:
    """A page, and what went wrong with it or was asked of somebody else."""
    context = browser.new_context(color_scheme=scheme, viewport=DESK if view is None else view)
    tab, troubles = context.new_page(), []
    tab.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("request", lambda request: troubles.append(request.url) if request.url != page.as_uri() else None)
    tab.goto(page.as_uri())
    yield tab, troubles
    context.close()


@pytest.fixture(scope="module")
def seen(browser: Browser, pages: dict[str, Path]) -> Seen:
    """What is shown of a page, looked at once for all tests; nothing goes wrong on the way."""

    @cache
    def see(name: str, scheme: str, phone: bool) -> dict[str, Any]:
        with opened(browser, pages[name], scheme, PHONE if phone else DESK) as (tab, troubles):
            found: dict[str, Any] = tab.evaluate(LOOK)
            assert troubles == []
        return found

    return see


def contrast(one: list[float], other: list[float]) -> float:
    """Of two colours, as WCAG 2 defines it."""

    def luminance(colour: list[float]) -> float:
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in (channel / 255 for channel in colour[:3])
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rgb(colour: str) -> list[float]:
    return [float(part) for part in re.findall(r"[\d.]+", colour)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_all_text_can_be_read_and_all_charts_are_drawn(seen: Seen, name: str, scheme: str) -> None:
    found = seen(name, scheme, False)
    assert found["tables"] == 0, "one that is wider than the page"
    assert len(found["charts"]) == CHARTS[name]
    assert len(found["texts"]) > 20
    faint = [one for one in found["texts"] if contrast(one["ink"], one["ground"]) < LEAST_CONTRAST]
    assert faint == []
    for chart in found["charts"]:
        assert chart["width"] > 300, chart["title"]
        assert chart["height"] > 200, chart["title"]
        assert chart["lines"], chart["title"]
        for ink in chart["inks"]:
            assert contrast(rgb(ink), rgb(chart["ground"])) >= 3, chart["title"]


@pytest.mark.parametrize("name", ["report", "single", "comparison"])
def test_ink_follows_the_colour_scheme(seen: Seen, name: str) -> None:
    light, dark = (seen(name, scheme, False)["charts"] for scheme in ("light", "dark"))
    for one, other in zip(light, dark, strict=True):
        assert one["drawn"] == other["drawn"]
        assert not set(one["inks"]) & set(other["inks"]), one["title"]
        assert one["ground"] != other["ground"]


@pytest.mark.parametrize("name", PAGES)
def test_a_telephone_shows_all_of_it(seen: Seen, name: str) -> None:
    found = seen(name, "light", True)
    assert (found["width"], found["view"], found["tables"]) == (360, 360, 0)
    small = [one for one in found["texts"] if one["chart"] and one["height"] < LEAST_TEXT]
    assert small == []
    for chart in found["charts"]:
        assert 250 < chart["width"] < 360
        assert chart["outside"] == [], chart["title"]


@pytest.mark.parametrize("name", ["report", "single", "comparison"])
def test_no_text_of_a_chart_lies_on_another(seen: Seen, name: str) -> None:
    for chart in seen(name, "light", True)["charts"]:
        labels = chart["labels"]
        over = [
            (one[0], other[0])
            for place, one in enumerate(labels)
            for other in labels[:place]
            # The boxes are as high as a line of text, letters are not.
            if min(one[3], other[3]) - max(one[1], other[1]) > 1 and min(one[4], other[4]) - max(one[2], other[2]) > 4
        ]
        assert over == [], chart["title"]


def test_the_status_page_finds_hosts(browser: Browser, pages: dict[str, Path]) -> None:
    """Its script runs under its own policy."""
    with opened(browser, pages["status"]) as (tab, troubles):
        rows = tab.locator("#hosts > tbody > tr")
        assert rows.filter(visible=True).count() == 3
        tab.fill("#find", "gpu2")
        assert rows.filter(visible=True).count() == 1
        assert tab.inner_text("#since").startswith(", ")
        assert troubles == []


def test_links_of_the_index_lead_to_the_pages(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["index"]) as (tab, _troubles):
        tab.click("a:text-is('comparison')")
        assert tab.url == pages["comparison"].as_uri()
        assert "beside" in tab.inner_text("h1")
