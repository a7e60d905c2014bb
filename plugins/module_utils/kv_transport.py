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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# The tables of transfers from GPU to GPU, as a pattern for UCX_PROTO_INFO. MPI within a worker has none.
TABLES = "*cuda*cuda*"
# Their rows in a journal, after the time and the process, for journalctl.
ROWS = r"^\[[0-9.]+\] \[.*\] +\| "
ROW = re.compile(r"^\[[\d.]+\] (\[.*?\]) +\| (.*) \|$", re.MULTILINE)
CONNECTION = re.compile(r"\b(?:(intra|inter)-node|self) cfg#\d+$")
GPU = re.compile(r"\b(?:from|to|into) cuda\b")
TRANSPORT = re.compile(r"\w+/[\w.:/-]+")
# Between GPUs of one host, and RDMA between hosts.
NVLINK = ("cuda_ipc/",)
RDMA = ("rc_", "dc_", "ud_", "srd/")


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


def slow_transfers(units: Mapping[str, list[Transfer]], both_kinds: bool, rdma: bool) -> Iterator[str]:
    """Return a sentence for each slower way of a worker to its peers than the host allows.

    ``both_kinds``: the host has prefill and decode workers; ``rdma``: its workers have RDMA devices.
    """
    for unit, transfers in units.items():
        for peer, wanted, allowed, sentence in (
            ("intra-node", NVLINK, both_kinds, "to GPUs of the same host by {}, not by cuda_ipc"),
            ("inter-node", RDMA, rdma, "to other hosts by {}, although the host has RDMA devices"),
        ):
            slow = {
                f"{', '.join(transfer.transports) or 'no transport'} ({transfer.method})"
                for transfer in transfers
                if transfer.peer == peer and not any(name.startswith(wanted) for name in transfer.transports)
            }
            if allowed and slow:
                yield f"{unit} transfers the KV cache {sentence.format(' and '.join(sorted(slow)))}"
