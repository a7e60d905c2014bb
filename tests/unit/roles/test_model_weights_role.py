"""Role model_weights: which hosts query the hub, and what hosts know of each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.weights_hub import DRAFT, PUBLIC, LabHub, build


def resolve(folder: Path, hosts: dict[str, Any], **variables: Any) -> list[tuple[str, dict[str, Any]]]:
    """Run the entry point resolve in check mode and show the peers; return name and results by host of each task."""
    role = {"name": "trtllm.fleet.model_weights", "tasks_from": "resolve", "public": True}
    peers = {"debug": {"var": "__model_weights_peers"}, "when": "__model_weights_shares"}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"include_role": role}, peers]}
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


UNREACHABLE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
LOCAL = {"ansible_connection": "local"}


def hub_variables(hub: LabHub, folder: Path) -> dict[str, Any]:
    return {
        "ansible_python_interpreter": sys.executable,
        "model_weights_hub_url": hub.url,
        "model_weights_repository": PUBLIC,
        "model_weights_dir": str(folder / "srv"),
        "model_weights_share_interface": "lo",
        # Units cannot access the folder of the tests.
        "__model_weights_wrong": [],
    }


def facts(tasks: list[tuple[str, dict[str, Any]]], host: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _name, hosts in tasks:
        found.update(hosts.get(host, {}).get("ansible_facts", {}))
    return found


def test_another_host_queries_the_hub_when_the_first_two_are_unreachable(tmp_path: Path) -> None:
    hub = LabHub(build(tmp_path / "hub"))
    tasks = resolve(tmp_path, {"a": LOCAL, **dict.fromkeys("bcde", UNREACHABLE)}, **hub_variables(hub, tmp_path))
    following = next(hosts for name, hosts in tasks if name.endswith(": Query the hub from another host"))
    assert facts(tasks, "a")["model_weights_result"]["commit"] == hub.manifest(PUBLIC).commit
    assert [result for hosts in following.values() for result in hosts.get("results", []) if "commit" in result]


def test_the_first_host_may_become_unreachable(tmp_path: Path) -> None:
    hub = LabHub(build(tmp_path / "hub"))
    tasks = resolve(tmp_path, {"a": UNREACHABLE, **dict.fromkeys("bc", LOCAL)}, **hub_variables(hub, tmp_path))
    assert {host for _name, hosts in tasks for host, result in hosts.items() if result.get("unreachable")} == {"a"}
    assert not [result for _name, hosts in tasks for result in hosts.values() if result.get("failed")]
    for host in "bc":
        assert facts(tasks, host)["model_weights_result"]["commit"] == hub.manifest(PUBLIC).commit


def test_the_draft_model_is_resolved_before_the_model(tmp_path: Path) -> None:
    hub = LabHub(build(tmp_path / "hub"))
    draft = {**LOCAL, "model_weights_draft_repository": DRAFT}
    tasks = resolve(tmp_path, {"a": draft, "b": LOCAL}, **hub_variables(hub, tmp_path))
    root = tmp_path / "srv/models"
    expected = str(root / PUBLIC / hub.manifest(PUBLIC).commit)
    assert [facts(tasks, host)["model_weights_result"]["path"] for host in "ab"] == [expected, expected]
    assert facts(tasks, "a")["model_weights_result"]["draft_path"] == str(root / DRAFT / hub.manifest(DRAFT).commit)
    assert facts(tasks, "b")["model_weights_result"]["draft_path"] == ""


def test_a_wrong_draft_revision_is_named(tmp_path: Path) -> None:
    hub = LabHub(build(tmp_path / "hub"))
    draft = {**LOCAL, "model_weights_draft_repository": DRAFT, "model_weights_draft_revision": "v9"}
    tasks = resolve(tmp_path, {"a": draft}, **hub_variables(hub, tmp_path))
    (failed,) = [result["msg"] for _name, hosts in tasks for result in hosts.values() if result.get("failed")]
    assert failed.startswith(f"{DRAFT} has no revision v9. Set model_weights_draft_revision to ")


def test_hosts_share_if_the_first_one_does_not(tmp_path: Path) -> None:
    hub = LabHub(build(tmp_path / "hub"))
    share = {**LOCAL, "model_weights_share": True}
    tasks = resolve(
        tmp_path,
        {"a": {**LOCAL, "model_weights_share": False}, **dict.fromkeys("bc", share)},
        **hub_variables(hub, tmp_path),
    )
    peers = tasks[-1][1]
    assert [peers[host].get("__model_weights_peers") for host in "bc"] == [["127.0.0.1"]] * 2


def test_a_bundle_that_only_hosts_without_the_model_have_is_refused(tmp_path: Path) -> None:
    hub = LabHub(build(tmp_path / "hub"))
    manifest = hub.manifest(PUBLIC)
    names = [file.path for file in manifest.files]
    bundle = tmp_path / "bundle"
    tasks = resolve(
        tmp_path,
        {"a": LOCAL, "b": LOCAL},
        **hub_variables(hub, tmp_path),
        bundle_dir=str(bundle),
        bundle_result={"weights": manifest.as_dict(), "snapshots": []},
    )
    failed = {host: result["msg"] for _name, hosts in tasks for host, result in hosts.items() if result.get("failed")}
    assert failed == dict.fromkeys(
        "ab",
        f"No host that loads {PUBLIC} has {names[0]} and {len(names) - 1} further file(s). "
        f"Copy the whole bundle to {bundle} on one of a, b.",
    )
