"""Hosts that fall ill under load: seconds until they are out of service, lost requests, and what repairs them.

``ROLLOUT_DOCUMENTS=docs/test-results`` writes the table.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import Fleet, publish
from ansible_collections.trtllm.fleet.tests.e2e.test_doctor import FAULTS, MODULE, XID, gpu, kernel

FLEET = Fleet("ill-", gpus=4, gateways=2)
# Requests per second, about half of what two cores can do.
RATE = 4.0
OUT = 120  # seconds
KILL_FABRIC = "systemctl kill -s KILL nvidia-fabricmanager"
HEADER = """# Hosts that fall ill under load

Four hosts of the lab with eight simulated H200 each behind two gateways, {rate:g} requests/s by the OpenAI client,
settings of role host_health as they come. Written by `tests/e2e/test_host_health.py`, last run on {date}.

| fault | seen as | out of service after | requests sent | lost | remedy | back in service after |
|---|---|---|---|---|---|---|
"""
ROWS: list[str] = []


@dataclass(frozen=True)
class Illness:
    """A fault: how it is put into a host, the fault that the host reports, and the remedy that ends it."""

    name: str
    inject: str
    fault: str
    remedy: str


ILLNESSES = [
    Illness(
        "uncontained memory error (Xid 95)",
        f"{gpu(gpu_recovery_action='Reset')}; {kernel(XID + '95, pid=7062, Uncontained: LTC TAG. RST: Yes')}",
        "gpu_memory_uncontained",
        "reset_gpu",
    ),
    Illness(
        "GPU lost (Xid 79)",
        f"{gpu(lost=True)}; {kernel(XID + '79, pid=1, name=x, GPU has fallen off the bus.')}",
        "gpu_lost",
        "reboot",
    ),
    Illness("nvidia-smi hangs", f"echo '{json.dumps({'hang': True})}' > {FAULTS}", "nvidia_smi_hangs", "reboot"),
    Illness("fabric manager dead", KILL_FABRIC, "fabric_manager_failed", "reload_driver"),
    Illness(
        "driver's libraries upgraded below the module",
        f"sed -i -E 's/[0-9]+[.][0-9]+[.][0-9]+/535.288.01/' {MODULE}",
        "driver_mismatch",
        "reload_driver",
    ),
]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with FLEET.serving():
        yield FLEET
    publish("host-faults.md", HEADER.format(rate=RATE, date=time.strftime("%Y-%m-%d")) + "\n".join(ROWS) + "\n")


@pytest.fixture
def load(fleet: Fleet) -> Iterator[Load]:
    with fleet.load(RATE) as clients:
        clients.wait(5)
        yield clients


def servers(fleet: Fleet, host: str) -> list[dict[str, str]]:
    return [fleet.backend(gateway)[f"{host}.serve-0"] for gateway in fleet.gateway_names]


def unfit(fleet: Fleet, host: str, fault: str) -> bool:
    rows = servers(fleet, host)
    return all(row["status"].startswith("DOWN") and row["last_chk"].startswith(f"unfit: {fault}") for row in rows)


def serving(fleet: Fleet, host: str) -> bool:
    return all(row["status"] == "UP" and row["weight"] == "100" for row in servers(fleet, host))


@pytest.mark.parametrize("illness", ILLNESSES, ids=lambda one: one.fault)
def test_a_sick_host_is_taken_out_repaired_and_returned(fleet: Fleet, load: Load, illness: Illness) -> None:
    host = fleet.gpu_names[ILLNESSES.index(illness) % len(fleet.gpu_names)]
    began = time.monotonic()
    fleet.shell(host, illness.inject)
    assert wait_for(lambda: unfit(fleet, host, illness.fault), OUT), servers(fleet, host)
    out = time.monotonic() - began
    refused = fleet.play("repair")
    assert refused.status != 0
    assert "mode drain does not allow" in refused.output
    assert unfit(fleet, host, illness.fault)
    repaired = fleet.play("repair", repair_mode="reboot")
    assert repaired.status == 0, repaired.output
    assert wait_for(lambda: serving(fleet, host), 60), servers(fleet, host)
    back = time.monotonic() - began
    past = json.loads(fleet.shell(host, "cat /var/lib/trtllm-fleet/remedies.json"))
    assert (past[-1]["action"], past[-1]["result"]) == (illness.remedy, "verified")
    load.wait(5)
    lost = load.errors(began)
    ROWS.append(
        f"| {illness.name} | `{illness.fault}` | {out:.0f} s | {len(load.since(began))} | {sum(lost.values())}"
        f" | {illness.remedy} | {back:.0f} s |"
    )
    assert lost == {}


def test_the_same_fault_on_many_hosts_opens_the_breaker(fleet: Fleet, load: Load) -> None:
    began = time.monotonic()
    for host in fleet.gpu_names:
        fleet.shell(host, KILL_FABRIC)
    time.sleep(60)
    up = [sum(row["status"] == "UP" for row in fleet.backend(gateway).values()) for gateway in fleet.gateway_names]
    assert up == [2, 2], "half of the capacity stays"
    opened = fleet.play("repair", repair_mode="reboot")
    assert opened.status != 0
    assert "The breaker is open: 4 hosts have fabric_manager_failed at the same time" in opened.output
    for host in fleet.gpu_names:
        fleet.shell(host, "systemctl reset-failed nvidia-fabricmanager; systemctl start nvidia-fabricmanager")
    assert wait_for(lambda: all(serving(fleet, host) for host in fleet.gpu_names), OUT)
    still = fleet.play("repair", repair_mode="reboot")
    assert still.status != 0, "only a person closes it"
    assert "The breaker is open" in still.output
    assert fleet.play("repair", repair_close_breaker=True).status == 0
    assert fleet.play("repair").status == 0
    assert load.errors(began) == {}


def test_a_drained_host_is_repaired_and_stays_drained(fleet: Fleet) -> None:
    host = fleet.gpu_names[1]
    assert fleet.play("drain", "--limit", host).status == 0
    fleet.shell(host, KILL_FABRIC)
    assert wait_for(lambda: unfit(fleet, host, "fabric_manager_failed"), OUT)
    run = fleet.play("repair", repair_mode="reset")
    assert run.status == 0, run.output
    assert all(row["weight"] == "0" for row in servers(fleet, host))
    assert fleet.play("undrain", "--limit", host).status == 0
    assert wait_for(lambda: serving(fleet, host), 60)


def test_status_shows_faults_and_metrics_are_written(fleet: Fleet) -> None:
    host = fleet.gpu_names[1]
    fleet.shell(host, "mkdir -p /var/lib/prometheus/node-exporter; systemctl stop nvidia-persistenced")
    try:
        path = "/var/lib/prometheus/node-exporter/trtllm-fleet.prom"
        seen = f"grep -q 'check=\"persistence_stopped\"' {path} && echo seen"
        assert wait_for(lambda: fleet.shell(host, seen, check=False) == "seen", OUT)
        run = fleet.play("status")
        assert "1 warning" in run.output
        assert fleet.in_service() == fleet.all_instances, "a warning takes no host out of service"
    finally:
        fleet.shell(host, "systemctl start nvidia-persistenced")
    assert "fleet_gpu_present 8" in fleet.shell(host, f"cat {path}")


def test_the_health_program_may_die(fleet: Fleet, load: Load) -> None:
    """A gateway keeps what it knows, and systemd starts the program again."""
    began = time.monotonic()
    for host in fleet.gpu_names:
        fleet.shell(host, "systemctl kill -s KILL trtllm-health")
    time.sleep(20)
    assert fleet.in_service() == fleet.all_instances
    assert all(fleet.shell(host, "systemctl is-active trtllm-health") == "active" for host in fleet.gpu_names)
    assert load.errors(began) == {}


ACCEPTANCE = "/var/lib/trtllm-fleet/acceptance.json"
# A passed burn-in of the host's GPUs and driver.
PASSED = f"""
python3 - <<'END'
import json, subprocess
query = ["nvidia-smi", "--query-gpu=uuid,driver_version", "--format=csv,noheader"]
rows = [line.split(", ") for line in subprocess.check_output(query, text=True).splitlines()]
result = {{"verdict": "pass", "level": "quick", "at": "2026-11-27T08:00:00+00:00"}}
with open("{ACCEPTANCE}", "w") as file:
    json.dump({{**result, "driver": rows[0][1], "uuids": [row[0] for row in rows]}}, file)
END
"""


def test_a_host_without_a_burn_in_stays_out_of_service_if_one_is_required(fleet: Fleet) -> None:
    host = fleet.gpu_names[2]
    fleet.shell(host, f"rm -f {ACCEPTANCE}")
    assert fleet.play("drain", "--limit", host).status == 0
    refused = fleet.play("undrain", "--limit", host, rollout_require_acceptance=True)
    assert refused.status != 0
    assert "rollout_require_acceptance needs one that passed" in refused.output
    for gateway in fleet.gateway_names:
        options = json.dumps({"hosts": [{"name": host}], "state": "absent"})
        command = [
            "ansible",
            "-i",
            "inventory/local",
            gateway,
            "--become",
            "-m",
            "trtllm.fleet.gateway_host",
            "-a",
            options,
        ]
        subprocess.run(command, cwd=REPO, env=fleet.environment, check=True)
    run = fleet.play("site", rollout_require_acceptance=True)
    assert run.status == 0, run.output
    assert f"{host} is not registered at the gateways" in run.output
    assert all(f"{host}.serve-0" not in fleet.backend(gateway) for gateway in fleet.gateway_names)
    # The lab's engine cannot test GPUs, so its verdict does not let the host in.
    unknown = fleet.play("accept", "--limit", host, rollout_require_acceptance=True)
    assert unknown.status != 0
    assert all(f"{host}.serve-0" not in fleet.backend(gateway) for gateway in fleet.gateway_names)
    fleet.shell(host, PASSED)
    assert fleet.play("site", rollout_require_acceptance=True).status == 0
    assert wait_for(lambda: serving(fleet, host), 60)
