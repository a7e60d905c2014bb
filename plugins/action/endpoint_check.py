# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show what an endpoint waits for while the module of the same name verifies it."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.progress import show, turn

MODULE = "trtllm.fleet.endpoint_check"


class ActionModule(ActionBase):
    """Runs of the module in turns, until it has a verdict."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        super().run(tmp, variables)
        arguments = dict(self._task.args)
        began = time.monotonic()
        previous: dict[str, Any] = {}
        while True:
            arguments["turn"] = {**previous, "seconds": turn(variables), "waited": time.monotonic() - began}
            result: dict[str, Any] = self._execute_module(MODULE, arguments, task_vars=variables)
            if result.get("finished", True):
                return result
            if not self._task.no_log:
                show(variables["inventory_hostname"], result["progress"])
            previous = {"stage": result["stage"], "invocation_id": result["first_invocation_id"]}
