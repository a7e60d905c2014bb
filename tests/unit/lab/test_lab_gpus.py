# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A machine's GPUs are shared out among lab hosts, or the lab says what the machine lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab import gpus

# /proc/driver/nvidia of a machine with an H100, 2026-11-25.
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)\n"
INFORMATION = "Model: \t\t NVIDIA H100 80GB HBM3\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
DRIVER = "580.159.04"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Return a function that makes a machine with a number of GPUs, and returns its root."""

    def make(number: int) -> Path:
        proc, dev, libraries, firmware = (tmp_path / name for name in ("proc", "dev", "lib", "firmware"))
        for path in (proc, dev, libraries, firmware / DRIVER):
            path.mkdir(parents=True)
        (proc / "version").write_text(VERSION)
        for minor in range(number):
            address = f"0000:00:{6 + minor:02x}.0"
            (proc / "gpus" / address).mkdir(parents=True)
            (proc / "gpus" / address / "information").write_text(INFORMATION.format(address=address, minor=minor))
            (dev / f"nvidia{minor}").touch()
        for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
            (dev / name).touch()
        for name in ("libcuda", "libnvidia-ml"):
            (libraries / f"{name}.so.{DRIVER}").touch()
        (libraries / "libcuda.so.1").symlink_to(f"libcuda.so.{DRIVER}")
        (libraries / "nvidia-smi").touch(mode=0o755)
        monkeypatch.setattr(gpus, "PROC", proc)
        monkeypatch.setattr(gpus, "DEV", dev)
        monkeypatch.setattr(gpus, "LIBRARIES", (libraries,))
        monkeypatch.setattr(gpus, "PROGRAM_PATH", str(libraries))
        monkeypatch.setattr(gpus, "FIRMWARE", (firmware,))
        monkeypatch.setattr(gpus, "linker_directories", lambda: iter(()))
        return tmp_path

    return make


def test_hosts_share_the_gpus(machine: Callable[[int], Path]) -> None:
    root = machine(4)
    found = gpus.describe(["gpu1", "gpu2"])
    assert found["driver"] == DRIVER
    assert found["hosts"]["gpu1"]["addresses"] == ["0000:00:06.0", "0000:00:07.0"]
    assert found["hosts"]["gpu2"]["addresses"] == ["0000:00:08.0", "0000:00:09.0"]
    dev = root / "dev"
    nodes = [dev / name for name in ("nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")]
    assert found["hosts"]["gpu2"]["devices"] == [f"{node}:{node}:rwm" for node in nodes]


def test_each_host_gets_libraries_programs_and_firmware_of_the_driver(machine: Callable[[int], Path]) -> None:
    root = machine(1)
    assert gpus.describe(["gpu1"])["hosts"]["gpu1"]["volumes"] == [
        f"{root}/lib/libcuda.so.{DRIVER}:/usr/lib/{gpus.MULTIARCH}/libcuda.so.{DRIVER}:ro",
        f"{root}/lib/libnvidia-ml.so.{DRIVER}:/usr/lib/{gpus.MULTIARCH}/libnvidia-ml.so.{DRIVER}:ro",
        f"{root}/lib/nvidia-smi:/usr/bin/nvidia-smi:ro",
        f"{root}/firmware/{DRIVER}:/lib/firmware/nvidia/{DRIVER}:ro",
    ]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("proc/version", "no NVIDIA kernel module is loaded"),
        ("dev/nvidia0", "no GPU with a device node"),
        ("dev/nvidia-uvm", "nvidia-modprobe -u -c 0"),
        (f"lib/libcuda.so.{DRIVER}", f"libcuda.so.{DRIVER} is in none of"),
        ("lib/nvidia-smi", "nvidia-smi is not installed"),
    ],
)
def test_what_a_machine_lacks(machine: Callable[[int], Path], missing: str, words: str) -> None:
    (machine(1) / missing).unlink()
    with pytest.raises(gpus.Missing, match=words):
        gpus.describe(["gpu1"])


def test_unequal_shares_are_rejected(machine: Callable[[int], Path]) -> None:
    machine(2)
    with pytest.raises(gpus.Missing, match=r"2 GPU\(s\) cannot be shared out equally among 3 hosts"):
        gpus.describe(["gpu1", "gpu2", "gpu3"])
