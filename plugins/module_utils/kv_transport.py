# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read from UCX's own tables over which transports workers transfer the KV cache.

With UCX_PROTO_INFO UCX writes a table for each kind of transfer, when the first of its kind is made: with the
operation, the memory at both ends, and the method and the transport by length (ucp/proto/proto_debug.c). The lines of
UCX_LOG_LEVEL=info are not enough: they name ``cuda_ipc`` also where CUDA then refuses to open the memory, and do not
name it for remote writes that use it (UCX 1.22 on an H200).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner, output
from ansible_collections.trtllm.fleet.plugins.module_utils.rdma import rdma_usable, read_rdma
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import paragraphs

COMMAND_TIMEOUT = 60.0  # seconds, as a journal may be long

# The tables of transfers from GPU to GPU, as a pattern for UCX_PROTO_INFO. MPI within a worker has none.
TABLES = "*cuda*cuda*"
# Their rows in a journal, after the time and the process, for journalctl.
ROWS = r"^\[[0-9.]+\] \[.*\] +\| "
ROW = re.compile(r"^\[[\d.]+\] (\[.*?\]) +\| (.*) \|$", re.MULTILINE)
CONNECTION = re.compile(r"\b(?:(intra|inter)-node|self) cfg#\d+$")
GPU = re.compile(r"\b(?:from|to|into) cuda\b")
TRANSPORT = re.compile(r"\w+/[\w.:/-]+")
RELEASE = re.compile(r"/\S+/releases/[^/\s]+(?=/)")
NET_DEVICES = re.compile(r"^UCX_NET_DEVICES=(.*)$", re.MULTILINE)
# journalctl reads all other files of the journal; --quiet does not silence this line (systemd 252 to 257).
BAD_FILE = re.compile(r"^Journal file .*, ignoring file\.$")
# Between GPUs of one host, or of one NVLink domain, and RDMA between hosts.
NVLINK = ("cuda_ipc/",)
RDMA = ("rc_", "dc_", "ud_", "srd/")


class KvTransportError(Exception):
    """The transfers of a worker are not known; the message gives the cause."""


@dataclass(frozen=True)
class Transfer:
    """A kind of transfer of a worker from GPU to GPU.

    ``peer``: ``intra-node`` or ``inter-node``; ``operation``, ``method``: as UCX names them, those of the longest
    messages; ``transports``: with their devices.
    """

    peer: str
    operation: str
    method: str
    transports: tuple[str, ...]


def read_transfers(journal: str) -> list[Transfer]:
    """Return the different transfers in a worker's journal, in order."""
    found: list[Transfer] = []
    # By process, because several write to one journal.
    peers: dict[str, str] = {}
    operations: dict[str, str] = {}
    for process, row in ROW.findall(journal):
        cells = [cell.strip() for cell in row.split(" | ")]
        connection = CONNECTION.search(cells[0])
        if connection:
            peers[process] = f"{connection[1]}-node" if connection[1] else ""
            cells = cells[1:]
        if len(cells) == 1:  # beside the connection, or below it (UCX 1.22)
            operations[process] = cells[0]
        if len(cells) != 3 or not cells[0].endswith("inf"):
            continue
        peer, operation = peers.get(process, ""), operations.get(process, "")
        if peer and len(GPU.findall(operation)) == 2:
            transfer = Transfer(peer, operation, cells[1].removeprefix("(?) "), tuple(TRANSPORT.findall(cells[2])))
            if transfer not in found:
                found.append(transfer)
    return found


def slow_transfers(transfers: Sequence[Transfer], both_kinds: bool, rdma: bool) -> Iterator[str]:
    """Yield the ways of a worker to its peers that are slower than the host allows, as the end of a sentence.

    ``both_kinds``: the host has prefill and decode workers; ``rdma``: its workers have RDMA devices.
    """
    for peer, wanted, allowed, sentence in (
        ("intra-node", NVLINK, both_kinds, "to GPUs of the same host by {}, not by cuda_ipc"),
        ("inter-node", RDMA + NVLINK, rdma, "to other hosts by {}, although the host has RDMA devices"),
    ):
        slow = {
            f"{', '.join(transfer.transports) or 'no transport'} ({transfer.method})"
            for transfer in transfers
            if transfer.peer == peer and not any(name.startswith(wanted) for name in transfer.transports)
        }
        if allowed and slow:
            yield sentence.format(" and ".join(sorted(slow)))


def unit_transfers(unit: str, runner: Runner) -> list[Transfer]:
    """Return the transfers of a unit's current run; none if it does not run.

    Raises:
        KvTransportError: The journal cannot be searched.
    """
    show = ("systemctl", "show", "--property=ActiveState", "--property=InvocationID", unit)
    shown = paragraphs([unit], output(show, COMMAND_TIMEOUT, runner, KvTransportError))[unit]
    if shown["ActiveState"] != "active":
        return []
    done = runner(
        ("journalctl", "--quiet", "--output=cat", f"--grep={ROWS}", f"_SYSTEMD_INVOCATION_ID={shown['InvocationID']}"),
        COMMAND_TIMEOUT,
    )
    problems = [line for line in done.stderr.splitlines() if not BAD_FILE.match(line)]
    if done.rc not in (0, 1) or problems:  # it ends with 1 without a match
        problem = "no answer" if done.rc is None else done.text or f"exit status {done.rc}"
        raise KvTransportError(f"journalctl cannot search the journal of {unit}: {problem}")
    return read_transfers(done.stdout)


def units_with_rdma(units: Iterable[str], root: Path = Path("/")) -> set[str]:
    """Return the workers that may use an active RDMA port of their host. Raises OSError."""
    rdma = read_rdma((), "", root / "sys", root / "dev")
    return {unit for unit in units if rdma_usable(rdma, _net_devices(unit, root))}


def _net_devices(unit: str, root: Path) -> str:
    """Return a worker's UCX_NET_DEVICES, empty if it is not set. Raises OSError."""
    release = RELEASE.search((root / "etc/systemd/system" / unit).read_text(encoding="utf-8"))
    if not release:
        return ""
    given = NET_DEVICES.search((root / release[0][1:] / "environment").read_text(encoding="utf-8"))
    return given[1] if given else ""
