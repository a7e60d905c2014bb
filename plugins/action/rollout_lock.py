# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells the module of the same name which run of Ansible this is, and whether the one that holds the lock lives."""

from __future__ import annotations

import getpass
import os
import platform
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

MODULE = "trtllm.fleet.rollout_lock"


class ActionModule(ActionBase):
    """The module, and once more where the lock is a dead run's."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        # Tasks run in a child of ansible-playbook.
        pid = os.getppid()
        holder = f"{getpass.getuser()}@{platform.node()} (process {pid})"
        arguments = {**self._task.args, "owner": owner(pid), "holder": holder}
        result: dict[str, Any] = self._execute_module(MODULE, arguments, task_vars=task_vars)
        if result.get("failed") and is_dead(str(result.get("owner", ""))):
            arguments["instead_of"] = result["owner"]
            result = self._execute_module(MODULE, arguments, task_vars=task_vars)
        return result


def machine() -> str:
    """What tells this machine from others, and a container from its neighbours, whose processes it does not see."""
    path = Path("/etc/machine-id")
    name = (path.read_text().strip() if path.exists() else "") or platform.node()
    return f"{name}/{os.stat('/proc/self/ns/pid').st_ino}"


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started(pid: int) -> str:
    """When a process began, in ticks since the boot; empty where there is none: proc(5), field 22 of stat."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def owner(pid: int) -> str:
    """A process, told from all others of all machines."""
    return ":".join([machine(), boot(), str(pid), started(pid)])


def is_dead(name: str) -> bool:
    """Whether an owner was a process of this machine that is no more."""
    parts = name.split(":")
    if parts[0] != machine() or len(parts) != 4:
        return False
    booted, pid, began = parts[1:]
    if booted != boot():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # somebody else's, which may be hidden from us
    return bool(began) and started(int(pid)) not in ("", began)
