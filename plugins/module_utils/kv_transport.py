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
FEATURE = re.compile(r"(\w+)\(([^)]*)\)")
# The feature by which data is transferred: TensorRT-LLM sends tagged messages, NIXL writes and reads remote memory.
DATA = ("tag", "rma", "rma_am")
# Between GPUs of one host, and RDMA between hosts.
NVLINK = ("cuda_ipc/",)
RDMA = ("rc_", "dc_", "ud_", "srd/")


@dataclass(frozen=True)
class Connection:
    """A kind of connection of a worker. ``peer``: ``intra-node`` or ``inter-node``; ``transports``: those of data."""

    peer: str
    transports: tuple[str, ...]


def read_connections(journal: str) -> list[Connection]:
    """Return the different connections in a worker's journal, in order."""
    found = []
    for match in LINE.finditer(journal):
        features = dict(FEATURE.findall(match[2]))
        data = next((features[name] for name in DATA if name in features), "")
        connection = Connection(f"{match[1]}-node", tuple(data.split()))
        if connection not in found:
            found.append(connection)
    return found


def slow_connections(units: Mapping[str, list[Connection]], both_kinds: bool, rdma: bool) -> Iterator[str]:
    """Return a sentence for each worker that has only slower connections to its peers than the host allows.

    ``both_kinds``: the host has prefill and decode workers; ``rdma``: its workers have RDMA devices. One fast
    connection is enough: others may be of a peer that has ended since, or of MPI between the processes of a worker.
    """
    for unit, connections in units.items():
        for peer, wanted, allowed, sentence in (
            ("intra-node", NVLINK, both_kinds, "to GPUs of the same host by {}, not by cuda_ipc"),
            ("inter-node", RDMA, rdma, "to other hosts by {}, although the host has RDMA devices"),
        ):
            found = [connection for connection in connections if connection.peer == peer]
            used = list(dict.fromkeys(transport for connection in found for transport in connection.transports))
            if allowed and found and not any(transport.startswith(wanted) for transport in used):
                yield f"{unit} transfers the KV cache {sentence.format(', '.join(used) or 'no transport')}"
