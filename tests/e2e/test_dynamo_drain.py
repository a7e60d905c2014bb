"""Hosts of disaggregated serving are drained for maintenance and return, behind two gateways and under load."""

from __future__ import annotations

import json
import time
from typing import Any

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Run, docker, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import MARK, Dynamo, changed, said
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.schemas import valid

DRAIN, UNDRAIN = "playbooks/drain.yml", "playbooks/undrain.yml"


def workers(dynamo: Dynamo, name: str) -> str:
    """Return the units and containers of a host's workers, and the directories of their releases."""
    return dynamo.shell(
        name,
        "ls -d /etc/systemd/system/trtllm-dynamo-[pd]* /etc/trtllm-fleet/dynamo/[pd]*-* 2>/dev/null;"
        " docker ps --format '{{.Names}}' | grep dynamo-[pd]",
        check=False,
    )


def status(dynamo: Dynamo) -> dict[str, Any]:
    """Return the status of the fleet: its hosts by name, and the summary."""
    files = {"status_file": str(dynamo.folder / "status.json"), "status_page": str(dynamo.folder / "status.html")}
    dynamo.deploy(playbook="playbooks/status.yml", **files)
    found = valid(json.loads((dynamo.folder / "status.json").read_text()))
    return {**{host["name"]: host for host in found["hosts"]}, "summary": found["summary"]}


def test_status_of_a_deployment(dynamo: Dynamo) -> None:
    found = status(dynamo)
    assert {name: found[name]["verdict"] for name in dynamo.names} == dict.fromkeys(dynamo.names, "ok")
    assert (found["summary"]["components"], found["summary"]["components_in_rotation"]) == (8, 8)
    kinds = {name: [one["kind"] for one in found[name]["components"]] for name in dynamo.names}
    assert kinds == {
        "dyn-1": ["etcd", "frontend", "nats", "prefill"],
        "dyn-2": ["decode", "frontend"],
        "dyn-3": ["prefill"],
        "dyn-4": ["decode"],
    }


def test_check_mode_drains_nothing(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    run = dynamo.deploy("--check", playbook=DRAIN, only=["dyn-4"])
    assert changed(run)["dyn-4"] > 0
    assert dynamo.runs() == before
    assert dynamo.shell("dyn-4", f"ls {MARK}", check=False) == ""


def test_all_workers_of_a_kind_are_refused(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    run = dynamo.play(playbook=DRAIN, only=["dyn-2", "dyn-4"])
    assert run.status != 0
    assert "no frontend lists a decode worker" in said(run)
    assert dynamo.runs() == before


def test_worker_is_drained_without_a_failed_request(dynamo: Dynamo, load: Load) -> None:
    before = dynamo.runs()
    dynamo.deploy(playbook=DRAIN, only=["dyn-4"])
    assert workers(dynamo, "dyn-4") == ""
    assert {run for run in before if run not in dynamo.runs()} == {"dyn-4 decode-0"}
    assert set(changed(dynamo.deploy(playbook=DRAIN, only=["dyn-4"])).values()) == {0}


def test_last_worker_of_a_kind_is_refused(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    run = dynamo.play(playbook=DRAIN, only=["dyn-2"])
    assert run.status != 0
    assert "no frontend lists a decode worker" in said(run)
    assert dynamo.runs() == before
    found = status(dynamo)
    assert [found[name]["verdict"] for name in dynamo.names] == ["ok", "ok", "ok", "drained"]


def test_run_leaves_the_host_drained(dynamo: Dynamo, load: Load) -> None:
    before = dynamo.runs()
    run = dynamo.deploy()
    assert dynamo.runs() == before
    assert "dyn-4 is drained and has no workers" in said(run)
    assert workers(dynamo, "dyn-4") == ""


def test_worker_returns_verified(dynamo: Dynamo, load: Load) -> None:
    dynamo.deploy(playbook=UNDRAIN, only=["dyn-4"])
    assert dynamo.shell("dyn-4", f"ls {MARK}", check=False) == ""
    assert wait_for(dynamo.complete, 60)
    assert "dyn-4 decode-0" in dynamo.runs()


def test_host_with_a_frontend_is_drained_at_the_gateways(dynamo: Dynamo, load: Load) -> None:
    dynamo.deploy(playbook=DRAIN, only=["dyn-2"])
    moment = time.monotonic()
    found = status(dynamo)
    assert found["dyn-2"]["verdict"] == "drained"
    load.wait(10)
    assert len(load.since(moment)) > 20
    dynamo.deploy()
    assert status(dynamo)["dyn-2"]["verdict"] == "drained", "a run does not return it"


def test_host_with_a_frontend_returns(dynamo: Dynamo, load: Load) -> None:
    dynamo.deploy(playbook=UNDRAIN, only=["dyn-2"])
    found = status(dynamo)
    assert {name: found[name]["verdict"] for name in dynamo.names} == dict.fromkeys(dynamo.names, "ok")


def test_hosts_return_with_settings_that_changed(dynamo: Dynamo) -> None:
    """A shared setting needs all hosts at once, and a drained one has nothing that could keep the old value."""
    hosts = ["dyn-3", "dyn-4"]
    dynamo.deploy(playbook=DRAIN, only=hosts)
    dynamo.variables = {"serving_recipe_engine_options": {"kv_cache_config": {"tokens_per_block": 64}}}
    dynamo.deploy()
    assert [workers(dynamo, host) for host in hosts] == ["", ""]
    dynamo.deploy(playbook=UNDRAIN, only=hosts)
    assert wait_for(dynamo.complete, 60)
    for host, part in zip(hosts, ("prefill-0", "decode-0"), strict=True):
        assert "tokens_per_block: 64" in dynamo.shell(host, f"cat {dynamo.release(host, part)}/engine.yaml")


def test_host_whose_worker_is_dead_is_drained(dynamo: Dynamo) -> None:
    dynamo.shell("dyn-4", "systemctl stop trtllm-dynamo-decode-0")
    dynamo.deploy(playbook=DRAIN, only=["dyn-4"])
    assert workers(dynamo, "dyn-4") == ""


def test_host_that_cannot_return_stays_drained(dynamo: Dynamo) -> None:
    run = dynamo.play(playbook=UNDRAIN, only=["dyn-4"], dynamo_router_mode="unknown")
    assert run.status != 0
    assert "dynamo_router_mode is unknown" in said(run)
    assert status(dynamo)["dyn-4"]["verdict"] == "drained"


def undrain_behind_a_firewall(dynamo: Dynamo, ports: str) -> Run:
    """Return a drained host to service while its firewall drops new connections to ports."""
    dynamo.deploy(playbook=DRAIN, only=["dyn-4"])
    closed = f"INPUT --protocol tcp --syn --destination-port {ports} --jump DROP"
    dynamo.shell("dyn-4", f"iptables --insert {closed}")
    try:
        return dynamo.play(playbook=UNDRAIN, only=["dyn-4"])
    finally:
        dynamo.shell("dyn-4", f"iptables --delete {closed}")


def test_returning_worker_with_a_closed_port_is_refused(dynamo: Dynamo, load: Load) -> None:
    """It would register and be healthy, and requests to it would end in a timeout."""
    run = undrain_behind_a_firewall(dynamo, "9250")
    assert run.status != 0
    assert f"A firewall may block {dynamo.address('dyn-4')}:9250 (no answer in 5 s)" in said(run)
    assert dynamo.shell("dyn-4", "systemctl is-active trtllm-dynamo-decode-0", check=False).strip() == "inactive"
    assert status(dynamo)["dyn-4"]["verdict"] == "drained"


def test_closed_ports_for_the_cache_are_said(dynamo: Dynamo, load: Load) -> None:
    """UCX may have another way, as the lab's workers, which transfer nothing. So the answer of the worker decides."""
    run = undrain_behind_a_firewall(dynamo, "32768:60999")
    assert run.status == 0, run.output
    assert f"A firewall may block {dynamo.address('dyn-4')}:60999 (no answer in 5 s)" in said(run)


def test_host_is_drained_while_the_first_frontend_is_off(dynamo: Dynamo) -> None:
    """The gateway of that host is lost with it, and a worker needs no gateway."""
    dynamo.deploy(playbook=UNDRAIN, only=["dyn-4"])
    docker("stop", "dyn-2")
    try:
        run = dynamo.play(playbook=DRAIN, only=["dyn-3"])
    finally:
        docker("start", "dyn-2")
    assert run.status == 0, run.output
    assert workers(dynamo, "dyn-3") == ""
