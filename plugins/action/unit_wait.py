# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the progress of a unit while the module of the same name waits for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.progress import duration, show, turn

MODULE = "trtllm.fleet.unit_wait"


class ActionModule(ActionBase):
    """Runs of the module in turns, with a line of progress after each."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        super().run(tmp, variables)
        arguments = dict(self._task.args)
        if not arguments.get("progress") or self._task.check_mode:
            return self._execute_module(MODULE, arguments, task_vars=variables)
        began = time.monotonic()
        while True:
            options = {**arguments, "turn": turn(variables), "waited": time.monotonic() - began}
            result: dict[str, Any] = self._execute_module(MODULE, options, task_vars=variables)
            if result.get("failed") or result.get("finished") or result.get("unreachable"):
                return result
            if result.get("progress"):
                show(variables["inventory_hostname"], line(result["progress"]))


def line(progress: Mapping[str, Any]) -> str:
    """Return the progress of a transfer as text: percent, amounts, rate, time left."""
    done, total = progress.get("done_bytes", 0), progress.get("total_bytes", 0)
    parts = [f"{100 * done // total} %" if total else "", f"{size(done)} of {size(total)}"]
    if progress.get("rate"):
        parts.append(f"{size(progress['rate'])}/s")
    if progress.get("seconds_left") is not None:
        parts.append(f"{duration(progress['seconds_left'])} left")
    amounts = ", ".join(filter(None, parts))
    state = " ".join(filter(None, [progress.get("state"), progress.get("message")]))
    return f"{amounts} ({state})" if state else amounts


def size(count: float) -> str:
    """Return a number of bytes with three figures."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 100 * factor else f"{count / factor:.0f} {unit}"
    return f"{count:.0f} B"
