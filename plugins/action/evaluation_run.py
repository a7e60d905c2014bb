# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run evaluations in short polls, show the progress, and write each result on the control node."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.trtllm.fleet.plugins.plugin_utils.evaluation import Kept, failed_gates, gates, line, now
from ansible_collections.trtllm.fleet.plugins.plugin_utils.progress import TURN, show

MODULE = "trtllm.fleet.evaluation_run"


class ActionModule(ActionBase):
    """Polls the module until the evaluations end or ``hold`` seconds are over, so that other tasks can run between.

    ``folder`` is the directory of the result and ``about`` its first content. ``problem`` ends the result as failed
    without an evaluation.
    """

    _VALID_ARGS = frozenset(
        ("about", "folder", "hold", "load", "max_incomplete", "min_score", "problem", "references", "settings")
    )
    _supports_check_mode = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        if result.get("skipped"):
            return result
        asked = self._task.args
        kept = Kept(Path(asked["folder"]), asked["about"])
        if asked.get("problem"):
            kept.end(str(asked["problem"]))
            return {**result, "changed": True, "path": asked["folder"], "result": kept.document}
        began = datetime.fromisoformat(kept.document["started"])
        options = {**asked["load"], "turn": TURN}
        options["timeout"] = max(1.0, float(options["timeout"]) - (now() - began).total_seconds())
        until = time.monotonic() + float(asked["hold"])
        while True:
            told: dict[str, Any] = self._execute_module(MODULE, options, task_vars=variables)
            for one in kept.add(told.get("results", []), asked["settings"], float(asked["max_incomplete"])):
                self._tell(variables, f"{one['name']}, {one['effort']}: {one['text']}")
            if told.get("failed") or told.get("unreachable"):
                kept.end(told.get("msg", "no answer"))
                break
            if told["finished"] or time.monotonic() > until:
                break
            show(variables["inventory_hostname"], line(told["progress"], (now() - began).total_seconds()))
        if len(kept.document["results"]) == len(kept.document["names"]) * len(kept.document["efforts"]):
            found = gates(kept.document["results"], asked["min_score"], asked["references"])
            kept.end(gates=found)
            for gate in found:
                self._tell(variables, gate["text"])
            result["missed"] = failed_gates(found)
        files = [f"{told.get('directory')}/{name}" for one in told.get("results", []) for name in one["files"]]
        result.update(
            {name: told[name] for name in ("failed", "unreachable", "msg", "finished") if name in told},
            changed=True,
            files=files,
            path=asked["folder"],
            result=kept.document,
        )
        return result

    def _tell(self, variables: dict[str, Any], text: str) -> None:
        Display().display(f"{variables['inventory_hostname']}: {text}")
