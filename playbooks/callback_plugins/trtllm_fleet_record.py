# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: trtllm_fleet_record
type: aggregate
short_description: Collect what tasks own on hosts, for the convergence record
version_added: 1.0.0
description:
  - Ansible loads it with every playbook of this collection, because it is beside them.
  - Module M(trtllm.fleet.host_record) writes what it collected to the record of a host. It prints nothing.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.collected import RUN
from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.collection import ROOT


class CallbackModule(CallbackBase):
    """The results of all tasks of a run."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "trtllm_fleet_record"

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin a run."""
        RUN.start()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Add the result of a task of this collection. A playbook that imports one of ours may have other tasks."""
        task = result._task
        path = (task.get_path() or "").rpartition(":")[0]
        if task.delegate_to is None and Path(path).resolve().is_relative_to(ROOT):
            RUN.add(result._host.get_name(), task.resolved_action or task.action, result._result)
