# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages of results: one result, two beside each other, and the list of all. No script, and nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import slo
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.charts import Chart
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.drawing import SERIES, SERIES_DARK
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.figures import (
    PER_GPU,
    PER_USER,
    TOTAL,
    best,
    number,
    spread,
    tools,
    users_within,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.markup import Content, Html, join, tag
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.published import short
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.run import Point, loads

Document = Mapping[str, Any]
# Each chart with its SVG, by scenario.
Drawn = Sequence["tuple[str, Sequence[tuple[Chart, str]]]"]

REQUESTS = "throughput.requests_per_second"
# Figures of a load by their path, with a name and a unit for people.
FIGURES = {
    TOTAL: ("Tokens/s", ""),
    PER_GPU: ("Tokens/s per GPU", ""),
    PER_USER: ("Tokens/s per user", ""),
    REQUESTS: ("Requests/s", ""),
    "ttft_ms.p50": ("TTFT p50", "ms"),
    "ttft_ms.p99": ("TTFT p99", "ms"),
    "tpot_ms.p50": ("TPOT p50", "ms"),
    "tpot_ms.p99": ("TPOT p99", "ms"),
    "itl_ms.p99": ("ITL p99", "ms"),
    "e2e_ms.p50": ("Request p50", "ms"),
    "e2e_ms.p99": ("Request p99", "ms"),
}
LINE = "\n"
# In which class of the style sheet a word is shown.
LOOKS = {
    "complete": "ok",
    "better": "ok",
    "worse": "down",
    "failed": "down",
    "broken off": "down",
    "cannot be read": "down",
    "mixed": "degraded",
    "unknown": "degraded",
    "within noise": "nothing",
}
KINDS = {
    "instance": "one instance",
    "host": "a host, all instances at once",
    "gateway": "a gateway",
    "endpoint": "an endpoint",
}
# An interval that reaches beyond says nothing.
WIDE = 100

# The colours of playbooks/templates/status.html.j2, and those of the charts.
STYLE = """
:root {
  --page: #f4f6f8; --card: #fff; --text: #1a2230; --quiet: #5a6678; --line: #d9dfe7; --link: #0060a8;
  --ok: #11643a; --ok-bg: #dcf3e4; --degraded: #7d4a00; --degraded-bg: #fdeccb; --down: #9d1519; --down-bg: #fddfdd;
  --nothing: #4c5767; --nothing-bg: #e6eaef;
  LIGHT
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10141a; --card: #1a2029; --text: #e6ebf2; --quiet: #9aa7b8; --line: #2d3643; --link: #77b9f5;
    --ok: #8fe0b0; --ok-bg: #143a26; --degraded: #ffd080; --degraded-bg: #46310a; --down: #ffaba6; --down-bg: #511a1a;
    --nothing: #c0cad6; --nothing-bg: #303a47;
    DARK
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1rem; max-width: 80rem; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere;
}
h1 { margin: 0; font-size: 1.4rem; }
h2 { margin: 1.75rem 0 .5rem; font-size: 1.05rem; }
h3 { margin: 1rem 0 .25rem; font-size: 1rem; }
p, ul { margin: .25rem 0; }
ul { padding-left: 1.1rem; }
a { color: var(--link); }
code { font-family: ui-monospace, monospace; font-size: .92em; }
.quiet { color: var(--quiet); }
.small { font-size: .85em; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.4rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .75rem 1rem; }
.tile b { display: block; font-size: 1.7rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: .75rem; }
.cards { align-items: start; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: .75rem; }
.columns { columns: 26rem; column-gap: .75rem; }
.columns > .card { break-inside: avoid; margin-bottom: .75rem; }
.card { min-width: 0; }
.card h3 { margin-top: 0; }
summary h3 { display: inline; margin-right: .5rem; }
.problems { margin: 1rem 0; border-color: var(--down); background: var(--down-bg); color: var(--down); }
.verdict { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; font-weight: 600; white-space: nowrap; }
.ok { color: var(--ok); background: var(--ok-bg); }
.degraded { color: var(--degraded); background: var(--degraded-bg); }
.down { color: var(--down); background: var(--down-bg); }
.nothing { color: var(--nothing); background: var(--nothing-bg); }
.table, .table td { overflow-wrap: normal; }
.table th, .table td { padding: .4rem .5rem; }
.table { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .75rem; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { border-top: 0; color: var(--quiet); font-weight: 500; font-size: .85em; vertical-align: bottom; }
tbody th { font-weight: 500; }
td.figure, .moment { white-space: nowrap; }
td.figure .small { white-space: normal; }
td .small { display: block; font-size: .8em; }
td.verdicts { width: 9rem; min-width: 9rem; }
td.error { overflow-wrap: anywhere; }
details > summary { cursor: pointer; }
figure { margin: 0; max-width: 37rem; }
figcaption { font-weight: 600; }
.chart { display: block; width: 100%; height: auto; margin-top: .4rem; }
.chart * { stroke-linejoin: round; stroke-linecap: butt; }
.chart text { font-family: inherit; font-variant-numeric: tabular-nums; }
.facts th { width: 12rem; color: var(--quiet); }
.facts tr:first-child > *, .judged tr:first-child > * { border-top: 0; }
.facts th, .facts td, .judged th, .judged td { padding-left: 0; }
.judged td:last-child { padding-right: 0; text-align: right; }
@media (max-width: 48rem) {
  body { padding: .5rem; }
  .tile, .card { padding: .6rem; }
  .wide thead { display: none; }
  .wide, .wide > tbody, .wide > tbody > tr, .wide > tbody > tr > * { display: block; }
  .wide > tbody > tr { padding: .6rem 0; border-top: 1px solid var(--line); }
  .wide > tbody > tr:first-child { border-top: 0; }
  .wide > tbody > tr > * { padding: .15rem .75rem; border: 0; white-space: normal; }
  .wide > tbody > tr > [data-label]::before {
    content: attr(data-label); display: inline-block; width: 9rem; color: var(--quiet); font-weight: 400;
  }
  .wide td .small { display: inline; margin-left: .5em; }
  .facts th { width: 7rem; }
}
"""


def report_page(document: Document, drawn: Drawn) -> str:
    """The page of one result."""
    target, state = document["target"], state_of(document)
    return _page(
        f"Benchmark of {target['name']}",
        [
            tag("header", tag("h1", f"Benchmark of {target['name']}"), tag("p", *_when(document), class_="quiet")),
            _alarm(document),
            tag("div", *_tiles(document), class_="tiles"),
            *_charts(drawn, {one["name"]: shape(one) for one in document["scenarios"]}),
            tag("h2", "Every load"),
            tag("p", "The median of the rounds, and below it their least and their most.", class_="quiet"),
            *_load_tables(document),
            tag("h2", "What it ran on"),
            tag("div", *_ran_on(document), class_="cards"),
        ],
        badge=state,
    )


def comparison_page(run: Document, baseline: Document, compared: Mapping[str, Any], drawn: Drawn) -> str:
    """The page of two results, with what ``compare`` says of them."""
    title = f"{run['target']['name']} beside {baseline['target']['name']}"
    sides = (("This run", run), ("Baseline", baseline))
    whole = [load["scenario"] for load in compared["loads"] if load["users"] is None]
    return _page(
        title,
        [
            tag("header", tag("h1", title)),
            *(tag("p", tag("b", side), ": ", *_when(document), class_="quiet") for side, document in sides),
            *(_alarm(document, f"{side}: ") for side, document in sides),
            tag("div", *_count_tiles(compared), class_="tiles"),
            tag("h2", "What else differs"),
            tag("div", *_what_differs(compared), class_="card"),
            tag("h2", "Figure by figure"),
            tag("p", _rule(compared), class_="quiet"),
            tag(
                "div",
                *(_judged(load, load["users"] is not None and load["scenario"] in whole) for load in compared["loads"]),
                class_="columns",
            )
            if compared["loads"]
            else tag("p", "They have no load in common.", class_="card"),
            *_charts(drawn, {one["name"]: shape(one) for document in (baseline, run) for one in document["scenarios"]}),
            *(
                part
                for side, document in sides
                for part in (tag("h2", f"{side} ran on"), tag("div", *_ran_on(document), class_="cards"))
            ),
        ],
        badge=compared["verdict"],
    )


def index_page(entries: Sequence[tuple[str, Document | str, Sequence[str]]]) -> str:
    """All results, in this order: the folder of each, what is in it or why it cannot be read, and its pages."""
    heads = (
        "Started",
        "State",
        "Target",
        "Recipe",
        "GPUs",
        "Tokens/s per GPU",
        "Tokens/s per user",
        "Users within SLO",
    )
    rows = [_index_row((*heads, "Pages"), *entry) for entry in entries]
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", head) for head in (*heads, "Pages")))),
        tag("tbody", *rows),
        class_="wide",
    )
    count = f"{len(rows)} run{'' if len(rows) == 1 else 's'}, the newest first. A figure is the best of all loads."
    return _page(
        "Benchmarks",
        [
            tag("header", tag("h1", "Benchmarks")),
            tag("p", count, class_="quiet"),
            tag("div", table, class_="table") if rows else None,
        ],
    )


def state_of(document: Document) -> str:
    """How a run ended, in words."""
    return "broken off" if document["state"] == "running" else str(document["state"])


def shape(scenario: Mapping[str, Any]) -> str:
    """The load of a scenario in one sentence."""
    *less, most = map(number, scenario["concurrency"])
    users = f"{', '.join(less)} and {most} users" if less else _users(scenario["concurrency"][0])
    requests = (
        f"{number(scenario['requests'])} requests"
        if scenario["requests"]
        else f"{scenario['requests_per_user']} requests per user"
    )
    warm_up = f" after {number(scenario['warm_up'])} to warm up" if scenario["warm_up"] else ""
    return (
        f"{scenario['source']}: {number(scenario['input_tokens'])} tokens in and {number(scenario['output_tokens'])} "
        f"out, by {users} at once; {requests}{warm_up}. {scenario['tool']} asks /v1/{_route(scenario['endpoint'])}."
    )


def _route(endpoint: str) -> str:
    return "chat/completions" if endpoint == "chat" else endpoint


def _page(title: str, body: Sequence[Content], badge: str = "") -> str:
    colours = [
        " ".join(f"--series-{place}: {colour};" for place, colour in enumerate(of)) for of in (SERIES, SERIES_DARK)
    ]
    style = STYLE.replace("LIGHT", colours[0]).replace("DARK", colours[1])
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'",
        ),
        tag("title", f"{title}: {badge}" if badge else title),
        tag("style", Html(style)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', join(body, LINE)), lang='en')}{LINE}"


def _badge(word: str, look: str = "") -> Html:
    return tag("span", word, class_=f"verdict {look or LOOKS.get(word, 'nothing')}")


def _moment(written: str | None) -> str:
    """A time of a result file, to the minute."""
    return f"{datetime.fromisoformat(written):%Y-%m-%d %H:%M} UTC" if written else ""


def _when(document: Document) -> Iterator[Content]:
    yield _badge(state_of(document))
    yield f" {document['name']}, began {_moment(document['started'])}"
    if document["ended"]:
        seconds = (
            datetime.fromisoformat(document["ended"]) - datetime.fromisoformat(document["started"])
        ).total_seconds()
        yield f" and took {seconds / 60:.0f} min" if seconds >= 120 else f" and took {seconds:.0f} s"
    target = document["target"]
    yield f". {target['model']} at {KINDS.get(target['kind'], target['kind'])}, {', '.join(target['base_urls'])}."
    if target.get("note"):
        yield tag("b", f" {target['note']}")


def _alarm(document: Document, side: str = "") -> Html | None:
    """What is wrong with a run; None where all of it counts."""
    state = state_of(document)
    if state == "complete" and not document["problems"]:
        return None
    said = {
        "broken off": "This run did not end. It was broken off, or still goes on.",
        "failed": "This run failed.",
    }.get(state, "Not all of this run counts.")
    return tag(
        "div",
        tag("b", f"{side}{said} "),
        "What was measured before is below.",
        tag("ul", *(tag("li", problem) for problem in document["problems"])) if document["problems"] else None,
        class_="card problems",
        role="alert",
    )


def _tile(title: str, value: str, below: Content) -> Html:
    return tag(
        "div",
        tag("span", title, class_="quiet"),
        tag("b", value),
        tag("span", below, class_="quiet small"),
        class_="tile",
    )


def _tiles(document: Document) -> Iterator[Html]:
    for title, path in (("Best tokens/s per GPU", PER_GPU), ("Best tokens/s per user", PER_USER)):
        found = best(document, path)
        if found is None and path == PER_GPU:
            title, found = "Best tokens/s", best(document, TOTAL)
        at = f"{found.scenario}, {_users(found.users)}" if found else ""
        yield _tile(title, number(found.value if found else None), at)
    within = users_within(document)
    if document["slo"]:
        limits = ", ".join(f"{path} {number(limit)}" for path, limit in document["slo"].items())
        each = ", ".join(f"{name} {count}" for name, count in within.items())
        yield _tile("Users within the SLO", number(max(within.values())), [f"{each}. ", tag("br"), f"SLO: {limits}"])
    requests = [point["requests"] for point in document["points"]]
    answered, asked = (sum(one[what] for one in requests) for what in ("answered", "asked"))
    rounds = f"in {len(requests)} rounds"
    yield _tile("Requests answered", f"{number(answered)}", f"of {number(asked)} {rounds}")


def _users(count: int) -> str:
    return f"{number(count)} user{'' if count == 1 else 's'}"


def _charts(drawn: Drawn, about: Mapping[str, str]) -> Iterator[Html]:
    for name, charts in drawn:
        yield tag("h2", name or "All scenarios")
        if name in about:
            yield tag("p", about[name], class_="quiet")
        yield tag("div", *(_figure(chart, svg) for chart, svg in charts), class_="charts")


def _figure(chart: Chart, svg: str) -> Html:
    return tag(
        "div",
        tag(
            "figure",
            tag("figcaption", chart.title),
            Html(svg),
            *(tag("p", note, class_="quiet small") for note in chart.notes),
        ),
        class_="card",
    )


def _load_tables(document: Document) -> Iterator[Html]:
    """A table for each scenario, without what no load of it has."""
    for scenario in document["scenarios"]:
        rows = [(users, points) for name, users, points in loads(document) if name == scenario["name"]]
        # With one GPU its tokens are all tokens.
        told = [path for path in FIGURES if path != TOTAL or document["target"].get("gpus") != 1]
        paths = [path for path in told if any(spread(points, path) for _users, points in rows)]
        heads = ["Users", "Rounds", *(_head(path) for path in paths), *(["SLO"] if document["slo"] else [])]
        missed = document.get("stopped", {}).get(scenario["name"])
        yield tag("h3", scenario["name"])
        yield tag(
            "div",
            tag(
                "table",
                tag("thead", tag("tr", *(tag("th", head) for head in heads))),
                tag("tbody", *(_load_row(document, users, points, paths) for users, points in rows)),
                class_="wide",
            )
            if rows
            else tag("p", "No load of it was measured."),
            class_="table" if rows else "card",
        )
        if missed:
            yield tag("p", f"The sweep ended there: {'; '.join(missed)}.", class_="quiet")


def _head(path: str) -> str:
    name, unit = FIGURES[path]
    return f"{name}, {unit}" if unit else name


def _load_row(document: Document, users: int, points: Sequence[Point], paths: Sequence[str]) -> Html:
    cells = [
        tag("td", tag("b", number(users)), data_label="Users", class_="figure"),
        tag("td", f"{len(points)} of {document['repeat']}", data_label="Rounds", class_="figure"),
    ]
    for path in paths:
        found = spread(points, path)
        shown = (
            [number(found.median), tag("span", _range(found.low, found.high), class_="quiet small")] if found else "-"
        )
        cells.append(tag("td", shown, data_label=_head(path), class_="figure"))
    if document["slo"]:
        missed = slo.misses(points, document["slo"])
        cells.append(
            tag(
                "td",
                _badge("misses", "down") if missed else _badge("meets", "ok"),
                *(tag("span", one, class_="small") for one in missed),
                data_label="SLO",
                class_="verdicts",
            )
        )
    return tag("tr", *cells)


def _range(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"


def _ran_on(document: Document) -> Iterator[Html]:
    target = document["target"]
    rows = {
        "Target": f"{target['name']}, {KINDS.get(target['kind'], target['kind'])}",
        "Address": ", ".join(target["base_urls"]),
        "Model id": target["model"],
        "GPUs": target.get("gpus") or None,
        "Hosts": target.get("hosts"),
        "Load from": target.get("load_from"),
        **{f"Tool {name}": told for name, told in tools(document).items()},
    }
    yield tag("div", tag("h3", "Endpoint and load"), _facts(rows), class_="card")
    for hosts, subject in _alike(document["ran_on"]):
        yield tag("div", tag("h3", ", ".join(hosts)), _facts(_subject_rows(subject)), *_values(subject), class_="card")


def _alike(ran_on: Mapping[str, Any]) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Hosts by what they have."""
    found: list[tuple[list[str], Mapping[str, Any]]] = []
    for host, subject in ran_on.items():
        hosts = next((hosts for hosts, known in found if known == subject), None)
        if hosts is None:
            found.append(([host], subject))
        else:
            hosts.append(host)
    return found


def _subject_rows(subject: Mapping[str, Any]) -> dict[str, Any]:
    gpus = subject.get("gpus") or {}
    return {
        "Release": subject.get("release"),
        "Recipe": subject.get("recipe"),
        "Use case": subject.get("use_case"),
        "Model": subject.get("model"),
        "Revision": subject.get("revision"),
        "Image": subject.get("image"),
        "Digest": subject.get("digest"),
        "Driver": subject.get("driver"),
        "Kernel module": subject.get("kernel_module"),
        "GPUs": f"{gpus.get('count', 0)} x {_told(gpus.get('product_name')) or 'unknown'}",
        "Memory": _with_unit(gpus.get("memory_total_mib"), "MiB"),
        "ECC": gpus.get("ecc"),
        "MIG": gpus.get("mig"),
        "Power limit": _with_unit(gpus.get("power_limit_watts"), "W"),
        "SM clock": _with_unit(gpus.get("sm_clock_mhz"), "MHz"),
        "SM clock, most": _with_unit(gpus.get("sm_clock_max_mhz"), "MHz"),
        "Memory clock": _with_unit(gpus.get("memory_clock_mhz"), "MHz"),
    }


def _facts(rows: Mapping[str, Any]) -> Html:
    told = [(name, _told(value)) for name, value in rows.items()]
    return tag(
        "table", *(tag("tr", tag("th", name), tag("td", value)) for name, value in told if value), class_="facts"
    )


def _told(value: Any) -> str:
    """A value for people; empty for nothing."""
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_told(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(_told(one) for one in value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _with_unit(value: Any, unit: str) -> str:
    return f"{_told(value)} {unit}" if _told(value) else ""


def _values(subject: Mapping[str, Any]) -> Iterator[Html]:
    """The recipe's values, each with its source."""
    sources = subject.get("sources") or {}
    groups = {
        "": subject.get("engine_options"),
        "flags": subject.get("flags"),
        "environment": subject.get("environment"),
    }
    rows = []
    for group, values in groups.items():
        for path, value in _leaves(values or {}, (group,) if group else ()):
            source = sources.get(".".join(path), "")
            rows.append(
                tag(
                    "tr",
                    tag(
                        "td",
                        tag("code", f"{'.'.join(path)}: {json.dumps(value)}"),
                        tag("span", source, class_="quiet small"),
                    ),
                )
            )
    if rows:
        yield tag(
            "details",
            tag("summary", f"{len(rows)} values of the recipe, and where each comes from", class_="quiet"),
            tag("table", *rows, class_="facts"),
        )


def _leaves(values: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(values, Mapping) and values:
        for name, value in values.items():
            yield from _leaves(value, (*path, str(name)))
    elif path and values not in ({}, []):
        yield path, values


def _count_tiles(compared: Mapping[str, Any]) -> Iterator[Html]:
    yield tag("div", tag("span", "Verdict", class_="quiet"), tag("p", _badge(compared["verdict"])), class_="tile")
    for verdict, count in compared["counts"].items():
        yield _tile(verdict.capitalize(), number(count), f"of {sum(compared['counts'].values())} figures")


def _what_differs(compared: Mapping[str, Any]) -> Iterator[Html]:
    lists = {
        "What they ran on, this run's first": compared["differences"],
        "Only in this run": compared["only_run"],
        "Only in the baseline": compared["only_baseline"],
    }
    if not any(lists.values()):
        yield tag("p", "Nothing that is known: same release, same hosts, same loads.")
    for title, lines in lists.items():
        if lines:
            yield tag("p", title, class_="quiet")
            yield tag("ul", *(tag("li", line) for line in lines))


def _rule(compared: Mapping[str, Any]) -> str:
    margin = number(100 * compared["margin"])
    return (
        f"A ratio is this run's to the baseline's. A figure is better or worse only if all of its interval is more "
        f"than {margin} % away from 1. The intervals are wide enough that of two equal runs, at most one comparison "
        f"in {round(1 / compared['risk'])} calls anything better or worse."
    )


def _judged(load: Mapping[str, Any], folded: bool) -> Html:
    """The figures of a load; what has nothing that is better or worse may be folded."""
    of = _users(load["users"]) if load["users"] else "all loads together"
    verdicts = [row["verdict"] for row in load["metrics"]]
    told = [verdict for verdict in ("worse", "better") if verdict in verdicts]
    return tag(
        "div",
        tag(
            "details",
            tag("summary", tag("h3", f"{load['scenario']}, {of}"), *(_badge(verdict) for verdict in told)),
            tag("table", *(tag("tr", *_judged_cells(row)) for row in load["metrics"]), class_="judged"),
            open="" if told or not folded else None,
        ),
        class_="card",
    )


def _judged_cells(row: Mapping[str, Any]) -> Iterator[Html]:
    name, unit = FIGURES[row["metric"]]
    values = f"{number(row['run'])} beside {number(row['baseline'])} {unit}"
    yield tag("td", name, tag("span", values, class_="quiet small"))
    yield tag(
        "td",
        f"{row['ratio']:.3f}" if row["ratio"] else "-",
        tag("span", row["reason"] or _interval(row), class_="quiet small"),
    )
    yield tag("td", _badge(row["verdict"]))


def _interval(row: Mapping[str, Any]) -> str:
    if not row["low"] or not row["high"] or row["high"] > WIDE or row["low"] < 1 / WIDE:
        return "too few rounds to tell"
    return f"{row['low']:.3f} to {row['high']:.3f}"


def _index_row(heads: Sequence[str], folder: str, document: Document | str, pages: Sequence[str]) -> Html:
    if isinstance(document, str):
        why = tag("td", document, class_="small quiet error", colspan=str(len(heads) - 2))
        return tag("tr", tag("td", folder), tag("td", _badge("cannot be read")), why)
    subjects = list(document["ran_on"].values())
    recipes = dict.fromkeys(str(one["recipe"]) for one in subjects if one.get("recipe"))
    products = dict.fromkeys(_told((one.get("gpus") or {}).get("product_name")) for one in subjects)
    gpus = document["target"].get("gpus")
    found = [best(document, path) for path in (PER_GPU, PER_USER)]
    cells: list[Content] = [
        tag("b", _moment(document["started"]), class_="moment"),
        _badge(state_of(document)),
        [
            document["target"]["name"],
            tag(
                "span",
                ", ".join(filter(None, [short(document["target"]["model"]), document["target"].get("note")])),
                class_="quiet small",
            ),
        ],
        ", ".join(recipes) or "-",
        f"{gpus} x {', '.join(filter(None, products)) or 'unknown'}" if gpus else "-",
        *(number(one.value if one else None) for one in found),
        number(max(users_within(document).values(), default=0)) if document["slo"] else "-",
        join([tag("a", page.rpartition(".")[0], href=f"{folder}/{page}") for page in pages], ", "),
    ]
    return tag("tr", *(tag("td", cell, data_label=head) for head, cell in zip(heads, cells)))
