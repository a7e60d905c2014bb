# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU seconds of the control node for each task, written to the file in BENCH_TASKS.

A task lasts until the next one, or the next play. It includes reading ``hosts`` of that play, and plays without hosts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    """Times at the start of each play and task; the rest of a play until its first task counts as its own entry."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "task_cpu"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tasks: list[dict[str, Any]] = []
        self._now: dict[str, float] = {}
        self._begin("start of ansible-playbook")

    def _begin(self, name: str) -> None:
        times = os.times()
        # Processes of tasks count when Ansible has waited for them, at the latest at the end of their task.
        now = {
            "main": times.user + times.system,
            "tasks": times.children_user + times.children_system,
            "wall": times.elapsed,
        }
        if self._tasks:
            last = self._tasks[-1]
            last |= {key: round(value - self._now[key], 2) for key, value in now.items()}
        self._now = now
        self._tasks.append({"name": name})

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._begin(f"start of the play: {play.get_name()}")

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._begin(task.get_name())

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._begin("end of ansible-playbook")
        Path(os.environ["BENCH_TASKS"]).write_text(json.dumps(self._tasks[:-1]))
