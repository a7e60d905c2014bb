# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run all preflight checks of a host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check, failures, summarise
from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import KERNEL_MODULE, PCI_DEVICES, read_gpus
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.disks import (
    check_disks,
    image_store,
    images_to_come,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.driver import check_driver, driver_to_install
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.facts import at, read_facts
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.gpus import check_gpus
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.ports import check_ports
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.requirements import Archive, Find, Wanted
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.system import (
    check_docker,
    check_platform,
    check_systemd,
)


def timed(checks: Iterable[Check]) -> Iterator[Check]:
    """Add to each check the seconds that it took."""
    begin = time.monotonic()
    for check in checks:
        end = time.monotonic()
        yield replace(check, duration=end - begin)
        begin = end


def examine(
    wanted: Wanted, runner: Runner, find: Find, archive: Archive, uname: os.uname_result, root: Path = Path("/")
) -> dict[str, Any]:
    """Return the result of M(trtllm.fleet.host_check). Raises ValueError for a bad ``address``."""
    facts = read_facts(root, uname)
    wanted = replace(wanted, driver_version=driver_to_install(facts, wanted))
    gpu: dict[str, Any] = {}
    warnings: list[str] = []
    images: dict[str, int] = {}

    def checks() -> Iterator[Check]:
        yield from check_platform(facts, wanted)
        yield from check_systemd(root)
        gpu.update(
            read_gpus(find("nvidia-smi"), wanted.timeout, runner, at(root, PCI_DEVICES), at(root, KERNEL_MODULE))
        )
        if wanted.gpu_count or wanted.gpus:
            yield from check_gpus(gpu, wanted, root, runner, find)
            yield from check_driver(gpu, wanted, facts, root, runner, find, archive)
        yield from check_docker(root)
        docker = find("docker") if wanted.images else None
        size, unknown = images_to_come(wanted, facts.architecture, runner, docker)
        warnings.extend(unknown)
        if size:
            images[image_store(root, wanted.image_store, runner, docker)] = size
        variable = "docker_engine_options (data-root; root of containerd)"
        disks = [{"path": path, "bytes": needed, "variable": variable} for path, needed in images.items()]
        yield from check_disks([*wanted.disks, *disks], root)
        yield from check_ports(wanted.ports, root, runner, find)

    done = list(timed(checks()))
    return {
        **summarise(done),
        "problems": [str(check) for check in failures(done)],
        "warnings": warnings,
        "facts": asdict(facts),
        "gpu": gpu,
        "images": images,
    }
