# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What UCX would say of a worker's transfers with UCX_PROTO_INFO, from the container's namespaces and devices.

The mocker transfers nothing. A worker writes the tables after its first request, as UCX 1.20 does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Thread

from lab.engine import trtllm_serve, worker_metrics

# The role's ports: a worker listens at P for health and at P + 50 for requests; kinds are 100 apart.
REQUESTS = 50
KIND = 100
LISTEN = "0A"


def listening_ports(table: Path = Path("/proc/net/tcp")) -> set[int]:
    """Return the TCP ports of the host with a listener."""
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTEN}


def has_other_kind(port: int, listening: set[int]) -> bool:
    """Return whether the host has a worker of the other kind than the one with this port for health."""
    pairs = {other for other in listening if other + REQUESTS in listening}
    return any(other // KIND != port // KIND for other in pairs if abs(other - port) < 2 * KIND)


def intra_node(processes: Path, gpus: int, selected: Mapping[str, str]) -> tuple[str, str]:
    """Return method and transport to a GPU of the same host.

    CUDA IPC needs access to the GPU of the other (openucx/ucx issues 10070 and 11513; vllm issue 55906). It takes a
    process with its own number for itself, and two containers with PID namespaces of their own have the same numbers.
    The other way is shared memory of the host, as workers have its IPC namespace.
    """
    shared = not (processes / "1/cmdline").read_bytes().split(b"\0")[0].endswith((b"python3", b"sh"))
    selection = [gpu for gpu in selected.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    visible = 0 < len(selection) < gpus
    return ("zero-copy", "cuda_ipc/cuda") if shared and visible else ("software emulation", "sysv/memory")


def inter_node(devices: Path) -> tuple[str, str]:
    """Return method and transport to a GPU of another host."""
    rdma = any((devices / "infiniband").glob("uverbs*"))
    return ("zero-copy", "rc_mlx5/mlx5_0:1") if rdma else ("software emulation", "tcp/eth0")


def table(connection: str, way: tuple[str, str]) -> list[str]:
    """Return UCX's table of a transfer. ``way``: method and transport."""
    operation = "remote memory write by ucp_put*(multi) from cuda/GPU0 to cuda"
    method, transport = way
    rows = [
        f"| {connection} | {operation:<60} |",
        f"| {'0..inf':>{len(connection)}} | {method:<42} | {transport:<15} |",
    ]
    return [f"[{time.time():.6f}] [{os.uname().nodename}:{os.getpid():<5}:0]   {row}" for row in rows]


def _write(gpus: int) -> None:
    address, port = os.environ["DYN_SYSTEM_HOST"], int(os.environ["DYN_SYSTEM_PORT"])
    while not any(worker_metrics.values(worker_metrics.own_url(), "requests_total")):
        time.sleep(0.5)
    lines = []
    if has_other_kind(port, listening_ports()):
        lines += table("ucp_context_0 intra-node cfg#1", intra_node(Path("/proc"), gpus, os.environ))
    if not address.startswith("127."):
        lines += table("ucp_context_0 inter-node cfg#2", inter_node(Path("/dev")))
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def report() -> None:
    """Write the tables after the worker's first request, in the background."""
    # Standard output, the default, is a pipe. UCX's lines wait in its buffer for long.
    asked = fnmatchcase("from cuda/GPU0 to cuda", os.environ.get("UCX_PROTO_INFO", "n"))
    if asked and os.environ.get("UCX_LOG_FILE") == "stderr":
        Thread(target=_write, args=(trtllm_serve.container_gpus(),), daemon=True).start()
