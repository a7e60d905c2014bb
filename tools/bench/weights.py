# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the distribution of a model to N hosts: hub only, hub and rsync, and role model_weights.

Hosts and hub are network namespaces of this machine with shaped links;
docs/test-results/benchmarks.md explains the figures.
The last line is one JSON object; the exit status is 1 if a limit is missed, 2 after an error.

All processes run inside mount, process and network namespaces, on a file system in memory that is visible only there.
Nothing outside is changed, and nothing remains afterwards.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import Manifest, RemoteFile, write_manifest
from ansible_collections.trtllm.fleet.plugins.plugin_utils.zipapp import build_zipapp
from lab.origin.hub.build_repositories import Shape, as_json, commit_id, repository_files
from lab.origin.hub.server import Repository

ROOT = Path(__file__).resolve().parents[2]

# Limits: of the model's bytes, and of the time of one host.
WAN_LIMIT = 1.05
TIME_LIMIT = 1.4

REPOSITORY = "openai/gpt-oss-120b"
# The 15 shards of the real model, in units of 10 MB.
SHARDS = (463, 412, 463, 412, 463, 412, 463, 406, 463, 417, 463, 412, 406, 463, 406)

WAYS = ("hub", "rsync", "ours")
# The required programs, and their Debian packages.
PACKAGES = {
    "ip": "iproute2",
    "mount": "mount",
    "rsync": "rsync",
    "setpriv": "util-linux",
    "tc": "iproute2",
    "unshare": "util-linux",
}
# The Python of the units, which needs libtorrent.
HOST_PYTHON = "/usr/bin/python3"

PLACE = Path("/run/bench")
PROGRAM = PLACE / "weights.pyz"
NETWORK = "10.0.0"
HUB = f"{NETWORK}.254"
HUB_PORT = 8090
SHARE_PORT = 6881
# Factor of the links' time that a run may take.
PATIENCE = 10
SPARE_SECONDS = 300


@dataclass(frozen=True)
class Links:
    """Speed of a host's link and of the hub's, in Mbit/s in each direction."""

    lan: float
    wan: float


@dataclass(frozen=True)
class Cell:
    """Result of a run. ``seconds``: until the last host is verified. ``wan_bytes``: sent by the hub.

    ``lan_bytes``: sent by all hosts; ``busiest_bytes``: the most that one host sent. ``cpu``: share of the machine's
    cores in use by all processes.
    """

    way: str
    hosts: int
    seconds: float
    wan_bytes: int
    lan_bytes: int
    busiest_bytes: int
    cpu: float


def fail(message: str) -> NoReturn:
    """Exit at once, also from a thread; inside, this is the first process and all others end with it."""
    print(message, file=sys.stderr, flush=True)
    os._exit(2)


# The model


def shard_sizes(total: int) -> list[int]:
    """Return the bytes of each shard of a model of this size."""
    ends = [round(total * sum(SHARDS[: number + 1]) / sum(SHARDS)) for number in range(len(SHARDS))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def build_model(directory: Path, total: int) -> Manifest:
    """Build a repository of one commit for the lab's hub, with the usual small files and random shards."""
    names = repository_files("gpt-oss-120b", Shape(layers=36, experts=128, shards=len(SHARDS), width=1), edition=1)
    files = {path: content for path, content in names.items() if not path.startswith(("metal/", "original/"))}
    shards = sorted(path for path in files if path.endswith(".safetensors"))
    for path, size in zip(shards, shard_sizes(total), strict=True):
        files[path] = random.Random(path).randbytes(size)
    commit = commit_id(files, "")
    for path, content in files.items():
        place = directory / "snapshots" / commit / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    description = {"gated": False, "refs": {"main": commit}, "commits": [commit]}
    (directory / "repository.json").write_bytes(as_json(description))
    stored = Repository(REPOSITORY, directory).commits[commit].values()
    return Manifest(
        REPOSITORY,
        commit,
        [RemoteFile(file.path, file.size, file.sha256, None if file.sha256 else file.git_oid) for file in stored],
    )


# The network


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Switch with namespaces that have one link each."""

    def __init__(self) -> None:
        run("ip", "netns", "add", "switch")
        run("ip", "-n", "switch", "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", "switch", "link", "set", "bridge", "up")

    def connect(self, name: str, address: str, rate: float) -> None:
        run("ip", "netns", "add", name)
        run("ip", "-n", "switch", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "-n", "switch", "link", "set", name, "master", "bridge", "up")
        run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        for namespace, device in ((name, "eth0"), ("switch", name)):
            # kB: 2 ms, and above the 64 kB of one offloaded packet, so that none is split.
            burst = max(128, round(rate / 4))
            shape = ("tbf", "rate", f"{rate}mbit", "burst", f"{burst}kb", "latency", "20ms")
            run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape)
        # Linux's default, whatever this machine's setting is.
        run("ip", "-n", name, "route", "replace", f"{NETWORK}.0/24", "dev", "eth0", "congctl", "cubic")

    def sent(self, name: str) -> int:
        """Return the bytes that a namespace has sent."""
        statistics = json.loads(run("ip", "-n", name, "-json", "-statistics", "link", "show", "dev", "eth0"))
        return int(statistics[0]["stats64"]["tx"]["bytes"])


@dataclass(frozen=True)
class Host:
    number: int

    @property
    def name(self) -> str:
        return f"host{self.number + 1}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number + 1}"

    @property
    def directory(self) -> Path:
        return PLACE / self.name


def spawn(namespace: str, log: Path, *command: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a program in a namespace, without this environment."""
    with log.open("wb") as output:
        return subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command],
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


@contextmanager
def daemon(namespace: str, log: Path, *command: str, **environment: str) -> Iterator[None]:
    """Run a program while the block runs."""
    process = spawn(namespace, log, *command, **environment)
    try:
        yield
        if process.poll() is not None:
            fail(f"{' '.join(command)} ended early:\n{log.read_text()[-4000:]}")
    finally:
        process.terminate()
        process.wait()


# Methods


class Bench:
    """Hub with its model, hosts, and the three methods to distribute the model."""

    def __init__(self, hosts: int, size: int, links: Links) -> None:
        self.links = links
        self.network = Network()
        self.network.connect("hub", HUB, links.wan)
        for host in map(Host, range(hosts)):
            self.network.connect(host.name, host.address, links.lan)
        self.manifest = build_model(PLACE / "hub" / REPOSITORY, size)
        self.checks = self.write_checks()
        # As role model_weights puts it on a host.
        PROGRAM.write_bytes(build_zipapp(ROOT / "roles/model_weights/files/weights"))

    def write_checks(self) -> list[Path]:
        """Write a sha256sum list for each core, with about equal bytes."""
        snapshot = PLACE / "hub" / REPOSITORY / "snapshots" / self.manifest.commit
        files = sorted(self.manifest.files, key=lambda file: file.size, reverse=True)
        lists = [PLACE / f"sums{core}" for core in range(os.cpu_count() or 1)]
        sums = run("sha256sum", *(str(snapshot / file.path) for file in files)).replace(f"{snapshot}/", "")
        for core, path in enumerate(lists):
            path.write_text("".join(sums.splitlines(keepends=True)[core :: len(lists)]))
        return lists

    @contextmanager
    def hub(self) -> Iterator[None]:
        log = PLACE / "hub.log"
        command = (sys.executable, "-m", "tools.bench.weights_hub", str(PLACE / "hub"), HUB, str(HUB_PORT))
        with daemon("hub", log, *command, PYTHONPATH=str(ROOT)):
            while "ready" not in log.read_text():
                time.sleep(0.1)
            yield

    def seconds(self, way: str, hosts: int) -> float:
        """Return the seconds that the links need."""
        once = self.manifest.total_bytes * 8e-6
        lan = {"hub": 0, "rsync": hosts - 1, "ours": min(1, hosts - 1)}[way]
        return once / self.links.wan * (hosts if way == "hub" else 1) + once / self.links.lan * lan

    def measure(self, way: str, count: int) -> Cell:
        hosts = [Host(number) for number in range(count)]
        ways: dict[str, Callable[[Sequence[Host]], float]] = {
            "hub": self.from_hub,
            "rsync": self.with_rsync,
            "ours": self.ours,
        }
        for host in hosts:
            self.snapshot(host).mkdir(parents=True)
        self.deadline = time.monotonic() + SPARE_SECONDS + PATIENCE * self.seconds(way, count)
        sent_before = {name: self.network.sent(name) for name in ("hub", *(host.name for host in hosts))}
        busy_before, all_before = processor_times()
        began = time.monotonic()
        ended = ways[way](hosts)
        busy, everything = processor_times()
        wan, *lan = (self.network.sent(name) - before for name, before in sent_before.items())
        for host in hosts:
            # Check independently of the programs' results.
            self.check(host)
            shutil.rmtree(host.directory)
        cpu = (busy - busy_before) / (everything - all_before)
        return Cell(way, count, round(ended - began, 2), wan, sum(lan), max(lan), round(cpu, 2))

    def snapshot(self, host: Host) -> Path:
        return host.directory / "models" / REPOSITORY / self.manifest.commit

    def finish(self, host: Host, name: str, *command: str, **environment: str) -> None:
        """Run a program on a host until it ends."""
        log = host.directory / f"{name}.log"
        process = spawn(host.name, log, *command, **environment)
        try:
            code: int | str = process.wait(max(1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = "a timeout"
        if code:
            fail(f"{host.name}: {' '.join(command)} ended with {code}:\n{log.read_text()[-4000:]}")

    def check(self, host: Host) -> float:
        """Compare all files of a host with their checksums on all cores; return the time of completion."""
        command = ("sha256sum", "--check", "--quiet")
        processes = [subprocess.Popen([*command, str(sums)], cwd=self.snapshot(host)) for sums in self.checks]
        for process in processes:
            process.wait()
        if any(process.returncode for process in processes):
            fail(f"{host.name} has other checksums than the hub.")
        return time.monotonic()

    def load(self, host: Host) -> None:
        """Download with the hub's client in its usual way."""
        options = ("--revision", self.manifest.commit, "--local-dir", str(self.snapshot(host)))
        self.finish(
            host,
            "hf",
            f"{sys.prefix}/bin/hf",
            "download",
            REPOSITORY,
            *options,
            HF_ENDPOINT=f"http://{HUB}:{HUB_PORT}",
            HF_HOME=str(host.directory / "hf"),
            HF_HUB_DISABLE_PROGRESS_BARS="1",
            HF_HUB_DISABLE_TELEMETRY="1",
            HF_HUB_DISABLE_UPDATE_CHECK="1",
        )

    def from_hub(self, hosts: Sequence[Host]) -> float:
        def each(host: Host) -> float:
            self.load(host)
            return self.check(host)

        return together(each, hosts)

    def with_rsync(self, hosts: Sequence[Host]) -> float:
        seed = hosts[0]
        settings = seed.directory / "rsyncd.conf"
        settings.write_text(f"use chroot = false\n[model]\npath = {self.snapshot(seed)}\n")
        log, source = seed.directory / "rsyncd.log", f"rsync://{seed.address}/model/"

        def each(host: Host) -> float:
            if host != seed:
                target = f"{self.snapshot(host)}/"
                self.finish(host, "rsync", "rsync", "--archive", "--whole-file", "--exclude=.cache", source, target)
            return self.check(host)

        command = ("rsync", "--daemon", "--no-detach", f"--config={settings}", f"--address={seed.address}")
        with daemon(seed.name, log, *command):
            self.load(seed)
            return together(each, hosts)

    def ours(self, hosts: Sequence[Host]) -> float:
        for host in hosts:
            write_manifest(self.snapshot(host), self.manifest)
            plan = plan_of(host, hosts, self.snapshot(host), sys.prefix)
            (host.directory / "plan.json").write_text(json.dumps(plan))

        def command(host: Host, program: str) -> tuple[str, ...]:
            folder = str(host.directory)
            return (HOST_PYTHON, str(PROGRAM), program, f"{folder}/plan.json", "--run-dir", f"{folder}/run")

        def each(host: Host) -> float:
            self.finish(host, "fetch", *command(host, "fetch"))
            return time.monotonic()

        with ExitStack() as stack:
            for host in hosts if len(hosts) > 1 else ():
                log = host.directory / "share.log"
                stack.enter_context(daemon(host.name, log, *command(host, "share")))
            return together(each, hosts)


def together(work: Callable[[Host], float], hosts: Sequence[Host]) -> float:
    """Run on all hosts in parallel; return the last time of completion."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        return max(pool.map(work, hosts))


def plan_of(host: Host, hosts: Sequence[Host], snapshot: Path, client: str) -> dict[str, Any]:
    """Return the plan file of role model_weights with its defaults."""
    share = {
        "address": host.address,
        "port": SHARE_PORT,
        "peers": [peer.address for peer in hosts],
        "seeds": 1,
        "rank": host.number,
        "fallback": 120,
        "max_upload_rate": 0,
        "max_download_rate": 0,
    }
    return {
        "path": str(snapshot),
        "hub": {"url": f"http://{HUB}:{HUB_PORT}", "token_file": "", "ca_file": "", "proxy": "", "no_proxy": ""},
        "client": client,
        "workers": 4,
        "stall_timeout": 60,
        "attempts": 8,
        "max_rate": 0,
        "share": share if len(hosts) > 1 else None,
    }


def processor_times() -> tuple[int, int]:
    """Return the busy and the total ticks of the machine's cores."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


# Results


def medians(cells: Sequence[Cell]) -> dict[tuple[str, int], Cell]:
    """Return one result per method and number of hosts: the median run by time."""
    runs: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        runs.setdefault((cell.way, cell.hosts), []).append(cell)
    return {key: sorted(same, key=lambda cell: cell.seconds)[(len(same) - 1) // 2] for key, same in runs.items()}


def missed_bars(cells: Sequence[Cell], model_bytes: int) -> list[str]:
    """Describe the limits that role model_weights misses."""
    missed = [
        f"ours, {cell.hosts} hosts: {cell.wan_bytes / model_bytes:.3f} of the model over the WAN, more than {WAN_LIMIT}"
        for cell in cells
        if cell.way == "ours" and cell.wan_bytes > WAN_LIMIT * model_bytes
    ]
    middle = medians(cells)
    most = max(hosts for _way, hosts in middle)
    one, last = middle.get(("ours", 1)), middle.get(("ours", most))
    if one and last and last.seconds > TIME_LIMIT * one.seconds:
        ratio = last.seconds / one.seconds
        missed.append(f"ours, {most} hosts: {ratio:.2f} of the time of one host, more than {TIME_LIMIT}")
    for way in ("hub", "rsync"):
        rival = middle.get((way, most))
        if rival and last and most > 1 and last.seconds >= rival.seconds:
            missed.append(f"ours, {most} hosts: {last.seconds} s, not ahead of {way} with {rival.seconds} s")
    return missed


def as_line(cell: Cell, model_bytes: int) -> str:
    wan, lan, busiest = (count / model_bytes for count in (cell.wan_bytes, cell.lan_bytes, cell.busiest_bytes))
    return f"{cell.hosts:5} {cell.way:6} {cell.seconds:8.1f} s {wan:10.3f} {lan:10.3f} {busiest:10.3f} {cell.cpu:8.0%}"


def inside(arguments: argparse.Namespace) -> None:
    """Run the benchmark inside the namespaces."""
    # The outer process ends everything after an interrupt.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    PLACE.mkdir()
    links = Links(arguments.lan, arguments.wan)
    bench = Bench(max(arguments.hosts), round(arguments.size * 1e6), links)
    total = bench.manifest.total_bytes
    wanted = [(way, hosts) for hosts in arguments.hosts for way in arguments.ways] * arguments.repeat
    minutes = sum(bench.seconds(way, hosts) for way, hosts in wanted) / 60
    print(
        f"{len(wanted)} runs; the links need {minutes:.1f} minutes. Bytes are in models of {total / 1e6:.1f} MB.\n"
        f"{'hosts':5} {'way':6} {'last host':>10} {'WAN':>10} {'LAN':>10} {'busiest':>10} {'cores':>8}",
        flush=True,
    )
    cells = []
    with bench.hub():
        for way, hosts in wanted:
            cells.append(bench.measure(way, hosts))
            print(as_line(cells[-1], total), flush=True)
    missed = missed_bars(cells, total)
    for bar in missed:
        print(f"MISSED: {bar}")
    result = {
        "benchmark": "weights",
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
        "model_bytes": total,
        "links_mbit": asdict(links),
        "cells": [asdict(cell) for cell in cells],
        "missed": missed,
    }
    if arguments.result:
        arguments.result.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result), flush=True)
    sys.exit(bool(missed))


def lacking(hosts: int, size: float) -> Iterator[str]:
    """Yield the reasons why this machine cannot run the benchmark."""
    if os.geteuid():
        yield "Network namespaces need root. Run the benchmark with sudo."
    packages = {package for program, package in PACKAGES.items() if not shutil.which(program)}
    if subprocess.run([HOST_PYTHON, "-c", "import libtorrent"], capture_output=True, check=False).returncode:
        packages.add("python3-libtorrent")
    if packages:
        yield f"Programs are missing. Run: apt install {' '.join(sorted(packages))}"
    needed = (hosts + 2) * size * 1e6 + 2**30
    free = 1024 * int(re.findall(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[0])
    if free < needed:
        yield f"{needed / 1e9:.1f} GB of memory are needed, {free / 1e9:.1f} GB are free. Set a smaller --size."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of hosts (default: 1 to 8)")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=WAYS, help="methods; the limits need all of them (default)"
    )
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, of which the median counts (default: 1)")
    parser.add_argument("--size", type=float, default=128, help="size of the model in MB (default: 128)")
    parser.add_argument("--wan", type=float, default=40, help="speed of the hub's link in Mbit/s (default: 40)")
    parser.add_argument("--lan", type=float, default=400, help="speed of each host's link in Mbit/s (default: 400)")
    parser.add_argument("--result", type=Path, help="output file for the figures")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments)
    # The search path after su may lack these.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    reasons = list(lacking(max(arguments.hosts), arguments.size))
    if reasons:
        fail("\n".join(reasons))
    # Ends with this process, and all processes in its namespaces with it.
    mortal = ["setpriv", "--pdeathsig", "KILL", "unshare", "--kill-child", "--mount", "--net", "--pid", "--mount-proc"]
    bench = [sys.executable, "-m", "tools.bench", "weights", "--inside", *sys.argv[1:]]
    try:
        sys.exit(subprocess.run([*mortal, *bench], cwd=ROOT, check=False).returncode)
    except KeyboardInterrupt:
        fail("Interrupted; all processes and files are removed.")
