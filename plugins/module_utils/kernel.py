# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the kernel that boots next, and whether it has an NVIDIA module or headers for one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner

COMMAND_SECONDS = 20
# A package that follows a kernel depends on the package of one kernel, whose name begins with its release.
IMAGE = "linux-image-"
ONE_KERNEL = re.compile(rf"(?:^|[ ,]){IMAGE}\d")


def release_key(release: str) -> tuple[tuple[int, ...], str]:
    """Return a key that sorts releases as the boot loader does: ``6.8.0-9-generic`` before ``6.8.0-45-generic``."""
    return tuple(int(number) for number in re.findall(r"\d+", release)), release


def next_kernel(root: Path) -> str | None:
    """Return the release that a boot loader chooses by itself, the newest in ``/boot``; None where there is none."""
    releases = [path.name.partition("-")[2] for path in (root / "boot").glob("vmlinuz-*")]
    return max(releases, key=release_key, default=None)


def has_module(root: Path, release: str) -> bool:
    """Return True if there is an NVIDIA module for the kernel, wherever it lies below its directory."""
    for _directory, _directories, files in os.walk(root / "lib/modules" / release):
        if any(name.startswith("nvidia.ko") for name in files):
            return True
    return False


def has_headers(root: Path, release: str) -> bool:
    """Return True if the headers that a module is built with are installed."""
    build = root / "lib/modules" / release / "build"
    target = root / os.readlink(build).lstrip("/") if build.is_symlink() else build
    return target.is_dir()


def header_packages(text: str) -> list[str]:
    """Return the packages whose headers follow the installed kernels: ``linux-headers-aws`` for ``linux-image-aws``.

    ``text`` has a line of status, name and dependencies for each package of a kernel, separated by tabs.
    """
    found = []
    for line in text.splitlines():
        status, name, depends = [*line.split("\t"), "", ""][:3]
        follows = name.startswith(IMAGE) and not ONE_KERNEL.match(name)
        if status == "installed" and follows and ONE_KERNEL.search(depends):
            found.append(name.replace(IMAGE, "linux-headers-", 1))
    return sorted(found)


def compiler(version: str) -> str | None:
    """Return the compiler that ``/proc/version`` names, where its name has a number: ``gcc-12``."""
    found = re.search(r"\b(gcc-\d+) \(", version)
    return found.group(1) if found else None


def read_kernel(root: Path, runner: Runner, find: Callable[[str], str | None]) -> dict[str, Any]:
    """Return the kernels for M(trtllm.fleet.gpu_info)."""
    release, query = next_kernel(root), find("dpkg-query")
    text = ""
    if query:
        form = "--showformat=${db:Status-Status}\\t${Package}\\t${Depends}\\n"
        text = runner([query, "--show", form, f"{IMAGE}*"], COMMAND_SECONDS).stdout
    try:
        version = (root / "proc/version").read_text()
    except OSError:
        version = ""
    return {
        "next": release,
        "next_module": release is not None and has_module(root, release),
        "next_headers": release is not None and has_headers(root, release),
        "header_packages": header_packages(text),
        "compiler": compiler(version),
    }
