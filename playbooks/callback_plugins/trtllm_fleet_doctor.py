# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: trtllm_fleet_doctor
type: notification
short_description: Explain failed tasks by the fault catalogue
version_added: 1.0.0
description:
  - Ansible loads it with every playbook of this collection, because it is beside them.
  - After a failed task, or an unreachable host, it prints the cause and what to do, if the catalogue has a fault with
    that message. It examines no host; playbook C(trtllm.fleet.doctor) does.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

import textwrap
from typing import Any

from ansible.plugins.callback import CallbackBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.explanation import explain

WIDTH = 120


class CallbackModule(CallbackBase):
    """A sentence after each failure whose cause is known. The same sentence is not repeated."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "trtllm_fleet_doctor"

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin a run."""
        self._shown: set[str] = set()

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Explain a failed task."""
        if not ignore_errors:
            self._show(result, unreachable=False)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Explain why a host is unreachable."""
        if not result._task.ignore_unreachable:
            self._show(result, unreachable=True)

    def _show(self, result: Any, unreachable: bool) -> None:
        sentence = explain(result._result, unreachable)
        if sentence and sentence not in self._shown:
            self._shown.add(sentence)
            self._display.display(textwrap.fill(f"doctor says: {sentence}", WIDTH))
