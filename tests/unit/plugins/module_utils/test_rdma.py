"""RDMA devices from a tree as in sysfs: HGX H100 with a device for each pair of GPUs, HGX B200, a virtual machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.rdma import rdma_usable, read_ports, read_rdma
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT


class Tree:
    """A sysfs and a /dev."""

    def __init__(self, root: Path) -> None:
        self.sys, self.dev = root / "sys", root / "dev"
        self.gpus: list[dict[str, Any]] = []
        (self.sys / "bus/pci/devices").mkdir(parents=True)
        self.dev.mkdir()

    def pci(self, way: str, **files: str | bytes) -> Path:
        """Add a PCI device behind bridges, such as pci0000:07/0000:07:01.0/0000:08:00.0."""
        device = self.sys / "devices" / way
        device.mkdir(parents=True)
        for name, value in files.items():
            (device / name).write_bytes(value if isinstance(value, bytes) else f"{value}\n".encode())
        (self.sys / "bus/pci/devices" / device.name).symlink_to(device)
        return device

    def gpu(self, way: str, node: int | None = None) -> None:
        device = self.pci(way)
        self.gpus.append({"address": device.name, "index": len(self.gpus), "numa_node": node})

    def nic(self, name: str, way: str, *ports: dict[str, str], **files: str | bytes) -> None:
        device = self.pci(way, **files) if way else None
        entry = self.sys / "class/infiniband" / name
        entry.mkdir(parents=True)
        if device:
            (entry / "device").symlink_to(device)
        for number, port in enumerate(ports, 1):
            (entry / "ports" / str(number)).mkdir(parents=True)
            for key, value in port.items():
                (entry / "ports" / str(number) / key).write_text(f"{value}\n")


NDR = {"link_layer": "InfiniBand", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}
ROCE = {"link_layer": "Ethernet", "state": "1: DOWN", "rate": "100 Gb/sec (4X EDR)"}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_device_is_nearest_to_the_gpus_behind_its_switch(tree: Tree) -> None:
    for root in ("07", "47"):
        for slot in ("1", "2"):
            bridge = f"pci0000:{root}/0000:{root}:01.0/0000:{root}:0{slot}.0"
            tree.gpu(f"{bridge}/0000:{root}:1{slot}.0", 0)
        tree.nic(
            f"mlx5_{root}", f"pci0000:{root}/0000:{root}:01.0/0000:{root}:01.1/0000:{root}:20.0", NDR, numa_node="0"
        )
    first, second = read_ports(tree.gpus, tree.sys)
    assert (first.device, first.link_layer, first.state, first.rate_gbps, first.numa_node, first.gpus) == (
        "mlx5_07:1",
        "InfiniBand",
        "ACTIVE",
        400.0,
        0,
        (0, 1),
    )
    assert second.gpus == (2, 3)


def test_without_a_common_bridge_the_numa_node_counts(tree: Tree) -> None:
    tree.gpu("pci0000:07/0000:07:00.0", 0)
    tree.gpu("pci0000:87/0000:87:00.0", 1)
    tree.nic("mlx5_0", "pci0000:97/0000:97:00.0", NDR, numa_node="1")
    assert [port.gpus for port in read_ports(tree.gpus, tree.sys)] == [(1,)]


def test_a_virtual_machine_without_numa_nodes(tree: Tree) -> None:
    tree.gpu("pci0000:00/0000:00:05.0")
    tree.nic("mlx5_0", "pci0000:01/0000:01:00.0", ROCE, ROCE, numa_node="-1")
    ports = read_ports(tree.gpus, tree.sys)
    assert [(port.device, port.state, port.rate_gbps, port.numa_node, port.gpus) for port in ports] == [
        ("mlx5_0:1", "DOWN", 100.0, None, ()),
        ("mlx5_0:2", "DOWN", 100.0, None, ()),
    ]


def test_bridges_to_nvswitches_and_software_devices(tree: Tree) -> None:
    tree.nic("mlx5_0", "pci0000:05/0000:05:00.0", NDR, vpd=b"\x82SW_MNG\x00")
    tree.nic("rxe0", "", {**ROCE, "state": "4: ACTIVE"})
    assert [(port.device, port.gpus) for port in read_ports(tree.gpus, tree.sys)] == [("rxe0:1", ())]


@pytest.mark.parametrize(
    ("flavour", "peermem", "memory"),
    [
        ("open", False, "dmabuf"),
        ("open", True, "peermem"),
        ("proprietary", True, "peermem"),
        ("proprietary", False, None),
    ],
)
def test_how_a_device_reads_the_memory_of_gpus(tree: Tree, flavour: str, peermem: bool, memory: str | None) -> None:
    if peermem:
        (tree.sys / "module/nvidia_peermem").mkdir(parents=True)
    assert read_rdma([], flavour, tree.sys, tree.dev) == {"ports": [], "verbs": False, "gpu_memory": memory}
    (tree.dev / "infiniband").mkdir()
    (tree.dev / "infiniband/rdma_cm").touch()
    assert not read_rdma([], flavour, tree.sys, tree.dev)["verbs"]
    (tree.dev / "infiniband/uverbs0").touch()
    assert read_rdma([], flavour, tree.sys, tree.dev)["verbs"]


def test_a_real_host_with_eight_fast_ports_and_a_bond(tree: Tree) -> None:
    """Beside eight ports of InfiniBand it has a bond of two ports of Ethernet, which UCX could use as well."""
    for name, ports in json.loads((ROOT / "tests/unit/fixtures/rdma_h100x8.json").read_text()).items():
        tree.nic(name, "", *ports.values())
    (tree.dev / "infiniband").mkdir()
    (tree.dev / "infiniband/uverbs0").touch()
    found = read_rdma([], "open", tree.sys, tree.dev)
    assert [(port["device"], port["link_layer"], port["state"], port["rate_gbps"]) for port in found["ports"]] == [
        *((f"mlx5_{number}:1", "InfiniBand", "ACTIVE", 400.0) for number in (0, 1, 4, 5, 6, 7, 8, 9)),
        ("mlx5_bond_0:1", "Ethernet", "ACTIVE", 200.0),
    ]
    assert rdma_usable(found, "mlx5_0:1,mlx5_9")
    assert not rdma_usable(found, "mlx5_2:1")


def test_a_real_virtual_machine_whose_driver_found_no_device(tree: Tree) -> None:
    """One with an H200, driver 580, on 2026-11-29: module mlx5_ib is loaded, and /dev/infiniband has rdma_cm alone."""
    (tree.sys / "class/infiniband").mkdir(parents=True)
    (tree.sys / "module/mlx5_ib").mkdir(parents=True)
    (tree.dev / "infiniband").mkdir()
    (tree.dev / "infiniband/rdma_cm").touch()
    found = read_rdma([], "open", tree.sys, tree.dev)
    assert found == {"ports": [], "verbs": False, "gpu_memory": "dmabuf"}
    assert not rdma_usable(found, "")
