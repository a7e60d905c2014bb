# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the plan of a fleet on the control node; the module of the same name has the documentation."""

from __future__ import annotations

from datetime import date
from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import failure, fleet_plan, render, stale
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.revisions import readable, revision_hosts
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables


class ActionModule(ActionBase):
    """From the variables of the play's hosts to the plan."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _valid, options = self.validate_argument_spec({"select_revision_hosts": {"type": "bool", "default": False}})
        hosts, hostvars = variables["ansible_play_hosts_all"], variables["hostvars"]
        if options["select_revision_hosts"]:
            return {**result, "revision_hosts": revision_hosts(readable(hosts, hostvars))}
        plan = fleet_plan(hosts, hostvars)
        old = stale(load_tables().releases, date.today())
        warnings = {"warnings": [old]} if old else {}
        return {**result, **warnings, "text": render(plan), "data": plan, "failure": failure(plan)}
