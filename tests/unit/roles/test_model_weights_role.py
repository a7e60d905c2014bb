"""Role model_weights: which hosts query the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.weights_hub import PUBLIC, LabHub, build


def resolve(folder: Path, hosts: dict[str, Any], **variables: Any) -> list[tuple[str, dict[str, Any]]]:
    """Run the entry point resolve in check mode; return name and results by host of each task."""
    role = {"name": "trtllm.fleet.model_weights", "tasks_from": "resolve"}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"include_role": role}]}
    (folder / "play.yml").write_text(json.dumps([play]))
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    program = [str(Path(sys.executable).parent / "ansible-playbook"), "--check", f"--inventory={folder}/hosts.json"]
    ran = subprocess.run(
        [*program, f"--extra-vars={json.dumps(variables)}", str(folder / "play.yml")],
        cwd=ROOT,
        # With this seed Ansible's intersect filter does not choose host a for the first queries.
        env={**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    results, _end = json.JSONDecoder().raw_decode(ran.stdout)
    return [(task["task"]["name"], task["hosts"]) for play in results["plays"] for task in play["tasks"]]


def test_another_host_queries_the_hub_when_the_first_two_are_unreachable(tmp_path: Path) -> None:
    hub = LabHub(build(tmp_path / "hub"))
    unreachable = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    tasks = resolve(
        tmp_path,
        {"a": {"ansible_connection": "local"}, **dict.fromkeys("bcde", unreachable)},
        ansible_python_interpreter=sys.executable,
        model_weights_hub_url=hub.url,
        model_weights_repository=PUBLIC,
        model_weights_dir=str(tmp_path / "srv"),
        model_weights_share=False,
        # Units cannot access the folder of the tests.
        __model_weights_wrong=[],
    )
    following = next(hosts for name, hosts in tasks if name.endswith(": Query the hub from another host"))
    facts: dict[str, Any] = {}
    for _name, hosts in tasks:
        facts.update(hosts.get("a", {}).get("ansible_facts", {}))
    assert facts["model_weights_result"]["commit"] == hub.manifest(PUBLIC).commit
    assert [result for hosts in following.values() for result in hosts.get("results", []) if "commit" in result]
