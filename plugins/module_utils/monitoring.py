# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Prometheus and Alertmanager of a fleet report. Standard library only."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import (
    Client,
    Deadline,
    EndpointError,
    HttpError,
    OutOfTime,
)

# A page shows no more, and the result of a module stays below 1 MB.
POINTS = 120  # of a series
SERIES = 10  # of a name; those with the highest peak
ALERTS = 100
SILENT = 20  # targets of a job
DIGITS = 6  # of a value
SHORTEST_STEP = 15  # seconds; role monitoring's interval between scrapes
# Of intervals between scrapes. Grafana takes four for $__rate_interval, so that one missed scrape leaves no gap.
SCRAPES = 4
RATE_INTERVAL = "$__rate_interval"
# Worst first. A severity that is not here comes after these.
SEVERITIES = ("page", "ticket")

Tree = Mapping[str, Any]


def survey(
    prometheus: Client, alertmanager: Client | None, queries: Sequence[Tree], times: Tree, deadline: Deadline
) -> dict[str, Any]:
    """Return state, targets, alerts and series. ``times``: of ``time_range``.

    A server that does not answer is part of the result, in ``healthy`` and ``error``.
    """
    found: dict[str, Any] = {
        "healthy": False,
        "error": "",
        "version": "",
        "targets": {},
        "alerts": [],
        "alertmanager": None,
        "series": {},
        "problems": [],
        **times,
    }
    silenced: list[Tree] = []
    if alertmanager:
        found["alertmanager"], silenced = _alertmanager(alertmanager, deadline)
    try:
        found["version"] = str(_data(prometheus, "/api/v1/status/buildinfo", {}, deadline).get("version", ""))
        found["targets"] = _targets(_data(prometheus, "/api/v1/targets", {"state": "active"}, deadline))
        alerts = _alerts(_data(prometheus, "/api/v1/alerts", {}, deadline), silenced)
    except (EndpointError, TypeError, ValueError, KeyError, AttributeError) as error:
        found["error"] = _sentence("Prometheus", prometheus, error)
        return found
    found["alerts"] = alerts[:ALERTS]
    if len(alerts) > ALERTS:
        found["problems"].append(f"{len(alerts) - ALERTS} of {len(alerts)} alerts are left out")
    found["healthy"] = True
    for query in queries:
        lines = found["series"].setdefault(query["name"], [])
        try:
            more, problems = _series(prometheus, query, times, deadline)
        except (EndpointError, TypeError, ValueError, KeyError, AttributeError) as error:
            found["problems"].append(f"{query['name']}: {_sentence('Prometheus', prometheus, error)}")
            if isinstance(error, OutOfTime):
                break
            continue
        lines += more
        found["problems"] += [f"{query['name']}: {problem}" for problem in problems]
    return found


def time_range(hours: int, step: int, now: float) -> dict[str, int]:
    """Return start and end in seconds since 1970, and the step in seconds, for at most POINTS points.

    ``step``: 0 for the shortest one.
    """
    shortest = max(SHORTEST_STEP, math.ceil(hours * 3600 / POINTS))
    seconds = max(step, shortest)
    end = int(now)
    # The first point is of the time before it.
    return {"start": end - (hours * 3600 // seconds - 1) * seconds, "end": end, "step": seconds}


def _sentence(what: str, client: Client, error: Exception) -> str:
    """Return what is wrong with an answer, and what to do."""
    if isinstance(error, HttpError) and error.status == 401:
        return f"{what} at {client.base_url} rejects the user or the password (HTTP 401). Deploy role monitoring again."
    if isinstance(error, EndpointError):
        return f"{what} at {client.base_url}: {client.excerpt(error)}"
    return f"{what} at {client.base_url} gave an answer of another form ({type(error).__name__}: {error})"


def _get(client: Client, path: str, deadline: Deadline) -> Any:
    """Return the JSON of an answer. Raises EndpointError."""
    reply = client.get(path, deadline)
    if reply.status != 200:
        raise HttpError(reply)
    try:
        return json.loads(reply.body)
    except ValueError:
        raise EndpointError(f"not JSON: {reply.body[:200].decode('utf-8', 'replace') or 'empty body'}") from None


def _answer(client: Client, path: str, values: Mapping[str, Any], deadline: Deadline) -> Tree:
    """Return an answer of Prometheus' API: ``data``, and maybe ``warnings``. Raises EndpointError."""
    answer: Tree = _get(client, f"{path}?{urlencode(values)}" if values else path, deadline)
    if answer["status"] != "success":
        raise EndpointError(f"{answer.get('errorType')}: {answer.get('error')}")
    return answer


def _data(client: Client, path: str, values: Mapping[str, Any], deadline: Deadline) -> Tree:
    data: Tree = _answer(client, path, values, deadline)["data"]
    return data


def _targets(data: Tree) -> dict[str, Any]:
    """Return the number of targets by job and health, and those that do not answer."""
    jobs: dict[str, Any] = {}
    for target in data["activeTargets"]:
        labels = target["labels"]
        job = jobs.setdefault(labels["job"], {"up": 0, "down": 0, "unknown": 0, "silent": []})
        job[target["health"]] += 1
        if target["health"] == "down" and len(job["silent"]) < SILENT:
            job["silent"].append({"instance": labels["instance"], "error": str(target["lastError"])[:300]})
    return {name: jobs[name] for name in sorted(jobs)}


def _alerts(data: Tree, silenced: Sequence[Tree]) -> list[dict[str, Any]]:
    """Return firing alerts, then pending ones, each by severity and age."""
    found = []
    for alert in data["alerts"]:
        labels, notes = dict(alert["labels"]), alert["annotations"]
        found.append(
            {
                "name": labels.pop("alertname"),
                "state": alert["state"],
                "severity": labels.pop("severity", ""),
                # Of nanoseconds, and of Z before Python 3.11, datetime.fromisoformat knows nothing.
                "since": re.sub(r"(\.\d+)?Z$", "+00:00", alert["activeAt"]),
                # Alertmanager may have more labels, of external_labels.
                "silenced": any(alert["labels"].items() <= known.items() for known in silenced),
                "summary": notes.get("summary", ""),
                "description": notes.get("description", ""),
                "runbook": notes.get("runbook_url", ""),
                "labels": labels,
            }
        )
    return sorted(found, key=lambda one: (one["state"] != "firing", rank(one["severity"]), one["since"]))


def rank(severity: str) -> int:
    """Return the place of a severity, worst first."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _alertmanager(client: Client, deadline: Deadline) -> tuple[dict[str, Any], list[Tree]]:
    """Return the state of Alertmanager, and the labels of the alerts that it does not send."""
    state = {"healthy": False, "error": "", "version": ""}
    try:
        state["version"] = str(_get(client, "/api/v2/status", deadline)["versionInfo"]["version"])
        alerts = _get(client, "/api/v2/alerts", deadline)
        labels = [alert["labels"] for alert in alerts if alert["status"]["state"] == "suppressed"]
    except (EndpointError, TypeError, ValueError, KeyError, AttributeError) as error:
        return {**state, "error": _sentence("Alertmanager", client, error)}, []
    return {**state, "healthy": True}, labels


def _series(client: Client, query: Tree, times: Tree, deadline: Deadline) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the series of a query, and what is wrong with them. Raises EndpointError."""
    interval = max(times["step"], SCRAPES * SHORTEST_STEP)
    values = {**times, "query": query["expr"].replace(RATE_INTERVAL, f"{interval}s")}
    answer = _answer(client, "/api/v1/query_range", values, deadline)
    found = [_line(one, query["legend"]) for one in answer["data"]["result"]]
    found = [one for one in found if one["points"]]
    problems = [str(warning)[:300] for warning in answer.get("warnings", [])]
    if len(found) > SERIES:
        problems.append(f"{SERIES} of {len(found)} series are shown, those with the highest peak")
        peaks = sorted((max(value for _moment, value in one["points"]) for one in found), reverse=True)
        found = [one for one in found if max(value for _moment, value in one["points"]) >= peaks[SERIES - 1]][:SERIES]
    return found, problems


def _line(series: Tree, legend: str) -> dict[str, Any]:
    labels = {str(name): str(value) for name, value in series["metric"].items()}
    text = re.sub(r"\{(\w+)\}", lambda found: labels.get(found[1], ""), legend).strip()
    return {"legend": text, "labels": labels, "points": list(_points(series["values"]))}


def _points(values: Sequence[Sequence[Any]]) -> Iterator[list[float]]:
    """Yield the finite points: a quotient of zeros is NaN, and JSON has no such number."""
    for moment, text in values:
        value = float(text)
        if math.isfinite(value):
            yield [int(moment), float(f"{value:.{DIGITS}g}")]
