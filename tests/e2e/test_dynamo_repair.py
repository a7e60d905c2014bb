"""Sick hosts with workers of disaggregated serving are repaired, behind two gateways and under load."""

from __future__ import annotations

import json

from ansible_collections.trtllm.fleet.tests.e2e.conftest import wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import MARK, Dynamo, said
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.e2e.test_doctor import FAULTS, GPU, GPU_WELL, XID, gpu, kernel

REPAIR = "playbooks/repair_dynamo.yml"
UNCONTAINED = f"{gpu(gpu_recovery_action='Reset')}; {kernel(XID + '95, pid=7062, Uncontained: LTC TAG. RST: Yes')}"
# No reset ends it.
FAULT = json.dumps({"gpus": {GPU: {"gpu_recovery_action": "Reset"}}})
AGAIN = f'while sleep 1; do echo "$FAULT" > {FAULTS}; done'
LASTING = f"systemd-run --quiet --unit=ill --setenv=FAULT='{FAULT}' sh -c '{AGAIN}'"
WELL = f"systemctl stop ill; {GPU_WELL}"


def ill(dynamo: Dynamo, host: str, fault: str) -> bool:
    """Return True once the health program of the host reports the fault."""
    return wait_for(lambda: fault in dynamo.shell(host, "cat /run/trtllm-fleet/health.json", check=False), 120)


def drained_by(dynamo: Dynamo, host: str) -> str:
    """Return who drained the host; empty if it is in service."""
    return dynamo.shell(host, f"sed -n 's/^by: //p' {MARK}", check=False).strip()


def test_mode_of_the_host_allows_no_remedy(dynamo: Dynamo) -> None:
    dynamo.shell("dyn-4", UNCONTAINED)
    assert ill(dynamo, "dyn-4", "gpu_memory_uncontained")
    before = dynamo.runs()
    run = dynamo.play(playbook=REPAIR)
    assert run.status != 0
    assert "mode drain does not allow" in said(run)
    assert dynamo.runs() == before


def test_sick_host_is_repaired_and_returns(dynamo: Dynamo, load: Load) -> None:
    before = dynamo.runs()
    dynamo.deploy(playbook=REPAIR, repair_mode="reset")
    past = json.loads(dynamo.shell("dyn-4", "cat /var/lib/trtllm-fleet/remedies.json"))
    assert (past[-1]["action"], past[-1]["result"]) == ("reset_gpu", "verified")
    assert drained_by(dynamo, "dyn-4") == ""
    assert wait_for(dynamo.complete, 60)
    after = dynamo.runs()
    assert {name for name in before if after[name] != before[name]} == {"dyn-4 decode-0"}


def test_fleet_that_is_well_is_not_changed(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    run = dynamo.deploy(playbook=REPAIR)
    assert "No host has a fault that takes it out of service." in said(run)
    assert dynamo.runs() == before


def test_host_that_stays_sick_stays_drained_until_the_next_repair(dynamo: Dynamo, load: Load) -> None:
    dynamo.shell("dyn-3", LASTING)
    run = dynamo.play(playbook=REPAIR, repair_mode="reset")
    assert run.status != 0
    assert "It stays drained" in said(run)
    assert drained_by(dynamo, "dyn-3") == "repair"
    dynamo.shell("dyn-3", WELL)
    dynamo.deploy(playbook=REPAIR, repair_mode="reset")
    assert drained_by(dynamo, "dyn-3") == ""
    assert wait_for(dynamo.complete, 60)


def test_repair_that_would_interrupt_serving_is_refused(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    dynamo.shell("dyn-1", LASTING)
    reboot = dynamo.play(playbook=REPAIR, repair_mode="reboot")
    assert "dyn-1 is a control host, and its reboot would leave 0 of 1 with etcd" in said(reboot)
    another = dynamo.play(playbook=REPAIR, repair_mode="reset", dynamo_image="example.com/tensorrtllm-runtime:1.3.1")
    assert "dynamo_image is example.com/tensorrtllm-runtime:1.3.1, and workers run" in said(another)
    dynamo.shell("dyn-3", "systemctl stop trtllm-dynamo-prefill-0")
    assert wait_for(lambda: not dynamo.complete(), 60)
    last = dynamo.play(playbook=REPAIR, repair_mode="reset")
    assert "no frontend lists a prefill worker" in said(last)
    assert [reboot.status, another.status, last.status] == [2, 2, 2]
    dynamo.shell("dyn-1", WELL)
    dynamo.shell("dyn-3", "systemctl start trtllm-dynamo-prefill-0")
    assert wait_for(dynamo.complete, 60)
    after = dynamo.runs()
    assert {name for name in before if after[name] != before[name]} == {"dyn-3 prefill-0"}


def test_worker_that_always_fails_stays_down_until_the_next_run(dynamo: Dynamo) -> None:
    unit = "trtllm-dynamo-decode-0"

    def shown(name: str) -> str:
        return dynamo.shell("dyn-4", f"systemctl show --property={name} --value {unit}").strip()

    # An outage of etcd and NATS does not count, however often the worker starts during it.
    dynamo.shell("dyn-1", "systemctl stop trtllm-dynamo-etcd trtllm-dynamo-nats")
    starts = set()

    def started_often() -> bool:
        starts.add(shown("InvocationID"))
        return len(starts) > 3

    assert wait_for(started_often, 300)
    assert int(shown("NRestarts")) <= 1
    assert "No etcd answered on port 2379" in dynamo.shell("dyn-4", f"journalctl --unit {unit}")
    dynamo.shell("dyn-1", "systemctl start trtllm-dynamo-etcd trtllm-dynamo-nats")
    for _ in range(5):
        assert wait_for(dynamo.complete, 120)
        dynamo.kill("dyn-4", "decode")
        assert wait_for(lambda: not dynamo.complete(), 60)
    assert wait_for(lambda: shown("ActiveState") == "failed", 60)
    report = dynamo.deploy(playbook="playbooks/status.yml")
    assert "decode-0 has been down for" in said(report)
    assert "its unit reached the start limit" in said(report)
    dynamo.deploy()
    assert wait_for(dynamo.complete, 120)


def test_host_that_an_operator_drained_stays_drained(dynamo: Dynamo) -> None:
    dynamo.deploy(playbook="playbooks/drain.yml", only=["dyn-4"])
    # Of this boot are the remedies of the first test, so it needs another one.
    dynamo.shell("dyn-4", f"rm /var/lib/trtllm-fleet/remedies.json; {UNCONTAINED}")
    dynamo.deploy(playbook=REPAIR, repair_mode="reset")
    assert drained_by(dynamo, "dyn-4") == "operator"
