"""The monitoring in the status of a fleet: state, alerts and history, as data, as text and on the page."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status_text import render
from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.description import dashboards, history
from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.status import charts, monitoring_status
from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils import test_status
from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils.test_status import (
    NOW,
    UNREACHABLE,
    gateway,
    html,
    look,
    page,
)

MAIN = history(dashboards())
END, STEP = 1795387200, 720  # NOW
START = END - 119 * STEP
ALERT: dict[str, Any] = {
    "name": "HostSilent",
    "state": "firing",
    "severity": "page",
    "since": "2026-11-22T22:30:00+00:00",
    "silenced": False,
    "summary": "gpu2 does not answer.",
    "description": "",
    "runbook": "https://example.com/alerts.md#hostsilent",
    "labels": {"instance": "gpu2", "job": "fleet-node"},
}


def wave(low: float, high: float, phase: float = 0.0, gap: range = range(0)) -> list[list[float]]:
    """A day of values between two."""
    middle, height = (low + high) / 2, (high - low) / 2
    return [
        [START + place * STEP, round(middle + height * math.sin(phase + place / 19), 4)]
        for place in range(120)
        if place not in gap
    ]


def answer(**changes: Any) -> dict[str, Any]:
    """What module monitoring_info returns of a fleet with a load, and a host that was silent for two hours."""
    series: dict[str, dict[str, Any]] = {
        "Instances in service": {
            "in service": [[at, 14.0 if 40 <= place < 50 else 16.0] for place, (at, _x) in enumerate(wave(0, 1))],
            "registered": [[at, 16.0] for at, _x in wave(0, 1)],
        },
        "Requests": {"gw1": wave(2, 40), "gw2": wave(1, 35, 0.2, range(60, 66))},
        "Answers by status": {"2xx": wave(3, 74), "4xx": wave(0, 3, 1), "5xx": [[END, 14.0]]},
        "Time to first token": {"p50": wave(0.08, 0.3), "p95": wave(0.4, 2.2, 0.1)},
        "Requests in the queue": {"gw1": wave(0, 3.2), "gw2": wave(0, 2)},
        "Requests in flight": {"gateways": wave(12, 900)},
        "Output tokens": {},
        "Open faults": {name: wave(0, high) for name, high in (("critical", 1), ("info", 3), ("warning", 2))},
        "Hosts without current data": {
            "silent": [[at, float(40 <= place < 50)] for place, (at, _x) in enumerate(wave(0, 1))],
            "never examined": [[at, 0.0] for at, _x in wave(0, 1)],
        },
        "GPU utilisation by host": {f"gpu{place}": wave(0.2, 0.97, place / 5) for place in range(1, 11)},
        "GPU memory by host": {
            f"gpu{place}": [[at, 0.5 + place / 30] for at, _x in wave(0, 1)] for place in range(1, 5)
        },
        "Highest GPU temperature by host": {f"gpu{place}": wave(35, 78, place / 3) for place in range(1, 5)},
    }
    found = {
        "healthy": True,
        "error": "",
        "version": "2.42.0+ds",
        "targets": {
            "fleet-gateway": {"up": 2, "down": 0, "unknown": 0, "silent": []},
            "fleet-node": {"up": 11, "down": 1, "unknown": 1, "silent": [{"instance": "gpu2", "error": "no route"}]},
        },
        "alerts": [ALERT],
        "alertmanager": {"healthy": True, "error": "", "version": "0.25.0"},
        "series": {
            name: [{"legend": legend, "labels": {}, "points": points} for legend, points in lines.items()]
            for name, lines in series.items()
        },
        "problems": [],
        "start": START,
        "end": END,
        "step": STEP,
    }
    return {**found, **changes}


def status(result: dict[str, Any]) -> dict[str, Any]:
    """The status of a fleet with monitoring."""
    found = test_status.status({"gpu1": look(), "gpu2": UNREACHABLE}, {"gw1": gateway("gpu1")})
    return {**found, "monitoring": monitoring_status("mon1", result, MAIN, NOW)}


def lines(result: dict[str, Any]) -> list[str]:
    text = render(status(result))
    return text[text.index("\nmonitoring ") + 1 :].splitlines()


def test_sample_is_of_the_main_series() -> None:
    assert list(answer()["series"]) == [panel["title"] for panel in MAIN]


# --- data and text ----------------------------------------------------------------------------------------------------


def test_data() -> None:
    found = status(answer())["monitoring"]
    assert json.loads(json.dumps(found)) == found
    assert (found["host"], found["state"], found["message"]) == ("mon1", "ok", "")
    assert found["alerts"] == [{**ALERT, "seconds": 600}]
    requests = next(one for one in found["history"] if one["title"] == "Requests")
    assert requests["unit"] == "requests/s"
    assert [len(line["points"]) for line in requests["series"]] == [120, 114]
    hosts = next(one for one in found["history"] if one["title"] == "GPU utilisation by host")
    assert [line["legend"] for line in hosts["series"]] == [f"gpu{place}" for place in range(1, 11)]


def test_text_when_all_is_well() -> None:
    assert lines(answer(alerts=[])) == [
        "monitoring mon1: ok, Prometheus 2.42.0+ds, 13 of 15 targets up, 0 alerts firing"
    ]


def test_text_has_the_firing_alerts() -> None:
    alerts = [
        ALERT,
        {**ALERT, "since": "2026-11-22T22:39:00+00:00"},
        {**ALERT, "silenced": True, "name": "Xid", "summary": ""},
        {**ALERT, "severity": "", "name": "Own", "summary": "A rule of the operator."},
        {**ALERT, "state": "pending", "name": "Later"},
    ]
    assert lines(answer(alerts=alerts)) == [
        "monitoring mon1: ok, Prometheus 2.42.0+ds, 13 of 15 targets up, 4 alerts firing",
        "  - page HostSilent, 2 times, for 10 min: gpu2 does not answer.",
        "  - page Xid (silenced), for 10 min:",
        "  - Own, for 10 min: A rule of the operator.",
    ]


@pytest.mark.parametrize(
    ("result", "state", "message"),
    [
        (
            {**answer(alerts=[], series={}), "healthy": False, "version": "", "error": "Prometheus at x: refused"},
            "down",
            "Prometheus at x: refused",
        ),
        (
            answer(alerts=[], alertmanager={"healthy": False, "error": "Alertmanager at x: refused", "version": ""}),
            "degraded",
            "Alertmanager at x: refused",
        ),
        (UNREACHABLE, "unreachable", "It is unreachable: Failed to connect to the host via ssh: x"),
        (
            {"msg": "password_file /x cannot be read"},
            "unreachable",
            "Its status is unknown: password_file /x cannot be read",
        ),
    ],
)
def test_a_monitoring_that_is_down(result: dict[str, Any], state: str, message: str) -> None:
    first, second = lines(result)
    assert first.startswith(f"monitoring mon1: {state}")
    assert second == f"  - {message}"
    found = status(result)
    assert charts(found["monitoring"]) == [] or state == "degraded"
    shown = page(found, charts(found["monitoring"])).text
    assert f"Monitoring on mon1 {state}" in shown
    assert message in shown
    assert ("No alert is firing or pending." in shown) == (state == "degraded")


def test_alert_that_always_fires_is_not_shown() -> None:
    found = status(answer(alerts=[ALERT, {**ALERT, "severity": "none", "name": "Watchdog"}]))
    assert [alert["name"] for alert in found["monitoring"]["alerts"]] == [ALERT["name"]]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_page_has_alerts_and_charts() -> None:
    found = status(
        answer(alerts=[ALERT, {**ALERT, "state": "pending", "severity": "", "silenced": True, "runbook": "x"}])
    )
    shown = page(found, charts(found["monitoring"]))
    for words in (
        "Firing alerts 1 1 page",
        "Monitoring on mon1 ok 13 of 15 targets up",
        "page HostSilent firing 10 min instance gpu2 gpu2 does not answer.",
        "- HostSilent pending, silenced 10 min",
        "fleet-node of gpu2: no route",
        "Last 24 hours A value each 12 min. Shorter peaks may be missing. No data: Output tokens.",
        "gw2 21, peak 35 requests/s",
        "p50 188, peak 300 ms p95 1.37, peak 2.2 s",
    ):
        assert words in shown.text
    assert [value for name, value in shown.attributes if name == "href"] == [ALERT["runbook"]]
    ids = [value for name, value in shown.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert shown.tags.count("figure") == len(MAIN) - 1


def test_a_series_that_ended_has_no_last_value() -> None:
    found = status(answer())
    for panel in found["monitoring"]["history"]:
        for one in panel["series"]:
            one["points"] = one["points"][:100]
    assert {line["last"] for chart in charts(found["monitoring"]) for line in chart["lines"]} == {
        "no data",
        "14",
    }


def test_without_monitoring_nothing_changes() -> None:
    found = test_status.status({"gpu1": look()})
    assert "monitoring" not in render(found)
    assert not {"Alerts", "figure"} & {*page(found).words, *page(found).tags}


def test_page_escapes_alerts_and_legends() -> None:
    evil = "<script>x"
    alert = {**ALERT, **dict.fromkeys(("name", "severity", "summary", "state"), evil), "labels": {evil: evil}}
    targets = {evil: {"up": 0, "down": 1, "unknown": 0, "silent": [{"instance": evil, "error": evil}]}}
    series = {"Requests": [{"legend": evil, "labels": {}, "points": [[END, 1.0]]}]}
    result = answer(
        alerts=[alert, {**alert, "runbook": 'https://x/"><script>'}], targets=targets, series=series, problems=[evil]
    )
    found = test_status.status({"gpu1": look()})
    found["monitoring"] = monitoring_status(evil, result, MAIN, NOW)
    shown = page(found, charts(found["monitoring"]))
    assert shown.tags.count("script") == 1, "our own"
    assert not [name for name, _value in shown.attributes if name.startswith("on")]
    text = html(found, charts(found["monitoring"]))
    assert "<script>x" not in text
