"""The doctor's first answer is the fault that is put into a lab host, and a fleet that is well has none.

tests/unit/plugins/plugin_utils/test_doctor.py has all rows of the catalogue, on a host of files and scripted commands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import wait_for
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import Fleet
from ansible_collections.trtllm.fleet.tests.schemas import valid

# Debian 13 with eight H200, and a gateway with Debian 12.
FLEET = Fleet("doctor-", gpus=1, gateways=1)
(HOST,) = FLEET.gpu_names
(GATEWAY,) = FLEET.gateway_names
UNIT = "trtllm-serve-0.service"
GPU = "0000:00:06.0"
FAULTS = "/run/nvidia-lab/faults.json"
MODULE = "/run/nvidia-lab/module.json"
RECORD = "/var/lib/trtllm-fleet/record.json"
STATUS = "/var/lib/dpkg/status"
HALF = "/^Package: openssh-server$/,/^$/s/^Status: .*/Status: install ok half-configured/"
# No time service runs in a container, and the case before may have restarted the instance.
ALWAYS = {"clock_not_synchronized", "gateway_instance_new"}
LOADED = "curl --silent --output /dev/null --write-out '%{http_code}' http://127.0.0.1:8000/health"
# 503 while no instance is up.
SERVES = "curl --silent --insecure --output /dev/null --write-out '%{http_code}' https://127.0.0.1/health"


def gpu(**values: Any) -> str:
    """A script that puts values into the first GPU."""
    return f"echo '{json.dumps({'gpus': {GPU: values}})}' > {FAULTS}"


def kernel(*lines: str) -> str:
    quoted = " ".join(f"'{line}'" for line in lines)
    return f"trtllm-lab-kernel-log {quoted}"


# Makes the kernel's lines those of an earlier boot.
FORGET = "journalctl --rotate --vacuum-time=1s > /dev/null 2>&1; true"
XID = "NVRM: Xid (PCI:0000:00:06): "
GPU_WELL = f"rm -f {FAULTS}"


@dataclass(frozen=True)
class Case:
    """A fault: how it is put into the host and taken out again, and other causes that are there, too.

    ``host``: the host with the fault. ``variables``: extra variables of the doctor.
    """

    fault: str
    inject: str
    cure: str
    others: frozenset[str] = frozenset()
    host: str = HOST
    variables: dict[str, Any] = field(default_factory=dict)


def case(fault: str, inject: str, cure: str, *others: str, host: str = HOST, **variables: Any) -> Case:
    return Case(fault, inject, cure, frozenset(others), host, variables)


CASES = [
    case(
        "gpu_lost",
        f"{gpu(lost=True)}; {kernel(XID + '79, pid=1234, name=x, GPU has fallen off the bus.')}",
        f"{GPU_WELL}; {FORGET}",
    ),
    case("gpu_recovery_action", gpu(gpu_recovery_action="Reset"), GPU_WELL),
    case(
        "gpu_memory_error",
        f"{gpu(gpu_recovery_action='Drain and Reset')}; {kernel(XID + '48, pid=9, name=x, DBE (double bit error)')}",
        f"{GPU_WELL}; {FORGET}",
    ),
    case("gpu_row_remap", gpu(**{"remapped_rows/remapped_row_pending": "Yes"}), GPU_WELL),
    case("gpu_row_remap_failed", gpu(**{"remapped_rows/remapped_row_failure": "Yes"}), GPU_WELL),
    case(
        "gpu_ecc_uncorrected",
        gpu(**{"ecc_errors/volatile/dram_uncorrectable": "1", "gpu_recovery_action": "N/A"}),
        GPU_WELL,
    ),
    case(
        "gpu_too_hot",
        gpu(**{"clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": "Active"}),
        GPU_WELL,
    ),
    case("gpu_pcie_narrow", gpu(**{"pci/pci_gpu_link_info/link_widths/current_link_width": "4x"}), GPU_WELL),
    case("nvswitch_fatal", kernel("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM"), FORGET),
    case("out_of_memory", kernel("Out of memory: Killed process 4711 (python3) total-vm:1kB"), FORGET),
    case("task_hung", kernel("INFO: task nv_queue:812 blocked for more than 120 seconds."), FORGET),
    case("disk_error", kernel("blk_update_request: I/O error, dev nvme0n1, sector 2048 op 0x0:(READ)"), FORGET),
    case(
        "driver_mismatch",
        f"sed -i.bak -E 's/[0-9]+[.][0-9]+[.][0-9]+/535.288.01/' {MODULE}",
        f"mv {MODULE}.bak {MODULE}",
    ),
    case("nvidia_smi_hangs", f"echo '{json.dumps({'hang': True})}' > {FAULTS}", f"{GPU_WELL}; sleep 2"),
    case(
        "fabric_manager_failed",
        "systemctl stop nvidia-fabricmanager",
        "systemctl start nvidia-fabricmanager",
    ),
    case("persistence_stopped", "systemctl stop nvidia-persistenced", "systemctl start nvidia-persistenced"),
    case(
        "container_without_gpu",
        "docker exec trtllm-serve-0 mv /dev/nvidiactl /dev/nvidiactl.lost",
        "docker exec trtllm-serve-0 mv /dev/nvidiactl.lost /dev/nvidiactl",
    ),
    case("instance_down", f"systemctl stop {UNIT}", f"systemctl start {UNIT}"),
    case(
        "docker_stopped",
        "systemctl stop docker.socket docker.service",
        f"systemctl start docker.service docker.socket; systemctl reset-failed {UNIT}; systemctl start {UNIT}",
    ),
    case(
        "disk_full",
        "mount -t tmpfs -o size=300m tmpfs /boot; head -c 299m /dev/zero > /boot/fill || true",
        "umount /boot",
        "drift_driver",
    ),
    case("disk_read_only", "mount -t tmpfs -o ro,size=300m tmpfs /tmp", "umount /tmp"),
    case(
        "name_not_resolved",
        "cp /etc/resolv.conf /run/resolv.conf; echo nameserver 127.0.0.9 > /etc/resolv.conf",
        "cat /run/resolv.conf > /etc/resolv.conf",
    ),
    case("packages_unfinished", f"cp {STATUS} /run/status; sed -i '{HALF}' {STATUS}", f"cp /run/status {STATUS}"),
    case(
        "weights_incomplete",
        "F=$(find /srv -name '*.safetensors' -size +0 | head -1); echo $F > /run/part.name; "
        "cp -p $F /run/part; truncate -s -1 $F",
        "cp -p /run/part $(cat /run/part.name)",
    ),
    case("drift_file", "chmod 0600 /etc/trtllm-fleet/history.json", "chmod 0644 /etc/trtllm-fleet/history.json"),
    case(
        "run_incomplete",
        f"""cp -p {RECORD} /run/record; sed -i 's/"run": ""/"run": "a run"/' {RECORD}""",
        f"cp -p /run/record {RECORD}",
    ),
    case("not_provisioned", f"mv {RECORD} /run/record", f"mv /run/record {RECORD}"),
    case("inventory_impossible", "true", "true", serving_recipe_use_case="fastest"),
    case("gpus_not_as_declared", "true", "true", serving_recipe_gpu_type="b200", serving_recipe_gpu_count=8),
    case("gateway_stopped", "systemctl stop trtllm-gateway", "systemctl start trtllm-gateway", host=GATEWAY),
]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Return a GPU host behind a gateway, deployed."""
    with FLEET.serving():
        yield FLEET


def causes(fleet: Fleet, path: Path, **variables: Any) -> list[str]:
    """Run the doctor and return the faults that follow from no other one, in its order."""
    run = fleet.play("doctor", doctor_file=str(path), doctor_fail_on="never", **variables)
    assert run.status == 0, run.output
    report = valid(json.loads(path.read_text()))
    return [one["fault"] for one in report["faults"] if not one["consequence_of"] and one["fault"] not in ALWAYS]


def test_a_fleet_that_is_well(fleet: Fleet, tmp_path: Path) -> None:
    assert causes(fleet, tmp_path / "faults.json") == []


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.fault)
def test_the_fault_is_the_first_answer(fleet: Fleet, tmp_path: Path, one: Case) -> None:
    path = tmp_path / "faults.json"
    fleet.shell(one.host, one.inject)
    try:
        found = causes(fleet, path, **one.variables)
    finally:
        fleet.shell(one.host, one.cure)
    assert found[:1] == [one.fault], path.read_text()
    assert set(found) - {one.fault} <= one.others, path.read_text()
    looks = ((HOST, LOADED), (GATEWAY, SERVES))
    assert wait_for(lambda: all(fleet.shell(host, look, check=False) == "200" for host, look in looks), 120)


def test_the_doctor_changes_nothing_and_fails_by_severity(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    fleet.shell(HOST, gpu(gpu_recovery_action="Reset"))
    try:
        run = fleet.play("doctor", doctor_file=str(path))
        assert run.status == 2, run.output
        assert "1. GPU recovery action pending (critical) on doctor-1" in run.output
        checked = fleet.play("doctor", "--check", doctor_file=str(tmp_path / "none.json"))
        assert checked.status == 2, checked.output
        assert not (tmp_path / "none.json").exists()
    finally:
        fleet.shell(HOST, GPU_WELL)
    assert fleet.play("doctor", doctor_file=str(path)).status == 0


def test_a_burn_in_returns_the_host_to_service_and_is_no_drift(fleet: Fleet, tmp_path: Path) -> None:
    """The lab's engine has no torch, so the verdict is unknown."""
    refused = fleet.play("accept")
    assert refused.status != 0, "the only host is the capacity"
    assert "rollout_min_capacity" in refused.output
    assert fleet.in_service() == fleet.all_instances
    run = fleet.play("accept", rollout_min_capacity=0)
    assert run.status == 0, run.output
    assert "acceptance: unknown" in run.output
    assert fleet.in_service() == fleet.all_instances
    kept = json.loads(fleet.shell(HOST, "cat /var/lib/trtllm-fleet/acceptance.json"))
    assert (kept["verdict"], len(kept["uuids"])) == ("unknown", 8)
    assert causes(fleet, tmp_path / "faults.json") == []
    fleet.play("drain", rollout_min_capacity=0)
    drained = fleet.play("accept", rollout_min_capacity=0)
    assert drained.status == 0, drained.output
    assert fleet.in_service() == {GATEWAY: []}, "an operator drained it before"
    assert fleet.play("undrain").status == 0
