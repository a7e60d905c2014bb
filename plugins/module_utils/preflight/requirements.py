# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requirements of a host, and the result of a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check

Find = Callable[[str], Union[str, None]]
# Returns the versions of packages by name, newest first, from the repository at a URL and the sources of the host.
# Raises PackagesError and OSError.
Archive = Callable[[str, Sequence[str]], Mapping[str, Sequence[str]]]
COMMAND_SECONDS = 20


@dataclass(frozen=True)
class Wanted:
    """The options of M(trtllm.fleet.host_check)."""

    architectures: Sequence[str] = ()
    distributions: Mapping[str, Sequence[Any]] | None = None
    gpu_count: int = 1
    gpus: Sequence[int] = ()
    gpu_products: Sequence[str] = ()
    gpu_pci_ids: Sequence[str] = ()
    gpu_memory_mib: int | None = None
    driver_floor: str | None = None
    driver_version: str | None = None
    driver_platforms: Mapping[str, Mapping[str, Any]] | None = None
    driver_repository_url: str | None = None
    driver_kernel_headers: str | None = None
    driver_fabric_manager: str = "auto"
    driver_replace: bool = False
    reboot_allowed: bool = False
    disks: Sequence[Mapping[str, Any]] = ()
    images: Sequence[str] = ()
    image_store: str = "/var/lib/docker"
    registry_logins: Sequence[Mapping[str, str]] = ()
    ports: Sequence[Mapping[str, Any]] = ()
    timeout: int = 60


def result(check_id: str, passed: bool, observed: str, expected: str, hint: str = "") -> Check:
    """Build the result of a check; only a failure has a hint."""
    return Check(check_id, "pass" if passed else "fail", observed, expected, "" if passed else hint)
