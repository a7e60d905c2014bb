"""Test the documentation site that `make docs-site` built: links, search, and its look in a browser."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser

from ansible_collections.trtllm.fleet.tests.unit.browser import LEAST_CONTRAST, LOOK, contrast, started
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

SITE = ROOT / ".cache/docs-site/html"
PHONE: Any = {"width": 390, "height": 844}
# One of each kind: start, wide tables and code, recipes, a role, a module, a filter, lists, and results of tests.
LOOKS = [
    "index",
    "how-to/gateway",
    "how-to/disaggregated-serving",
    "reference/recipes",
    "reference/alerts",
    "reference/roles",
    "reference/collection/gateway_role",
    "reference/collection/gpu_info_module",
    "reference/collection/bcrypt_hash_filter",
    "decisions/index",
    "tested-on",
]


class Page(HTMLParser):
    """The anchors of a page, and what it links to or loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.add(value)


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    """Each page of the site by its path."""
    found = {path: Page(path) for path in SITE.rglob("*.html")}
    assert found, "run `make docs-site`"
    return found


class Quiet(SimpleHTTPRequestHandler):
    """A server of files without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site's address. Its search loads pages, which browsers do for HTTP only."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


def test_links_lead_to_pages_and_anchors(pages: dict[Path, Page]) -> None:
    links = [(path, urlsplit(link)) for path, page in pages.items() for link in page.links]
    inside = [(path, link) for path, link in links if not link.scheme and not link.netloc]
    assert len(inside) > 10_000
    broken = []
    for path, link in inside:
        target = Path(os.path.normpath(path.parent / unquote(link.path))) if link.path else path
        page = pages.get(target)
        if not target.is_file() or (link.fragment and page and unquote(link.fragment) not in page.anchors):
            broken.append(f"{path.relative_to(SITE)}: {link.geturl()}")
    assert broken == []


def test_reference_has_each_role_and_plugin(pages: dict[Path, Page]) -> None:
    sources = {
        "role": ROOT.glob("roles/*/meta/argument_specs.yml"),
        "module": ROOT.glob("plugins/modules/*.py"),
        "filter": ROOT.glob("plugins/filter/*.py"),
        "lookup": ROOT.glob("plugins/lookup/*.py"),
    }
    names = {
        f"{(path.parents[1] if kind == 'role' else path).stem}_{kind}"
        for kind, paths in sources.items()
        for path in paths
    }
    assert names == {path.stem for path in pages if path.parent == SITE / "reference/collection"}


def test_links_to_files_outside_the_site_lead_to_the_repository(pages: dict[Path, Page]) -> None:
    outside = {urlsplit(link).path for link in pages[SITE / "lab.html"].links if "example.com" in link}
    prefix = "/trtllm/fleet/blob/main/"
    found = {path.removeprefix(prefix) for path in outside if path.startswith(prefix)}
    assert "lab/host/devices.json" in found
    assert [path for path in found if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", LOOKS)
def test_page_is_readable_on_a_phone_in_both_schemes(browser: Browser, address: str, name: str) -> None:
    context = browser.new_context(viewport=PHONE)
    tab, troubles = context.new_page(), []
    tab.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.goto(f"{address}/{name}.html")
    schemes: list[Any] = ["light", "dark"]
    # The theme lets this element scroll instead of the page. Tables and code have to scroll by themselves.
    content = "(element) => [element.scrollWidth, element.clientWidth]"
    assert tab.locator(".content").evaluate(content) == [PHONE["width"], PHONE["width"]]
    grounds = []
    for scheme in schemes:
        tab.emulate_media(color_scheme=scheme)
        found = tab.evaluate(LOOK)
        pale = [one for one in found["texts"] if contrast(one["ink"], one["ground"]) < LEAST_CONTRAST]
        assert pale == [], scheme
        grounds.append(found["texts"][0]["ground"])
    assert grounds[0] != grounds[1]
    assert troubles == []
    context.close()


def test_search_finds_the_role_of_a_variable(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport=PHONE)
    tab, troubles = context.new_page(), []
    tab.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    tab.goto(f"{address}/index.html")
    tab.goto(f"{address}/search.html?q=trtllm_server_listen_address")
    role = tab.locator("#search-results a[href*='collection/trtllm_server_role.html']")
    role.first.click()
    tab.wait_for_url("**/trtllm_server_role.html*")
    assert troubles == []
    context.close()
