# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A base of callbacks that need the end of a task and not its outcome."""

from __future__ import annotations

from typing import Any

from ansible.plugins.callback import CallbackBase


class TaskEndCallback(CallbackBase):
    """Calls ``task_ended`` for each task that ends on a host."""

    def task_ended(self, result: Any) -> None:
        """Handle the result of a task on a host, whether it succeeded, failed, was skipped or did not get there."""
        raise NotImplementedError

    def v2_runner_on_ok(self, result: Any) -> None:
        self.task_ended(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self.task_ended(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self.task_ended(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self.task_ended(result)
