"""benchmark: load hosts, and the gateway that playbook benchmark measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook
from ansible_collections.trtllm.fleet.tests.unit.roles.test_rollout_role import collection

LOOPBACK, OTHER = "http://127.0.0.1:8000", "http://192.0.2.21:8000"


@pytest.mark.parametrize(
    ("kind", "url", "load_host", "rejected"),
    [
        # The addresses of an endpoint are those from the load host.
        ("endpoint", LOOPBACK, "gpu2", False),
        (None, LOOPBACK, "gpu2", False),
        ("endpoint", LOOPBACK, "localhost", False),
        ("instance", LOOPBACK, "gpu1", False),
        ("instance", LOOPBACK, "gpu2", True),
        ("host", LOOPBACK, "localhost", True),
        ("host", OTHER, "gpu2", False),
    ],
)
def test_only_a_gpu_host_reaches_its_loopback(
    tmp_path: Path, kind: str | None, url: str, load_host: str, rejected: bool
) -> None:
    endpoint = {"name": "measured", "base_urls": [url], "tokenizer_host": "gpu1", **({"kind": kind} if kind else {})}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"gpu2": {}}}}))
    task = {"include_role": {"name": "trtllm.fleet.benchmark", "tasks_from": "validate"}}
    (tmp_path / "play.json").write_text(json.dumps([{"hosts": "gpu1", "gather_facts": False, "tasks": [task]}]))
    options = f"--inventory={tmp_path}/hosts.json"
    given: dict[str, Any] = {"benchmark_endpoint": endpoint, "benchmark_load_host": load_host}
    given["benchmark_python"] = sys.executable
    done = run_playbook(tmp_path, tmp_path / "play.json", "gpu1", options, **given)
    assert (done.returncode == 2) is rejected, done.stdout
    assert (f"listens only on {LOOPBACK}, which {load_host} cannot reach" in " ".join(done.stdout.split())) is rejected


INSTANCE = {"name": "serve-0", "gpus": [0], "port": 8000, "base_url": LOOPBACK}
FACTS = {"default_ipv4": {"address": "192.0.2.1"}}
IN_SERVICE = {"model": "m", "up": True, "drained": False}


def measure(folder: Path, **gateways: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Measure the first of these gateways, whose certificates are in the folder. The load fails."""
    served = {"name": "a-recipe", "model": "m", "served_model": "m", "instances": [INSTANCE], "weights": str(folder)}
    fakes: dict[str, dict[str, Any]] = {
        "host_release_info": {"verified": "release-1", "description": served, "units": []},
        "gpu_info": {"count": 1, "gpus": []},
        "gateway_info": {"running": True, "hosts": {"gpu1": {"serve-0": IN_SERVICE}}},
        "python_program": {"changed": False},
        "benchmark_load": {"failed": True, "msg": "No load was run"},
    }
    collection(folder, fakes)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    groups = {"gpu_hosts": {"hosts": {"gpu1": {}}}, "gateway": {"hosts": gateways}}
    (folder / "hosts.json").write_text(json.dumps({"all": {"children": groups}}))
    given: dict[str, Any] = {
        "ansible_become": False,
        "ansible_facts": FACTS,
        "benchmark_target": "gateway",
        "benchmark_python": sys.executable,
        "benchmark_results_dir": str(folder / "results"),
        "benchmark_report": False,
        "__benchmark_tokenizers": str(folder / "tokenizers"),
        "__gateway_root": str(folder),
    }
    options = f"--inventory={folder}/hosts.json"
    return run_playbook(folder, ROOT / "playbooks/benchmark.yml", "gpu1", options, collections=folder, **given)


@pytest.mark.parametrize(
    ("gateway", "address"),
    [
        ({"ansible_host": "gateway.example.com"}, "192.0.2.1:443"),
        ({"ansible_host": "203.0.113.7", "gateway_port": 8443}, "192.0.2.1:8443"),
        ({"gateway_name": "llm.example.com"}, "llm.example.com:443"),
    ],
    ids=["name of SSH", "public address", "gateway_name"],
)
def test_a_gateway_is_measured_by_its_name(tmp_path: Path, gateway: dict[str, Any], address: str) -> None:
    (tmp_path / f"{address.partition(':')[0]}.crt").write_text("certificate\n")
    done = measure(tmp_path, gateway1=gateway)
    assert "No load was run" in done.stdout, done.stdout
    (result,) = (tmp_path / "results").glob("*/result.json")
    assert json.loads(result.read_text())["target"]["base_urls"] == [f"https://{address}"]


SHARED = {"gateway_name": "192.0.2.100"}
SILENT = {"ansible_connection": "ssh", "ansible_port": 1, "ansible_host": "127.0.0.1", "ansible_ssh_retries": 0}


@pytest.mark.parametrize(
    ("first", "second", "copies"),
    [
        (SHARED, SHARED, 2),
        (SHARED, {**SHARED, **SILENT}, 1),
        (SHARED, {"gateway_name": "192.0.2.3"}, 1),
        (SHARED, {}, 1),
        ({**SHARED, "gateway_certificate": "/etc/ssl/own.pem"}, SHARED, 0),
    ],
    ids=["virtual IP", "unreachable", "other name", "default name", "own certificate"],
)
def test_all_gateways_of_a_name_are_trusted(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], copies: int
) -> None:
    """Each has its own certificate, and the virtual IP is at one of them."""
    (tmp_path / "192.0.2.100.crt").write_text("certificate\n")
    gateways = {"gateway1": first, "gateway2": second}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": gateways}}))
    tasks = [
        {"include_role": {"name": "trtllm.fleet.gateway", "tasks_from": "endpoint"}},
        {"copy": {"dest": f"{tmp_path}/endpoint", "content": "{{ gateway_endpoint | to_json }}"}},
    ]
    (tmp_path / "play.json").write_text(json.dumps([{"hosts": "gateway1", "gather_facts": False, "tasks": tasks}]))
    given: dict[str, Any] = {"ansible_facts": FACTS, "gateway_hosts": [*gateways], "__gateway_root": str(tmp_path)}
    options = f"--inventory={tmp_path}/hosts.json"
    done = run_playbook(tmp_path, tmp_path / "play.json", "gateway1", options, **given)
    assert done.returncode == 0, done.stdout
    endpoint = json.loads((tmp_path / "endpoint").read_text())
    assert endpoint == {"base_url": "https://192.0.2.100:443", "certificate": "certificate\n" * copies}
