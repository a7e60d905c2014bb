"""rollout_plan: the hosts of a play without a plan of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT


def test_hosts_without_a_plan_are_named_with_the_entry_point(tmp_path: Path) -> None:
    hosts: dict[str, Any] = {"gpu1": {"trtllm_server_plan": {}}, "gpu2": {}, "gpu3": {}}
    arguments = {"gateways": [], "batches": [1], "min_capacity": 50, "seconds": 60, "bake": 0}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"trtllm.fleet.rollout_plan": arguments}]}
    inventory, playbook = tmp_path / "hosts.json", tmp_path / "play.json"
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
    playbook.write_text(json.dumps([{**play, "run_once": True}]))
    program = Path(sys.executable).parent / "ansible-playbook"
    ran = subprocess.run(
        [program, f"--inventory={inventory}", playbook], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (
        "trtllm_server_plan is not set for gpu2, gpu3; a rollout needs the plan of each host. "
        "Run entry point plan of role trtllm.fleet.trtllm_server on them first."
    ) in ran.stdout
