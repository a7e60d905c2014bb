"""Role monitoring: the dashboards in a Grafana, by a stub of its HTTP API."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

TOKEN = "glsa_canary4711"
FILES = sorted((ROOT / "roles/monitoring/files/dashboards").glob("*.json"))


class Grafana(http.server.ThreadingHTTPServer):
    """Keeps dashboards as Grafana does: it sets id and version, and answers with its metadata."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.dashboards: dict[str, dict[str, Any]] = {}
        self.posted: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Grafana

    def do_GET(self) -> None:
        known = self.server.dashboards.get(self.path.removeprefix("/api/dashboards/uid/"))
        if known:
            self._reply(200, {"meta": {"slug": "x", "version": known["version"]}, "dashboard": known})
        else:
            self._reply(404, {"message": "Dashboard not found", "traceID": ""})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/api/dashboards/db"
        self.server.posted.append(body)
        given = body["dashboard"]
        version = self.server.dashboards.get(given["uid"], {"version": 0})["version"] + 1
        self.server.dashboards[given["uid"]] = {**given, "id": len(self.server.dashboards) + 1, "version": version}
        self._reply(200, {"status": "success", "uid": given["uid"], "version": version})

    def _reply(self, status: int, body: Any) -> None:
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, body = 401, {"message": "Invalid API key"}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def grafana() -> Iterator[Grafana]:
    with Grafana() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def uploaded(folder: Path, grafana: Grafana, *options: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """Run the entry point for two hosts that do not exist, because it runs on the control node."""
    tasks = [{"import_role": {"name": "trtllm.fleet.monitoring", "tasks_from": "grafana"}}]
    (folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    variables = {"monitoring_grafana_url": grafana.url, "monitoring_grafana_token": token}
    hosts = {name: {"ansible_host": "192.0.2.1"} for name in ("mon1", "mon2")}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
    return subprocess.run(
        ["ansible-playbook", "-i", folder / "hosts.json", folder / "play.json", "-vvv", *options],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_PYTHON_INTERPRETER": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_dashboards_are_uploaded_once_and_after_a_change(tmp_path: Path, grafana: Grafana) -> None:
    checked = uploaded(tmp_path, grafana, "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert grafana.posted == []

    first = uploaded(tmp_path, grafana)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "changed=1" in first.stdout
    given = {path.stem: json.loads(path.read_text()) for path in FILES}
    assert [body["dashboard"] for body in grafana.posted] == [
        given[name] for name in ("fleet", "host", "engine", "gateway")
    ]
    assert all(body["overwrite"] is True for body in grafana.posted)
    assert TOKEN not in first.stdout + first.stderr

    second = uploaded(tmp_path, grafana)
    assert "changed=0" in second.stdout, second.stdout
    assert len(grafana.posted) == 4

    grafana.dashboards["trtllm-fleet"]["title"] = "changed by hand"
    uploaded(tmp_path, grafana)
    assert [body["dashboard"]["uid"] for body in grafana.posted[4:]] == ["trtllm-fleet"]
    assert grafana.dashboards["trtllm-fleet"]["title"] == "trtllm.fleet: Fleet"
    assert grafana.dashboards["trtllm-fleet"]["version"] == 2


def test_a_wrong_token_or_url_has_a_message(tmp_path: Path, grafana: Grafana) -> None:
    wrong = uploaded(tmp_path, grafana, token="glsa_wrong")
    assert wrong.returncode == 2
    assert f"Grafana at {grafana.url}: Status code was 401 and not [200, 404]" in wrong.stdout
    assert "Set monitoring_grafana_url to its URL, and monitoring_grafana_token to the token" in wrong.stdout
    assert "glsa_wrong" not in wrong.stdout + wrong.stderr
    assert grafana.posted == []
    grafana.server_close()
    silent = uploaded(tmp_path, grafana)
    assert silent.returncode == 2
    assert "Connection refused" in silent.stdout
