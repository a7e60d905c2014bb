# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the RDMA devices of a host, InfiniBand and RoCE, and the GPUs near them.

Files and their contents are those of the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import attribute, manages_switch, numa_node

SYS = Path("/sys")
DEV = Path("/dev")


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device.

    ``device`` has the number of the port, such as ``mlx5_0:1``, as UCX_NET_DEVICES does. ``link_layer`` is
    ``InfiniBand`` or ``Ethernet``, ``state`` as ``ACTIVE`` or ``DOWN``, and ``rate_gbps`` gigabits a second. ``gpus``
    are the indices of the GPUs with which the device shares most of the way on the PCI bus.
    """

    device: str
    link_layer: str
    state: str
    rate_gbps: float
    numa_node: int | None
    gpus: tuple[int, ...]


def _way(device: Path) -> list[str]:
    """Return the bridges from the root of the PCI bus to a device, which is last."""
    parts = Path(os.path.realpath(device)).parts
    return [part for part in parts if re.match(r"pci[0-9a-f]|[0-9a-f]{4,8}:[0-9a-f]{2}:", part)]


def _common(way: Sequence[str], other: Sequence[str]) -> int:
    """Return how many bridges two ways have in common."""
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(way, other))])


def _near(device: Path, gpus: Sequence[Mapping[str, Any]], root: Path) -> tuple[int, ...]:
    """Return the GPUs nearest to a device: behind the same PCI switch, else on the same NUMA node."""
    way = _way(device)
    shared = {
        gpu["index"]: _common(way, _way(root / "bus/pci/devices" / gpu["address"]))
        for gpu in gpus
        if gpu["index"] is not None
    }
    most = max(shared.values(), default=0)
    if most:
        return tuple(index for index, length in shared.items() if length == most)
    node = numa_node(device)
    return tuple(
        gpu["index"] for gpu in gpus if gpu["index"] in shared and node is not None and gpu["numa_node"] == node
    )


def read_ports(gpus: Sequence[Mapping[str, Any]], root: Path = SYS) -> list[Port]:
    """Return the ports of the RDMA devices, without the bridges that manage NVSwitches."""
    ports = []
    devices = root / "class/infiniband"
    for device in sorted(devices.iterdir()) if devices.is_dir() else []:
        pci = device / "device"
        if manages_switch(pci):
            continue
        numbers = device / "ports"
        for port in sorted(numbers.iterdir(), key=lambda each: int(each.name)) if numbers.is_dir() else []:
            rate = re.match(r"[\d.]+", attribute(port, "rate"))
            ports.append(
                Port(
                    device=f"{device.name}:{port.name}",
                    link_layer=attribute(port, "link_layer"),
                    state=attribute(port, "state").rpartition(":")[2].strip(),
                    rate_gbps=float(rate.group()) if rate else 0.0,
                    numa_node=numa_node(pci),
                    gpus=_near(pci, gpus, root),
                )
            )
    return ports


def read_rdma(gpus: Sequence[Mapping[str, Any]], flavour: str, root: Path = SYS, devices: Path = DEV) -> dict[str, Any]:
    """Return C(rdma) of M(trtllm.fleet.gpu_info); ``flavour`` is that of the NVIDIA kernel module.

    dma-buf needs NVIDIA's open kernel module (NVIDIA GPU Operator documentation, GPUDirect RDMA).
    """
    if (root / "module/nvidia_peermem").is_dir():
        memory: str | None = "peermem"
    else:
        memory = "dmabuf" if flavour == "open" else None
    return {
        "ports": [asdict(port) for port in read_ports(gpus, root)],
        "verbs": any((devices / "infiniband").glob("uverbs*")),
        "gpu_memory": memory,
    }


def net_device_names(net_devices: str) -> list[str]:
    """Return the names in UCX_NET_DEVICES."""
    return [name for name in map(str.strip, net_devices.split(",")) if name]


def rdma_usable(rdma: Mapping[str, Any], net_devices: str) -> bool:
    """Return whether UCX may use an active port; ``net_devices`` is UCX_NET_DEVICES, empty if it is not set."""
    names = [name for name in net_device_names(net_devices) if name != "all"]
    restricted = bool(names) and not names[0].startswith("^")  # "^" excludes devices
    active = [port["device"] for port in rdma["ports"] if port["state"] == "ACTIVE"]
    return rdma["verbs"] and any(
        not restricted or device in names or device.partition(":")[0] in names for device in active
    )
