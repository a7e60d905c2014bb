"""A GPU host that is well, with real captures, into which tests put faults."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import host_status
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.health.platform import PLATFORM_UNITS
from ansible_collections.trtllm.fleet.plugins.module_utils.health.signals import gather_signals
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.record import Record, write_record
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.state import HostState, Owned
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.tests.unit.paths import CAPTURES

NOW = 1_795_000_000.0
UNIT = "trtllm-serve-0.service"
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
GPUS = [f"0000:00:{6 + number:02x}.0" for number in range(8)]
SWITCHES = [f"0000:07:0{number}.0" for number in range(4)]
DIGEST = "sha256:e35ea1320d51e7c066134a52391d50eb294b7a75c37c1a736f68132956832174"
RUNS = {
    "Type": "simple",
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "NRestarts": "0",
    "StartLimitBurst": "5",
    "Result": "success",
    "ExecMainPID": "4711",
    "DropInPaths": "",
    "NeedDaemonReload": "no",
    "StateChangeTimestampMonotonic": "1000000",
}
ABSENT = {"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}


@dataclass
class SampleHost:
    """Files below ``root``, and the answers of commands, which a test may replace by name in ``answers``."""

    root: Path
    smi: str = (CAPTURES / "h200x8.xml").read_text()
    answers: dict[str, CommandResult] = field(default_factory=dict)
    units: dict[str, dict[str, str]] = field(default_factory=dict)
    kernel: list[tuple[float, str]] = field(default_factory=list)
    journal: str = ""
    health: dict[str, Any] = field(
        default_factory=lambda: {"healthy": True, "answer": "HTTP 200", "models": ["gpt-oss-120b"]}
    )
    control_time: float | None = NOW
    names: tuple[str, ...] = ("huggingface.co", "nvcr.io")
    uptime: float = 7200.0
    installed: bool = True

    def prepare(self) -> None:
        """Write the files of a host that serves since a complete run."""
        for address, device, kind in (
            *((one, "0x2335", "0x030200") for one in GPUS),
            *((one, "0x22a3", "0x068000") for one in SWITCHES),
        ):
            folder = self.root / "sys/bus/pci/devices" / address
            folder.mkdir(parents=True)
            for name, value in (("vendor", "0x10de"), ("device", device), ("class", kind), ("numa_node", "0")):
                (folder / name).write_text(f"{value}\n")
        self.write("proc/driver/nvidia/version", VERSION)
        self.write("proc/meminfo", "MemTotal:       263600000 kB\nMemAvailable:   200000000 kB\n")
        self.write("proc/sys/net/netfilter/nf_conntrack_count", "120\n")
        self.write("proc/sys/net/netfilter/nf_conntrack_max", "262144\n")
        self.write("etc/trtllm-fleet/placeholder", "")
        for name in PLATFORM_UNITS:
            self.units[name] = dict(RUNS) if name != "nvidia-imex.service" else dict(ABSENT)
        self.units[UNIT] = dict(RUNS)
        self._serve()
        self.record()

    def write(self, path: str, text: str) -> None:
        """Write a file below the root."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def add_unit(self, name: str, **values: str) -> None:
        """Add a unit of the collection."""
        self.write(f"etc/systemd/system/{name}", "[Service]\n")
        self.units[name] = {**RUNS, **values}

    def _releases(self) -> HostReleases:
        return HostReleases(
            self.root / "etc/trtllm-fleet",
            self.root / "etc/systemd/system",
            runner=lambda argv, timeout: CommandResult(0),
        )

    def _serve(self) -> None:
        instance = {
            "name": "serve-0",
            "unit": UNIT,
            "container": "trtllm-serve-0",
            "port": 8000,
            "gpus": list(range(8)),
            "base_url": "http://127.0.0.1:8000",
        }
        description = {
            "name": "gpt-oss-120b-h200x8-low_latency",
            "model": "openai/gpt-oss-120b",
            "served_model": "gpt-oss-120b",
            "image": "registry/release:1.2.1",
            "digest": DIGEST,
            "instances": [instance],
        }
        (self.root / "etc/systemd/system").mkdir(parents=True)
        name = self.stage(description)
        self._releases().mark_verified(name, 5)

    def stage(self, description: dict[str, Any]) -> str:
        """Write a release and link its unit; return its name."""
        releases = self._releases()
        name = releases.stage({"engine.yaml": "tp: 8\n", UNIT: "run\n", "release.json": json.dumps(description)}).name
        link = self.root / "etc/systemd/system" / UNIT
        link.unlink(missing_ok=True)
        link.symlink_to(releases.path(name) / UNIT)
        return name

    def record(self, run: str = "") -> None:
        """Write the record of a complete run; with ``run``, of one that has not ended."""
        for address in GPUS:
            (self.root / "proc/driver/nvidia/gpus" / address).mkdir(parents=True, exist_ok=True)
        self.record_of(Owned(files=["/etc/owned"], packages=["nvidia-driver-cuda"], units=["docker.service"]), run)

    def record_of(self, owned: Owned, run: str = "") -> None:
        """Write the record of a run whose roles own these names."""
        state = HostState(self.root, self)
        path = self.root / "var/lib/trtllm-fleet/record.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, Record(run, "collection", "", {}, owned, state.items(owned)))

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        name = Path(argv[0]).name
        for start in (" ".join(argv[:2]), name):
            if start in self.answers:
                return self.answers[start]
        if name == "nvidia-smi":
            return CommandResult(0, self.smi)
        if "--property=InvocationID" in argv:
            return CommandResult(0, f"ActiveState={self.units[argv[-1]]['ActiveState']}\nInvocationID=4f00\n")
        if name == "systemctl":
            shown = [self.units.get(unit, ABSENT) for unit in argv[argv.index("--") + 1 :]]
            return CommandResult(0, "\n".join("".join(f"{k}={v}\n" for k, v in unit.items()) for unit in shown))
        if name == "journalctl":
            if "--dmesg" not in argv:
                return CommandResult(0, self.journal)
            rows = [{"MESSAGE": text, "__REALTIME_TIMESTAMP": str(int(time * 1e6))} for time, text in self.kernel]
            return CommandResult(0, "\n".join(map(json.dumps, rows)))
        if argv[:3] == ("docker", "container", "inspect"):
            row = {"name": "/trtllm-serve-0", "reference": f"registry/release@{DIGEST}", "image": "sha256:1"}
            return CommandResult(0, json.dumps(row))
        return CommandResult(0, {"docker": "GPU 0: NVIDIA H200 (UUID: GPU-1)", "timedatectl": "yes\n"}.get(name, ""))

    def result(self, patch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Return what module host_signals_info returns for this host."""
        patch.setattr(host_status, "query_health", lambda url: dict(self.health))
        host = host_status.HostStatus(
            self.root / "etc/trtllm-fleet",
            "/usr/bin/nvidia-smi" if self.installed else None,
            True,
            self,
            self.root / "etc/systemd/system",
            self.root / "sys/bus/pci/devices",
            self.root / "proc/driver/nvidia/version",
            self.root / "proc/net",
            self.root / "run/trtllm-fleet/healed",
            self.root / "var/lib/trtllm-fleet/record.json",
            HostState(self.root, self),
            clock=lambda: NOW,
            monotonic=lambda: self.uptime,
        )
        status = host.gather()
        signals = gather_signals(status, self, self.names, self.control_time, self.root, clock=lambda: NOW)
        return {"signals": signals, "gpu_info": host.gpu_info}

    def xid(self, code: int, text: str = "pid=1234, name=python3, details", gpu: int = 0, ago: float = 60) -> None:
        """Add an Xid to the kernel log, ``ago`` seconds before now."""
        address = GPUS[gpu].rpartition(".")[0]
        self.kernel.append((NOW - ago, f"NVRM: Xid (PCI:{address}): {code}, {text}"))

    def set_gpu(self, tag: str, value: str, gpu: int = 0) -> None:
        """Replace the first value of a tag in the XML of a GPU. Raises ValueError if it has none."""
        parts = self.smi.split("<gpu id=")
        part, number = re.subn(f"<{tag}>[^<]*</{tag}>", f"<{tag}>{value}</{tag}>", parts[gpu + 1], count=1)
        if not number:
            raise ValueError(f"GPU {gpu} has no {tag}")
        parts[gpu + 1] = part
        self.smi = "<gpu id=".join(parts)
