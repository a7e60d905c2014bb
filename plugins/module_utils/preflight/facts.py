# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read facts of a host from its kernel and its files."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file


def at(root: Path, path: str | Path) -> Path:
    """Return an absolute path below another root directory."""
    return root / str(path).lstrip("/")


def read(path: Path) -> str:
    """Return the stripped text of a file; empty if it cannot be read."""
    return read_file(path).strip()


@dataclass(frozen=True)
class Facts:
    """Facts of a host."""

    architecture: str
    distribution: str
    version: str
    codename: str
    kernel: str
    boot_id: str
    hostname: str


def read_facts(root: Path, uname: os.uname_result) -> Facts:
    """Read the facts; empty where a file is missing."""
    lines = (line.split("=", 1) for line in read(at(root, "/etc/os-release")).splitlines() if "=" in line)
    release = {name: "".join(shlex.split(value)) for name, value in lines}
    return Facts(
        architecture=uname.machine,
        distribution=release.get("ID", ""),
        version=release.get("VERSION_ID", ""),
        codename=release.get("VERSION_CODENAME", ""),
        kernel=uname.release,
        boot_id=read(at(root, "/proc/sys/kernel/random/boot_id")),
        hostname=uname.nodename,
    )
