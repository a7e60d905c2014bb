# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make Grafana's dashboards from their description.

Plain dicts: grafana-foundation-sdk 10.1 checks no types of what it writes, and has builders for far more than the four
kinds of panels here. Schema version 36 is that of Grafana 9; newer ones migrate it when they load a dashboard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.description import ANY, dashboards

FOLDER = "roles/monitoring/files/dashboards"
SCHEMA = 36
TAG = "trtllm-fleet"
# Units of the description as Grafana names them.
UNITS = {
    "bytes": "bytes",
    "bytes/s": "Bps",
    "celsius": "celsius",
    "count": "short",
    "requests/s": "reqps",
    "seconds": "s",
    "share": "percentunit",
    "tokens/s": "suffix:tokens/s",
    "watts": "watt",
}
# The least that an axis shows, in Grafana's unit, by unit of the description: with zeros alone it would go to 100.
AXES = {"share": 0.01, "seconds": 0.001}
COLUMNS, WIDTH = 24, 12  # of Grafana's grid; of a panel that has no width
HEIGHTS = {"stat": 5, "timeseries": 8, "table": 8, "text": 8}  # rows of the grid, each 30 pixels
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Labels that only say where a sample is from.
HIDDEN = ("Time", "group", "job")
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "timeseries": {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    },
    "table": {"cellHeight": "sm", "footer": {"show": False}, "showHeader": True},
}

Tree = Mapping[str, Any]


def files() -> dict[str, str]:
    """Return the JSON of each dashboard by its path in the repository."""
    return {
        f"{FOLDER}/{one['name']}.json": json.dumps(dashboard(one), indent=2, sort_keys=True) + "\n"
        for one in dashboards()
    }


def dashboard(described: Tree) -> dict[str, Any]:
    """Return a dashboard as Grafana exports it."""
    return {
        "annotations": {"list": []},
        "editable": True,
        "graphTooltip": 1,  # one crosshair in all panels
        "id": None,  # Grafana gives it a number
        "links": [_link()],
        "panels": list(_placed(described["sections"])),
        "refresh": "30s",
        "schemaVersion": SCHEMA,
        "tags": [TAG],
        "templating": {"list": [_datasource(), *map(_variable, described["variables"])]},
        "time": {"from": "now-6h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "title": f"trtllm.fleet: {described['title']}",
        "uid": described["uid"],
    }


def _link() -> dict[str, Any]:
    """Return the link to all dashboards of the tag."""
    return {
        "asDropdown": False,
        "icon": "external link",
        "includeVars": False,
        "keepTime": True,
        "tags": [TAG],
        "targetBlank": False,
        "title": "",
        "tooltip": "",
        "type": "dashboards",
        "url": "",
    }


def _datasource() -> dict[str, Any]:
    return {
        "current": {},
        "hide": 0,
        "includeAll": False,
        "label": "Prometheus",
        "multi": False,
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
        "type": "datasource",
    }


def _variable(one: Tree) -> dict[str, Any]:
    query = f"label_values({one['metric']}, {one['label']})"
    return {
        "allValue": ANY,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": SOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": True,
        "label": one["title"],
        "multi": True,
        "name": one["name"],
        "options": [],
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "refresh": 2,  # when the time range changes, too: hosts come and leave
        "regex": "",
        "skipUrlSync": False,
        "sort": 3,  # by number
        "type": "query",
    }


def _placed(sections: Sequence[Tree]) -> Iterator[dict[str, Any]]:
    """Yield the rows and panels of a dashboard with identifiers and places: from left to right, then below."""
    number = top = 0
    for section in sections:
        number += 1
        yield {
            "collapsed": False,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
            "id": number,
            "panels": [],
            "title": section["title"],
            "type": "row",
        }
        top, left, height = top + 1, 0, 0
        for described in section["panels"]:
            number += 1
            width = described.get("width", WIDTH)
            if left + width > COLUMNS:
                top, left, height = top + height, 0, 0
            height = max(height, HEIGHTS[described["type"]])
            place = {"h": HEIGHTS[described["type"]], "w": width, "x": left, "y": top}
            yield {"gridPos": place, "id": number, **_panel(described)}
            left += width
        top += height


def _panel(described: Tree) -> dict[str, Any]:
    about = {"title": described["title"], "type": described["type"]}
    if described["type"] == "text":
        return {**about, "options": {"content": described["description"], "mode": "markdown"}}
    panel = {
        **about,
        "datasource": SOURCE,
        "description": described["description"],
        "fieldConfig": {"defaults": _field(described), "overrides": []},
        "options": OPTIONS[described["type"]],
        "targets": [
            _target(query, "ABCDEFGH"[place], described["type"]) for place, query in enumerate(described["queries"])
        ],
    }
    if described["type"] == "table":
        # A name is of use only where one expression has several.
        hidden = HIDDEN if "__name__" in described["queries"][0]["expr"] else (*HIDDEN, "__name__")
        columns = {"excludeByName": dict.fromkeys(hidden, True), "indexByName": {}, "renameByName": {}}
        panel["transformations"] = [{"id": "organize", "options": columns}]
    return panel


def _field(described: Tree) -> dict[str, Any]:
    """Return unit, colours and lines of a panel."""
    thresholds = described.get("thresholds")
    steps = [{"color": one["color"], "value": one.get("value")} for one in thresholds or [{"color": "green"}]]
    field: dict[str, Any] = {"thresholds": {"mode": "absolute", "steps": steps}, "unit": UNITS[described["unit"]]}
    if described["type"] == "timeseries":
        field["color"] = {"mode": "palette-classic"}
        field["custom"] = {
            "axisSoftMax": AXES.get(described["unit"], 1),
            "axisSoftMin": 0,
            "fillOpacity": 10,
            "lineWidth": 1,
            "showPoints": "auto",
            "spanNulls": False,  # a gap is a fault of the target or of Prometheus
            "thresholdsStyle": {"mode": "line" if thresholds else "off"},
        }
    else:
        field["color"] = {"mode": "thresholds"}
    return field


def _target(query: Tree, reference: str, kind: str) -> dict[str, Any]:
    found = {
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query["expr"],
        # Grafana's form of a label.
        "legendFormat": query["legend"].replace("{", "{{").replace("}", "}}"),
        "range": kind != "table",
        "instant": kind == "table",
        "refId": reference,
    }
    return {**found, "format": "table"} if kind == "table" else found
