# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signals of a host's operating system: disks, memory, clock, name resolution, certificates, packages and units."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file, size_text
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import paragraphs, start_limit_reached

# Seconds. Resolvers try several servers for 5 s each.
COMMAND_TIMEOUT = 20.0
GIB = 1024**3
# Directories that are often file systems of their own.
PLACES = ("/", "/boot", "/tmp", "/var", "/var/lib", "/var/log", "/var/lib/docker", "/var/lib/containerd", "/srv")
# A file system below this size is not for data: that of /boot/efi or of a container's /run.
SMALL = GIB // 4
# HAProxy's configuration, which names the gateway's certificate.
GATEWAY_HEAD = "etc/trtllm-fleet/gateway/head.cfg"
CERTIFICATE = re.compile(r"\bssl crt (\S+)")
# Units of Dynamo's components, which mount their certificates and keys under these names.
COMPONENT_UNITS = "etc/systemd/system/trtllm-dynamo-*.service"
MOUNTED_CERTIFICATE = re.compile(r"\bsource=(\S+),target=/tls/(?:ca|certificate|frontend-certificate),")
# Units that the roles need, by kind.
PLATFORM_UNITS = {
    "docker.service": "docker",
    "containerd.service": "docker",
    "nvidia-persistenced.service": "persistence",
    "nvidia-fabricmanager.service": "fabric_manager",
    "nvidia-imex.service": "imex",
}
# Beginnings of the names of the collection's own units, and their kinds.
OWN_UNITS = {
    "trtllm-gateway-address": "virtual_ip",
    "trtllm-gateway-usage": "usage",
    "trtllm-gateway": "gateway",
    "trtllm-weights": "weights",
    "trtllm-image": "image",
    "trtllm-registry-mirror": "registry_mirror",
    "trtllm-restore": "restore",
    "trtllm-serve": "serving",
    "trtllm-health": "health",
    "trtllm-dynamo-etcd": "etcd",
    "trtllm-dynamo-nats": "nats",
    "trtllm-dynamo-frontend": "frontend",
    "trtllm-dynamo-": "worker",
}
PROPERTIES = ("LoadState", "ActiveState", "SubState", "UnitFileState", "NRestarts", "StartLimitBurst", "Result", "Type")

Signal = dict[str, Any]


class Platform:
    """Gathers the signals. A probe without an answer is the signal ``probe``.

    ``root``: the directory that stands for ``/``.
    """

    def __init__(self, root: Path, runner: Runner, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._runner = runner
        self._clock = clock

    def frequent_signals(self, places: Iterable[str]) -> list[Signal]:
        """Return the signals that may change at any time, and cost one command.

        ``places``: further directories whose file systems count.
        """
        return self._probed(
            {
                "disks": lambda: self.disks(places),
                "memory": self.memory,
                "connections": self.connection_table,
                "units": self.units,
            }
        )

    def rare_signals(self, control_time: float | None) -> list[Signal]:
        """Return the signals that change slowly.

        ``control_time``: time on the control node just before, in seconds since 1970.
        """
        return self._probed(
            {
                "clock": lambda: self.clock(control_time),
                "certificates": self.certificates,
                "packages": self.packages,
            }
        )

    @staticmethod
    def _probed(probes: Mapping[str, Callable[[], Iterable[Signal]]]) -> list[Signal]:
        found: list[Signal] = []
        for name, probe in probes.items():
            try:
                found += probe()
            except (OSError, ValueError, ProbeError) as error:
                found.append(unreadable(name, error))
        return found

    def disks(self, places: Iterable[str]) -> Iterator[Signal]:
        """Yield use and mode of each file system once, under the first of its directories."""
        seen = set()
        for place in (*PLACES, *places):
            path = self._root / place.lstrip("/")
            if not path.is_dir() or (device := path.stat().st_dev) in seen:
                continue
            seen.add(device)
            status = os.statvfs(path)
            size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
            if size < SMALL:
                continue
            used = round(100 * (1 - free / size), 1)
            inodes = round(100 * (1 - status.f_favail / status.f_files), 1) if status.f_files else 0.0
            read_only = bool(status.f_flag & os.ST_RDONLY)
            yield {
                "signal": "disk",
                "path": place,
                "used_percent": used,
                "inodes_used_percent": inodes,
                "free_gib": round(free / GIB, 1),
                "read_only": read_only,
                "evidence": f"{place}: {size_text(free)} of {size_text(size)} free, {inodes:g} % of the inodes used"
                + (", mounted read-only" if read_only else ""),
            }

    def memory(self) -> Iterator[Signal]:
        """Yield the memory that programs may still use."""
        values = dict(re.findall(r"^(\w+):\s+(\d+) kB$", read_file(self._root / "proc/meminfo"), re.MULTILINE))
        if "MemAvailable" not in values:
            raise ProbeError("/proc/meminfo has no MemAvailable")
        percent = round(100 * int(values["MemAvailable"]) / int(values["MemTotal"]), 1)
        available = int(values["MemAvailable"]) / 1024**2
        yield {"signal": "memory", "available_percent": percent, "evidence": f"{available:.1f} GiB are available"}

    def clock(self, control_time: float | None) -> Iterator[Signal]:
        """Yield whether the clock is synchronised, and its distance from that of the control node."""
        now = self._clock()
        done = self._run("timedatectl", "show", "--property=NTPSynchronized", "--value")
        offset = None if control_time is None else round(now - control_time)
        time_text = f"{datetime.fromtimestamp(now, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        side = "" if offset is None else f", {abs(offset)} s {'after' if offset >= 0 else 'before'} the control node's"
        yield {
            "signal": "clock",
            "synchronized": done.stdout.strip() == "yes" if done.rc == 0 else None,
            "offset_seconds": offset,
            "evidence": f"the host's clock has {time_text}{side}",
        }

    def connection_table(self) -> Iterator[Signal]:
        """Yield the use of the firewall's table of connections, where the kernel has one."""
        folder = self._root / "proc/sys/net/netfilter"
        count, limit = (read_file(folder / f"nf_conntrack_{name}").strip() for name in ("count", "max"))
        if count and limit:
            percent = round(100 * int(count) / int(limit), 1)
            evidence = f"nf_conntrack_count is {count}, nf_conntrack_max is {limit}"
            yield {"signal": "connection_table", "used_percent": percent, "evidence": evidence}

    def certificates(self) -> Iterator[Signal]:
        """Yield the days that the certificates of a gateway and of Dynamo's components are still valid."""
        units = "".join(map(read_file, self._root.glob(COMPONENT_UNITS)))
        gateway = read_file(self._root / GATEWAY_HEAD)
        for name in sorted({*CERTIFICATE.findall(gateway), *MOUNTED_CERTIFICATE.findall(units)}):
            path = self._root / name.lstrip("/")
            done = self._run("openssl", "x509", "-noout", "-enddate", "-in", str(path))
            until = re.search(r"notAfter=(.+)", done.stdout)
            if done.rc != 0 or not until:
                evidence = f"openssl x509 -in {name}: {' '.join(done.text.split())[:200]}"
                yield {
                    "signal": "certificate",
                    "path": name,
                    "days": None,
                    "until": None,
                    "problem": "unreadable",
                    "evidence": evidence,
                }
                continue
            end = datetime.strptime(until[1].strip(), "%b %d %H:%M:%S %Y %Z").replace(tzinfo=timezone.utc)
            days = round((end.timestamp() - self._clock()) / 86400, 1)
            evidence = f"{name}: notAfter={until[1].strip()}"
            yield {
                "signal": "certificate",
                "path": name,
                "days": days,
                "until": end.timestamp(),
                "problem": "",
                "evidence": evidence,
            }

    def packages(self) -> Iterator[Signal]:
        """Yield the packages that dpkg did not finish."""
        done = self._run("dpkg", "--audit")
        if done.rc is None:
            raise ProbeError(f"dpkg --audit gave no answer within {COMMAND_TIMEOUT:g} s")
        # Packages without a list of checksums work.
        parts = [part for part in done.stdout.split("\n\n") if "control file" not in part and part.strip()]
        names = re.findall(r"^ (\S+)", "\n".join(parts), re.MULTILINE)
        if names:
            evidence = f"dpkg --audit: {' '.join(' '.join(parts).split())[:200]}"
            yield {"signal": "packages", "state": "unfinished", "names": ", ".join(names), "evidence": evidence}

    def units(self) -> Iterator[Signal]:
        """Yield the state of each unit that the roles need or have written, other than those of instances."""
        folder = self._root / "etc/systemd/system"
        own = {path.name for path in folder.glob("*.service") if unit_kind(path.name)}
        own |= {path.name for path in folder.glob("*.timer") if unit_kind(path.name)}
        names = sorted({*PLATFORM_UNITS, *own})
        done = self._run("systemctl", "show", f"--property={','.join(PROPERTIES)}", "--", *names)
        if done.rc != 0:
            raise ProbeError(f"systemctl: {done.text or 'no answer'}")
        for name, shown in paragraphs(names, done.stdout).items():
            if shown.get("LoadState") == "not-found":
                continue
            active = shown.get("ActiveState", "unknown")
            yield {
                "signal": "unit",
                "name": name,
                "kind": unit_kind(name),
                "load": shown.get("LoadState"),
                "active": active,
                "sub": shown.get("SubState"),
                "enabled": shown.get("UnitFileState"),
                "restarts": int(shown.get("NRestarts") or 0),
                "start_limit_reached": start_limit_reached(shown),
                "evidence": f"{name} is {active} ({shown.get('SubState')}), {shown.get('UnitFileState') or 'static'}, "
                f"result {shown.get('Result')}",
            }

    def names(self, names: Sequence[str]) -> list[Signal]:
        """Return the names that do not resolve. All are tried at the same time."""

        def resolve(name: str) -> CommandResult:
            try:
                return self._run("getent", "ahosts", name)
            except ProbeError as error:
                return CommandResult(1, "", str(error))

        with ThreadPoolExecutor(max(1, len(names))) as pool:
            answers = zip(names, pool.map(resolve, names))
        return [
            {
                "signal": "name",
                "name": name,
                "error": "timeout" if done.rc is None else "not found",
                "evidence": f"getent ahosts {name}: "
                + (f"no answer within {COMMAND_TIMEOUT:g} s" if done.rc is None else done.text or "not found"),
            }
            for name, done in answers
            if done.rc != 0
        ]

    def _run(self, *argv: str) -> CommandResult:
        try:
            return self._runner(argv, COMMAND_TIMEOUT)
        except OSError as error:
            raise ProbeError(f"{argv[0]}: {error.strerror}") from None


class ProbeError(Exception):
    """A probe has no answer; the message gives the cause."""


def unreadable(name: str, error: object) -> Signal:
    """Return the signal of a probe that has no answer."""
    return {"signal": "probe", "name": name, "error": str(error), "evidence": f"{name}: {error}"}


def unit_kind(name: str) -> str:
    """Return the kind of a unit; empty for one that is not needed here."""
    own = (kind for start, kind in OWN_UNITS.items() if name.startswith(start))
    return PLATFORM_UNITS.get(name) or next(own, "")
