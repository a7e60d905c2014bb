# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure status.yml, and site.yml without changes, beside plain SSH and beside a playbook of one task.

Plain SSH runs one shell script on each host in parallel, over open connections as Ansible's are. It reads the same as
status.yml: units, the release's files, the instances' health and models, images, GPUs and drivers. The playbook of one
task runs module stat. Needs an otherwise idle lab with verified endpoints: see docs/test-results/benchmarks.md.

``--mitogen`` runs all roles of site.yml, too, which change nothing: with Mitogen for Ansible, and without it. The first
such run downloads Mitogen and Ansible into .cache/mitogen (300 MB).

The last line is one JSON object, with medians of wall seconds and of CPU seconds of the control node. The exit status
is 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tools.bench import fleet_mitogen

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = "inventory/local"
ONE_TASK = "tools/bench/one_task.yml"
# Of site.yml: wall seconds to those of plain SSH, CPU seconds to those of one task.
WALL_LIMIT, CPU_LIMIT = 3.0, 3.0
# Wall and CPU seconds of site.yml, hosts as recorded, to those of all roles with Mitogen.
MITOGEN_LIMIT = 1.0
FULL, FULL_MITOGEN = "all roles", "all roles, Mitogen"
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


def masters(sockets: Path) -> dict[int, float]:
    """Return the CPU seconds of each SSH master with a socket in the folder, by process id.

    A master outlives the command that started it, so it is not a child of this process.
    """
    found, tick = {}, os.sysconf("SC_CLK_TCK")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(f"ssh: {sockets}/".encode()):
                # Fields 14 and 15 of proc_pid_stat(5). The name in parentheses, field 2, may have spaces.
                times = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
                found[int(process.name)] = sum(map(int, times)) / tick
    return found


@contextmanager
def connections() -> Iterator[Path]:
    """Yield a folder for the sockets of SSH masters, and end the masters at the end."""
    with tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            for process in masters(Path(folder)):
                os.kill(process, signal.SIGTERM)


def measured(work: Callable[[], object], sockets: Path) -> tuple[float, float]:
    """Return wall and CPU seconds of the control node, SSH included."""
    mastered, before, began = masters(sockets), cpu(), time.perf_counter()
    work()
    wall, used = time.perf_counter() - began, cpu() - before
    return wall, used + sum(now - mastered.get(process, 0) for process, now in masters(sockets).items())


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
        "ControlPersist": "30m",
        "UserKnownHostsFile": ROOT / ".lab/ssh/known_hosts",
    }
    command = ["ssh", "-i", str(ROOT / ".lab/ssh/id_ed25519"), *(f"-o{key}={value}" for key, value in options.items())]
    sudo = ["sudo", "--non-interactive", "sh", "-s"]
    if host.asks_for_password:
        sudo = ["sudo", "--reset-timestamp", "--stdin", "--prompt=", "sh", "-s"]
        script = (ROOT / ".lab/secrets/sudo_password").read_text().strip() + "\n" + script
    done = subprocess.run([*command, host.login, *sudo], input=script, text=True, stdout=subprocess.PIPE, check=True)
    return done.stdout


def play(sockets: Path, name: str, *arguments: str, **environment: str) -> Counter[str]:
    """Run a playbook. Return the number of results of all hosts by state (ok, changed, skipped)."""
    command = ["ansible-playbook", name, "--inventory", INVENTORY, *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        # Of site.yml, the timeline goes to the folder, too.
        env=os.environ
        | {"ANSIBLE_SSH_CONTROL_PATH_DIR": f"{sockets}/cp", "TRTLLM_FLEET_TIMELINE_DIRECTORY": str(sockets)}
        | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout)
    results: Counter[str] = Counter()
    changed = []
    for line in done.stdout.partition("PLAY RECAP")[2].splitlines():
        counts = dict(word.split("=") for word in line.partition(" : ")[2].split() if "=" in word)
        results.update({state: int(count) for state, count in counts.items()})
        if counts.get("changed", "0") != "0":
            changed.append(line)
    # status.yml writes a file on the control node.
    if changed and name == "site.yml":
        raise SystemExit(f"{name} changed something; measure a fleet without changes:\n" + "\n".join(changed))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="number of runs (default: 3)")
    parser.add_argument("--mitogen", action="store_true", help="run all roles with and without Mitogen, too")
    given = parser.parse_args()
    mitogen = fleet_mitogen.mitogen() if given.mitogen else None
    fleet = hosts()
    with connections() as sockets, ThreadPoolExecutor(len(fleet)) as pool:

        def look() -> list[str]:
            return list(pool.map(lambda host: ssh(sockets, host, SCRIPT), fleet.values()))

        works: dict[str, Callable[[], object]] = {
            "ssh": look,
            "one task": lambda: play(sockets, ONE_TASK),
            "status.yml": lambda: play(sockets, "playbooks/status.yml"),
            "site.yml": lambda: play(sockets, "site.yml"),
        }
        if mitogen:
            variables = fleet_mitogen.variables(mitogen)
            every = ["--extra-vars", "site_full=true"]
            strategy = ["--extra-vars", f"site_strategy={fleet_mitogen.SITE_STRATEGY}"]
            works["Mitogen"] = lambda: play(sockets, "site.yml", **variables)
            works[FULL] = lambda: play(sockets, "site.yml", *every)
            works[FULL_MITOGEN] = lambda: play(sockets, "site.yml", *every, *strategy, **variables)
        # Opens the connections and fills caches.
        first = {name: work() for name, work in works.items()}
        for ours, theirs in (("site.yml", "Mitogen"), (FULL, FULL_MITOGEN)):
            if mitogen and first[ours] != first[theirs]:
                raise SystemExit(f"{ours} had other results than {theirs}: {first[ours]}, {first[theirs]}")
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for _turn in range(given.repeat):
            for name, work in works.items():
                found[name].append(measured(work, sockets))
    medians = {
        name: tuple(statistics.median(one) for one in zip(*figures, strict=True)) for name, figures in found.items()
    }
    print(f"{'':20}{'wall s':>10}{'CPU s':>10}{'x SSH wall':>12}{'x task CPU':>12}")
    for name, (wall, used) in medians.items():
        print(f"{name:20}{wall:10.2f}{used:10.2f}{wall / medians['ssh'][0]:12.1f}{used / medians['one task'][1]:12.1f}")
    ratios = {
        "wall": medians["site.yml"][0] / medians["ssh"][0],
        "cpu": medians["site.yml"][1] / medians["one task"][1],
    }
    limits = {"wall": WALL_LIMIT, "cpu": CPU_LIMIT}
    versions = {}
    if mitogen:
        for index, name in enumerate(("Mitogen wall", "Mitogen cpu")):
            ratios[name] = medians["site.yml"][index] / medians[FULL_MITOGEN][index]
            limits[name] = MITOGEN_LIMIT
        versions = {"mitogen": fleet_mitogen.MITOGEN, "ansible-core": fleet_mitogen.version(mitogen)}
    missed = [name for name, limit in limits.items() if ratios[name] > limit]
    result = {
        "hosts": len(fleet),
        "cores": os.cpu_count(),
        "repeat": given.repeat,
        **({"versions": versions} if versions else {}),
        **{name: {"wall": round(wall, 2), "cpu": round(used, 2)} for name, (wall, used) in medians.items()},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "missed": missed,
    }
    print(json.dumps(result))
    sys.exit(bool(missed))
