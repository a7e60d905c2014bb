# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: trtllm_fleet_rollout
type: aggregate
short_description: Write the result of a rollout or rollback
version_added: 1.0.0
description:
  - Ansible loads it with every playbook of this collection, because it is beside them.
  - During C(rollout.yml) and C(rollback.yml) it writes C(fleet-rollout.json), from the start of the run on, so that a
    failed or interrupted run leaves a result, too.
  - Check mode and other playbooks write nothing.
options:
  file:
    description: File on the control node. If empty, nothing is written.
    type: str
    default: fleet-rollout.json
    env:
      - name: TRTLLM_FLEET_ROLLOUT_FILE
    ini:
      - section: callback_trtllm_fleet_rollout
        key: file
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.result import RolloutResult

LOCK, PLAN, FACTS = "trtllm.fleet.rollout_lock", "trtllm.fleet.rollout_plan", "ansible.builtin.set_fact"
# The fact by which role rollout reports the state of a host.
STATE = "rollout_result"
PLAYBOOKS = {Path(__file__).resolve().parents[1] / f"{name}.yml": name for name in ("rollout", "rollback")}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class CallbackModule(CallbackBase):
    """The result of a run, written at each change."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "trtllm_fleet_rollout"

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin a run. A playbook of the operator may import ours."""
        paths = [Path(play.get_path().rpartition(":")[0]).resolve() for play in playbook.get_plays()]
        name = next((PLAYBOOKS[path] for path in paths if path in PLAYBOOKS), "")
        wanted = name and self.get_option("file") and not context.CLIARGS.get("check")
        self._run = RolloutResult(name, now()) if wanted else None
        self._write()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Add the name of the rollout, its plan, or the state of a host."""
        if self._run:
            action, found = result._task.resolved_action or result._task.action, result._result
            if action == LOCK and "rollout" in found:
                self._run.name(found["rollout"])
            elif action == PLAN:
                self._run.plan(found)
            elif action == FACTS and STATE in found.get("ansible_facts", {}):
                self._run.set_state(result._host.get_name(), found["ansible_facts"][STATE])
            else:
                return
            self._write()

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if self._run and not ignore_errors:
            self._run.add_failure(result._host.get_name(), result._task.get_name(), result._result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        if self._run and not result._task.ignore_unreachable:
            self._run.add_failure(result._host.get_name(), result._task.get_name(), result._result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """End the run."""
        if self._run:
            self._run.end(now(), {*stats.failures, *stats.dark})
            self._write()

    def _write(self) -> None:
        """Write the file. One that cannot be written does not end a rollout."""
        if not self._run:
            return
        try:
            path = Path(self.get_option("file")).expanduser()
            write_file(path, json.dumps(self._run.document, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            self._display.warning(f"The result of the rollout is not written: {error}")
