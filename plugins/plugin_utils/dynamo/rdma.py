# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA devices for the transfer of the KV cache."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.rdma import net_device_names
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import few
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.shared import Worker

Tree = Mapping[str, Any]

# UCX_NET_DEVICES has network interfaces, and RDMA devices with their port.
RDMA_DEVICE = re.compile(r"[a-z]\w*:\d+").fullmatch


def rdma_text(rdma: Tree) -> str:
    """Return in a sentence how KV caches get from this host to others; ``rdma`` is that of gpu_info."""
    if not rdma["ports"]:
        return "The KV cache is transferred to other hosts by TCP; the host has no RDMA device."

    def described(port: Tree) -> str:
        near = f", nearest to GPU {', '.join(map(str, port['gpus']))}" if port["gpus"] else ""
        return f"{port['device']} ({port['link_layer']}, {port['rate_gbps']:g} Gb/s, {port['state']}{near})"

    listed = "; ".join(described(port) for port in rdma["ports"])
    if not rdma["verbs"]:
        return f"RDMA: {listed}. Containers cannot use them: /dev/infiniband has no uverbs device. Load ib_uverbs."
    memory = {"peermem": "directly (nvidia_peermem)", "dmabuf": "directly (dma-buf)"}.get(
        rdma["gpu_memory"] or "", "through the memory of the host. Load nvidia_peermem, or install the open driver"
    )
    return f"RDMA: {listed}. GPU memory is read {memory}."


def rdma_problems(workers: Sequence[Worker], found: Mapping[str, Tree]) -> Iterator[str]:
    """Yield RDMA devices that a worker should use and its host does not have."""
    for host, kind, recipe in workers:
        rdma = found.get(host)
        given = net_device_names(str(recipe["environment"].get("UCX_NET_DEVICES", "")))
        wanted = [name for name in given if RDMA_DEVICE(name)]
        if not wanted or rdma is None:
            continue
        ports = {port["device"]: port["state"] for port in rdma["ports"]}
        missing = [name for name in wanted if ports.get(name) != "ACTIVE"]
        variable = f"dynamo_{kind}_environment: UCX_NET_DEVICES is {','.join(wanted)}"
        if missing:
            its = few([f"{name} ({state})" for name, state in ports.items()]) or "none"
            yield f"{variable}; {few(missing)} not active on {host}. RDMA devices there: {its}. Set an active one."
        elif not rdma["verbs"]:
            yield f"{variable}; /dev/infiniband of {host} has no uverbs device. Load the kernel module ib_uverbs."
