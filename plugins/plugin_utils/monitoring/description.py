# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The description of the dashboards, from which Grafana's JSON and the history of the status page are made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DESCRIPTION = Path(__file__).resolve().parents[3] / "roles/monitoring/vars/dashboards.yml"
# Grafana sets it for the resolution of a graph; module monitoring_info does so for the history.
RATE_INTERVAL = "$__rate_interval"
ANY = ".+"  # the value of a variable for which a reader selects all

Tree = Mapping[str, Any]


class Query(NamedTuple):
    """An expression without variables, and where it is from."""

    place: str  # dashboard and panel, or dashboard and variable
    expr: str


def dashboards() -> list[Tree]:
    """Return the dashboards of ``DESCRIPTION``."""
    found: list[Tree] = yaml.safe_load(DESCRIPTION.read_text())["__monitoring_dashboards"]
    return found


def panels(dashboard: Tree) -> Iterator[Tree]:
    """Yield the panels of a dashboard."""
    for section in dashboard["sections"]:
        yield from section["panels"]


def queries(found: Sequence[Tree], rate_interval: str = "5m") -> list[Query]:
    """Return each expression of panels and variables as Prometheus accepts it, with all values selected."""
    placed = []
    for dashboard in found:
        placed += [
            Query(f"{dashboard['name']}: {panel['title']}", query["expr"])
            for panel in panels(dashboard)
            for query in panel.get("queries", [])
        ]
        placed += [Query(f"{dashboard['name']}: ${one['name']}", one["metric"]) for one in dashboard["variables"]]
    names = {one["name"] for dashboard in found for one in dashboard["variables"]}
    return [Query(place, without(expr, names).replace(RATE_INTERVAL, rate_interval)) for place, expr in placed]


def without(expr: str, names: set[str]) -> str:
    """Return an expression with all values of these variables."""
    return re.sub(r"\$([a-z]+)\b", lambda found: ANY if found[1] in names else found[0], expr)


def history(found: Sequence[Tree]) -> list[dict[str, Any]]:
    """Return the main series: title, unit, description and queries of their panels, with all values selected."""
    main = []
    for dashboard in found:
        names = {one["name"] for one in dashboard["variables"]}
        main += [
            {
                **{key: panel[key] for key in ("title", "unit", "description")},
                "queries": [{**query, "expr": without(query["expr"], names)} for query in panel["queries"]],
            }
            for panel in panels(dashboard)
            if panel.get("history")
        ]
    return main
