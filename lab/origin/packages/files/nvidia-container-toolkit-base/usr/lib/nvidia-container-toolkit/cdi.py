# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices and files that a container needs for a GPU, shared by nvidia-ctk and nvidia-container-runtime."""

import glob
import os
import subprocess
import xml.etree.ElementTree as ET

KIND = "nvidia.com/gpu"
LIBRARIES = f"/usr/lib/{os.uname().machine}-linux-gnu"
# What the lab's nvidia-smi needs beside it. A machine with a real GPU has neither.
SIMULATED = ("/usr/share/nvidia-lab", "/run/nvidia-lab")
CONTROL_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")


class DriverError(Exception):
    """Error of a driver that does not respond."""


def discover() -> tuple[str, dict[str, tuple[str, str]]]:
    """Return the driver version and {index: (uuid, device node)}."""
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


def mounts(version: str) -> dict[str, str]:
    """Return the driver's files for a container, each with its path on the host."""
    if all(map(os.path.exists, SIMULATED)):
        libraries = [f"{LIBRARIES}/{name}.so.{version}" for name in ("libcuda", "libnvidia-ml")]
        return {path: path for path in (*libraries, "/usr/bin/nvidia-smi", *SIMULATED)}
    libraries = sorted(glob.glob(f"{LIBRARIES}/*.so.{version}"))
    # In place of the links that hooks of NVIDIA's tool create in the container.
    links = [path for path in sorted(glob.glob(f"{LIBRARIES}/*.so.*")) if os.path.realpath(path) in libraries]
    return {path: os.path.realpath(path) for path in (*libraries, *links, "/usr/bin/nvidia-smi")}
