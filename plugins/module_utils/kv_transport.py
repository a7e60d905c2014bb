# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read from UCX's own messages over which transports workers transfer the KV cache.

With UCX_LOG_LEVEL=info UCX writes a line for each kind of connection, when the first of its kind is made:
``ucp_worker.c:1855 UCX  INFO    0x309e3070 inter-node cfg#6 tag(rc_mlx5/mlx5_0:1)`` (parthenon issue 1260; openucx/ucx
pull request 8699).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# What journalctl searches for, and the parts of a line.
MESSAGE = "node cfg#"
LINE = re.compile(r"UCX\s+INFO\s.*?\b(intra|inter)-node cfg#\d+ ?(.*)")
TRANSPORT = re.compile(r"([a-z][a-z0-9_]*/[\w.:-]+)")
# Between GPUs of one host, and RDMA between hosts.
NVLINK = ("cuda_ipc/",)
RDMA = ("rc_", "dc_", "ud_", "srd/")


@dataclass(frozen=True)
class Connection:
    """A kind of connection of a worker: ``peer`` is ``intra-node`` or ``inter-node``."""

    peer: str
    transports: tuple[str, ...]


def read_connections(journal: str) -> list[Connection]:
    """Return the different connections in a worker's journal, in order."""
    found = []
    for match in LINE.finditer(journal):
        connection = Connection(f"{match[1]}-node", tuple(dict.fromkeys(TRANSPORT.findall(match[2]))))
        if connection not in found:
            found.append(connection)
    return found


def slow_connections(units: Mapping[str, list[Connection]], both_kinds: bool, rdma: bool) -> Iterator[str]:
    """Return a sentence for each connection slower than the host allows.

    ``both_kinds``: the host has prefill and decode workers; ``rdma``: its workers have RDMA devices.
    """
    for unit, connections in units.items():
        for connection in connections:
            used = ", ".join(connection.transports) or "no transport"
            if connection.peer == "intra-node" and both_kinds and not _uses(connection, NVLINK):
                yield f"{unit} transfers the KV cache to GPUs of the same host by {used}, not by cuda_ipc"
            if connection.peer == "inter-node" and rdma and not _uses(connection, RDMA):
                yield f"{unit} transfers the KV cache to other hosts by {used}, although the host has RDMA devices"


def _uses(connection: Connection, prefixes: tuple[str, ...]) -> bool:
    return any(transport.startswith(prefixes) for transport in connection.transports)
