"""Role rollout: hosts of a step that fail together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.schemas import valid
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

HOSTS = ["gpu1", "gpu2"]
HOWS = ("include", "import")
VARIABLES: dict[str, Any] = {
    "ansible_connection": "local",
    "ansible_python_interpreter": sys.executable,
    "rollout_gateways": ["gateway1"],
    "rollout_lock_host": "gateway1",
    "rollout_plan": {
        "steps": [HOSTS, ["gpu3"]],
        "instance_batches": {host: [[]] for host in HOSTS},
        "interrupted": {host: [] for host in HOSTS},
        "away": dict.fromkeys(HOSTS, 1),
    },
    "trtllm_server_plan": {
        "runs": {
            "verified": "release-1",
            "description": {
                "model": "openai/gpt-oss-120b",
                "instances": [{"name": "serve-0", "gpus": [0], "port": 8000}],
                "engine_options": {},
                "flags": {},
            },
        },
        "back": False,
    },
    "trtllm_server_listen_address": "192.0.2.11",
}
IN_SERVICE = {"drained": False, "drained_by": "", "drain_changed": ""}
SERVING = {"serve-0": {"model": "openai/gpt-oss-120b", "up": True, **IN_SERVICE}}


def collection(folder: Path, results: dict[str, dict[str, Any]]) -> None:
    """Link the collection into a folder, with modules that return a fixed result."""
    root = folder / "ansible_collections/trtllm/fleet"
    modules = root / "plugins/modules"
    modules.mkdir(parents=True)
    for link, target in ((root, ROOT), (root / "plugins", ROOT / "plugins"), (modules, ROOT / "plugins/modules")):
        for path in target.iterdir():
            if path.stem not in results and not (link / path.name).exists():
                (link / path.name).symlink_to(path)
    for name, result in results.items():
        (modules / f"{name}.py").write_text(f"#!/usr/bin/python\nprint({json.dumps(result)!r})\n")


def played(
    folder: Path, entry: str, *more: dict[str, Any], first: tuple[dict[str, Any], ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run an entry point of the role, and tasks before and after it, on two hosts with a gateway."""
    groups = {"gpu_hosts": HOSTS, "gateway": ["gateway1"]}
    children = {group: {"hosts": dict.fromkeys(names)} for group, names in groups.items()}
    tasks = [*first, {"import_role": {"name": "trtllm.fleet.rollout", "tasks_from": entry}}, *more]
    play = {"hosts": "gpu_hosts", "gather_facts": False, "max_fail_percentage": 0, "tasks": tasks}
    inventory, playbook = folder / "hosts.json", folder / "play.json"
    inventory.write_text(json.dumps({"all": {"vars": VARIABLES, "children": children}}))
    playbook.write_text(json.dumps([play]))
    command: list[str | Path] = ["ansible-playbook", "-i", inventory, playbook]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def update(folder: Path, gateway: dict[str, Any]) -> str:
    """Update a step of two hosts with a gateway in this state. Return the output."""
    collection(folder, {"gateway_info": gateway, "gateway_host": {"changed": True}, "rollout_lock": {"rollout": "now"}})
    ended = played(folder, "update")
    assert ended.returncode == 2, ended.stdout
    return ended.stdout


@pytest.mark.parametrize(
    ("gateway", "cause"),
    [
        pytest.param(
            {"failed": True, "msg": "No HAProxy answers."},
            "Gateway gateway1 does not answer or does not run HAProxy; draining a host needs every gateway.",
            id="silent gateway",
        ),
        pytest.param(
            {"running": True, "hosts": {**dict.fromkeys(HOSTS, SERVING), "gpu3": SERVING}},
            "Without gpu1, gpu2 only 33.3 percent of the instances would serve, and rollout_min_capacity is 50.",
            id="too little capacity",
        ),
    ],
)
def test_every_host_of_a_failed_step_rolls_back(tmp_path: Path, gateway: dict[str, Any], cause: str) -> None:
    output = update(tmp_path, gateway)
    report = output.partition(" : Fail if the host was not updated]")[2]
    for host in HOSTS:
        message = report.partition(f"fatal: [{host}]: FAILED! => ")[2].partition("fatal: ")[0]
        assert cause in message, output
        assert "The host serves its previous release release-1.\n" in message
        assert "Updated before: none.\n" in message
        other = next(name for name in HOSTS if name != host)
        assert f"In the same step, with results of their own: {other}.\n" in message
        assert "Not started: gpu3.\n" in message


RELEASE = {
    "name": "gpt-oss-120b-b200x8-low_latency",
    "model": "openai/gpt-oss-120b",
    "image": "registry.example.com/release:1",
    "instances": [{"name": "serve-0", "unit": "trtllm-serve-0.service", "gpus": [0], "port": 8000}],
    "engine_options": {},
    "flags": {},
}
UNIT = {"name": "trtllm-serve-0.service", "release": "release-1", "active": "active"}
HOST_PLAN = {
    "runs": {"verified": "release-1", "description": RELEASE, "units": [UNIT]},
    "wanted": "release-2",
    "recipe": RELEASE,
    "restart": False,
    "alike": [],
    "back": False,
}


def test_a_failed_rollout_leaves_its_result(tmp_path: Path) -> None:
    """Steps of one host; the third host runs its release. The gateway does not answer any more after the plan."""
    silent = {"failed": True, "msg": "No HAProxy answers."}
    fakes: dict[str, dict[str, Any]] = {
        "gateway_info": silent,
        "gateway_host": {"changed": True},
        "rollout_lock": {"rollout": "now"},
    }
    collection(tmp_path, fakes)
    serving = {"serve-0": {**SERVING["serve-0"], "state": "is UP"}}
    hosts = [*HOSTS, "gpu3"]
    gateway = {"running": True, "hosts": dict.fromkeys(hosts, serving)}
    arguments = {"gateways": [gateway], "batches": [1], "min_capacity": 50, "seconds": 60, "bake": 0}
    plan = {"trtllm.fleet.rollout_plan": arguments, "register": "rollout_plan", "run_once": True}
    done = {**HOST_PLAN, "wanted": "release-1"}
    role = {"import_role": {"name": "trtllm.fleet.rollout", "tasks_from": "update"}}
    plays = [
        {"hosts": "gpu_hosts", "gather_facts": False, "tasks": [plan]},
        {"hosts": HOSTS, "gather_facts": False, "serial": 1, "max_fail_percentage": 0, "tasks": [role]},
    ]
    given = {name: value for name, value in VARIABLES.items() if name not in ("rollout_plan", "trtllm_server_plan")}
    members = {name: {"trtllm_server_plan": HOST_PLAN if name in HOSTS else done} for name in hosts}
    groups = {"gpu_hosts": {"hosts": members}, "gateway": {"hosts": {"gateway1": None}}}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"vars": given, "children": groups}}))
    (tmp_path / "callback_plugins").mkdir()
    shutil.copy(ROOT / "playbooks/callback_plugins/trtllm_fleet_rollout.py", tmp_path / "callback_plugins")
    (tmp_path / "rollout.yml").write_text(json.dumps(plays))
    ended = subprocess.run(
        ["ansible-playbook", "-i", "hosts.json", "rollout.yml"],
        cwd=tmp_path,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "ANSIBLE_HOST_PATTERN_MISMATCH": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    result = valid(json.loads((tmp_path / "fleet-rollout.json").read_text()))
    assert (result["playbook"], result["state"], result["rollout"]) == ("rollout", "failed", "now")
    assert (result["steps"], result["canaries"]) == ([["gpu1"], ["gpu2"]], ["gpu1"])
    changes = {"before": "release-1", "after": "release-2"}
    assert result["hosts"] == [
        {"name": "gpu1", "step": 1, **changes, "state": "rolled_back"},
        {"name": "gpu2", "step": 2, **changes, "state": "not_started"},
        {"name": "gpu3", "step": None, "before": "release-1", "after": "release-1", "state": "unchanged"},
    ], ended.stdout
    (problem,) = result["problems"]
    assert problem["host"] == "gpu1"
    assert problem["task"].endswith("Fail if the host was not updated")
    assert "The host serves its previous release release-1." in problem["message"]


def test_each_host_rolls_back_to_its_release_before_the_rollout(tmp_path: Path) -> None:
    entries = [{"release": name, "rollout": name, "back": False, "kept": True} for name in ("r1", "r2")]
    collection(tmp_path, {"host_release_info": {"verified": "r2", "history": entries}})
    show = {
        "debug": {"msg": "{{ inventory_hostname }}: {{ rollout_back_to }}, undoes {{ __rollout_selected.rollout }}"}
    }
    ended = played(tmp_path, "select_rollback", show)
    assert ended.returncode == 0, ended.stdout
    for host in HOSTS:
        assert f"{host}: r1, undoes r2" in ended.stdout


def test_unreachable_host_ends_the_play_for_all_hosts(tmp_path: Path) -> None:
    lost = {"ansible_connection": "{{ 'ssh' if inventory_hostname == 'gpu1' else 'local' }}", "ansible_port": 1}
    ping = {"ping": {}, "vars": {"ansible_host": "127.0.0.1", "ansible_ssh_retries": 0, **lost}}
    collection(tmp_path, {})
    ended = played(tmp_path, "assert_reachable", {"debug": {"msg": "goes on"}}, first=(ping,))
    assert ended.returncode, ended.stdout
    assert "gpu1 failed or is unreachable; a rollout needs all hosts." in ended.stdout
    assert "goes on" not in ended.stdout


def test_reachable_hosts_are_asserted_once_for_all(tmp_path: Path) -> None:
    collection(tmp_path, {})
    ended = played(tmp_path, "assert_reachable", {"debug": {"msg": "goes on"}})
    assert ended.returncode == 0, ended.stdout
    asserted = ended.stdout.partition(" : Assert that all hosts are reachable]")[2].partition("TASK [")[0]
    assert asserted.count("ok: [") == 1
    assert ended.stdout.count("goes on") == len(HOSTS)


def test_silent_gateway_fails_the_plan_once_for_all_hosts(tmp_path: Path) -> None:
    collection(tmp_path, {"gateway_info": {"failed": True, "msg": "No HAProxy answers."}})
    ended = played(tmp_path, "plan", {"debug": {"msg": "goes on"}})
    failed = ended.stdout.partition(" : Fail if a gateway does not answer]")[2]
    assert ended.returncode, ended.stdout
    assert failed.count("fatal: [") == 1
    assert "Gateway gateway1 does not answer or does not run HAProxy" in failed
    assert "goes on" not in failed


def tasks_of(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks_of(task.get(part, []))


def has_lock(play: dict[str, Any]) -> bool:
    used = [task.get(f"ansible.builtin.{how}_role", {}) for task in tasks_of(play["tasks"]) for how in HOWS]
    return any(one.get("name") == "trtllm.fleet.rollout" and one.get("tasks_from") == "lock" for one in used)


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_each_play_with_the_lock_names_its_host(path: Path) -> None:
    """Without it a play would have the lock on its own first host. Variables of a play are of that play only."""
    for play in yaml.safe_load(path.read_text()):
        if "tasks" in play and has_lock(play):
            files = [yaml.safe_load((path.parent / name).read_text()) for name in play.get("vars_files", [])]
            assert any("rollout_lock_host" in one for one in (play.get("vars", {}), *files)), play["name"]
