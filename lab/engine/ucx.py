# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What UCX would say of a worker's connections with UCX_LOG_LEVEL=info, from the container's namespaces and devices.

The mocker transfers nothing. A worker writes the lines after its first request, as UCX does.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

from lab.engine import trtllm_serve

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


def intra_node(processes: Path, gpus: int, selected: Mapping[str, str]) -> str:
    """Return the transports to a GPU of the same host.

    CUDA IPC needs one PID namespace, and access to the GPU of the other (openucx/ucx issues 10070 and 11513; vllm issue
    55906).
    """
    shared = not (processes / "1/cmdline").read_bytes().split(b"\0")[0].endswith((b"python3", b"sh"))
    selection = [gpu for gpu in selected.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    visible = 0 < len(selection) < gpus
    return "sysv/memory cma/memory cuda_copy/cuda cuda_ipc/cuda" if shared and visible else "tcp/lo cuda_copy/cuda"


def inter_node(devices: Path) -> str:
    """Return the transports to a GPU of another host."""
    return "rc_mlx5/mlx5_0:1" if any((devices / "infiniband").glob("uverbs*")) else "tcp/eth0"


def message(line: str) -> str:
    """Return a line of UCX."""
    return f"[{time.time():.6f}] [{os.uname().nodename}:{os.getpid()}:0]      ucp_worker.c:1888 UCX  INFO    {line}"


def _served(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
        counts = re.findall(r"^dynamo_component_requests_total\{.*\} ([\d.]+)", reply.read().decode(), re.MULTILINE)
        return any(float(count) > 0 for count in counts)
    return False


def _write(gpus: int) -> None:
    address, port = os.environ["DYN_SYSTEM_HOST"], int(os.environ["DYN_SYSTEM_PORT"])
    while not _served(f"http://{address}:{port}/metrics"):
        time.sleep(0.5)
    lines = []
    if has_other_kind(port, listening_ports()):
        lines.append(f"intra-node cfg#1 tag({intra_node(Path('/proc'), gpus, os.environ)})")
    if not address.startswith("127."):
        lines.append(f"inter-node cfg#2 tag({inter_node(Path('/dev'))})")
    for line in lines:
        print(message(line), flush=True)


def report() -> None:
    """Write the lines after the worker's first request, in the background."""
    if os.environ.get("UCX_LOG_LEVEL") == "info":
        Thread(target=_write, args=(trtllm_serve.container_gpus(),), daemon=True).start()
