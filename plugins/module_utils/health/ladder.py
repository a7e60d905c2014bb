# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rungs of the remedy ladder on a drained host: restart engines, reset GPUs, load the driver again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner, output
from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import paragraphs

# Seconds. An engine that hangs is killed after the TimeoutStopSec of its unit.
STOP_TIMEOUT = 900.0
RESET_TIMEOUT = 300.0
COMMAND_TIMEOUT = 120.0
# Units that hold GPUs besides the engines: with one of them a reset ends with "In use by another client"
# (NVIDIA/NVSentinel issue 1690). The health program starts nvidia-smi.
HOLDERS = (
    "trtllm-health.service",
    "trtllm-dcgm-exporter.service",
    "nvidia-dcgm.service",
    "nvidia-dcgm-exporter.service",
    "nvidia-persistenced.service",
)
FABRIC_MANAGER = "nvidia-fabricmanager.service"
MODULE = "nvidia"
# A line has the module's name, size, number of users, and the modules that use it.
LOADED = Path("/proc/modules")
# One that systemd starts again and again could take the GPU during a reset.
RUNNING = ("active", "activating", "reloading")
ACTIONS = ("restart_engine", "reset_gpu", "reload_driver")


class RemedyError(Exception):
    """A step failed; the message has the command and its output."""


def apply(action: str, engines: Sequence[str], gpus: Sequence[str], runner: Runner) -> list[str]:
    """Apply one remedy, and return what was done. The engines and all other units run again, also after a failure.

    ``engines``: units of the instances. ``gpus``: PCI addresses for reset_gpu. Raises RemedyError and OSError.
    """
    done: list[str] = []
    modules = dependents(MODULE, read_file(LOADED)) if action == "reload_driver" else []

    def step(*argv: str, timeout: float = COMMAND_TIMEOUT) -> None:
        output(argv, timeout, runner, RemedyError)
        done.append(" ".join(argv))

    others = [] if action == "restart_engine" else _active(HOLDERS, runner)
    fabric = _active([FABRIC_MANAGER], runner, loaded=True) if action == "reload_driver" else []
    try:
        if engines:
            step("systemctl", "stop", *engines, timeout=STOP_TIMEOUT)
        if others or fabric:
            step("systemctl", "stop", *others, *fabric)
        if action == "reset_gpu":
            for gpu in gpus:
                step("nvidia-smi", "--gpu-reset", "-i", gpu, timeout=RESET_TIMEOUT)
        if action == "reload_driver":
            step("modprobe", "--remove", *modules)
    finally:
        # All that were loaded, such as nvidia_uvm and nvidia_peermem, also after a removal that failed half way.
        for module in reversed(modules):
            runner(("modprobe", module), COMMAND_TIMEOUT)
        for unit in reversed([*others, *fabric]):
            runner(("systemctl", "reset-failed", unit), COMMAND_TIMEOUT)
            runner(("systemctl", "start", unit), COMMAND_TIMEOUT)
        for unit in engines:
            runner(("systemctl", "reset-failed", unit), COMMAND_TIMEOUT)
            runner(("systemctl", "start", "--no-block", unit), COMMAND_TIMEOUT)
    return done


def dependents(module: str, table: str) -> list[str]:
    """Return a kernel module and those that need it, in the order in which they can be removed.

    ``table``: text of /proc/modules.
    """
    users = {
        line.split()[0]: [one for one in line.split()[3].split(",") if one not in ("", "-")]
        for line in table.splitlines()
        if len(line.split()) > 3
    }
    found = [name for user in users.get(module, []) for name in dependents(user, table)]
    return list(dict.fromkeys([*found, module]))


def _active(units: Sequence[str], runner: Runner, loaded: bool = False) -> list[str]:
    """Return the units that run or that systemd starts again; with ``loaded``, those that are installed."""
    command = ("systemctl", "show", "--property=LoadState,ActiveState", "--", *units)
    shown = paragraphs(units, output(command, COMMAND_TIMEOUT, runner, RemedyError))
    return [
        unit
        for unit in units
        if shown.get(unit, {}).get("LoadState") == "loaded" and (loaded or shown[unit].get("ActiveState") in RUNNING)
    ]
