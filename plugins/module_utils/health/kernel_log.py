# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what the kernel and NVIDIA's driver reported since the boot.

The lines are quoted in docs/decisions/fault-catalogue.md with their sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner

COMMAND_TIMEOUT = 30.0  # seconds; a long journal on a busy disk
# The address of a GPU without its function, and with MIG the GPU instance after it.
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): (\d+)(?:, |$)(.*)", re.DOTALL)
SXID = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:([^)]+)\): (\d+), (Fatal|Non-fatal), Link (-?\d+)")
LOST = re.compile(r"NVRM: GPU ([0-9a-fA-F:.]+): GPU has fallen off the bus")
# One record of three lines.
LOST_AT_START = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)\s.*fallen off the bus", re.DOTALL)
RECOVERY = re.compile(r"GPU recovery action changed from \S+ \([^)]*\) to \S+ \(([^)]*)\)")
# Other lines by kind. The group is the subject.
OTHERS = {
    "api_mismatch": re.compile(r"NVRM: API mismatch: the client '([^']*)'"),
    "out_of_memory": re.compile(r"Out of memory: Killed process \d+ \(([^)]*)\)"),
    "memory_limit": re.compile(r"Memory cgroup out of memory: Killed process \d+ \(([^)]*)\)"),
    "read_only": re.compile(r"(\S+)\)?: Remounting filesystem read-only"),
    "hung_task": re.compile(r"task (\S+?):\d+ blocked for more than \d+ seconds"),
    # Not of a drive without a medium, which virtual machines and service processors have.
    "io_error": re.compile(r"I/O error, dev (?!fd\d|sr\d|loop\d|ram\d)(\w+)"),
}
# journalctl reads a few lines instead of the whole log.
GREP = "NVRM|nvidia-nvswitch|Killed process|Remounting filesystem|blocked for more than|I/O error, dev"
COMMAND = ("journalctl", "--dmesg", "--output=json", "--output-fields=MESSAGE", "--no-pager", "--quiet")
EVIDENCE_LENGTH = 300
# Seconds. NVIDIA's NVSentinel counts Xid 31 of a GPU within 3 minutes as one, and Xid 13 within 15 s.
BURST = 180.0

Signal = dict[str, Any]


class KernelLogError(Exception):
    """The kernel log cannot be read; the message gives the cause."""


@dataclass(frozen=True)
class Line:
    """A line of the kernel log. ``time``: seconds since 1970. ``cursor``: its place in the journal."""

    time: float
    text: str
    cursor: str = ""


@dataclass
class Event:
    """Lines of one kind about one subject."""

    signal: Signal
    lines: list[Line] = field(default_factory=list)


def read_kernel_log(runner: Runner) -> list[Line]:
    """Return the lines of this boot that matter here, oldest first. Raises KernelLogError.

    Only what the kernel wrote: every user may write lines with its name, but not with its transport.
    """
    problem = ""
    # A journalctl without regular expressions rejects the option.
    for arguments in ([f"--grep={GREP}"], []):
        try:
            done = runner([*COMMAND, *arguments], COMMAND_TIMEOUT)
        except OSError as error:
            raise KernelLogError(f"journalctl: {error.strerror}") from None
        if done.rc is None:
            raise KernelLogError(f"journalctl gave no answer within {COMMAND_TIMEOUT:g} s")
        # Status 1 without a message: no line matches.
        if done.rc == 0 or (done.rc == 1 and not done.stderr.strip()):
            return list(parse_journal(done.stdout))
        problem = done.text
    raise KernelLogError(f"journalctl: {problem}")


def parse_journal(text: str) -> Iterator[Line]:
    """Yield the lines of ``journalctl --output=json``, which is cut off if the reader was killed."""
    for row in text.splitlines():
        try:
            entry = json.loads(row)
            message = entry["MESSAGE"]
            # A message that is not UTF-8 is a list of bytes.
            decoded = message if isinstance(message, str) else bytes(message).decode(errors="replace")
            yield Line(int(entry["__REALTIME_TIMESTAMP"]) / 1e6, decoded, entry.get("__CURSOR", ""))
        except (ValueError, KeyError, TypeError):
            continue


def sysfs_address(address: str) -> str:
    """Return an address of the kernel log, ``0000:91:00``, as sysfs has it: ``0000:91:00.0``."""
    return address.lower() if "." in address else f"{address.lower()}.0"


def kernel_signals(lines: Iterable[Line], now: float) -> list[Signal]:
    """Return a signal for each kind of event and subject.

    ``count``: its lines. ``day_count``: its bursts of lines within 24 hours. ``last``: the time of the last line.
    """
    found: dict[tuple[Any, ...], Event] = {}
    for line in lines:
        signal = classify(line.text)
        if signal is not None:
            found.setdefault(tuple(signal.values()), Event(signal)).lines.append(line)
    events = list(found.values())
    # The same Xid on several GPUs points to the software.
    affected: dict[int, set[str]] = {}
    for one in events:
        if one.signal["signal"] == "xid":
            affected.setdefault(one.signal["code"], set()).add(one.signal["gpu"])
    return [_counted(one, now, affected) for one in events]


def classify(text: str) -> Signal | None:
    """Return the signal that a line of the kernel log is; None for any other line."""
    if xid := XID.search(text):
        recovery = RECOVERY.search(text)
        return {
            "signal": "xid",
            "gpu": sysfs_address(xid[1]),
            "code": int(xid[2]),
            "fatal": bool(re.search(r"\bFatal\b", xid[3])),
            "action": recovery[1] if recovery else "",
        }
    if sxid := SXID.search(text):
        return {"signal": "sxid", "switch": sxid[1].lower(), "code": int(sxid[2]), "fatal": sxid[3] == "Fatal"}
    if lost := LOST.search(text) or LOST_AT_START.search(text):
        address = sysfs_address(lost[1])
        return {"signal": "kernel", "kind": "gpu_lost", "subject": address, "gpu": address}
    for kind, pattern in OTHERS.items():
        if other := pattern.search(text):
            return {"signal": "kernel", "kind": kind, "subject": other[1]}
    return None


def incidents(lines: Sequence[Line]) -> Iterator[float]:
    """Yield the time at which each burst of lines began, oldest first: one error writes several lines."""
    last = -BURST
    for line in lines:
        if line.time - last >= BURST:
            yield line.time
        last = line.time


def _counted(one: Event, now: float, affected: dict[int, set[str]]) -> Signal:
    last = one.lines[-1]
    counted = {
        **one.signal,
        "count": len(one.lines),
        "day_count": sum(now - began < 86400 for began in incidents(one.lines)),
        "age_hours": round(max(0.0, now - last.time) / 3600, 2),
        "last": last.time,
        "evidence": _excerpt(last.text),
    }
    if one.signal["signal"] == "xid":
        counted["gpu_count"] = len(affected[one.signal["code"]])
    return counted


def _excerpt(text: str) -> str:
    return " ".join(text.split())[:EVIDENCE_LENGTH]
