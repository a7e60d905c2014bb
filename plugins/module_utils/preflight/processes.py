# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell processes of this collection from others."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.facts import read
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.requirements import COMMAND_SECONDS, Find

# Units of this collection and their containers.
OUR_UNIT = re.compile(r"^/?trtllm-")
CONTAINER = re.compile(r"\b[0-9a-f]{64}\b")


def serves(process: Path, runner: Runner, find: Find) -> bool:
    """Return True if a process belongs to a unit of this collection or its container, or has ended."""
    control_groups = read(process / "cgroup")
    if not control_groups or any(OUR_UNIT.match(name) for name in re.split(r"[/\n]", control_groups)):
        return True
    docker, container = find("docker"), CONTAINER.search(control_groups)
    if docker is None or container is None:
        return False
    name = runner([docker, "container", "inspect", "--format={{.Name}}", container.group()], COMMAND_SECONDS)
    return name.rc == 0 and bool(OUR_UNIT.match(name.stdout.strip()))


def describe_process(process: Path | None) -> str:
    """Return name, pid and unit of a process."""
    if process is None:
        return "a hidden process"
    unit = re.search(r"/([^/\n]+\.(?:service|scope))$", read(process / "cgroup"), re.MULTILINE)
    return f"{read(process / 'comm')} (pid {process.name}{', ' + unit.group(1) if unit else ''})"
