# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the control node's cost of a fleet of 1,000 hosts and of a tenth of it, without hosts.

A stand-in connection returns what the modules of a real lab host answered (thousand.json), so neither SSH nor the time
of hosts is included. Measured are a playbook of one task, site.yml with all hosts as recorded, the same with a gateway
that has all of them, plan.yml, and the planning of a rollout that changes every host. The gateway's own role is
not included, and there is no registry mirror.

CPU seconds are those of ansible-playbook and all its processes. Memory has two figures: the largest resident set of a
single process (rss), which the kernel reports, and the highest sum of the proportional set sizes of all processes
(pss), which counts shared pages once and is sampled every 2 seconds. The limit applies to both.

The last line is one JSON object. The exit status is 1 if a limit is missed. --record writes thousand.json; the lab
that LAB_PREFIX selects needs one GPU host and one gateway, as the last site.yml left them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.answers import FILE
from tools.bench.fleet import INVENTORY, ONE_TASK, ROOT

ANSWERS = ROOT / "tools/bench/thousand.json"
# The stand-in, and in another directory the one that records, as Ansible loads all plugins of a directory.
CONNECTIONS, RECORDER = ROOT / "tools/bench/connections", ROOT / "tools/bench/recorder"
VARIABLES = ROOT / "inventory/b200/group_vars/all.yml"
# Of site.yml: CPU seconds to those of one task, and MiB.
CPU_LIMIT, MEMORY_LIMIT = 4.0, 2048
SAMPLE = 2.0  # seconds
LISTED = 5  # tasks in the output
# What roles that the planning of a rollout leaves out would set, with values of a lab host.
RESULTS = {
    "container_image_result": "registry.origin.test/nvidia/tensorrt-llm/release@sha256:" + "0" * 64,
    "model_weights_result": {"path": "/srv/trtllm-fleet/models/gpt-oss-120b", "vocabulary_dir": "/srv/trtllm-fleet"},
    # Another release than that of the lab host, so that the plan has every host.
    "serving_recipe_environment": {"BENCH": "1"},
}
REGISTERED = "site, gateway"
GATEWAY_INFO = "ansible_collections.trtllm.fleet.plugins.modules.gateway_info"
PLAYBOOKS: dict[str, list[str]] = {
    "one task": [ONE_TASK],
    "site.yml": ["site.yml"],
    REGISTERED: ["site.yml", "--limit=gpu_hosts"],
    "plan.yml": ["playbooks/plan.yml"],
    "rollout plan": ["tools/bench/rollout_plan.yml", "--check"],
}


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds, MiB, and for each name of tasks the seconds ``main``, ``tasks`` and ``wall``."""

    wall: float
    cpu: float
    rss: float
    pss: float
    tasks: list[dict[str, Any]]

    def largest(self) -> list[dict[str, Any]]:
        """Return the tasks with the most CPU seconds, the largest first."""
        return sorted(self.tasks, key=cpu_of, reverse=True)[:LISTED]


def cpu_of(task: Mapping[str, Any]) -> float:
    """Return the CPU seconds of a task: of ansible-playbook itself and of its processes."""
    return round(task["main"] + task["tasks"], 2)


def by_name(tasks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the sums of tasks with the same name."""
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        one = found.setdefault(task["name"], {"name": task["name"], "main": 0.0, "tasks": 0.0, "wall": 0.0})
        for key in ("main", "tasks", "wall"):
            one[key] += task[key]
    return list(found.values())


def inventory(folder: Path, count: int) -> Path:
    """Write an inventory of ``count`` GPU hosts with the variables of inventory/b200, and return its directory."""
    place = folder / str(count)
    (place / "group_vars/all").mkdir(parents=True)
    (place / "group_vars/all/b200.yml").write_text(VARIABLES.read_text())
    connection = {
        "ansible_connection": "recorded",
        "ansible_pipelining": True,
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    (place / "group_vars/all/connection.yml").write_text(json.dumps(connection))
    hosts = {f"gpu{number:04}": {"ansible_host": f"10.0.{number // 250}.{number % 250 + 1}"} for number in range(count)}
    (place / "hosts.yml").write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}))
    return place


def gateway(folder: Path) -> Path:
    """Write an inventory of one gateway and the address at which it reaches the hosts, and return its directory."""
    place = folder / "gateway"
    (place / "group_vars/all").mkdir(parents=True)
    address = {"trtllm_server_listen_address": "{{ ansible_host }}"}
    (place / "group_vars/all/address.yml").write_text(json.dumps(address))
    (place / "hosts.yml").write_text(json.dumps({"gateway": {"hosts": {"gateway1": {"ansible_host": "10.1.0.1"}}}}))
    return place


def arguments(folder: Path, name: str) -> list[str]:
    """Return the arguments of ansible-playbook for one of PLAYBOOKS."""
    given = [*PLAYBOOKS[name], "--extra-vars", json.dumps({"plan_file": str(folder / "plan.json")})]
    return [*given, "--extra-vars", json.dumps(RESULTS)] if name == "rollout plan" else given


def environment(connections: Path, **others: str) -> dict[str, str]:
    """Return the environment of ansible-playbook with connection plugins and the callback of this benchmark."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "ANSIBLE_CONNECTION_PLUGINS": str(connections),
        "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tools/bench/callbacks"),
        "ANSIBLE_CALLBACKS_ENABLED": "task_cpu",
        "TRTLLM_FLEET_TIMELINE_DIRECTORY": "",
        **others,
    }


def processes(parent: int) -> Iterator[int]:
    """Yield a process and its children, by number."""
    yield parent
    with suppress(OSError):
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            yield from processes(int(child))


def pss(parent: int) -> float:
    """Return the sum of the proportional set sizes of a process and its children in MiB."""
    total = 0
    for process in processes(parent):
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def answers(folder: Path, hosts: Path) -> Path:
    """Write the recorded answers for a fleet, in which the gateway has every host, and return the file."""
    found = json.loads(ANSWERS.read_text())
    names = json.loads((hosts / "hosts.yml").read_text())["gpu_hosts"]["hosts"]
    (recorded,) = found[GATEWAY_INFO]["hosts"].values()
    found[GATEWAY_INFO]["hosts"] = dict.fromkeys(names, recorded)
    path = folder / f"answers-{len(names)}.json"
    path.write_text(json.dumps(found))
    return path


def measured(folder: Path, hosts: Path, name: str) -> Cost:
    """Run a playbook and return its cost. Exits with the output if the playbook fails or changes a host."""
    tasks = folder / "tasks.json"
    command = ["ansible-playbook", *arguments(folder, name), "--inventory", str(hosts)]
    if name == REGISTERED:
        command += ["--inventory", str(folder / "gateway")]
    variables = environment(CONNECTIONS, **{FILE: str(answers(folder, hosts)), "BENCH_TASKS": str(tasks)})
    samples = [0.0]
    ended = threading.Event()
    with (folder / "log").open("w+") as log:
        began = time.perf_counter()
        running = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT)

        def sample() -> None:
            while not ended.wait(SAMPLE):
                samples.append(pss(running.pid))

        sampler = threading.Thread(target=sample)
        sampler.start()
        # The usage includes that of all processes that ansible-playbook has waited for.
        _process, status, used = os.wait4(running.pid, 0)
        wall = time.perf_counter() - began
        running.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        sampler.join()
        log.seek(0)
        output = log.read()
    recap = [line for line in output.splitlines() if " unreachable=" in line]
    if running.returncode or any(" failed=0 " not in line for line in recap):
        raise SystemExit(f"{' '.join(command)} failed:\n{output[-8000:]}")
    if "site.yml" in PLAYBOOKS[name] and any(" changed=0 " not in line for line in recap):
        raise SystemExit(f"site.yml changed a host; the recorded host has to be as recorded:\n{output[-8000:]}")
    cpu = used.ru_utime + used.ru_stime
    return Cost(wall, cpu, used.ru_maxrss / 1024, max(samples), by_name(json.loads(tasks.read_text())))


def record(folder: Path) -> None:
    """Run all playbooks on the lab host and write what its modules answered."""
    stored = folder / "answers"
    stored.mkdir()
    # As a variable of the hosts: an extra variable would apply to tasks on the control node, too.
    through = {"plugin": "ansible.builtin.constructed", "compose": {"ansible_connection": "'recording'"}}
    (folder / "recording.yml").write_text(json.dumps(through))
    # The other site.yml would run the role of the gateway, too.
    for name in [name for name in PLAYBOOKS if name != "site.yml"]:
        command = ["ansible-playbook", *arguments(folder, name), f"--inventory={INVENTORY}"]
        command.append(f"--inventory={folder}/recording.yml")
        variables = environment(RECORDER, **{FILE: str(stored), "BENCH_TASKS": os.devnull})
        if name == "rollout plan":
            # The gateway is only for the registration, and a rollout of a single host leaves none that serves.
            command.append("--extra-vars={rollout_gateways: [], rollout_min_capacity: 0}")
        subprocess.run(command, cwd=ROOT, env=variables, check=True)
    answers = {path.stem: json.loads(path.read_text()) for path in sorted(stored.iterdir())}
    ANSWERS.write_text(json.dumps(answers, sort_keys=True, separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000, help="number of hosts (default: 1000)")
    parser.add_argument("--only", choices=PLAYBOOKS, action="append", help="measure this playbook (default: all)")
    parser.add_argument("--record", action="store_true", help="record the answers of a lab host, and measure nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thousand-") as temporary:
        folder = Path(temporary)
        if given.record:
            record(folder)
            return
        counts = (max(1, given.hosts // 10), given.hosts)
        gateway(folder)
        places = {count: inventory(folder, count) for count in counts}
        names = given.only or list(PLAYBOOKS)
        found = {name: {count: measured(folder, places[count], name) for count in counts} for name in names}
    print(f"{'':14}{'hosts':>7}{'CPU s':>9}{'wall s':>9}{'rss MiB':>9}{'pss MiB':>9}  largest task, CPU s")
    for name, costs in found.items():
        for count, cost in costs.items():
            first = cost.largest()[0]
            figures = f"{cost.cpu:9.1f}{cost.wall:9.1f}{cost.rss:9.0f}{cost.pss:9.0f}"
            print(f"{name:14}{count:7}{figures}  {first['name']} {cpu_of(first):.1f}")
    few, many = counts
    growth = {name: round(costs[many].cpu / costs[few].cpu, 1) for name, costs in found.items()}
    for name, ratio in growth.items():
        print(
            f"{name}: {many} hosts take {ratio} times the CPU of {few}. Largest tasks, CPU s (ansible-playbook itself):"
        )
        before = {task["name"]: task for task in found[name][few].tasks}
        for task in found[name][many].largest():
            small = before.get(task["name"], {"main": 0, "tasks": 0})
            print(
                f"  {cpu_of(small):8.2f} ({small['main']:.2f}) {cpu_of(task):8.2f} ({task['main']:.2f})  {task['name']}"
            )
    missed = [
        f"memory of {name}" for name, costs in found.items() if max(costs[many].rss, costs[many].pss) > MEMORY_LIMIT
    ]
    one = found["one task"][many].cpu if "one task" in found else None
    times = {name: round(costs[many].cpu / one, 2) for name, costs in found.items() if one}
    missed += [f"cpu of {name}" for name in ("site.yml", REGISTERED) if times.get(name, 0) > CPU_LIMIT]
    result = {
        "benchmark": "thousand",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "playbooks": {
            name: {
                str(count): {key: round(getattr(cost, key), 1) for key in ("cpu", "wall", "rss", "pss")}
                for count, cost in costs.items()
            }
            for name, costs in found.items()
        },
        "growth": growth,
        "times_one_task": times,
        "missed": missed,
    }
    print(json.dumps(result))
    sys.exit(bool(missed))
