"""The roles on this machine's NVIDIA GPUs, with the lab's engine for real GPUs: make real-gpus.

LAB_GPU=h100x2 rehearses it with simulated GPUs, except what only a real one can show. REAL_GPUS_DIR is a directory for
what the host said: nvidia-smi, CDI specification, kernel log, logs of the playbooks.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import CONTAINER, REPO, UNIT, Fleet, Run, docker, lab, wait_for
from ansible_collections.trtllm.fleet.tests.schemas import valid

KIND = os.environ.get("LAB_GPU", "real")
ACCEPTANCE = os.environ.get("REAL_GPUS_ACCEPTANCE", "quick")
HOST = "real-1"
ENVIRONMENT = {
    **os.environ,
    "ANSIBLE_NOCOLOR": "true",
    "ANSIBLE_CALLBACKS_ENABLED": "ansible.posix.profile_tasks",
    "LAB_GPU": KIND,
    "LAB_HOSTS": "1",
    "LAB_OS": "trixie",
    "LAB_PREFIX": "real-",
}
FAULT = "/srv/trtllm-fleet/encodings/fault"
WATCH_TIMEOUT = 40  # seconds
VARIABLES = {
    # One instance, so that a second GPU stays idle.
    "serving_recipe_gpus": [0],
    "serving_recipe_environment": {"LAB_ENGINE_FAULT_FILE": "/encodings/fault"},
    "trtllm_server_watch_timeout": WATCH_TIMEOUT,
}
PATIENCE = 300  # seconds
SMI = ["memory.used", "utilization.gpu", "utilization.memory", "power.draw", "clocks.sm", "clocks_event_reasons.active"]
# Another program than the engine, in its container.
ILLEGAL_ACCESS = "from torch_server import access_illegally; access_illegally()"
real = pytest.mark.skipif(KIND != "real", reason="needs a real GPU")


def keep(name: str, text: str) -> str:
    """Print a text, and write it to REAL_GPUS_DIR if set. Return it."""
    print(f"--- {name}\n{text[-1500:]}")
    if folder := os.environ.get("REAL_GPUS_DIR"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_text(text)
    return text


@pytest.fixture(scope="module")
def bare() -> Iterator[Fleet]:
    lab("up", "--extra-vars", f"lab_recreate={HOST}", environment=ENVIRONMENT)
    yield Fleet(HOST, ENVIRONMENT)
    lab("down", environment=ENVIRONMENT)


def play(fleet: Fleet, name: str, *arguments: str, log: str = "", **variables: Any) -> Run:
    began = time.monotonic()
    run = fleet.playbook(name, *arguments, **{**VARIABLES, **variables})
    seconds = time.monotonic() - began
    keep(f"{log or Path(name).stem}.log", f"{run.output}\nstatus {run.status}, {seconds:.0f} s\n")
    return run


def memory(fleet: Fleet) -> int:
    """Return the used memory of GPU 0 in MiB."""
    return int(fleet.shell("nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits"))


def measure(fleet: Fleet, name: str) -> dict[str, str]:
    values = fleet.shell(f"nvidia-smi --id=0 --query-gpu={','.join(SMI)} --format=csv,noheader").strip().split(", ")
    found = dict(zip(SMI, values, strict=True))
    keep(f"measured_{name}.json", json.dumps(found))
    keep(f"smi_{name}.xml", fleet.shell("nvidia-smi -q -x"))
    return found


def kernel_log() -> list[str]:
    """Return the lines of the machine's kernel log; lab hosts cannot read it."""
    return subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout.splitlines()


def has_gpu(fleet: Fleet) -> bool:
    """Return True if the container's nvidia-smi lists the host's first GPU by UUID, and a completion succeeds."""
    (uuid, *_) = re.findall(r"UUID: (GPU-[0-9a-f-]+)", fleet.shell("nvidia-smi -L"))
    return f"UUID: {uuid}" in fleet.shell(f"docker exec {CONTAINER} nvidia-smi -L", check=False) and fleet.chat() == 200


@contextmanager
def load(fleet: Fleet, users: int = 8) -> Iterator[None]:
    """Run requests of several users on the host."""
    body = json.dumps(
        {"model": "openai/gpt-oss-120b", "max_tokens": 300, "messages": [{"role": "user", "content": "Count."}]}
    )
    ask = f"curl -s -m 120 -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:8000/v1/chat/completions"
    fleet.shell("rm -f /tmp/stop")
    for _user in range(users):
        docker("exec", "--detach", fleet.host, "sh", "-c", f"until [ -e /tmp/stop ]; do {ask} > /dev/null; done")
    try:
        yield
    finally:
        fleet.shell("touch /tmp/stop")


def status(fleet: Fleet, name: str) -> dict[str, Any]:
    """Return the host's row of the status, and keep it."""
    written = REPO / ".cache" / f"{name}.json"
    written.parent.mkdir(exist_ok=True)
    play(fleet, "playbooks/status.yml", log=f"status_{name}", status_file=str(written), status_page=f"{written}.html")
    (row,) = valid(json.loads(keep(f"status_{name}.json", written.read_text())))["hosts"]
    return dict(row)


def test_dry_run_of_a_bare_host(bare: Fleet) -> None:
    before = bare.shell("dpkg --list | md5sum")
    assert play(bare, "site.yml", "--check", log="site_check").status == 0
    assert bare.shell("dpkg --list | md5sum") == before


def test_bare_host_becomes_verified(bare: Fleet) -> None:
    driver = bare.shell("cat /proc/driver/nvidia/version") if KIND == "real" else ""
    assert play(bare, "site.yml").status == 0
    if KIND == "real":
        assert bare.shell("cat /proc/driver/nvidia/version") == driver
        assert "nvidia-driver" not in bare.shell("dpkg --list")
    assert has_gpu(bare)
    keep("unit.txt", bare.shell(f"systemctl cat {UNIT}; journalctl --no-pager --unit={UNIT}"))
    keep("inspect.json", bare.shell(f"docker inspect {CONTAINER}"))
    keep("cdi.yaml", bare.shell("cat /var/run/cdi/nvidia.yaml"))
    keep("smi_container.txt", bare.shell(f"docker exec {CONTAINER} nvidia-smi"))


def test_second_run_changes_nothing(bare: Fleet) -> None:
    run = play(bare, "site.yml", log="site_again")
    assert (run.status, re.findall(r"changed=(\d+)", run.output)) == (0, ["0"])


@pytest.fixture
def fleet(bare: Fleet) -> Iterator[Fleet]:
    """Return the verified host with reset counters."""
    bare.shell(f"rm -rf {FAULT} /run/trtllm-fleet/healed; systemctl reset-failed {UNIT} docker", check=False)
    assert wait_for(lambda: has_gpu(bare), PATIENCE)
    yield bare
    bare.shell(f"rm -f {FAULT}")


def test_gpu_is_kept_after_daemon_reload(fleet: Fleet) -> None:
    before = fleet.container()
    fleet.shell("systemctl daemon-reload")
    for _second in range(5):
        assert has_gpu(fleet)
        time.sleep(1)
    assert fleet.container() == before


def test_gpu_is_kept_after_new_cdi_devices(fleet: Fleet) -> None:
    fleet.shell("rm /var/run/cdi/nvidia.yaml && systemctl start nvidia-cdi-refresh && test -s /var/run/cdi/nvidia.yaml")
    assert has_gpu(fleet)


@pytest.mark.parametrize(
    "script",
    [
        "systemctl restart docker",
        "systemctl kill --kill-whom=main --signal=KILL docker.service",
        "docker restart",
    ],
    ids=["docker restarted", "docker killed", "host restarted"],
)
def test_gpu_is_back(fleet: Fleet, script: str) -> None:
    before, began = fleet.container(), time.monotonic()
    if script == "docker restart":
        docker("restart", fleet.host)
    else:
        fleet.shell(script)
    assert wait_for(lambda: fleet.container() not in ("", before) and has_gpu(fleet), PATIENCE)
    print(f"{script}: {time.monotonic() - began:.0f} s")


@real
def test_load_is_seen(fleet: Fleet) -> None:
    idle = measure(fleet, "idle")
    with load(fleet):
        time.sleep(15)
        busy = measure(fleet, "load")
        row = status(fleet, "load")
    assert float(busy["power.draw"].split()[0]) > float(idle["power.draw"].split()[0]) + 50
    assert int(busy["utilization.memory"].split()[0]) > 0  # what the watchdog takes for work
    assert row["verdict"] == "ok", row


@real
@pytest.mark.parametrize("fault", ["illegal", "oom"])
def test_cuda_error_ends_the_engine_and_systemd_restarts_it(fleet: Fleet, fault: str) -> None:
    before, log = fleet.container(), kernel_log()
    fleet.shell(f"echo {fault} > {FAULT}")
    assert wait_for(lambda: fleet.container() != before, PATIENCE)
    keep(f"kernel_{fault}.txt", "\n".join(line for line in kernel_log() if line not in log))
    fleet.shell(f"rm {FAULT}")
    keep(f"unit_{fault}.txt", fleet.shell(f"journalctl --no-pager --unit={UNIT} --since=-2min"))
    status(fleet, fault)
    assert wait_for(lambda: has_gpu(fleet), PATIENCE)
    if fault == "illegal":
        assert any("Xid" in line for line in kernel_log() if line not in log)


@real
def test_hung_kernel_is_found_and_its_memory_is_free_before_the_next_start(fleet: Fleet) -> None:
    before, began = fleet.container(), time.monotonic()
    with load(fleet, 1):
        time.sleep(25)  # the watchdog has seen it ready
        fleet.shell(f"echo spin > {FAULT}")
        free = []

        def replaced() -> bool:
            now = fleet.container()
            if not now:
                free.append(memory(fleet))
            return now not in ("", before)

        assert wait_for(replaced, PATIENCE)
        fleet.shell(f"rm {FAULT}")
    print(f"found and killed after {time.monotonic() - began - 25:.0f} s; memory between the containers: {free} MiB")
    assert free
    assert min(free) < 1024
    assert wait_for(lambda: has_gpu(fleet), PATIENCE)
    keep("watchdog.txt", fleet.shell("journalctl --no-pager --unit=trtllm-watch-serve-0"))
    status(fleet, "spin")


def test_status_shows_the_burn_in(fleet: Fleet) -> None:
    """With REAL_GPUS_ACCEPTANCE=full it takes 25 minutes."""
    assert play(fleet, "playbooks/accept.yml", acceptance_level=ACCEPTANCE).status == 0
    result = json.loads(keep("acceptance.json", fleet.shell("cat /var/lib/trtllm-fleet/acceptance.json")))
    assert result["level"] == ACCEPTANCE
    row = status(fleet, "acceptance")
    # The lab's engine without torch tests nothing, which is not a pass.
    assert row["acceptance"]["verdict"] == ("pass" if KIND == "real" else "unknown"), row
    assert has_gpu(fleet)


@real
def test_an_xid_of_a_program_is_named_and_nothing_is_restarted(fleet: Fleet) -> None:
    before, log = fleet.container(), kernel_log()
    program = f"/opt/machine/python -c {shlex.quote(ILLEGAL_ACCESS)}"
    fleet.shell(f"docker exec --workdir /opt/machine {CONTAINER} {program}", check=False)
    assert wait_for(lambda: any("Xid" in line for line in kernel_log() if line not in log), 20)
    # The program of role host_health reads the host's log, to which the lab writes the driver's lines.
    lines = [line.partition("] ")[2] for line in kernel_log() if line not in log and "NVRM" in line]
    keep("kernel_program.txt", "\n".join(lines))
    fleet.shell("trtllm-lab-kernel-log " + " ".join(map(shlex.quote, lines)))
    time.sleep(40)  # two looks
    health = json.loads(keep("health_program.json", fleet.shell("cat /run/trtllm-fleet/health.json")))
    assert [one["fault"] for one in health["faults"] if one["severity"] in ("critical", "warning")] == [], health
    assert fleet.container() == before
    assert has_gpu(fleet)
    report = REPO / ".cache" / "real_faults.json"
    assert play(fleet, "playbooks/doctor.yml", log="doctor_program", doctor_file=str(report)).status == 0
    faults = valid(json.loads(keep("doctor_program.json", report.read_text())))["faults"]
    assert "gpu_program_error" in [one["fault"] for one in faults], faults
    assert play(fleet, "playbooks/repair.yml", "--check", log="repair_program", repair_mode="restart").status == 0


def test_the_health_program_is_cheap(fleet: Fleet) -> None:
    """Its CPU time with its children, with the default interval, while the engine is idle and while it works."""
    shares = {}
    for name, users in {"idle": 0, "load": 8}.items():
        with load(fleet, users):
            used, began = cpu_seconds(fleet), time.monotonic()
            time.sleep(75)
            shares[name] = (cpu_seconds(fleet) - used) / (time.monotonic() - began)
    process = fleet.shell("systemctl show --value --property=MainPID trtllm-health").strip()
    resident = fleet.shell(f"sed -n 's/^VmRSS: *//p' /proc/{process}/status").strip()
    keep("health_cost.json", json.dumps({"share of a core": shares, "resident": resident}))
    assert max(shares.values()) < 0.05


def cpu_seconds(fleet: Fleet) -> float:
    return int(fleet.shell("systemctl show --value --property=CPUUsageNSec trtllm-health")) / 1e9
