"""Playbook status and the action fleet_status_info, on a host without a release and on hosts that cannot be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.schemas import valid
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

UNREACHABLE = {"ansible_host": "127.0.0.1", "ansible_port": 1}
HERE = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}


def shown(
    folder: Path, inventory: dict[str, Any], status: int = 0, **variables: Any
) -> tuple[dict[str, Any], str, str]:
    """Run the playbook, which ends with this exit status. Return the status, the page and the output."""
    (folder / "hosts.json").write_text(json.dumps(inventory))
    given = {**variables, "status_file": str(folder / "status.json"), "status_page": str(folder / "status.html")}
    ran = subprocess.run(
        ["ansible-playbook", "playbooks/status.yml", f"--inventory={folder}/hosts.json", f"-e{json.dumps(given)}"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    return valid(json.loads((folder / "status.json").read_text())), (folder / "status.html").read_text(), ran.stdout


def test_hosts_and_gateways_have_a_status_each(tmp_path: Path) -> None:
    inventory = {
        "gpu_hosts": {"hosts": {"gpu1": HERE, "gpu2": UNREACHABLE}},
        "gateway": {"hosts": {"gw1": UNREACHABLE}},
    }
    status, page, output = shown(tmp_path, inventory)
    assert [(host["name"], host["verdict"]) for host in status["hosts"]] == [
        ("gpu1", "nothing"),
        ("gpu2", "unreachable"),
    ]
    assert [(gateway["name"], gateway["state"]) for gateway in status["gateways"]] == [("gw1", "unreachable")]
    assert status["taken_at"].endswith("+00:00")
    assert "2 hosts: 1 nothing, 1 unreachable. 0 of 0 instances in service" in output
    assert "It is unreachable: Failed to connect" in page
    assert "monitoring" not in status
    assert "monitoring" not in output


def test_sick_hosts_and_gateways_fail_the_run_after_the_files_are_written(tmp_path: Path) -> None:
    inventory = {
        "gpu_hosts": {"hosts": {"gpu1": HERE, "gpu2": UNREACHABLE, "gpu3": UNREACHABLE}},
        "gateway": {"hosts": {"gw1": UNREACHABLE}},
    }
    status, _page, output = shown(tmp_path, inventory, 2, status_fail_on="unreachable")
    assert status["summary"]["verdicts"] == {"unreachable": 2, "nothing": 1}
    assert "2 hosts unreachable: gpu2, gpu3. 1 gateway unreachable: gw1. status_fail_on is unreachable." in output
    shown(tmp_path, inventory, 0, status_fail_on="down")


@pytest.mark.parametrize(
    ("host", "state", "message"),
    [
        (UNREACHABLE, "unreachable", "It is unreachable: Failed to connect to the host via ssh"),
        (
            HERE,
            "unreachable",
            "Its status is unknown: password_file /etc/trtllm-fleet/monitoring/password cannot be read",
        ),
    ],
    ids=["unreachable", "not deployed"],
)
def test_the_status_is_there_without_the_monitoring(
    tmp_path: Path, host: dict[str, Any], state: str, message: str
) -> None:
    inventory = {"gpu_hosts": {"hosts": {"gpu1": HERE}}, "monitoring": {"hosts": {"mon1": host, "mon2": {}}}}
    status, page, output = shown(tmp_path, inventory)
    assert [host["verdict"] for host in status["hosts"]] == ["nothing"]
    assert (status["monitoring"]["host"], status["monitoring"]["state"]) == ("mon1", state)
    assert status["monitoring"]["message"].startswith(message)
    assert f"monitoring mon1: {state}" in output
    assert "<h2>Alerts</h2>" in page
    assert "<figure" not in page
