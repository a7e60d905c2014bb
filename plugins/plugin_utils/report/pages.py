# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the pages of benchmark results from report.html.j2: one result, a comparison, and the index of a directory."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import figures, slo
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.compare import MARGIN, compare
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.published import short
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import RESULT, RunError, loads, read_run
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import arrivals, lengths
from ansible_collections.trtllm.fleet.plugins.plugin_utils.report.charts import SIDES, charts, draw
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import leaves

Document = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
Files = dict[Path, bytes]

REPORT, COMPARISON = "report.html", "comparison.html"
# The columns of a table of loads.
FIGURES = {
    figures.TOTAL: "Tokens/s",
    figures.PER_GPU: "Tokens/s per GPU",
    figures.PER_USER: "Tokens/s per user",
    "throughput.requests_per_second": "Requests/s",
    "ttft_ms.p50": "TTFT p50, ms",
    "ttft_ms.p99": "TTFT p99, ms",
    "tpot_ms.p50": "TPOT p50, ms",
    "tpot_ms.p99": "TPOT p99, ms",
    "itl_ms.p99": "ITL p99, ms",
    "e2e_ms.p50": "Request p50, ms",
    "e2e_ms.p99": "Request p99, ms",
}
# CSS classes of states and verdicts.
CLASSES = {"complete": "good", "better": "good", "worse": "bad", "failed": "bad", "interrupted": "bad"}
WIDE = 100  # A wider interval of a ratio is not shown.


def report(run: Path, folder: Path, published: Rows = ()) -> Files:
    """Return the page of a result and its charts as PNG files. Raises RunError."""
    document = read_run(run)
    drawn, files = _draw([document], published, folder / "charts")
    title = f"Benchmark of {document['target']['name']}"
    text = _render(title, state_of(document), documents={"": document}, charts=drawn)
    return {**files, folder / REPORT: text}


def comparison(
    run: Path, baseline: Path, folder: Path, published: Rows = (), margin: float = MARGIN
) -> tuple[Files, dict[str, Any]]:
    """Return the page of two results with its PNG files, and what ``compare`` returns. Raises RunError."""
    documents = [read_run(path) for path in (run, baseline)]
    compared = compare(documents[0], documents[1], margin)
    drawn, files = _draw(documents, published, folder / "comparison-charts")
    names = [document["target"]["name"] for document in documents]
    text = _render(
        f"{names[0]} compared with {names[1]}",
        compared["verdict"],
        documents={"This run: ": documents[0], "Baseline: ": documents[1]},
        charts=drawn,
        compared=compared,
    )
    return {**files, folder / COMPARISON: text}, compared


def index(folder: Path, written: Sequence[Path] = ()) -> Files:
    """Return the page of all results in a directory; it links the pages that exist or are in ``written``."""
    entries = []
    for path in folder.glob(f"*/{RESULT}"):
        pages = [
            page for page in (REPORT, COMPARISON) if (path.parent / page).exists() or path.parent / page in written
        ]
        try:
            entries.append((path.parent.name, read_run(path), "", [*pages, RESULT]))
        except RunError as error:
            entries.append((path.parent.name, {"started": ""}, str(error), []))
    entries.sort(key=lambda entry: (entry[1]["started"], entry[0]), reverse=True)
    return {folder / "index.html": _render("Benchmarks", "", entries=entries)}


def _draw(documents: Sequence[Document], published: Rows, folder: Path) -> tuple[list[Any], Files]:
    """Return each chart with its SVG as base64, and the PNG files."""
    names = [str(document["name"]) for document in documents]
    caption = (
        "\n".join(f"{side}: {name}" for side, name in zip(SIDES, names, strict=True)) if len(names) > 1 else names[0]
    )
    drawn, files = [], {}
    for chart in charts(documents, published):
        svg, png = draw(chart, f"{chart.scenario}\n{caption}".strip())
        drawn.append((chart, base64.b64encode(svg).decode()))
        files[folder / f"{chart.name}.png"] = png
    return drawn, files


def _render(title: str, badge: str, **values: Any) -> bytes:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(number=figures.number, moment=moment, interval=interval, short=short, users=users)
    environment.globals.update(
        best=figures.best,
        classes=CLASSES,
        columns=columns,
        facts=facts,
        figures=FIGURES,
        loads=loads,
        misses=slo.misses,
        paths=figures,
        same_hosts=same_hosts,
        shape=shape,
        spread=figures.spread,
        state_of=state_of,
        tools=figures.tools,
        users_within=figures.users_within,
    )
    text: str = environment.get_template("report.html.j2").render(
        title=title, badge=badge, **{"documents": {}, "charts": [], "compared": {}, "entries": None, **values}
    )
    return text.encode()


def state_of(document: Document) -> str:
    """Return the state of a run for a reader; a result that is still "running" was interrupted."""
    return "interrupted" if document["state"] == "running" else str(document["state"])


def moment(written: str) -> str:
    """Return a time of a result file to the minute."""
    return f"{datetime.fromisoformat(written):%Y-%m-%d %H:%M} UTC"


def users(count: int) -> str:
    return f"{figures.number(count)} user{'' if count == 1 else 's'}"


def interval(row: Mapping[str, Any]) -> str:
    """Return the interval of a ratio, or the reason why there is none."""
    if row["reason"]:
        return str(row["reason"])
    known = row["low"] and row["high"] and row["high"] <= WIDE and row["low"] >= 1 / WIDE
    return f"{row['low']:.3f} to {row['high']:.3f}" if known else "too few rounds"


def shape(scenario: Mapping[str, Any]) -> str:
    """Return the load of a scenario in words."""
    requests = (
        f"{figures.number(scenario['requests'])} requests"
        if scenario["requests"]
        else f"{scenario['requests_per_user']} requests per user"
    )
    route = "chat/completions" if scenario["endpoint"] == "chat" else scenario["endpoint"]
    warm_up = f" after a warm-up of {figures.number(scenario['warm_up'])}" if scenario["warm_up"] else ""
    return (
        f"{scenario['source']}: {lengths(scenario, figures.number)}, concurrency "
        f"{', '.join(map(figures.number, scenario['concurrency']))}{arrivals(scenario)}; {requests}{warm_up}. "
        f"{scenario['tool']} sends them to /v1/{route}."
    )


def columns(document: Document, scenario: str) -> list[str]:
    """Return the figures that a load of the scenario has. With one GPU, the tokens per GPU are the total."""
    rounds = [points for name, _users, points in loads(document) if name == scenario]
    told = [path for path in FIGURES if path != figures.TOTAL or document["target"].get("gpus") != 1]
    return [path for path in told if any(figures.spread(points, path) for points in rounds)]


def same_hosts(document: Document) -> dict[str, Mapping[str, Any]]:
    """Return the systems under test by the names of the hosts that are equal."""
    found: dict[str, list[str]] = {}
    for host, subject in document["ran_on"].items():
        found.setdefault(json.dumps(subject), []).append(host)
    return {", ".join(hosts): json.loads(subject) for subject, hosts in found.items()}


def facts(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each value by its path, with the source that ``sources`` has for a value of the recipe."""
    sources = values.get("sources") or {}
    for place, value in leaves({name: value for name, value in values.items() if name != "sources"}):
        if value not in (None, "", [], {}):
            path, text = ".".join(place), ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield (
                path,
                text.lower() if isinstance(value, bool) else text,
                sources.get(path.removeprefix("engine_options."), ""),
            )
