# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: trtllm_fleet_timeline
type: aggregate
short_description: Write what a run of site.yml waited for
version_added: 1.0.0
description:
  - Ansible loads it with every playbook of this collection, because it is beside them.
  - After a run of C(site.yml) in which a host ran roles, it writes C(fleet-timeline.json) and C(fleet-timeline.html), a
    Gantt chart of roles, and of systemd units that worked at the same time. A failed run is written, too.
  - Check mode and other playbooks write nothing.
options:
  directory:
    description: Directory on the control node for both files, created if missing. If empty, nothing is written.
    type: str
    default: .
    env:
      - name: TRTLLM_FLEET_TIMELINE_DIRECTORY
    ini:
      - section: callback_trtllm_fleet_timeline
        key: directory
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible import context

from ansible_collections.trtllm.fleet.plugins.plugin_utils.callbacks import TaskEndCallback
from ansible_collections.trtllm.fleet.plugins.plugin_utils.timeline.page import page
from ansible_collections.trtllm.fleet.plugins.plugin_utils.timeline.timeline import Timeline

# Only site.yml compares hosts with their records.
COMPARE = "trtllm.fleet.host_record"
JSON, PAGE = "fleet-timeline.json", "fleet-timeline.html"


def outer_role(task: Any) -> str:
    """Return the role that the play runs, of which a task or another role is a part; empty for a task of a play."""
    role, node = "", task
    while node is not None:
        if getattr(node, "_role", None):
            role = node._role._role_name
        node = getattr(node, "_parent", None)
    return role


class CallbackModule(TaskEndCallback):
    """Start and end of each task on each host."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "trtllm_fleet_timeline"

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin a run."""
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._timeline = Timeline(time.monotonic)
        self._compared = False

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._timeline.begin(host.get_name(), task._uuid)

    def task_ended(self, result: Any) -> None:
        """Add the end of a task."""
        task, host = result._task, result._host.get_name()
        action = task.resolved_action or task.action
        self._compared = self._compared or action == COMPARE
        self._timeline.end(host, task._uuid, outer_role(task), action, result._result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the files. A directory that cannot be written does not fail a run that succeeded."""
        directory = self.get_option("directory")
        if not directory or not self._compared or context.CLIARGS.get("check"):
            return
        document = self._timeline.document(self._started)
        if not document["hosts"]:
            return
        folder = Path(directory).expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / JSON).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            (folder / PAGE).write_text(page(document), encoding="utf-8")
        except OSError as error:
            self._display.warning(f"The timeline is not written: {error}")
