"""kernel: which kernel a host boots next, and what it has for an NVIDIA module of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import kernel
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult

RUNNING, WAITING = "6.8.0-9-generic", "6.8.0-45-generic"
# As dpkg-query of Ubuntu 22.04 with an HWE kernel prints it, and a package that was removed.
PACKAGES = (
    "installed\tlinux-image-6.8.0-45-generic\tkmod, linux-base (>= 4.5ubuntu1~16.04.1)\n"
    "installed\tlinux-image-generic-hwe-22.04\tlinux-image-6.8.0-45-generic, linux-modules-extra-6.8.0-45-generic\n"
    "not-installed\tlinux-image-aws\t\n"
    "config-files\tlinux-image-generic\tlinux-image-5.15.0-100-generic\n"
    "installed\tlinux-image-extra-virtual\tlinux-image-generic (= 5.15)\n"
)


def add(root: Path, release: str) -> None:
    (root / "boot").mkdir(exist_ok=True)
    (root / "boot" / f"vmlinuz-{release}").touch()
    (root / "lib/modules" / release).mkdir(parents=True)


def read(root: Path, text: str = "") -> dict[str, object]:
    def run(argv: Sequence[str], timeout: float) -> CommandResult:
        return CommandResult(0, text)

    return kernel.read_kernel(root, run, lambda name: name)


def test_a_waiting_kernel_without_module_and_headers(tmp_path: Path) -> None:
    add(tmp_path, RUNNING)
    add(tmp_path, WAITING)
    (tmp_path / "lib/modules" / RUNNING / "nvidia.ko").touch()
    found = read(tmp_path)
    assert (found["next"], found["next_module"], found["next_headers"]) == (WAITING, False, False)


@pytest.mark.parametrize("module", ["updates/dkms/nvidia.ko.zst", "kernel/nvidia-580srv-open/nvidia.ko"])
def test_a_waiting_kernel_with_module(tmp_path: Path, module: str) -> None:
    add(tmp_path, WAITING)
    path = tmp_path / "lib/modules" / WAITING / module
    path.parent.mkdir(parents=True)
    path.touch()
    assert read(tmp_path)["next_module"]


def test_a_waiting_kernel_with_headers(tmp_path: Path) -> None:
    add(tmp_path, WAITING)
    build = tmp_path / "lib/modules" / WAITING / "build"
    build.symlink_to(f"/usr/src/linux-headers-{WAITING}")
    assert not read(tmp_path)["next_headers"], "the link comes with the kernel on some distributions"
    (tmp_path / f"usr/src/linux-headers-{WAITING}").mkdir(parents=True)
    assert read(tmp_path)["next_headers"]


def test_a_container_boots_no_kernel(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found["next"], found["next_module"], found["next_headers"]) == (None, False, False)


def test_headers_follow_what_the_kernels_follow(tmp_path: Path) -> None:
    assert read(tmp_path, PACKAGES)["header_packages"] == ["linux-headers-generic-hwe-22.04"]
    debian = "installed\tlinux-image-cloud-amd64\tlinux-image-6.12.57+deb13-cloud-amd64 (= 6.12.57-1)\n"
    assert read(tmp_path, debian)["header_packages"] == ["linux-headers-cloud-amd64"]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (
            "6.8.0-101-generic (buildd@x) (x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0, GNU ld)",
            "gcc-12",
        ),
        ("5.15.0-101-generic (buildd@x) (gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0, GNU ld) #111-Ubuntu SMP", None),
        ("", None),
    ],
)
def test_compiler_of_the_kernel(tmp_path: Path, version: str, name: str | None) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/version").write_text(f"Linux version {version}")
    assert read(tmp_path)["compiler"] == name
