"""monitoring_info against a scripted server with answers of a real Prometheus and Alertmanager."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.monitoring import ALERTS, POINTS, SERIES, time_range
from ansible_collections.trtllm.fleet.plugins.modules import monitoring_info
from ansible_collections.trtllm.fleet.tests.unit.fake_openai import Answer, FakeOpenAI, drip, hang, raw, reply
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from ansible_collections.trtllm.fleet.tests.unit.paths import FIXTURES

Run = Callable[..., "dict[str, Any]"]
RANGE, ALERT_LIST = "/api/v1/query_range", "/api/v1/alerts"
REQUESTS = {"name": "Requests", "expr": "sum by (code) (rate(x[$__rate_interval]))", "legend": "code {code} {none}"}


def recorded(name: str) -> Any:
    return json.loads((FIXTURES / f"monitoring/{name}.json").read_text())


def script(**changes: Answer) -> dict[str, list[Answer]]:
    """The answers of a Prometheus and an Alertmanager, with other ones by the last part of their path."""
    paths = {
        "/api/v1/status/buildinfo": "buildinfo",
        "/api/v1/targets": "targets",
        ALERT_LIST: "alerts",
        RANGE: "query_range",
        "/api/v2/status": "alertmanager_status",
        "/api/v2/alerts": "alertmanager_alerts",
    }
    answers = {path: [reply(200, recorded(name))] for path, name in paths.items()}
    return {**answers, **{path: [changes[name]] for path, name in paths.items() if name in changes}}


def matrix(*series: Any, **more: Any) -> Answer:
    return reply(200, {"status": "success", "data": {"resultType": "matrix", "result": list(series)}, **more})


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the module with a password file on a fake server, as both Prometheus and Alertmanager."""
    (tmp_path / "password").write_text("pa ss:wörd\n")

    def run(fake: FakeOpenAI, **options: Any) -> dict[str, Any]:
        files = {"password_file": str(tmp_path / "password")}
        return run_module(monitoring_info, capsys, {"url": fake.url, "alertmanager_url": fake.url, **files, **options})

    return run


# --- answers ----------------------------------------------------------------------------------------------------------


def test_state_targets_alerts_and_series(run: Run) -> None:
    with FakeOpenAI(script()) as fake:
        found = run(fake, queries=[REQUESTS])
    assert (found["healthy"], found["error"], found["version"]) == (True, "", "2.42.0+ds")
    assert found["alertmanager"] == {"healthy": True, "error": "", "version": "0.25.0"}
    assert found["changed"] is False
    refused = 'Get "http://127.0.0.1:1/metrics": dial tcp 127.0.0.1:1: connect: connection refused'
    well = {"up": 1, "down": 0, "unknown": 0, "silent": []}
    assert found["targets"] == {
        "fleet-dynamo": well,
        "fleet-engine": well,
        "fleet-gateway": well,
        "fleet-node": {**well, "down": 1, "silent": [{"instance": "gpu2", "error": refused}]},
    }
    silent, unfit = found["alerts"]
    assert silent == {
        "name": "HostSilent",
        "state": "firing",
        "severity": "page",
        "since": "2026-11-27T09:24:26+00:00",
        "silenced": True,
        "summary": "gpu2 does not answer.",
        "description": "",
        "runbook": "",
        "labels": {"group": "gpu_hosts", "instance": "gpu2", "job": "fleet-node"},
    }
    assert (unfit["name"], unfit["state"], unfit["silenced"]) == ("OutOfService", "pending", False)
    lines = found["series"]["Requests"]
    assert [line["legend"] for line in lines] == [
        f"code {name}" for name in ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
    ]
    assert lines[1]["labels"] == {"code": "2xx"}
    assert lines[1]["points"][:2] == [[1795771471, 0.0], [1795771486, 0.558643]]
    assert found["problems"] == []


def test_what_is_sent(run: Run) -> None:
    with FakeOpenAI(script()) as fake:
        found = run(fake, queries=[REQUESTS])
    token = base64.b64encode("prometheus:pa ss:wörd".encode()).decode()
    assert {request.headers["Authorization"] for request in fake.requests} == {f"Basic {token}"}
    assert {request.method for request in fake.requests} == {"GET"}
    query = parse_qs(urlsplit(fake.paths()[-1]).query)
    assert query["query"] == ["sum by (code) (rate(x[720s]))"]
    assert [int(query[key][0]) for key in ("start", "end", "step")] == [found[key] for key in ("start", "end", "step")]


@pytest.mark.parametrize(
    ("state", "labels", "silenced"),
    [
        ("suppressed", {}, True),
        ("suppressed", {"fleet": "an external label"}, True),
        ("suppressed", {"instance": "gpu3"}, False),
        ("active", {}, False),
    ],
)
def test_silenced_alerts(run: Run, state: str, labels: dict[str, str], silenced: bool) -> None:
    (alert,) = recorded("alertmanager_alerts")
    alert["status"]["state"] = state
    alert["labels"].update(labels)
    with FakeOpenAI(script(alertmanager_alerts=reply(200, [alert]))) as fake:
        found = run(fake)
    assert [one["silenced"] for one in found["alerts"]] == [silenced, False]


def test_without_password_and_alertmanager(run: Run) -> None:
    with FakeOpenAI(script()) as fake:
        found = run(fake, password_file=None, alertmanager_url="")
    assert found["alertmanager"] is None
    assert [alert["silenced"] for alert in found["alerts"]] == [False, False]
    assert all("Authorization" not in request.headers for request in fake.requests)


@pytest.mark.parametrize(
    ("hours", "step", "seconds", "points"), [(24, 0, 720, 120), (1, 0, 30, 120), (1, 60, 60, 60), (24, 60, 720, 120)]
)
def test_time_range(hours: int, step: int, seconds: int, points: int) -> None:
    times = time_range(hours, step, 1795770000.9)
    assert times["end"] == 1795770000
    assert times["step"] == seconds
    assert (times["end"] - times["start"]) / seconds + 1 == points <= POINTS


def test_values_that_json_lacks_are_gaps(run: Run) -> None:
    values = [[10, "1"], [20, "NaN"], [30, "+Inf"], [40, "-Inf"], [50.123, "2.00000001"]]
    answer = matrix({"metric": {}, "values": values}, {"metric": {"a": "b"}, "values": [[10, "NaN"]]})
    with FakeOpenAI(script(query_range=answer)) as fake:
        found = run(fake, queries=[REQUESTS])
    assert found["series"]["Requests"] == [{"legend": "code", "labels": {}, "points": [[10, 1.0], [50, 2.0]]}]


def test_queries_of_one_name_are_together(run: Run) -> None:
    with FakeOpenAI(script()) as fake:
        found = run(fake, queries=[REQUESTS, {**REQUESTS, "name": "Other"}, {**REQUESTS, "legend": "again"}])
    assert {name: len(lines) for name, lines in found["series"].items()} == {"Requests": 12, "Other": 6}


def test_a_large_answer_is_limited(run: Run) -> None:
    series = [{"metric": {"code": str(number)}, "values": [[10, "0"], [20, str(number % 20)]]} for number in range(30)]
    alerts = recorded("alerts")
    alerts["data"]["alerts"] *= 60
    with FakeOpenAI(script(query_range=matrix(*series), alerts=reply(200, alerts))) as fake:
        found = run(fake, queries=[REQUESTS])
    assert [line["labels"]["code"] for line in found["series"]["Requests"]] == [str(each) for each in range(10, 20)]
    assert len(found["series"]["Requests"]) == SERIES
    assert [alert["state"] for alert in found["alerts"]] == 60 * ["firing"] + 40 * ["pending"]
    assert len(found["alerts"]) == ALERTS
    assert found["problems"] == [
        "20 of 120 alerts are left out",
        "Requests: 10 of 30 series are shown, those with the highest peak",
    ]


def test_firing_alerts_come_first_by_severity_and_age(run: Run) -> None:
    def alert(state: str, severity: str, since: str) -> dict[str, Any]:
        labels = {"alertname": f"{state} {severity} {since}", **({"severity": severity} if severity else {})}
        return {"labels": labels, "annotations": {}, "state": state, "activeAt": since}

    wanted = [
        alert("firing", "page", "1"),
        alert("firing", "page", "2"),
        alert("firing", "ticket", "1"),
        alert("firing", "", "1"),
        alert("pending", "page", "1"),
        alert("pending", "ticket", "1"),
    ]
    answer = reply(200, {"status": "success", "data": {"alerts": wanted[::-1]}})
    with FakeOpenAI(script(alerts=answer)) as fake:
        found = run(fake)
    assert [one["name"] for one in found["alerts"]] == [one["labels"]["alertname"] for one in wanted]


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        pytest.param(
            "buildinfo",
            reply(401, b"Unauthorized\n"),
            "rejects the user or the password (HTTP 401). Deploy role monitoring again.",
            id="password",
        ),
        pytest.param("buildinfo", reply(503, b"Service Unavailable"), "HTTP 503: Service Unavailable", id="starting"),
        pytest.param("buildinfo", reply(404, b"404 page not found"), "HTTP 404: 404 page not found", id="another"),
        pytest.param("targets", reply(200, b"<html>"), "not JSON: <html>", id="HTML"),
        pytest.param("targets", reply(200), "not JSON: empty body", id="empty"),
        pytest.param("targets", reply(200, [1]), "gave an answer of another form (TypeError", id="list"),
        pytest.param("targets", reply(200, {"status": "success"}), "another form (KeyError: 'data')", id="form"),
        pytest.param(
            "alerts",
            reply(200, {"status": "error", "errorType": "internal", "error": "x"}),
            "internal: x",
            id="error of status 200",
        ),
        pytest.param("alerts", raw(b"garbage\r\n\r\n"), "not an HTTP answer: BadStatusLine garbage", id="garbage"),
        pytest.param("alerts", hang, "no complete answer within 2.0 s", id="hangs"),
        pytest.param("alerts", drip(b"HTTP/1.1 200 OK\r\n" + 500 * b"x"), "no complete answer within 2.0 s", id="slow"),
    ],
)
def test_a_prometheus_that_does_not_answer_is_a_result(run: Run, path: str, answer: Answer, message: str) -> None:
    with FakeOpenAI(script(**{path: answer})) as fake:
        found = run(fake, queries=[REQUESTS], timeout=2)
    assert found["healthy"] is False
    assert found["error"].startswith(f"Prometheus at {fake.url}")
    assert message in found["error"]
    assert found["series"] == {}
    assert "failed" not in found


def test_nothing_listens(run: Run) -> None:
    with FakeOpenAI({}) as fake:
        pass
    found = run(fake, timeout=5)
    assert found["error"] == f"Prometheus at {fake.url}: connection refused"
    assert found["alertmanager"] == {
        "healthy": False,
        "error": f"Alertmanager at {fake.url}: connection refused",
        "version": "",
    }


def test_an_alertmanager_alone_may_be_down(run: Run) -> None:
    with FakeOpenAI(script(alertmanager_alerts=reply(500, b"boom"))) as fake:
        found = run(fake)
    assert found["healthy"] is True
    assert found["alertmanager"] == {
        "healthy": False,
        "error": f"Alertmanager at {fake.url}: HTTP 500: boom",
        "version": "0.25.0",
    }


def test_a_query_that_fails_leaves_the_others(run: Run) -> None:
    error = {"status": "error", "errorType": "bad_data", "error": "1:5: parse error: unclosed left parenthesis"}
    warned = matrix(warnings=["a block is missing"])
    with FakeOpenAI({**script(), RANGE: [reply(400, error), warned]}) as fake:
        found = run(fake, queries=[REQUESTS, {**REQUESTS, "name": "Other"}])
    assert found["healthy"] is True
    assert found["series"] == {"Requests": [], "Other": []}
    assert found["problems"] == [
        f"Requests: Prometheus at {fake.url}: HTTP 400: 1:5: parse error: unclosed left parenthesis",
        "Other: a block is missing",
    ]


def test_slow_queries_end_at_the_deadline(run: Run) -> None:
    with FakeOpenAI(script(query_range=hang)) as fake:
        found = run(fake, queries=[REQUESTS] * 3, timeout=2)
    assert found["healthy"] is True
    assert found["problems"] == [f"Requests: Prometheus at {fake.url}: no complete answer within 2.0 s"]


# --- TLS and options --------------------------------------------------------------------------------------------------


def test_the_certificate_is_of_another_name(run: Run, tmp_path: Path) -> None:
    """Prometheus' certificate is for the host's address in the fleet, not for loopback."""
    cert, key, both = (tmp_path / name for name in ("ca.crt", "key.pem", "both.pem"))
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=mon1 "
        f"-addext subjectAltName=DNS:mon1 -keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    both.write_text(cert.read_text() + key.read_text())
    with FakeOpenAI(script(), cert_file=str(both)) as fake:
        assert run(fake, ca_file=str(cert), server_name="mon1")["healthy"] is True
        wrong = run(fake, ca_file=str(cert))
        unknown = run(fake, server_name="mon1")
    assert "its TLS certificate is not trusted" in wrong["error"]
    assert "not valid for '127.0.0.1'" in wrong["error"]
    assert "self" in unknown["error"]
    assert "signed certificate" in unknown["error"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "127.0.0.1:9090"}, "url is '127.0.0.1:9090'"),
        ({"alertmanager_url": "https://x/?y"}, "alertmanager_url is 'https://x/?y'"),
        ({"url": "https://127.0.0.1:1", "ca_file": "/none"}, "ca_file is /none, which cannot be used"),
        ({"password_file": "/none"}, "password_file /none cannot be read: [Errno 2] No such file or directory"),
        ({"hours": 0}, "hours is 0; it must be 1 or more. Set hours to 1."),
    ],
)
def test_wrong_options_fail(run: Run, options: dict[str, Any], message: str) -> None:
    with FakeOpenAI(script()) as fake:
        found = run(fake, **options)
    assert found["failed"] is True
    assert message in found["msg"]


def test_no_secret_is_in_the_result(run: Run) -> None:
    with FakeOpenAI(script(buildinfo=reply(500, "no pa ss:wörd here".encode()))) as fake:
        found = run(fake)
    assert "wörd" not in json.dumps(found, ensure_ascii=False)
    assert "no ******** here" in found["error"]
