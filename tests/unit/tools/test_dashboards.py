"""The dashboards: Grafana's JSON, and expressions that Prometheus accepts over metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway import usage_metrics
from ansible_collections.trtllm.fleet.plugins.module_utils.health.metrics import HELP
from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.description import (
    Query,
    dashboards,
    history,
    panels,
    queries,
    without,
)
from ansible_collections.trtllm.fleet.tests.promtool import promtool
from ansible_collections.trtllm.fleet.tests.unit.paths import FIXTURES, ROOT
from tools.dashboards import COLUMNS, FOLDER, UNITS, dashboard, files

FOUND = dashboards()
QUERIES = queries(FOUND)
KNOWN: dict[str, set[str]] = {
    name: set(labels)
    for group in yaml.safe_load((FIXTURES / "monitoring/metrics.yml").read_text()).values()
    for name, labels in group["metrics"].items()
}
TARGET = {"instance", "job", "group", "server"}  # labels of the targets that role monitoring writes
each = pytest.mark.parametrize("described", FOUND, ids=lambda one: one["name"])


def selectors(expr: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the pattern of the metric's name, and the labels in braces, of each selector of an expression."""
    # A quoted value may have braces and commas.
    for name, braces in re.findall(r'\b([a-zA-Z_:][\w:]*)?\{((?:[^}"]|"[^"]*")*)\}', expr):
        matchers = dict(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', braces))
        yield name or matchers["__name__"], set(matchers) - {"__name__"}
    bare = re.sub(r'\{(?:[^}"]|"[^"]*")*\}|\b(?:by|on) \([^)]*\)', "", expr)
    yield from ((name, set()) for name in re.findall(r"\b[a-z]+_[a-z0-9_]+\b(?!\()", bare))


def problems(found: list[Query]) -> list[str]:
    """Return each metric and label that no exporter has."""
    wrong = []
    for place, expr in found:
        for pattern, labels in selectors(expr):
            names = [name for name in KNOWN if re.fullmatch(pattern, name)]
            if not names:
                wrong.append(f"{place}: {pattern}")
            wrong += [
                f"{place}: {name} has no label {label}" for name in names for label in labels - KNOWN[name] - TARGET
            ]
    return wrong


def test_files_are_those_of_the_description() -> None:
    assert {str(path.relative_to(ROOT)) for path in (ROOT / FOLDER).iterdir()} == set(files())


def test_dashboards_are_four_with_names_of_their_own() -> None:
    assert [one["name"] for one in FOUND] == ["fleet", "host", "engine", "gateway"]
    assert len({one["uid"] for one in FOUND}) == 4
    # Grafana's limit.
    assert all(len(one["uid"]) <= 40 for one in FOUND)


@each
def test_panels_are_complete(described: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in panels(described)]
    assert len(titles) == len(set(titles))
    for panel in panels(described):
        allowed = {"title", "type", "unit", "description", "queries", "thresholds", "history", "width"}
        assert set(panel) <= allowed, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        if panel["type"] == "text":
            continue
        assert panel["unit"] in UNITS
        legends = [query["legend"] for query in panel["queries"]]
        assert all(legends)
        assert len(legends) == len(set(legends))
        for name, *_ in (re.findall(r"\{(\w+)\}", legend) or [""] for legend in legends):
            assert not name or name in TARGET or any(name in labels for labels in KNOWN.values()), panel["title"]


@each
def test_json_is_valid_for_grafana(described: dict[str, Any]) -> None:
    made = dashboard(described)
    assert json.loads(json.dumps(made)) == made
    numbers = [panel["id"] for panel in made["panels"]]
    assert len(numbers) == len(set(numbers))
    cells: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
        for target in panel.get("targets", []):
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    variables = [one["name"] for one in made["templating"]["list"]]
    assert variables[0] == "datasource"
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(made["panels"]) + json.dumps(made["templating"])))
    assert used == set(variables)
    assert "{{instance}}" in json.dumps(made) or "{{server}}" in json.dumps(made)


def test_variables_are_replaced() -> None:
    # $1 is a group of label_replace.
    assert not [query for query in QUERIES if re.search(r"\$[^\d]", query.expr)]
    assert without('a{x=~"$host"}[$__rate_interval]', {"host"}) == 'a{x=~".+"}[$__rate_interval]'
    assert len(QUERIES) > 80


def test_history_has_the_main_series() -> None:
    main = history(FOUND)
    assert 8 <= len(main) <= 12
    assert len({one["title"] for one in main}) == len(main)
    rest = {name for one in main for query in one["queries"] for name in re.findall(r"\$([a-z_]\w*)", query["expr"])}
    assert rest == {"__rate_interval"}
    # It would be 0 before Prometheus ran.
    assert not [query for one in main for query in one["queries"] if "vector(" in query["expr"]]


def check(expressions: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Check expressions as recording rules, because promtool takes no others."""
    rules = [{"record": f"test:{number}", "expr": expr} for number, expr in enumerate(expressions)]
    (folder / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    return subprocess.run(
        [promtool(), "check", "rules", "--lint=none", folder / "rules.yml"], capture_output=True, text=True, check=False
    )


def test_prometheus_accepts_every_expression(tmp_path: Path) -> None:
    checked = check([query.expr for query in QUERIES], tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(QUERIES)} rules found" in checked.stdout
    assert check(["sum(up"], tmp_path).returncode == 1


def test_every_metric_exists() -> None:
    assert {*HELP, *usage_metrics.HELP} <= set(KNOWN), "add it to tests/unit/fixtures/monitoring/metrics.yml"
    assert problems(QUERIES) == []
    wrong = 'rate(haproxy_server_requests_total{proxy="x"}[5m]) > fleet_gpu_present{gpu="a,}b"} + fleet_none'
    assert set(problems([Query("x", wrong)])) == {
        "x: haproxy_server_requests_total",
        "x: fleet_gpu_present has no label gpu",
        "x: fleet_none",
    }
