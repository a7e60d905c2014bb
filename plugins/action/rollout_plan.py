# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate the plan of a rollout from the plans of its hosts."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.plan import RolloutError, rollout_plan


class ActionModule(ActionBase):
    """Read the plans of all hosts of the play."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, given = self.validate_argument_spec(
            argument_spec={
                "gateways": {"type": "list", "elements": "dict", "required": True},
                "batches": {"type": "list", "elements": "raw", "required": True},
                "min_capacity": {"type": "int", "required": True},
                "seconds": {"type": "float", "required": True},
                "bake": {"type": "float", "required": True},
            }
        )
        found = {name: variables["hostvars"][name] for name in variables["ansible_play_hosts"]}
        missing = [name for name, host in found.items() if "trtllm_server_plan" not in host]
        if missing:
            raise AnsibleActionFail(
                f"trtllm_server_plan is not set for {', '.join(missing)}; a rollout needs the plan of each host. "
                "Run entry point plan of role trtllm.fleet.trtllm_server on them first."
            )
        hosts = {name: (host["trtllm_server_plan"], host.get("rollout_platform", [])) for name, host in found.items()}
        try:
            return {"changed": False, **rollout_plan(hosts, **given)}
        except RolloutError as error:
            return {"failed": True, "msg": str(error)}
