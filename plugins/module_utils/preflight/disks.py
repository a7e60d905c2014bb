# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the disk space for images and other files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.files import size_text
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.facts import at, read
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.requirements import COMMAND_SECONDS, Wanted, result
from ansible_collections.trtllm.fleet.plugins.module_utils.registry import Registry, RegistryError, split_image

# Bytes of an unpacked image for each compressed byte. Users found about twice the 18.5 GB of one image on the disk
# (NVIDIA/TensorRT-LLM issue 1704).
UNPACKED = 2.5


def image_store(root: Path, planned: str, runner: Runner, docker: str | None) -> str:
    """Return the directory of Docker's images; ``planned`` before Docker runs."""
    told = runner([docker, "info", "--format", "{{json .}}"], COMMAND_SECONDS) if docker else CommandResult(None)
    try:
        info = json.loads(told.stdout)
        docker_root, status = info["DockerRootDir"], json.dumps(info["DriverStatus"])
    except (ValueError, KeyError, TypeError):
        return planned
    if "io.containerd.snapshotter" not in status:
        return docker_root
    # Docker's own containerd, else the containerd of the host.
    own = f"{docker_root}/containerd/daemon"
    match = re.search(r"""^root\s*=\s*["'](.+?)["']""", read(at(root, "/etc/containerd/config.toml")), re.MULTILINE)
    return own if at(root, own).is_dir() else match[1] if match else "/var/lib/containerd"


def images_to_come(wanted: Wanted, machine: str, runner: Runner, docker: str | None) -> tuple[int, list[str]]:
    """Return the bytes that missing images will take, and a warning for each image of unknown size.

    A registry lists the compressed sizes of the layers. While Docker unpacks an image, both forms are on the disk,
    and the containerd image store keeps both.
    """
    compressed, unknown = 0, []
    for image in wanted.images:
        if docker and runner([docker, "image", "inspect", "--format", "{{.Id}}", image], COMMAND_SECONDS).rc == 0:
            continue
        try:
            host, repository, reference = split_image(image)
            compressed += Registry(host, wanted.registry_logins).image(repository, reference, machine).layers_bytes
        except RegistryError as error:
            unknown.append(f"The disk space that {image} needs is not known and was not checked: {error}")
    return int(compressed * (1 + UNPACKED)), unknown


def check_disks(disks: Sequence[Mapping[str, Any]], root: Path) -> Iterator[Check]:
    """Check that each file system has space for all files that it is to hold."""
    file_systems: dict[int, list[Mapping[str, Any]]] = {}
    places: dict[int, Path] = {}
    for disk in disks:
        place = at(root, disk["path"])
        while not place.exists():
            place = place.parent
        device = place.stat().st_dev
        file_systems.setdefault(device, []).append(disk)
        places[device] = place
    for device, parts in file_systems.items():
        status = os.statvfs(places[device])
        free, needed = status.f_bavail * status.f_frsize, sum(disk["bytes"] for disk in parts)
        names = " and ".join(disk["path"] for disk in parts)
        wishes = ", ".join(f"{size_text(disk['bytes'])} for {disk['path']}" for disk in parts)
        variables = " or ".join(dict.fromkeys(disk["variable"] for disk in parts))
        hint = f"Free disk space, or set {variables} to a directory on a larger file system"
        yield result(f"disk:{parts[0]['path']}", free >= needed, f"{size_text(free)} free for {names}", wishes, hint)
