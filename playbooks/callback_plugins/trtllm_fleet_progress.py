# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: trtllm_fleet_progress
type: notification
short_description: Show what each host is doing during long tasks
version_added: 1.0.0
description:
  - Ansible loads it with every playbook of this collection, because it is beside them.
  - While a task takes longer than O(seconds), it prints what each host is doing, for how long and, where the task knows
    it, how far it is. Hosts that do the same are one line. It goes to standard error, on a
    terminal and in a CI log alike.
options:
  seconds:
    description:
      - Seconds between two tables.
      - V(0) shows none. Tasks that know how far they are then print a line for each host.
    type: int
    default: 30
    env:
      - name: TRTLLM_FLEET_PROGRESS_SECONDS
    ini:
      - section: callback_trtllm_fleet_progress
        key: seconds
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

import threading
import time
from typing import Any

from ansible import constants as C

from ansible_collections.trtllm.fleet.plugins.plugin_utils import progress
from ansible_collections.trtllm.fleet.plugins.plugin_utils.callbacks import TaskEndCallback


class CallbackModule(TaskEndCallback):
    """A thread of the run that prints tables; a task in a fork cannot see the others."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "trtllm_fleet_progress"

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin a run."""
        self._progress = progress.Progress(time.monotonic, progress.amount_of)
        self._ended = threading.Event()
        seconds = self.get_option("seconds")
        if seconds > 0:
            progress.prepare()
            threading.Thread(target=self._print, args=[seconds], daemon=True).start()

    def _print(self, seconds: int) -> None:
        while not self._ended.wait(seconds):
            for line in self._progress.table(seconds):
                # Standard output may be JSON for a program.
                self._display.display(line, stderr=True)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Begin a play."""
        self._progress.play()

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Add a task. An include has no end of its own."""
        if task.action not in C._ACTION_ALL_INCLUDES:
            self._progress.begin(host.get_name(), task.get_name())

    def task_ended(self, result: Any) -> None:
        """Remove a task."""
        self._progress.end(result._host.get_name())

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """End the tables."""
        self._ended.set()
