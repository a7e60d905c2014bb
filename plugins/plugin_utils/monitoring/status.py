# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The monitoring in the status of a fleet: its state, alerts and history as data, and the charts of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ansible_collections.trtllm.fleet.plugins.module_utils.host_status import seconds_between
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import natural
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status import no_answer
from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.description import Tree
from ansible_collections.trtllm.fleet.plugins.plugin_utils.report.line_chart import Line, line_chart, style, text

State = Literal["ok", "degraded", "down", "unreachable"]


def monitoring_status(host: str, result: Tree, main: Sequence[Tree], taken_at: str) -> dict[str, Any]:
    """Return the state of the monitoring.

    ``result``: of module monitoring_info on ``host``, also if the task failed or did not reach it. ``main``: of
    ``description.history``.
    """
    manager = result.get("alertmanager") or {"healthy": True, "error": "", "version": ""}
    series = result.get("series", {})
    return {
        "host": host,
        "state": _state(result, manager),
        "message": no_answer(result) if "healthy" not in result else result["error"] or manager["error"],
        "version": result.get("version", ""),
        "alertmanager": result.get("alertmanager"),
        "targets": result.get("targets", {}),
        # One with severity none always fires, and shows that alerts reach their receiver.
        "alerts": [
            {**alert, "seconds": seconds_between(alert["since"], taken_at)}
            for alert in result.get("alerts", [])
            if alert["severity"] != "none"
        ],
        "problems": result.get("problems", []),
        **{key: result.get(key) for key in ("start", "end", "step")},
        "history": [
            {
                **{key: panel[key] for key in ("title", "unit", "description")},
                "series": sorted(series.get(panel["title"], []), key=lambda one: natural(one["legend"])),
            }
            for panel in main
        ],
    }


def _state(answer: Tree, manager: Tree) -> State:
    if "healthy" not in answer:
        return "unreachable"
    if not answer["healthy"]:
        return "down"
    return "ok" if manager["healthy"] else "degraded"


def charts(monitoring: Tree) -> list[dict[str, Any]]:
    """Return the charts of the history for the page: each panel that has data, as SVG, with the legend's lines."""
    times = (monitoring["start"], monitoring["end"], monitoring["step"])
    return [
        {
            "title": panel["title"],
            "description": panel["description"],
            "svg": line_chart(f"history-{place}", panel["title"], panel["unit"], _lines(panel["series"]), times),
            "lines": [_legend(place, one, panel["unit"], times) for place, one in enumerate(panel["series"])],
        }
        for place, panel in enumerate(monitoring["history"])
        if panel["series"]
    ]


def _lines(series: Sequence[Tree]) -> list[Line]:
    return [Line(one["legend"], one["points"]) for one in series]


def _legend(place: int, series: Tree, unit: str, times: tuple[float, float, float]) -> dict[str, Any]:
    """Return a line of a legend. ``last`` is the value at the end of the time."""
    at, value = series["points"][-1]
    peak = text(max(one for _at, one in series["points"]), unit)
    last = text(value, unit) if times[1] - at < 1.5 * times[2] else "no data"
    # The unit once, if it is the same.
    shown = last.removesuffix(f" {peak.partition(' ')[2]}")
    return {"style": style(place), "legend": series["legend"], "last": shown, "peak": peak}
