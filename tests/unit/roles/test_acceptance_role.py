"""Playbook accept: verdicts of hosts that are lost, not drained or not returned to service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.roles.test_rollout_role import IN_SERVICE, collection

HOSTS = ("gpu1", "gpu2")
LOST = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_retries": 0}
VARIABLES = {
    "ansible_connection": "local",
    "ansible_become": False,
    "ansible_python_interpreter": sys.executable,
    "serving_recipe_gpu_type": "b200",
    "serving_recipe_gpu_count": 8,
    "trtllm_server_listen_address": "192.0.2.11",
}
# The burn-in stops and starts no unit of this machine.
RELEASE = {"image": "registry.example.com/release:1", "instances": [], "limits": {}}
RUNS = {"verified": "release-1", "temporary": False, "description": RELEASE}
SERVING = {"serve-0": {"model": "openai/gpt-oss-120b", "address": "192.0.2.11:1", "up": True, **IN_SERVICE}}
STATUS = {"acceptance": {"driver": "580.1", "verdict": "unknown", "valid": False}, "driver": {"version": "580.1"}}
PASS = {"verdict": "pass", "problems": [], "checks": [{"id": "burn_in", "status": "pass"}]}
FAIL = {"verdict": "fail", "problems": ["compute_wrong: 3 products differ"], "checks": []}
UNKNOWN = {"verdict": "unknown", "problems": ["compute_tflops: no floor of b200"], "checks": []}
ENGINE = "serve-0 does not answer within 1800 s."
# Fails if its arguments include those of the case, and notes the arguments of each call.
MODULE = """#!/usr/bin/python
# WANT_JSON
import json, sys
with open(sys.argv[1]) as file:
    given = {name: value for name, value in json.load(file).items() if not name.startswith("_")}
with open(LOG, "a") as file:
    print(json.dumps([NAME, given]), file=file)
fails = FAILS.items() <= {name: str(value) for name, value in given.items()}.items()
print(json.dumps({"failed": True, "msg": "No HAProxy answers."} if FAILS and fails else {"changed": True}))
"""


def prepare(folder: Path, *, engine: str = "", gateway_fails: dict[str, str] | None = None, **results: Any) -> Path:
    """Link the collection into a folder, with stand-ins for hosts. Return the log of calls of lock and gateway.

    ``engine``: why it does not start again. ``gateway_fails``: arguments with which a gateway takes no state.
    """
    fleet = {"running": True, "hosts": {**dict.fromkeys((*HOSTS, "gpu3", "gpu4"), SERVING)}}
    fakes: dict[str, Any] = {
        "gateway_info": fleet,
        "gateway_host": {},
        "rollout_lock": {},
        "host_files": {},
        "gpu_acceptance": PASS,
    }
    collection(folder, {**fakes, "host_release_info": RUNS, "host_status_info": STATUS, **results})
    root, log = folder / "ansible_collections/trtllm/fleet", folder / "log"
    for name, fails in (("gateway_host", gateway_fails or {}), ("rollout_lock", {})):
        code = MODULE.replace("NAME", repr(name)).replace("LOG", repr(str(log))).replace("FAILS", repr(fails))
        (root / f"plugins/modules/{name}.py").write_text(code)
    (root / "roles").unlink()
    server = root / "roles/trtllm_server/tasks"
    server.mkdir(parents=True)
    for role in (ROOT / "roles").iterdir():
        if role.name != "trtllm_server":
            (root / "roles" / role.name).symlink_to(role)
    for entry, problem in (("arm_restore_timer", ""), ("end_temporary_release", engine), ("verify_endpoints", "")):
        task = {"name": "Assert that the unit works", "assert": {"that": not problem, "fail_msg": problem}}
        (server / f"{entry}.yml").write_text(json.dumps([task]))
    docker = folder / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(f"#!/bin/sh\ntouch {folder}/burns\necho 29.0.0\n")
    docker.chmod(0o755)
    return log


def played(folder: Path, playbook: str, hosts: dict[str, Any], **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a playbook with a gateway, all on this machine."""
    groups = {"gpu_hosts": {"hosts": hosts}, "gateway": {"hosts": {"gateway1": {}}}}
    (folder / "hosts.json").write_text(json.dumps({"all": {"vars": VARIABLES, "children": groups}}))
    return subprocess.run(
        ["ansible-playbook", "-i", "hosts.json", f"--extra-vars={json.dumps(variables)}", playbook],
        cwd=folder,
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(folder),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def last_message(output: str, host: str) -> str:
    """Return the reason of a host's failure in the last task, on one line; empty for none."""
    last = output.partition("TASK [Assert that the GPUs passed]")[2].partition("PLAY RECAP")[0]
    return " ".join(last.partition(f"[{host}]: FAILED! =>")[2].partition("fatal: ")[0].split())


def calls(log: Path, module: str) -> list[dict[str, Any]]:
    """Return the arguments of each call of a module."""
    return [given for name, given in map(json.loads, log.read_text().splitlines()) if name == module]


@pytest.mark.parametrize("lost_in", ["the connection", "the burn-in"])
def test_other_hosts_are_tested_if_one_is_unreachable(tmp_path: Path, lost_in: str) -> None:
    log = prepare(tmp_path)
    burns = f"{{{{ 'ssh' if lookup('ansible.builtin.fileglob', '{tmp_path}/burns') else 'local' }}}}"
    lost = LOST if lost_in == "the connection" else {**LOST, "ansible_connection": burns}
    ended = played(tmp_path, "trtllm.fleet.accept", {"gpu1": lost, "gpu2": {}})
    assert ended.returncode == 2, ended.stdout
    message = last_message(ended.stdout, "gpu1")
    assert "gpu1: not tested: gpu1 " in message, ended.stdout
    assert "unreachable" in message
    assert ("It stays drained;" in message) == (lost_in == "the burn-in")
    assert "acceptance: pass" in ended.stdout
    assert last_message(ended.stdout, "gpu2") == ""
    assert calls(log, "rollout_lock")[-1]["state"] == "released"


def test_a_test_needs_no_recipe(tmp_path: Path) -> None:
    """The GPUs are those of the verified release; with one lost, a recipe may fit no longer."""
    prepare(tmp_path)
    ended = played(tmp_path, "trtllm.fleet.accept", {"gpu1": {"serving_recipe_gpu_type": "b2000"}})
    assert ended.returncode == 0, ended.stdout
    assert "acceptance: pass" in ended.stdout


@pytest.mark.parametrize(
    ("case", "variables", "expected"),
    [
        pytest.param(
            {"gpu_acceptance": FAIL, "engine": ENGINE},
            {},
            ["gpu1: fail: compute_wrong: 3 products differ; serve-0 does not answer within 1800 s. It stays drained;"],
            id="fail, and the engine does not start",
        ),
        pytest.param(
            {"gpu_acceptance": UNKNOWN},
            {"rollout_require_acceptance": True},
            [
                "gpu1: unknown: compute_tflops: no floor of b200; The GPUs of gpu1 have as last burn-in: driver 580.1:",
                "Its return to service failed;",
            ],
            id="unknown, and a pass is required",
        ),
        pytest.param(
            {"gateway_fails": {"state": "ready"}},
            {},
            ["gpu1: pass: ", "No HAProxy answers. Its return to service failed;"],
            id="pass, and a gateway does not answer",
        ),
    ],
)
def test_a_host_that_does_not_return_to_service_keeps_its_verdict(
    tmp_path: Path, case: dict[str, Any], variables: dict[str, Any], expected: list[str]
) -> None:
    prepare(tmp_path, **case)
    ended = played(tmp_path, "trtllm.fleet.accept", {"gpu1": {}}, **variables)
    assert ended.returncode == 2, ended.stdout
    message = last_message(ended.stdout, "gpu1")
    assert [text for text in expected if text not in message] == [], ended.stdout


def test_a_host_that_cannot_be_drained_is_not_reported_as_drained(tmp_path: Path) -> None:
    log = prepare(tmp_path)
    ended = played(tmp_path, "trtllm.fleet.accept", {"gpu1": {}}, rollout_min_capacity=90)
    assert ended.returncode == 2, ended.stdout
    message = last_message(ended.stdout, "gpu1")
    assert "gpu1: not tested: Without gpu1 only 75.0 percent of the instances would serve" in message, ended.stdout
    assert "This run did not drain it;" in message
    assert calls(log, "gateway_host") == []


@pytest.mark.parametrize(
    ("fails", "capacity", "undone"),
    [({}, 90, False), ({"state": "drained"}, 0, True)],
    ids=["without the capacity", "at one of the gateways"],
)
def test_a_drain_that_failed_half_way_is_undone(
    tmp_path: Path, fails: dict[str, str], capacity: int, undone: bool
) -> None:
    """As playbooks tune, evaluate and verify do."""
    prepare(tmp_path, gateway_fails=fails)
    role = {"include_role": {"name": "trtllm.fleet.rollout", "tasks_from": "drain_if_ready"}}
    show = {"debug": {"msg": "drained: {{ rollout_drained | default(false) }}"}}
    play = {
        "hosts": "gpu_hosts",
        "gather_facts": False,
        "vars": {"rollout_gateways": ["gateway1"], "rollout_lock_host": "gateway1"},
        "tasks": [{"block": [role], "always": [show]}],
    }
    (tmp_path / "play.json").write_text(json.dumps([play]))
    ended = played(tmp_path, "play.json", {"gpu1": {}}, rollout_min_capacity=capacity)
    assert ended.returncode == 2, ended.stdout
    assert f"drained: {undone}" in ended.stdout
