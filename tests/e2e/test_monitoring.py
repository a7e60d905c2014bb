# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prometheus and Alertmanager of a fleet: targets, alerts, and what happens without them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.description import dashboards, queries
from ansible_collections.trtllm.fleet.tests.e2e.conftest import Run, docker, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import changed, said
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import Fleet
from ansible_collections.trtllm.fleet.tests.e2e.test_doctor import XID, gpu, kernel

FLEET = Fleet("watch-", gpus=2, gateways=2)
PASSWORD = "canary-of-monitoring-7c1e"
# In the journal of a host, and in the command lines and environments of its processes.
LEAKS = (
    f"journalctl --no-pager | grep -c {PASSWORD};"
    f" cat /proc/[1-9]*/cmdline /proc/[1-9]*/environ | tr '\\0' '\\n' | grep -ac ^{PASSWORD}"
)
MEMORY = f"{gpu(gpu_recovery_action='Reset')}; {kernel(XID + '95, pid=7062, Uncontained: LTC TAG. RST: Yes')}"
EXPORTER = "nvidia/k8s/dcgm-exporter"
EXPORTER_TAG = "4.5.3-4.8.2-distroless"
# Series that a fleet with one fault has not: Dynamo, DCGM, errors, repairs, burn-ins and drains, and those of a newer
# engine than the lab's default, which counts no chat.
ABSENT = (
    "dynamo_|DCGM_|error|fleet_remedy|fleet_acceptance|row_remap|weight.* == 0"
    "|tokens_total|num_requests_|kv_cache_|time_per_output_token"
)
SECURED = {8408: "/metrics", 8405: "/metrics", 9090: "/api/v1/targets", 9093: "/api/v2/alerts"}


class Receiver(ThreadingHTTPServer):
    """A webhook of Alertmanager."""

    def __init__(self) -> None:
        super().__init__(("0.0.0.0", 0), Handler)
        self.alerts: list[dict[str, Any]] = []

    def url(self, fleet: Fleet, host: str) -> str:
        """Return the URL by which a host of the lab reaches this machine."""
        address = fleet.shell(host, "ip route show default").split()[2]
        return f"http://{address}:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    """Keeps the alerts of each message."""

    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.alerts += json.loads(body)["alerts"]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


class Monitored:
    """The fleet with a host of Prometheus, the last gateway; the first has rules for an existing one."""

    def __init__(self, inventory: Path, certificates: Path, receiver: Receiver) -> None:
        self.inventory = inventory
        self.certificates = certificates
        self.receiver = receiver
        self.existing, self.host = FLEET.gateway_names

    def play(self, name: str, *arguments: str, **variables: Any) -> Run:
        return FLEET.play(name, "-i", str(self.inventory), *arguments, **variables)

    def get(self, port: int, path: str, host: str = "", password: str | None = PASSWORD, **query: str) -> Any:
        return requests.get(
            f"https://{FLEET.address(host or self.host)}:{port}{path}",
            params=query,
            auth=("prometheus", password) if password else None,
            verify=str(self.certificates),
            timeout=20,
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = self.get(9090, "/api/v1/query", query=expression).json()
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def targets(self) -> dict[tuple[str, str], str]:
        """Return the health of each target by job and host."""
        active = self.get(9090, "/api/v1/targets").json()["data"]["activeTargets"]
        return {(one["labels"]["job"], one["labels"]["instance"]): one["health"] for one in active}


def digest_of(repository: str, tag: str) -> str:
    """Return the digest of an image in the lab's registry."""
    accept = "Accept: application/vnd.docker.distribution.manifest.v2+json"
    url = f"http://127.0.0.1:5000/v2/{repository}/manifests/{tag}"
    answer = docker("exec", "trtllm-lab-origin", "curl", "--silent", "--fail", "--head", "--header", accept, url)
    found = re.search(r"^docker-content-digest: (\S+)", answer, re.IGNORECASE | re.MULTILINE)
    assert found, answer
    return found[1]


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    folder = tmp_path_factory.mktemp("monitoring")
    receiver = Receiver()
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    existing, own = FLEET.gateway_names
    # This pushes the image.
    FLEET.up()
    hosts: dict[str, Any] = {existing: {"monitoring_prometheus": "existing"}, own: {}}
    variables = {
        "monitoring_password": PASSWORD,
        "monitoring_receivers": [{"name": "team", "webhook_configs": [{"url": receiver.url(FLEET, own)}]}],
        "monitoring_route": {"group_wait": "1s"},
        "monitoring_dcgm_enabled": True,
        "monitoring_dcgm_image": f"registry.origin.test/{EXPORTER}:{EXPORTER_TAG}@{digest_of(EXPORTER, EXPORTER_TAG)}",
        "serving_recipe_engine_options": {"return_perf_metrics": True},
    }
    inventory = folder / "monitoring.yml"
    inventory.write_text(yaml.safe_dump({"monitoring": {"hosts": hosts}, "all": {"vars": variables}}))
    fleet = Monitored(inventory, folder / "ca.crt", receiver)
    run = fleet.play("site")
    assert run.status == 0, run.output
    fleet.certificates.write_text(FLEET.shell(fleet.host, "cat /etc/trtllm-fleet/monitoring/ca.crt") + "\n")
    yield fleet
    FLEET.down()


def test_every_part_of_the_fleet_is_a_target_that_answers(monitored: Monitored) -> None:
    jobs = {"fleet-node": [*FLEET.gpu_names, *FLEET.gateway_names], "fleet-gateway": FLEET.gateway_names}
    jobs["fleet-engine"] = jobs["fleet-dcgm"] = FLEET.gpu_names
    jobs["fleet-prometheus"] = jobs["fleet-alertmanager"] = [monitored.host]
    expected = {(job, host): "up" for job, hosts in jobs.items() for host in hosts}
    assert wait_for(lambda: monitored.targets() == expected, 45), monitored.targets()
    assert len(monitored.query("fleet_gpu_present == 8")) == len(FLEET.gpu_names)
    assert len(monitored.query('haproxy_server_status{proxy=~"model:.+", state="UP"} == 1')) == 4


def test_nothing_answers_without_the_password(monitored: Monitored) -> None:
    for port, path in SECURED.items():
        assert monitored.get(port, path).status_code == 200, port
        assert monitored.get(port, path, password=None).status_code == 401, port
        assert monitored.get(port, path, password="other").status_code == 401, port


def test_dcgm_has_metrics_of_each_gpu(monitored: Monitored) -> None:
    number = 8 * len(FLEET.gpu_names)
    fields = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL")

    def found() -> list[int]:
        return [len(monitored.query(field)) for field in fields]

    assert wait_for(lambda: found() == [number] * len(fields), 60), found()
    labels = monitored.query("DCGM_FI_DEV_POWER_USAGE")[0]["metric"]
    assert {"instance", "gpu", "UUID", "DCGM_FI_DRIVER_VERSION"} <= set(labels)
    assert "Hostname" not in labels


def test_dcgm_runs_by_digest_with_one_capability_behind_the_password(monitored: Monitored) -> None:
    host = FLEET.gpu_names[0]
    (shown,) = json.loads(FLEET.shell(host, "docker inspect trtllm-dcgm-exporter"))
    assert shown["Config"]["Image"] == f"registry.origin.test/{EXPORTER}@{digest_of(EXPORTER, EXPORTER_TAG)}"
    assert [name.removeprefix("CAP_") for name in shown["HostConfig"]["CapAdd"]] == ["SYS_ADMIN"]
    assert shown["HostConfig"]["ReadonlyRootfs"] is True
    assert monitored.get(9400, "/metrics", host=host).status_code == 200
    assert monitored.get(9400, "/metrics", host=host, password=None).status_code == 401
    assert monitored.get(9400, "/metrics", host=host, password="other").status_code == 401


def test_the_password_is_in_no_log_and_no_process(monitored: Monitored) -> None:
    for host in [*FLEET.gpu_names, *FLEET.gateway_names]:
        assert FLEET.shell(host, LEAKS, check=False).split() == ["0", "0"], host


def test_a_second_run_changes_nothing(monitored: Monitored) -> None:
    run = monitored.play("monitoring")
    assert run.status == 0, run.output
    assert set(changed(run).values()) == {0}, run.output
    run = monitored.play("site")
    assert run.status == 0, run.output
    assert "Generate a self-signed certificate" not in run.output
    assert "Check Alertmanager's configuration" not in run.output


def test_an_existing_prometheus_gets_rules_jobs_and_targets(monitored: Monitored) -> None:
    folder = "/etc/prometheus/trtllm-fleet"
    written = FLEET.shell(monitored.existing, f"ls -1 {folder} {folder}/targets").split()
    assert {"rules.yml", "scrape_configs.yml", "node.json"} <= set(written)
    assert FLEET.shell(monitored.existing, "ls /etc/systemd/system | grep -x 'trtllm-prometheus.*'", check=False) == ""
    # The other host has the programs.
    packed = FLEET.shell(monitored.existing, f"tar -C / -c {folder} | base64 -w0")
    FLEET.shell(monitored.host, f"echo {packed} | base64 -d | tar -C / -x")
    jobs = yaml.safe_load(FLEET.shell(monitored.existing, f"cat {folder}/scrape_configs.yml"))["scrape_configs"]
    config = yaml.safe_dump({"rule_files": [f"{folder}/rules.yml"], "scrape_configs": jobs})
    FLEET.shell(monitored.host, f"cat > /tmp/prometheus.yml <<'END'\n{config}END\n")
    start = "timeout 5 prometheus --config.file=/tmp/prometheus.yml --storage.tsdb.path=/tmp/tsdb"
    log = FLEET.shell(monitored.host, f"{start} --web.listen-address=127.0.0.1:19090 2>&1", check=False)
    assert "Completed loading of configuration file" in log


def test_a_run_with_limit_keeps_the_targets_of_other_hosts(monitored: Monitored) -> None:
    before = FLEET.shell(monitored.host, "cat /etc/trtllm-fleet/monitoring/hosts.json")
    run = monitored.play("monitoring", "--limit", f"{FLEET.gpu_names[0]},{monitored.host}")
    assert run.status == 0, run.output
    assert FLEET.shell(monitored.host, "cat /etc/trtllm-fleet/monitoring/hosts.json") == before
    run = monitored.play("monitoring", "--limit", FLEET.gpu_names[0])
    assert run.status == 0, run.output
    assert "no target changes there" in said(run)


def test_a_fault_reaches_the_receiver_with_its_runbook(monitored: Monitored) -> None:
    host = FLEET.gpu_names[0]
    FLEET.shell(host, MEMORY)

    def found() -> list[dict[str, Any]]:
        return [one for one in monitored.receiver.alerts if one["labels"].get("check") == "gpu_memory_uncontained"]

    assert wait_for(found, 240), monitored.receiver.alerts
    alert = found()[0]
    assert alert["labels"]["instance"] == host
    assert alert["labels"]["severity"] == "page"
    assert "reference/alerts.md#" in alert["annotations"]["runbook_url"]


def test_prometheus_answers_every_query_of_the_dashboards(monitored: Monitored) -> None:
    with FLEET.load(2.0) as clients:
        clients.wait(60)
    empty = [query for query in queries(dashboards()) if not monitored.query(query.expr)]
    assert [query for query in empty if not re.search(ABSENT, query.expr)] == []


def test_a_silent_host_is_an_alert(monitored: Monitored) -> None:
    host = FLEET.gpu_names[1]
    FLEET.shell(host, "systemctl stop trtllm-node-exporter")
    pending = f'ALERTS{{alertname="TrtllmFleetHostSilent", instance="{host}"}}'
    assert wait_for(lambda: monitored.query(pending), 60)
    FLEET.shell(host, "systemctl start trtllm-node-exporter")
    assert wait_for(lambda: not monitored.query(pending), 60)


def test_the_fleet_serves_without_its_monitoring_and_says_so(monitored: Monitored) -> None:
    FLEET.shell(monitored.host, "systemctl stop trtllm-prometheus trtllm-alertmanager")
    with FLEET.load(2.0) as clients:
        clients.wait(5)
        assert clients.errors(0) == {}
    run = monitored.play("status")
    assert f"monitoring {monitored.host}: down" in run.output, run.output
    FLEET.shell(monitored.host, "systemctl start trtllm-prometheus trtllm-alertmanager")


def test_a_wrong_route_leaves_the_running_alertmanager(monitored: Monitored) -> None:
    run = monitored.play("monitoring", "--limit", monitored.host, monitoring_route={"receiver": "nowhere"})
    assert run.status != 0
    assert "nowhere" in run.output
    assert FLEET.shell(monitored.host, "systemctl is-active trtllm-alertmanager") == "active"
    assert monitored.play("monitoring", "--limit", monitored.host).status == 0


def test_dcgm_starts_again_with_docker(monitored: Monitored) -> None:
    host = FLEET.gpu_names[0]
    FLEET.shell(host, "systemctl restart docker")
    assert wait_for(lambda: monitored.get(9400, "/metrics", host=host).status_code == 200, 90)
    # The next run needs the engine, too.
    assert wait_for(lambda: monitored.targets()["fleet-engine", host] == "up", 120)


def test_a_disabled_dcgm_exporter_is_removed(monitored: Monitored) -> None:
    host, other = FLEET.gpu_names
    run = monitored.play("monitoring", "--limit", f"{host},{monitored.host}", monitoring_dcgm_enabled=False)
    assert run.status == 0, run.output
    assert FLEET.shell(host, "docker ps --quiet --filter name=dcgm") == ""
    # The unit that pulled the image stays with it.
    units = FLEET.shell(host, "ls /etc/systemd/system").split()
    assert [unit for unit in units if "dcgm" in unit] == ["trtllm-image-dcgm-exporter.service"]
    assert wait_for(lambda: ("fleet-dcgm", host) not in monitored.targets(), 60), monitored.targets()
    assert monitored.targets()["fleet-dcgm", other] == "up"


def test_decommission_leaves_nothing_on_a_host(monitored: Monitored) -> None:
    host = FLEET.gpu_names[1]
    run = monitored.play("decommission", "--limit", host, rollout_min_capacity=0)
    assert run.status == 0, run.output
    left = "/etc/trtllm-fleet /etc/systemd/system/*exporter* /usr/bin/prometheus* /var/lib/trtllm*"
    assert FLEET.shell(host, f"ls -d {left} 2> /dev/null", check=False) == ""
