# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run module rollout_lock with the identity of this run of Ansible, and take over the lock of a dead run."""

from __future__ import annotations

import getpass
import os
import platform
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

MODULE = "trtllm.fleet.rollout_lock"
MACHINE_ID = Path("/etc/machine-id")
# Number of the PID namespace outside of all containers: PROC_PID_INIT_INO of linux/proc_ns.h.
OUTERMOST = 0xEFFFFFFC


class ActionModule(ActionBase):
    """The module, run a second time if a dead run holds the lock."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the module."""
        super().run(tmp, task_vars)
        pid = os.getppid()  # ansible-playbook; a task runs in its child
        holder = f"{getpass.getuser()}@{platform.node()} (process {pid})"
        arguments = {**self._task.args, "owner": owner(pid), "holder": holder}
        result: dict[str, Any] = self._execute_module(MODULE, arguments, task_vars=task_vars)
        if result.get("failed") and is_dead(str(result.get("owner", ""))):
            arguments["instead_of"] = result["owner"]
            result = self._execute_module(MODULE, arguments, task_vars=task_vars)
        return result


def owner(pid: int) -> str:
    """Return the identity of a process among all processes of all machines."""
    return ":".join([machine(), boot(), str(pid), started(pid)])


def machine() -> str:
    """Return the identity of this machine and PID namespace, as a container does not see processes outside.

    Containers of one image may have the same machine ID, but not the same host name.
    """
    name = MACHINE_ID.read_text().strip() if MACHINE_ID.exists() else ""
    inode = namespace()
    return f"{name}/{inode}" if name and inode == OUTERMOST else f"{name}/{platform.node()}/{inode}"


def namespace() -> int:
    """Return the number of the PID namespace of this process."""
    return os.stat("/proc/self/ns/pid").st_ino


def boot() -> str:
    """Return the identity of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started(pid: int) -> str:
    """Return the start of a process in ticks since the boot; empty without one: proc(5), field 22 of stat."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def is_dead(identity: str) -> bool:
    """Return True if the owner was a process of this machine that has ended, False if that is unknown."""
    parts = identity.split(":")
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
        return False  # another user's process, whose start may be hidden
    return bool(began) and started(int(pid)) not in ("", began)
