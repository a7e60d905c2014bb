# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Share out the NVIDIA GPUs of this machine among lab hosts, with the driver's device nodes, libraries and programs.

Usage: PYTHONPATH=collections python3 lab/gpus.py HOST...

Prints JSON: {"problems": [], "driver": "580.159.04", "hosts": {HOST: {"addresses": [], "devices": [], "volumes": []}}}.
addresses are PCI addresses as in sysfs; devices and volumes are as `docker run` takes them. The problems say what the
machine lacks; there are no hosts then.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import KERNEL_MODULE, kernel_module

PROC = KERNEL_MODULE.parent
DEV = Path("/dev")
MULTIARCH = f"{os.uname().machine}-linux-gnu"
# Directories of a driver that an image or a container runtime brings, besides those of the linker's cache.
LIBRARIES = (Path("/usr/local/nvidia/lib64"), Path("/usr/local/nvidia/lib"), Path(f"/usr/lib/{MULTIARCH}"))
# The driver's programs that serve without a display.
PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-modprobe")
PROGRAM_PATH = "/usr/bin:/usr/sbin:/usr/local/nvidia/bin"
FIRMWARE = (Path("/lib/firmware/nvidia"), Path("/usr/local/nvidia/firmware/nvidia"))
# Every process with a GPU uses these; nvidia-uvm-tools and the capabilities are for profilers and MIG.
REQUIRED_NODES = ("nvidiactl", "nvidia-uvm")
OPTIONAL_NODES = ("nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2")


class Missing(Exception):
    """What the machine lacks, in words."""


@dataclass(frozen=True)
class Gpu:
    """A GPU of the kernel module."""

    address: str  # as in sysfs, 0000:01:00.0
    node: Path


def driver_version() -> str:
    """Return the version of the loaded kernel module."""
    path = PROC / "version"
    _, version = kernel_module(path.read_text() if path.exists() else "")
    if version is None:
        raise Missing(f"no NVIDIA kernel module is loaded ({path} has no version)")
    return version


def find_gpus() -> list[Gpu]:
    """Return the GPUs with a device node, by minor number."""
    numbered = {}
    for path in PROC.glob("gpus/*/information"):
        found = re.search(r"^Device Minor:\s*(\d+)", path.read_text(), re.MULTILINE)
        if found and (DEV / f"nvidia{found[1]}").exists():
            numbered[int(found[1])] = path.parent.name
    if not numbered:
        raise Missing(f"the driver has no GPU with a device node ({PROC}/gpus, {DEV}/nvidia0)")
    return [Gpu(numbered[minor], DEV / f"nvidia{minor}") for minor in sorted(numbered)]


def find_nodes() -> list[Path]:
    """Return the device nodes that all GPUs share."""
    absent = [str(DEV / name) for name in REQUIRED_NODES if not (DEV / name).exists()]
    if absent:
        raise Missing(f"{', '.join(absent)} does not exist (nvidia-modprobe -u -c 0 creates it)")
    return [DEV / name for name in (*REQUIRED_NODES, *OPTIONAL_NODES) if (DEV / name).exists()]


def linker_directories() -> Iterator[Path]:
    """Yield the directories with libcuda.so.1 in the linker's cache."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    for path in re.findall(r"libcuda\.so\.1 .*=> (\S+)", listed):
        yield Path(path).resolve().parent


def find_libraries(version: str, directories: Sequence[Path]) -> list[Path]:
    """Return the driver's libraries, from the first directory that has its libcuda."""
    for directory in directories:
        if (directory / f"libcuda.so.{version}").exists():
            return sorted(path for path in directory.glob(f"*.so.{version}") if path.is_file())
    raise Missing(f"libcuda.so.{version} is in none of {', '.join(map(str, dict.fromkeys(directories)))}")


def find_programs() -> list[Path]:
    """Return the driver's programs."""
    found = [path for name in PROGRAMS if (path := shutil.which(name, path=PROGRAM_PATH))]
    if not any(path.endswith("/nvidia-smi") for path in found):
        raise Missing("nvidia-smi is not installed")
    return [Path(path) for path in found]


def describe(names: Sequence[str]) -> dict[str, Any]:
    """Return what each host gets: consecutive GPUs, as many as the others."""
    version = driver_version()
    gpus = find_gpus()
    if len(gpus) % len(names):
        raise Missing(f"its {len(gpus)} GPU(s) cannot be shared out equally among {len(names)} hosts (LAB_HOSTS)")
    each = len(gpus) // len(names)
    nodes = find_nodes()
    files = {
        path: f"/usr/lib/{MULTIARCH}/{path.name}"
        for path in find_libraries(version, [*linker_directories(), *LIBRARIES])
    }
    files |= {path: f"/usr/bin/{path.name}" for path in find_programs()}
    files |= {path / version: f"/lib/firmware/nvidia/{version}" for path in FIRMWARE if (path / version).is_dir()}
    hosts = {}
    for position, name in enumerate(names):
        own = gpus[position * each : (position + 1) * each]
        hosts[name] = {
            "addresses": [gpu.address for gpu in own],
            "devices": [f"{path}:{path}:rwm" for path in [*(gpu.node for gpu in own), *nodes]],
            "volumes": [f"{source.resolve()}:{target}:ro" for source, target in files.items()],
        }
    return {"problems": [], "driver": version, "hosts": hosts}


def main() -> None:
    try:
        result = describe(sys.argv[1:])
    except Missing as missing:
        result = {"problems": [str(missing)], "driver": None, "hosts": {}}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
