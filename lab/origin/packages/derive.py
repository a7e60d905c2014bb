# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Derive the capture of each GPU type in variants.toml from one GPU of a real H200 capture.

A value that variants.toml does not set stays the H200's. Free memory is total less reserved memory, the highest pair
of supported clocks remains, and UUIDs and serial numbers are invented.
"""

import shutil
import tomllib
import uuid
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VARIANTS: dict[str, Any] = tomllib.loads((HERE / "variants.toml").read_text())
HEAD = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'


def at(element: ET.Element, path: str) -> ET.Element:
    """Return the element at a path.

    Raises:
        KeyError: The capture has no such element.
    """
    found = element.find(path)
    if found is None:
        raise KeyError(path)
    return found


def resolve(name: str) -> dict[str, Any]:
    """Return the entry of a type, merged over the entry that its `like` names."""
    entry = VARIANTS[name]
    if "like" not in entry:
        return entry
    other = resolve(entry["like"])
    return other | entry | {"values": other["values"] | entry["values"]}


def derive(name: str) -> str:
    """Return the XML document of a type with one GPU, which nvidia-smi repeats for each GPU of a host."""
    variant = resolve(name)
    root = ET.parse(HERE / "captures" / variant["base"]).getroot()
    gpu, *others = root.findall("gpu")
    for other in others:
        root.remove(other)
    at(root, "attached_gpus").text = "1"
    values = {
        "pci/pci_device_id": f"{variant['device_id']}10DE",
        "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, name)}",
        "serial": f"16500{int(variant['device_id'], 16):05}000",
    } | variant["values"]
    for path, value in values.items():
        at(gpu, path).text = value
    memory = at(gpu, "fb_memory_usage")
    if at(memory, "total").text != "N/A":
        at(memory, "free").text = f"{mebibytes(memory, 'total') - mebibytes(memory, 'reserved')} MiB"
    cut_supported_clocks(gpu)
    return HEAD + ET.tostring(root, encoding="unicode", short_empty_elements=False) + "\n"


def mebibytes(memory: ET.Element, part: str) -> int:
    """Return a size in MiB, such as 143771 for ``143771 MiB``."""
    return int((at(memory, part).text or "").removesuffix(" MiB"))


def cut_supported_clocks(gpu: ET.Element) -> None:
    """Keep one pair: the highest memory clock with the highest graphics clock."""
    supported = at(gpu, "supported_clocks")
    memory, *others = supported.findall("supported_mem_clock")
    for other in others:
        supported.remove(other)
    at(memory, "value").text = gpu.findtext("max_clocks/mem_clock")
    graphics, *lower = memory.findall("supported_graphics_clock")
    graphics.text = gpu.findtext("max_clocks/graphics_clock")
    for other in lower:
        memory.remove(other)


def write_captures(directory: Path) -> None:
    """Copy the real captures to a new directory and write the derived ones beside them."""
    shutil.copytree(HERE / "captures", directory)
    for name in VARIANTS:
        (directory / f"{name}.xml").write_text(derive(name))
