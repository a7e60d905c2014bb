# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container needs in order to see a GPU: nvidia-ctk writes it down, nvidia-container-runtime puts it in."""

import os
import subprocess
import xml.etree.ElementTree as ET

KIND = "nvidia.com/gpu"
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class DriverError(Exception):
    """The driver does not answer."""


def discover() -> tuple[str, dict[str, tuple[str, str]]]:
    """Return (driver version, {index: (uuid, device node)}) as the driver tells them."""
    try:
        result = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DriverError("failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND") from None
    if result.returncode:
        raise DriverError(f"failed to initialize NVML: {result.stdout.strip()}")
    root = ET.fromstring(result.stdout)
    gpus = {
        str(index): (gpu.findtext("uuid", ""), f"/dev/nvidia{gpu.findtext('minor_number')}")
        for index, gpu in enumerate(root.findall("gpu"))
    }
    return root.findtext("driver_version", ""), gpus


def mounts(version: str) -> list[str]:
    """Host paths of the driver that go into a container. The last two are what the lab's nvidia-smi replays from."""
    libraries = f"/usr/lib/{os.uname().machine}-linux-gnu"
    return [
        f"{libraries}/libcuda.so.{version}",
        f"{libraries}/libnvidia-ml.so.{version}",
        "/usr/bin/nvidia-smi",
        "/usr/share/nvidia-lab",
        "/run/nvidia-lab",
    ]
