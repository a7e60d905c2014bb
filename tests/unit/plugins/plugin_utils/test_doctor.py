"""Doctor: each row of the fault catalogue is put into a host that is well, and has to be the first answer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import (
    CatalogueError,
    Fault,
    Finding,
    diagnose,
    load_catalogue,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.health.kernel_log import read_kernel_log
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.state import Owned
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.doctor import Examined, examine, report
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.fault_rows import fault_rows, read_catalogue
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.text import render
from ansible_collections.trtllm.fleet.plugins.plugin_utils.variables import unknown
from ansible_collections.trtllm.fleet.tests.schemas import valid
from ansible_collections.trtllm.fleet.tests.unit.health_sample import GPUS, NOW, SWITCHES, UNIT, SampleHost

CATALOGUE = read_catalogue()
DETAILS = "pid=1, name=python3, details"
VARIABLES: dict[str, Any] = {"serving_recipe_model": "openai/gpt-oss-120b"}


class Fleet:
    """A GPU host behind a gateway, both well."""

    def __init__(self, host: SampleHost, patch: pytest.MonkeyPatch) -> None:
        self.host = host
        self.variables = dict(VARIABLES)
        self.answer: dict[str, Any] | None = None
        instance = {"up": True, "drained": False, "drained_by": "", "state": "is UP L7OK 200"}
        self.gateway: dict[str, Any] = {
            "running": True,
            "model": "openai/gpt-oss-120b",
            "hosts": {"gpu1": {"serve-0": instance}},
        }
        self.gateway_signals = [
            {"signal": "unit", "kind": "gateway", "name": "trtllm-gateway.service", "active": "active", "evidence": "x"}
        ]
        self.patch = patch

    @property
    def instance(self) -> dict[str, Any]:
        """What the gateway reports of the instance."""
        found: dict[str, Any] = self.gateway["hosts"]["gpu1"]["serve-0"]
        return found

    def down(self, state: str = "is DOWN L4CON Connection refused") -> None:
        """Let the gateway's checks of the instance fail."""
        self.instance.update(up=False, state=state)

    def unreachable(self, message: str) -> None:
        self.answer = {"unreachable": True, "msg": message}
        self.down()

    def findings(self) -> list[Finding]:
        answer = self.answer if self.answer is not None else self.host.result(self.patch)
        hosts = {
            "gpu1": Examined(answer, self.variables, True),
            "gateway1": Examined({"signals": self.gateway_signals}, {}, False),
        }
        return examine(hosts, {"gateway1": self.gateway}, CATALOGUE)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    host = SampleHost(tmp_path)
    host.prepare()
    return Fleet(host, monkeypatch)


def engine_ends(fleet: Fleet, log: str) -> None:
    fleet.host.units[UNIT].update(ActiveState="failed", SubState="failed", NRestarts="5")
    fleet.host.journal = f"INFO start\n{log}\n"
    fleet.host.health = {"healthy": False, "answer": "connection refused", "models": []}
    fleet.down()


def gpu_lost(fleet: Fleet) -> None:
    fleet.host.xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    fleet.host.set_gpu("total", "GPU is lost")
    engine_ends(fleet, "RuntimeError: CUDA error: unspecified launch failure")


def gone_from_bus(fleet: Fleet) -> None:
    fleet.host.set_gpu("total", "GPU is lost", gpu=3)
    folder = fleet.host.root / "sys/bus/pci/devices" / GPUS[3]
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    engine_ends(fleet, "RuntimeError: CUDA error: unspecified launch failure")


def xid(code: int, text: str = DETAILS, times: int = 1, gpus: int = 1, every: float = 3600) -> Callable[[Fleet], None]:
    """Xids of the first ``gpus``, one each ``every`` seconds."""

    def inject(fleet: Fleet) -> None:
        for gpu in range(gpus):
            for number in reversed(range(times)):
                fleet.host.xid(code, text, gpu, ago=60 + number * every)

    return inject


def needs_reset(code: int, text: str = DETAILS) -> Callable[[Fleet], None]:
    """An Xid after which the driver asks for a reset and the engine ended."""

    def inject(fleet: Fleet) -> None:
        fleet.host.xid(code, text)
        fleet.host.set_gpu("gpu_recovery_action", "Reset")
        engine_ends(fleet, "RuntimeError: CUDA error: an illegal instruction was encountered")

    return inject


def on_gpu(**values: str) -> Callable[[Fleet], None]:
    def inject(fleet: Fleet) -> None:
        for tag, value in values.items():
            fleet.host.set_gpu(tag, value)

    return inject


def smi(rc: int | None, text: str) -> Callable[[Fleet], None]:
    def inject(fleet: Fleet) -> None:
        fleet.host.answers["nvidia-smi"] = CommandResult(rc, text)
        engine_ends(fleet, "RuntimeError: CUDA error: system not yet initialized")

    return inject


def both(*injections: Callable[[Fleet], None]) -> Callable[[Fleet], None]:
    def inject(fleet: Fleet) -> None:
        for one in injections:
            one(fleet)

    return inject


def unit(name: str, **values: str) -> Callable[[Fleet], None]:
    def inject(fleet: Fleet) -> None:
        if name in fleet.host.units:
            fleet.host.units[name].update(values)
        else:
            fleet.host.add_unit(name, **values)
            fleet.host.record()

    return inject


# UCX's table of a transfer, without its rulers.
TRANSFER = """\
[1.0] [gpu1:1 :0]   | ucp_context_0 intra-node cfg#1 | remote memory write by ucp_put*(multi) from cuda/GPU0 to cuda |
[1.0] [gpu1:1 :0]   |                         0..inf | software emulation                                 | tcp/lo |
"""
FAILED = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}


def kernel(text: str) -> Callable[[Fleet], None]:
    return lambda fleet: fleet.host.kernel.append((NOW - 60, text))


def disk(patch: pytest.MonkeyPatch, used: float, inodes: float = 10, read_only: bool = False) -> None:
    real = os.statvfs

    def statvfs(path: Any) -> Any:
        found = real(path)
        values = list(found)
        values[2], values[4], values[8] = 100_000_000, round(100_000_000 * (1 - used / 100)), int(read_only)
        values[5], values[7] = 1_000_000, round(1_000_000 * (1 - inodes / 100))
        return os.statvfs_result(values)

    patch.setattr(os, "statvfs", statvfs)


def full(used: float, inodes: float = 10, read_only: bool = False) -> Callable[[Fleet], None]:
    return lambda fleet: disk(fleet.patch, used, inodes, read_only)


def fabric(fleet: Fleet) -> None:
    for gpu in range(8):
        fleet.host.set_gpu("state", "In Progress", gpu)
    engine_ends(fleet, "RuntimeError: CUDA error: system not yet initialized")


def fabric_manager(fleet: Fleet) -> None:
    unit("nvidia-fabricmanager.service", **FAILED)(fleet)
    fabric(fleet)


def starts(fleet: Fleet) -> None:
    fleet.host.health = {"healthy": False, "answer": "connection refused", "models": []}
    fleet.host.uptime = 61
    fleet.down()


def unhealthy(fleet: Fleet) -> None:
    fleet.host.health = {"healthy": False, "answer": "HTTP 503 from /health", "models": []}
    fleet.down()


def watchdog(fleet: Fleet) -> None:
    at = "2026-11-18T09:06:40+00:00"  # an hour before NOW
    reason = "POST /v1/chat/completions was not answered within 600 s"
    fleet.host.write(f"run/trtllm-fleet/healed/{UNIT}.json", json.dumps({"times": 2, "at": at, "reason": reason}))


def drift(path: str, text: str) -> Callable[[Fleet], None]:
    return lambda fleet: fleet.host.write(path, text)


def recorded(kind: str, name: str, value: str) -> Callable[[Fleet], None]:
    """A record that differs from the host in one item, which is as the host has it now."""

    def inject(fleet: Fleet) -> None:
        path = fleet.host.root / "var/lib/trtllm-fleet/record.json"
        document = json.loads(path.read_text())
        document["items"][f"{kind} {name}"] = value
        path.write_text(json.dumps(document))

    return inject


def weights(fleet: Fleet) -> None:
    path = fleet.host.root / "var/lib/trtllm-fleet/record.json"
    document = json.loads(path.read_text())
    document["owned"]["models"] = ["/srv/models/gpt-oss-120b"]
    document["items"]["model /srv/models/gpt-oss-120b"] = "verified, commit 57476bbab104d89489bd206f997f9da1c2927ce2"
    path.write_text(json.dumps(document))
    engine_ends(fleet, "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge")


def other_release(fleet: Fleet) -> None:
    root = fleet.host.root / "etc/trtllm-fleet"
    for name in ("verified", "history.json"):
        (root / name).unlink()
    fleet.host.record("run-1")


def gateway_head(fleet: Fleet, end: str) -> None:
    fleet.host.write("etc/trtllm-fleet/gateway/head.cfg", "bind :443 ssl crt /etc/trtllm-fleet/gateway/x.crt alpn h2\n")
    fleet.host.answers["openssl x509"] = CommandResult(0, f"notAfter={end}\n")
    fleet.host.record()


def no_certificate(fleet: Fleet) -> None:
    gateway_head(fleet, "")
    fleet.host.answers["openssl x509"] = CommandResult(1, "", "Could not read certificate from /x.crt")


def bare(fleet: Fleet) -> None:
    (fleet.host.root / "var/lib/trtllm-fleet/record.json").unlink()


def no_gateway(fleet: Fleet) -> None:
    fleet.gateway["running"] = False
    fleet.down("is not there")


def nothing_up(fleet: Fleet) -> None:
    fleet.down("is DOWN L4TOUT")


def unregistered(fleet: Fleet) -> None:
    fleet.gateway["hosts"] = {"gpu2": {"serve-0": {**fleet.instance}}}


def down_beside_others(fleet: Fleet) -> None:
    fleet.gateway["hosts"]["gpu2"] = {"serve-0": dict(fleet.instance)}
    fleet.down("is DOWN L4TOUT")


def other_gpus(fleet: Fleet) -> None:
    fleet.variables.update(serving_recipe_gpu_type="b200", serving_recipe_gpu_count=8)


class Unreadable(dict[str, Any]):
    """Variables that Ansible cannot render."""

    def get(self, key: str, default: Any = None) -> Any:
        if key.startswith("serving_recipe_"):
            raise AnsibleError("'ansible_facts' is undefined")
        return default


FAULTS: Mapping[str, Callable[[Fleet], None]] = {
    # GPUs
    "gpu_lost": gpu_lost,
    "gpu_gone_from_bus": gone_from_bus,
    "gpu_memory_error": needs_reset(48, "pid=7062, name=python3, DBE (double bit error) in FB, sub-partition 1"),
    "gpu_memory_uncontained": needs_reset(95, "pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"),
    "gpu_memory_contained": both(xid(94), on_gpu(gpu_recovery_action="Drain and Reset")),
    "gpu_row_remap": on_gpu(remapped_row_pending="Yes"),
    "gpu_row_remapped": xid(63, "pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."),
    "gpu_row_remap_failed": on_gpu(remapped_row_failure="Yes"),
    "gpu_memory_unrepairable": on_gpu(unrepairable_memory="Yes"),
    "gpu_memory_repair_pending": on_gpu(channel_repair_pending="Yes"),
    "gpu_ecc_uncorrected": on_gpu(dram_uncorrectable="2", gpu_recovery_action="N/A"),
    "gpu_recovery_action": on_gpu(gpu_recovery_action="Reboot"),
    "gpu_stopped": needs_reset(62, "pid=1, name=python3, 1234abcd 00000000"),
    "gpu_gsp_error": needs_reset(119, "pid=1, name=python3, Timeout after 45s of waiting for RPC response!"),
    "gpu_fatal_error": needs_reset(140),
    "gpu_power_cable": xid(54),
    "nvlink_error": needs_reset(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)"),
    "nvlink_event": xid(149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)"),
    "gpu_confidential_key": xid(151),
    "gpu_c2c_fatal": xid(170),
    "gpu_copy_error": xid(32),
    "gpu_copy_error_repeated": xid(69, times=2),
    "gpu_program_error": xid(31, "pid=9, name=python3, Ch 00000008, MMU Fault: ENGINE GRAPHICS faulted @ 0x7f"),
    "gpu_program_errors_one_gpu": xid(13, times=3),
    "gpu_program_errors_several_gpus": xid(31, times=2, gpus=4),
    "gpu_corrected_errors": xid(92),
    "gpu_support_case": xid(142),
    "gpu_too_hot": on_gpu(clocks_event_reason_hw_thermal_slowdown="Active", gpu_temp="91 C"),
    "gpu_warm": on_gpu(clocks_event_reason_sw_thermal_slowdown="Active", gpu_temp="84 C"),
    "gpu_power_brake": on_gpu(clocks_event_reason_hw_power_brake_slowdown="Active"),
    "gpu_pcie_narrow": on_gpu(current_link_width="8x"),
    "gpu_mig": on_gpu(current_mig="Enabled"),
    "gpu_ecc_off": on_gpu(current_ecc="Disabled"),
    # Driver and fabric
    "driver_mismatch": smi(18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580"),
    "driver_client_mismatch": kernel(
        "NVRM: API mismatch: the client 'python3' (pid 12)\nNVRM: has the version 590.48.01, but this kernel module has"
        "\nNVRM: the version 580.159.04."
    ),
    "driver_not_loaded": both(
        lambda fleet: fleet.host.write("proc/driver/nvidia/version", ""),
        smi(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
    ),
    "driver_failed": smi(1, "Failed to initialize NVML: Insufficient Permissions"),
    "driver_removed": lambda fleet: setattr(fleet.host, "installed", False),
    "driver_no_devices": smi(6, "No devices were found"),
    "nvidia_smi_hangs": smi(None, ""),
    "persistence_stopped": unit("nvidia-persistenced.service", ActiveState="inactive", SubState="dead"),
    "fabric_manager_failed": fabric_manager,
    "fabric_not_ready": fabric,
    "nvswitch_fatal": kernel("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up"),
    "nvswitch_error": kernel("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 44 egress non-posted"),
    "imex_stopped": lambda fleet: fleet.host.units.update(
        {"nvidia-imex.service": {**fleet.host.units["docker.service"], **FAILED}}
    ),
    "container_without_gpu": lambda fleet: fleet.host.answers.update(
        {"docker exec": CommandResult(255, "Failed to initialize NVML: Unknown Error")}
    ),
    # Host
    "disk_full": full(99.2),
    "disk_low": full(96),
    "disk_read_only": full(50, read_only=True),
    "disk_error": kernel("blk_update_request: I/O error, dev nvme0n1, sector 2048 op 0x0:(READ)"),
    "out_of_memory": kernel("Out of memory: Killed process 4711 (trtllm-serve) total-vm:1kB, anon-rss:1kB"),
    "memory_limit": kernel("Memory cgroup out of memory: Killed process 4711 (haproxy) total-vm:1kB, anon-rss:1kB"),
    "memory_low": lambda fleet: fleet.host.write(
        "proc/meminfo", "MemTotal:       263600000 kB\nMemAvailable:     2000000 kB\n"
    ),
    "task_blocked": kernel("INFO: task jbd2/sda1-8:412 blocked for more than 120 seconds."),
    "task_hung": kernel("INFO: task nv_queue:812 blocked for more than 120 seconds."),
    "clock_wrong": lambda fleet: setattr(fleet.host, "control_time", NOW + 3600),
    "clock_not_synchronized": lambda fleet: fleet.host.answers.update({"timedatectl show": CommandResult(0, "no\n")}),
    "name_not_resolved": lambda fleet: fleet.host.answers.update({"getent": CommandResult(2, "")}),
    "connection_table_full": lambda fleet: fleet.host.write("proc/sys/net/netfilter/nf_conntrack_count", "262000\n"),
    "packages_unfinished": lambda fleet: fleet.host.answers.update(
        {"dpkg --audit": CommandResult(0, "The following packages are only half configured:\n nvidia-dkms  NVIDIA\n")}
    ),
    "health_stopped": unit("trtllm-health.service", **FAILED),
    "docker_stopped": both(
        unit("docker.service", **FAILED), lambda fleet: engine_ends(fleet, "Cannot connect to the Docker daemon")
    ),
    "docker_configuration": recorded("docker", "/etc/docker/daemon.json", "live-restore is not set"),
    "probe_failed": lambda fleet: fleet.host.answers.update({"dpkg": CommandResult(None)}),
    "drift_package": recorded("package", "docker.io", "26.1.5 install ok installed"),
    "drift_driver": recorded("driver", "kernels", "6.1.0-18-amd64"),
    "drift_file": drift("etc/owned", "changed"),
    "drift_unit": unit("docker.service", DropInPaths="/etc/systemd/system/docker.service.d/x.conf"),
    "drift_gateway": recorded("gateway", "configuration", "as generated"),
    "drift_image": recorded("image", "registry/release@sha256:1", "sha256:1"),
    # Serving
    "weights_incomplete": weights,
    "weights_unit_failed": unit("trtllm-weights.service", **FAILED),
    "image_unit_failed": unit("trtllm-image-release.service", **FAILED),
    "engine_cuda_out_of_memory": lambda fleet: engine_ends(
        fleet, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    ),
    "engine_cuda_error": lambda fleet: engine_ends(fleet, "RuntimeError: CUDA error: an illegal memory access"),
    "engine_nccl_error": lambda fleet: engine_ends(fleet, "RuntimeError: NCCL error in: c10d.cpp: ncclSystemError"),
    "engine_weights_error": lambda fleet: engine_ends(fleet, "SafetensorError: invalid header length"),
    "engine_options_rejected": lambda fleet: engine_ends(
        fleet, "pydantic ValidationError: 1 validation error for TorchLlmArgs"
    ),
    "engine_port_in_use": lambda fleet: engine_ends(fleet, "OSError: [Errno 98] address already in use"),
    "engine_disk_error": lambda fleet: engine_ends(fleet, "OSError: [Errno 28] No space left on device"),
    "instance_down": lambda fleet: engine_ends(fleet, "an error that is not known"),
    "instance_unhealthy": unhealthy,
    "instance_starting": starts,
    "engine_hung": lambda fleet: fleet.down("is DOWN L7STS 503 no progress for 121 s with 4 in flight"),
    "watchdog_killed": watchdog,
    "instance_other_model": lambda fleet: fleet.host.health.update(models=["llama"]),
    "instance_other_image": lambda fleet: fleet.host.answers.update(
        {
            "docker container": CommandResult(
                0, json.dumps({"name": "/trtllm-serve-0", "reference": "registry/other@sha256:2", "image": "sha256:2"})
            )
        }
    ),
    "release_not_verified": other_release,
    "run_incomplete": lambda fleet: fleet.host.record("run-1"),
    "not_provisioned": bare,
    # Fleet
    "gateway_stopped": no_gateway,
    "gateway_without_instances": nothing_up,
    "gateway_instance_down": down_beside_others,
    "gateway_instance_new": both(
        lambda fleet: setattr(fleet.host, "uptime", 31.0),
        lambda fleet: fleet.down("is DOWN L7STS 503 nothing answered yet"),
    ),
    "instance_drained": lambda fleet: fleet.instance.update(drained=True, drained_by="operator"),
    "repair_drained": lambda fleet: fleet.instance.update(drained=True, drained_by="repair"),
    "rollout_drained": lambda fleet: fleet.instance.update(drained=True, drained_by="rollout"),
    "host_not_registered": unregistered,
    "certificate_expired": lambda fleet: gateway_head(fleet, "Nov  1 00:00:00 2026 GMT"),
    "certificate_expires": lambda fleet: gateway_head(fleet, "Nov 24 00:00:00 2026 GMT"),
    "certificate_unreadable": no_certificate,
    "usage_stopped": unit("trtllm-gateway-usage.service", **FAILED),
    "virtual_ip_stopped": unit("trtllm-gateway-address.service", **FAILED),
    "dynamo_etcd_stopped": unit("trtllm-dynamo-etcd.service", **FAILED),
    "dynamo_stopped": unit("trtllm-dynamo-prefill-0.service", **FAILED),
    "kv_cache_slow": both(
        both(unit("trtllm-dynamo-prefill-0.service"), unit("trtllm-dynamo-decode-0.service")),
        lambda fleet: setattr(fleet.host, "journal", TRANSFER),
    ),
    "registry_mirror_stopped": unit("trtllm-registry-mirror.service", **FAILED),
    "host_name_unknown": lambda fleet: fleet.unreachable(
        "Failed to connect to the host via ssh: ssh: Could not resolve hostname gpu1: Name or service not known"
    ),
    "host_key_changed": lambda fleet: fleet.unreachable("Failed to connect via ssh: Host key verification failed."),
    "host_login_refused": lambda fleet: fleet.unreachable("debian@192.0.2.1: Permission denied (publickey)."),
    "host_unreachable": lambda fleet: fleet.unreachable("ssh: connect to host 192.0.2.1 port 22: Connection timed out"),
    "sudo_password": lambda fleet: setattr(fleet, "answer", {"failed": True, "msg": "Missing sudo password"}),
    "python_missing": lambda fleet: setattr(
        fleet, "answer", {"failed": True, "module_stderr": "/bin/sh: 1: /usr/bin/python3: not found"}
    ),
    "host_disk_unwritable": lambda fleet: fleet.unreachable(
        'Failed to create temporary directory. "mkdir: cannot create directory: No space left on device"'
    ),
    "host_not_readable": lambda fleet: setattr(fleet, "answer", {"failed": True, "msg": "MODULE FAILURE: Traceback"}),
    "inventory_impossible": lambda fleet: fleet.variables.update(serving_recipe_use_case="fastest"),
    "variables_not_readable": lambda fleet: setattr(fleet, "variables", Unreadable()),
    "gpus_not_as_declared": other_gpus,
}
# Messages of failed tasks.
TASKS = {
    "task_name_not_resolved": "Failed to fetch https://x/InRelease: Temporary failure in name resolution",
    "task_apt": "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.",
    "task_no_space": "write /var/lib/docker/tmp/x: no space left on device",
    "task_certificate": "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
    "task_login": "unauthorized: authentication required",
    "task_rate_limited": "toomanyrequests: You have reached your unauthenticated pull rate limit",
    "task_failed_unit": "trtllm-weights.service is failed (failed), result exit-code, exit status 1",
}


def first_answers(findings: list[Finding]) -> list[str]:
    """Return the faults that follow from no other one."""
    return [finding.fault.id for finding in findings if not finding.consequence_of]


def test_a_fleet_that_is_well_has_no_fault(fleet: Fleet) -> None:
    found = fleet.findings()
    assert [(finding.fault.id, finding.signal["evidence"]) for finding in found] == []


def test_each_row_has_a_test() -> None:
    assert sorted({*FAULTS, *TASKS}) == sorted(CATALOGUE)


@pytest.mark.parametrize("fault", CATALOGUE.values(), ids=CATALOGUE)
def test_variables_of_a_cure_exist(fault: Fault) -> None:
    names = re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", fault.cure)
    assert list(unknown(names)) == []


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_the_first_answer(fleet: Fleet, name: str) -> None:
    FAULTS[name](fleet)
    found = fleet.findings()
    explained = [(one.fault.id, one.consequence_of, one.signal["evidence"]) for one in found]
    assert set(first_answers(found)) == {name}, explained
    valid(report(found, ["gpu1"], "2026-11-27T00:00:00+00:00"))
    (first, *_others) = found
    shown = first.as_dict()
    assert not re.search(r"unknown|[{}]", shown["cause"] + shown["cure"]), shown
    assert shown["evidence"]


@pytest.mark.parametrize("other", ["disk_low", "clock_wrong"])
@pytest.mark.parametrize("name", [name for name in FAULTS if CATALOGUE[name].layer != "connection"])
def test_a_second_fault_does_not_hide_the_first(fleet: Fleet, name: str, other: str) -> None:
    FAULTS[other](fleet)
    FAULTS[name](fleet)
    found = first_answers(fleet.findings())
    explained = other in CATALOGUE[name].explains or name in CATALOGUE[other].explains
    # Both change the answer of the same system call.
    replaced = other == "disk_low" and name in ("disk_full", "disk_read_only")
    assert {name, other} <= set(found) or explained or replaced, found


@pytest.mark.parametrize("name", TASKS)
def test_messages_of_tasks(name: str) -> None:
    signal = {"signal": "task", "message": TASKS[name], "name": "Run it", "evidence": TASKS[name]}
    assert [finding.fault.id for finding in diagnose("gpu1", [signal], CATALOGUE)] == [name]


def test_a_gpu_that_is_gone_since_a_reboot(fleet: Fleet) -> None:
    gone = GPUS[3]
    recorded("driver", "GPUs", ", ".join(GPUS))(fleet)
    folder = fleet.host.root / "sys/bus/pci/devices" / gone
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    head, *parts = fleet.host.smi.split("<gpu id=")
    tail = parts[-1].partition("</gpu>")[2]
    del parts[3]
    fleet.host.smi = "<gpu id=".join([head, *parts[:-1], parts[-1].partition("</gpu>")[0] + "</gpu>" + tail])
    found = fleet.findings()
    assert first_answers(found) == ["gpu_gone_from_bus"], [one.signal["evidence"] for one in found]


def test_effects_are_of_the_same_subject() -> None:
    down: dict[str, Any] = {
        "signal": "gateway_instance",
        "gateway": "g1",
        "up": False,
        "drained": False,
        "state": "is DOWN L4TOUT",
    }
    down |= {"gpus": [GPUS[4]]}
    instance = {"signal": "instance", "active": "failed", "start_limit_reached": False, "log": "", "gpus": [GPUS[4]]}
    signals: list[dict[str, Any]] = [
        {**down, "name": "serve-0", "healthy": True, "age_seconds": 5},
        {**down, "name": "serve-1", "healthy": True, "age_seconds": 5000},
        {**instance, "name": "serve-2", "unit": "trtllm-serve-2.service"},
        {"signal": "xid", "gpu": GPUS[0], "code": 79},
        {
            "signal": "unit",
            "kind": "persistence",
            "name": "nvidia-persistenced.service",
            "active": "failed",
            "enabled": "enabled",
        },
        {"signal": "drift", "kind": "unit", "about": "trtllm-serve-0.service", "now": ""},
        {"signal": "drift", "kind": "unit", "about": "nvidia-persistenced.service", "now": ""},
    ]
    found = [
        (one.fault.id, one.signal.get("name") or one.signal.get("about"), one.consequence_of)
        for one in diagnose("gpu1", [{"evidence": "", **one} for one in signals], CATALOGUE)
    ]
    assert ("gateway_instance_down", "serve-0", ["gateway_instance_new"]) in found
    assert ("gateway_instance_down", "serve-1", []) in found, "another instance enters service"
    assert ("instance_down", "serve-2", []) in found, "another GPU is lost"
    assert ("drift_unit", "trtllm-serve-0.service", []) in found, "another unit stopped"
    assert ("drift_unit", "nvidia-persistenced.service", ["persistence_stopped"]) in found


def test_units_that_a_host_does_not_need_are_no_fault(fleet: Fleet) -> None:
    for switch in SWITCHES:
        folder = fleet.host.root / "sys/bus/pci/devices" / switch
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    unit("nvidia-fabricmanager.service", ActiveState="inactive", SubState="dead", UnitFileState="disabled")(fleet)
    assert fleet.findings() == []


def test_a_gateway_host_needs_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = SampleHost(tmp_path, installed=False)
    host.write("proc/meminfo", "MemTotal: 263600000 kB\nMemAvailable:   200000000 kB\n")
    host.write("etc/trtllm-fleet/placeholder", "")
    host.add_unit("trtllm-gateway.service")
    host.units["docker.service"] = {**host.units["trtllm-gateway.service"], "ActiveState": "inactive"}
    host.record_of(Owned(units=["trtllm-gateway.service"]))
    assert diagnose("gateway1", host.result(monkeypatch)["signals"], CATALOGUE) == []


def test_a_gateway_that_does_not_answer_is_no_health(fleet: Fleet) -> None:
    fleet.gateway = {"failed": True, "msg": "hosts/gpu1.json cannot be read"}
    assert first_answers(fleet.findings()) == ["probe_failed"]
    hosts = {"gpu1": Examined(fleet.host.result(fleet.patch), VARIABLES, True)}
    found = examine(hosts, {"gateway1": {"unreachable": True, "msg": "Connection timed out"}}, CATALOGUE)
    assert [(one.fault.id, one.host) for one in found] == [("host_unreachable", "gateway1")], "--limit gpu1"


def test_what_the_driver_asks_for_comes_before_the_row(fleet: Fleet) -> None:
    fleet.host.xid(48)
    fleet.host.set_gpu("gpu_recovery_action", "Reboot")
    (first, second) = fleet.findings()
    assert (first.fault.id, first.remedy) == ("gpu_memory_error", "reboot"), "the row says reset_gpu"
    assert (second.fault.id, second.consequence_of) == ("gpu_recovery_action", ["gpu_memory_error"])


def test_a_driver_that_reports_recovery_actions_says_that_a_fault_is_over(fleet: Fleet) -> None:
    fleet.host.xid(48)
    assert fleet.findings() == [], "driver 580 asks for nothing"
    fleet.host.set_gpu("gpu_recovery_action", "N/A")
    assert first_answers(fleet.findings()) == ["gpu_memory_error"], "this GPU reports no recovery action"


def test_errors_that_a_driver_contained_leave_the_gpu_in_service(fleet: Fleet) -> None:
    """The counter keeps them until a reset; the driver asks for none."""
    fleet.host.xid(94)
    fleet.host.set_gpu("dram_uncorrectable", "1")
    assert fleet.findings() == []


@pytest.mark.parametrize(("code", "fault"), [(32, "gpu_copy_error"), (13, "gpu_program_error")])
def test_lines_of_one_error_count_once(fleet: Fleet, code: int, fault: str) -> None:
    xid(code, times=3, every=0.001)(fleet)
    assert first_answers(fleet.findings()) == [fault]
    fleet.host.xid(code, ago=1)
    assert first_answers(fleet.findings()) == [fault], "within three minutes"


@pytest.mark.parametrize("tag", ["state", "status"])
def test_a_fabric_without_switches_of_the_host(fleet: Fleet, tag: str) -> None:
    """A tray of a rack has its switches elsewhere, and a GPU may be registered without success."""
    for address in SWITCHES:
        (fleet.host.root / "sys/bus/pci/devices" / address / "class").write_text("0x060400\n")
    fleet.host.set_gpu(tag, {"state": "In Progress", "status": "Insufficient Resources"}[tag], gpu=5)
    (finding,) = fleet.findings()
    assert finding.fault.id == "fabric_not_ready"


def test_a_task_of_the_driver_that_hung_weeks_ago_is_no_fault(fleet: Fleet) -> None:
    hung = "INFO: task nvidia-smi:77 blocked for more than 120 seconds."
    fleet.host.kernel.append((NOW - 7200, hung))
    fleet.host.kernel.append((NOW - 60, hung.replace("nvidia-smi", "nvme")))
    assert first_answers(fleet.findings()) == ["task_blocked"]


@pytest.mark.parametrize("name", [name for name in FAULTS if CATALOGUE[name].explains])
def test_a_fault_and_what_it_explains(fleet: Fleet, name: str) -> None:
    """On the same host and GPU. Some of them hide the fault, but none explains it."""
    for effect in CATALOGUE[name].explains:
        if effect in FAULTS:
            FAULTS[effect](fleet)
    FAULTS[name](fleet)
    assert [one.consequence_of for one in fleet.findings() if one.fault.id == name and one.consequence_of] == []


def test_lines_that_users_write_are_not_of_the_kernel() -> None:
    assert "--dmesg" in journal_command(), "matches _TRANSPORT=kernel"


def journal_command() -> list[str]:
    calls: list[list[str]] = []

    def runner(argv: Sequence[str], timeout: float) -> CommandResult:
        calls.append(list(argv))
        return CommandResult(0)

    read_kernel_log(runner)
    return calls[0]


def test_the_kernel_log_of_a_journalctl_without_patterns() -> None:
    def runner(argv: Sequence[str], timeout: float) -> CommandResult:
        if any(word.startswith("--grep") for word in argv):
            return CommandResult(1, "", "Compiled without pattern matching support")
        return CommandResult(0, json.dumps({"MESSAGE": list(b"NVRM: Xid"), "__REALTIME_TIMESTAMP": "1000000"}))

    assert [(line.time, line.text) for line in read_kernel_log(runner)] == [(1.0, "NVRM: Xid")]


def test_an_operators_row_replaces_values_and_adds_faults(fleet: Fleet) -> None:
    own = {
        "id": "own",
        "title": "Own",
        "layer": "host",
        "severity": "warning",
        "remedy": "human",
        "seen": [{"signal": "memory", "available_percent": {"max": 99}}],
        "cause": "{available_percent} %",
        "cure": "Nothing.",
        "source": "us",
    }
    catalogue = load_catalogue(fault_rows(), [{"id": "gpu_pcie_narrow", "severity": "ignored"}, own])
    fleet.host.set_gpu("current_link_width", "8x")
    found = diagnose("gpu1", fleet.host.result(fleet.patch)["signals"], catalogue)
    assert [(one.fault.id, one.as_dict()["cause"]) for one in found] == [("own", "75.9 %")]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": "gpu_lost", "severity": "bad"}, "fault gpu_lost: severity is 'bad'; it may be critical, warning"),
        ({"id": "gpu_lost", "cuer": "x"}, "fault gpu_lost: cuer is not a key of a fault. Did you mean 'cure'?"),
        ({"id": "new"}, "fault new: title is missing"),
        ({"id": "gpu_lost", "seen": [{"signal": "xids"}]}, "fault gpu_lost: signal is 'xids'; it may be xid,"),
        (
            {"id": "gpu_lost", "seen": [{"signal": "xid", "cod": 79}]},
            "fault gpu_lost: signal xid has no cod. Did you mean 'code'?",
        ),
        ({"id": "gpu_lost", "cause": "{reason}"}, "fault gpu_lost: cause names {reason}, which not every signal"),
        ({"id": "gpu_lost", "explains": ["nothing"]}, "fault gpu_lost: explains names nothing, which is not a fault"),
        ({"id": "gpu_lost", "seen": [{"signal": "gpu", "mig": {"above": 1}}]}, "comparison 'above'; it may be min"),
        ({"id": "gpu_lost", "seen": [{"signal": "kernel", "kind": {"matches": "("}}]}, "a pattern that is not valid"),
        ({"severity": "info"}, "is not a fault; it needs an id. Set fleet_faults"),
    ],
)
def test_rows_that_are_no_faults(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(CatalogueError) as raised:
        load_catalogue(fault_rows(), [row])
    assert problem in str(raised.value)


def test_the_report_has_one_entry_for_a_fault_of_several_hosts(fleet: Fleet) -> None:
    fleet.host.set_gpu("current_link_width", "8x")
    answer = fleet.host.result(fleet.patch)
    hosts = {f"gpu{number}": Examined(answer, VARIABLES, True) for number in range(1, 6)}
    found = valid(report(examine(hosts, {}, CATALOGUE), list(hosts), "2026-11-27T00:00:00+00:00"))
    assert (found["severity"], found["counts"]["warning"]) == ("warning", 1)
    (entry,) = found["faults"]
    assert entry["hosts"] == list(hosts)
    text = render(found)
    assert text.startswith("5 hosts examined: 1 warning.")
    assert "1. PCIe link narrow (warning) on gpu[1:5]" in text
    assert "and 2 more" in text


def test_the_text_says_what_follows_from_what(fleet: Fleet) -> None:
    gpu_lost(fleet)
    found = fleet.findings()
    text = render(report(found, ["gpu1", "gateway1"], "2026-11-27T00:00:00+00:00"))
    first, _title, rest = text.partition("These follow from faults above:")
    assert "1. GPU lost (critical) on gpu1" in first
    assert "Instance down on gpu1, from" in rest
    assert "remedy reboot" in first


def test_hundreds_of_hosts_are_sorted_by_number(fleet: Fleet) -> None:
    answer = {"unreachable": True, "msg": "Connection timed out"}
    hosts = {f"gpu{number}": Examined(answer, VARIABLES, True) for number in (10, 2, 1)}
    assert [finding.host for finding in examine(hosts, {}, CATALOGUE)] == ["gpu1", "gpu2", "gpu10"]
