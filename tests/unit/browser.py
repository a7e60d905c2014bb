"""The browser of tests of HTML pages, and the contrast of what it shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

LEAST_CONTRAST = 4.5

# Returns each text with its colour and the one behind it, the width of each chart, and the width of the page.
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
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || element.tagName == 'SCRIPT' || !shown(element)) continue;
    texts.push({ text, ink: parts(getComputedStyle(element).color), ground: behind(element) });
  }
  const charts = [...document.images].map(image => image.naturalWidth > 0 ? image.getBoundingClientRect().width : 0);
  return { texts, charts, width: document.documentElement.scrollWidth };
}"""


@contextmanager
def started() -> Iterator[Browser]:
    """Start the browser."""
    program = shutil.which("chromium")
    assert program, "run `make browser`"
    with sync_playwright() as playwright:
        # A container lacks the rights for its sandbox; it opens our own files only.
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield found
        finally:
            found.close()


def contrast(one: list[float], other: list[float]) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: list[float]) -> float:
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in (channel / 255 for channel in colour[:3])
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
