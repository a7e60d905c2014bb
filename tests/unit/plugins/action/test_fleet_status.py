"""Playbook status and the action fleet_status, on a host without a release and on hosts that cannot be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

UNREACHABLE = {"ansible_host": "127.0.0.1", "ansible_port": 1}
HERE = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}


def test_hosts_and_gateways_have_a_status_each(tmp_path: Path) -> None:
    inventory = {
        "gpu_hosts": {"hosts": {"gpu1": HERE, "gpu2": UNREACHABLE}},
        "gateway": {"hosts": {"gw1": UNREACHABLE}},
    }
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    files = {"status_file": str(tmp_path / "status.json"), "status_page": str(tmp_path / "status.html")}
    ran = subprocess.run(
        ["ansible-playbook", "playbooks/status.yml", f"--inventory={tmp_path}/hosts.json", f"-e{json.dumps(files)}"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    status = json.loads((tmp_path / "status.json").read_text())
    assert [(host["name"], host["verdict"]) for host in status["hosts"]] == [
        ("gpu1", "nothing"),
        ("gpu2", "unreachable"),
    ]
    assert [(gateway["name"], gateway["state"]) for gateway in status["gateways"]] == [("gw1", "unreachable")]
    assert status["taken_at"].endswith("+00:00")
    assert "2 hosts: 1 nothing, 1 unreachable. 0 of 0 instances in service" in ran.stdout
    assert "It is unreachable: Failed to connect" in (tmp_path / "status.html").read_text()
