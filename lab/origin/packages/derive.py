#!/usr/bin/env python3
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write captures/<name>.xml for each entry of variants.toml: a real H200 capture with that product's values in it.

Everything that variants.toml does not name stays the H200's; lists of supported clocks are cut to the highest pair, and
UUIDs and serial numbers are made up.
"""

import tomllib
import uuid
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEAD = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'


def at(element: ET.Element, path: str) -> ET.Element:
    """The element at a path, which has to be there: a capture has all that the product can say."""
    found = element.find(path)
    if found is None:
        raise KeyError(path)
    return found


def derive(name: str, variant: dict[str, Any]) -> str:
    """The XML document of a variant."""
    root = ET.parse(HERE / "captures" / variant["base"]).getroot()
    gpus = root.findall("gpu")
    for gpu in gpus[variant["gpus"] :]:
        root.remove(gpu)
    at(root, "attached_gpus").text = str(variant["gpus"])
    for index, gpu in enumerate(gpus[: variant["gpus"]]):
        values = {
            "pci/pci_device_id": f"{variant['device_id']}10DE",
            "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{name}-{index}')}",
            "serial": f"16500{int(variant['device_id'], 16):05}{index:03}",
        } | variant["values"]
        for path, value in values.items():
            at(gpu, path).text = value
        cut_supported_clocks(gpu)
    return HEAD + ET.tostring(root, encoding="unicode", short_empty_elements=False) + "\n"


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


def main() -> None:
    for name, variant in tomllib.loads((HERE / "variants.toml").read_text()).items():
        (HERE / "captures" / f"{name}.xml").write_text(derive(name, variant))


if __name__ == "__main__":
    main()
