# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure status.yml, and site.yml without changes, beside plain SSH and beside a playbook of one task.

Plain SSH runs one shell script on each host in parallel, over open connections as Ansible's are. It reads the same as
status.yml: units, the release's files, the instances' health and models, images, GPUs and drivers. The playbook of one
task runs module stat. Needs an otherwise idle lab with verified endpoints: see docs/test-results/benchmarks.md.

The last line is one JSON object, with medians of wall seconds and of CPU seconds of the control node. The exit status
is 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = "inventory/local"
ONE_TASK = "tools/bench/one_task.yml"
# Of site.yml: wall seconds to those of plain SSH, CPU seconds to those of one task.
WALL_LIMIT, CPU_LIMIT = 3.0, 3.0
# Prints what an operator would read to check a host.
SCRIPT = r"""
cd /etc/trtllm-fleet/verified && units=$(ls | grep '\.service$')
systemctl show --property=ActiveState,SubState,NRestarts,UnitFileState,DropInPaths,NeedDaemonReload -- $units
for unit in $units; do readlink /etc/systemd/system/$unit; done
sha256sum --check --quiet SHA256SUMS
cat release.json /etc/trtllm-fleet/history.json
python3 -c '
import json, urllib.request
for one in json.load(open("release.json"))["instances"]:
    for path in ("/health", "/v1/models"):
        print(urllib.request.urlopen(one["base_url"] + path, timeout=5).read().decode())
'
docker container inspect --format '{{.Name}} {{.Config.Image}} {{.Image}}' $(docker ps --quiet)
nvidia-smi -q -x
cat /proc/driver/nvidia/version /proc/net/tcp
"""


@dataclass(frozen=True)
class Host:
    """Login of a host and the way to become root."""

    login: str
    asks_for_password: bool


def cpu() -> float:
    """Return the CPU seconds of this process and its ended children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds of the control node."""
    before, began = cpu(), time.perf_counter()
    work()
    return time.perf_counter() - began, cpu() - before


def hosts() -> dict[str, Host]:
    """Return the GPU hosts of the lab by name."""
    command = ["ansible-inventory", "--inventory", INVENTORY, "--list"]
    said = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    # Unwrap values that an inventory plugin marks as unsafe for templating.
    told = json.loads(said, object_hook=lambda one: one.get("__ansible_unsafe", one))
    variables = told["_meta"]["hostvars"]
    return {
        name: Host(f"{one['ansible_user']}@{one['ansible_host']}", one["lab_sudo"] == "password")
        for name, one in ((name, variables[name]) for name in told["gpu_hosts"]["hosts"])
    }


def ssh(sockets: Path, host: Host, script: str) -> str:
    """Run a script as root, with the lab's password if sudo needs one."""
    options = {
        "ControlMaster": "auto",
        "ControlPath": sockets / "%C",
        "ControlPersist": "600",
        "UserKnownHostsFile": ROOT / ".lab/ssh/known_hosts",
    }
    command = ["ssh", "-i", str(ROOT / ".lab/ssh/id_ed25519"), *(f"-o{key}={value}" for key, value in options.items())]
    sudo = ["sudo", "--non-interactive", "sh", "-s"]
    if host.asks_for_password:
        sudo = ["sudo", "--reset-timestamp", "--stdin", "--prompt=", "sh", "-s"]
        script = (ROOT / ".lab/secrets/sudo_password").read_text().strip() + "\n" + script
    done = subprocess.run([*command, host.login, *sudo], input=script, text=True, stdout=subprocess.PIPE, check=True)
    return done.stdout


def play(name: str) -> None:
    command = ["ansible-playbook", name, "--inventory", INVENTORY]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(done.stdout)
    changed = [line for line in done.stdout.splitlines() if " changed=" in line and " changed=0 " not in line]
    # status.yml writes a file on the control node.
    if changed and name == "site.yml":
        raise SystemExit(f"{name} changed something; measure a fleet without changes:\n" + "\n".join(changed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="number of runs (default: 3)")
    given = parser.parse_args()
    fleet = hosts()
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder, ThreadPoolExecutor(len(fleet)) as pool:

        def look() -> list[str]:
            return list(pool.map(lambda host: ssh(Path(folder), host, SCRIPT), fleet.values()))

        works: dict[str, Callable[[], object]] = {
            "ssh": look,
            "one task": lambda: play(ONE_TASK),
            "status.yml": lambda: play("playbooks/status.yml"),
            "site.yml": lambda: play("site.yml"),
        }
        for work in works.values():
            work()  # opens the connections and fills caches
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for _turn in range(given.repeat):
            for name, work in works.items():
                found[name].append(measured(work))
    medians = {
        name: tuple(statistics.median(one) for one in zip(*figures, strict=True)) for name, figures in found.items()
    }
    print(f"{'':12}{'wall s':>10}{'CPU s':>10}{'x SSH wall':>12}{'x task CPU':>12}")
    for name, (wall, used) in medians.items():
        print(f"{name:12}{wall:10.2f}{used:10.2f}{wall / medians['ssh'][0]:12.1f}{used / medians['one task'][1]:12.1f}")
    ratios = {
        "wall": medians["site.yml"][0] / medians["ssh"][0],
        "cpu": medians["site.yml"][1] / medians["one task"][1],
    }
    missed = [name for name, limit in (("wall", WALL_LIMIT), ("cpu", CPU_LIMIT)) if ratios[name] > limit]
    result = {
        "hosts": len(fleet),
        "cores": os.cpu_count(),
        "repeat": given.repeat,
        **{name: {"wall": round(wall, 2), "cpu": round(used, 2)} for name, (wall, used) in medians.items()},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "missed": missed,
    }
    print(json.dumps(result))
    sys.exit(bool(missed))
