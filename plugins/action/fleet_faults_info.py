# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the faults of a fleet on the control node; the module of the same name has the documentation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import CatalogueError
from ansible_collections.trtllm.fleet.plugins.module_utils.health.remedies import MODES
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.doctor import Examined, examine, report
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.fault_rows import read_catalogue
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.repair import breaker_reason, plan_repairs
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.text import render


class ActionModule(ActionBase):
    """From the signals of hosts and gateways to a report."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _valid, given = self.validate_argument_spec(
            argument_spec=dict(
                hosts=dict(type="dict", required=True),
                gateways=dict(type="dict", required=True),
                gpu_hosts=dict(type="list", elements="str", required=True),
                faults=dict(type="list", elements="dict", default=[]),
                mode=dict(type="str", choices=["", *MODES], default=""),
            )
        )
        try:
            catalogue = read_catalogue(given["faults"])
        except CatalogueError as error:
            raise AnsibleActionFail(f"fleet_faults is not valid: {'; '.join(error.problems)}") from None
        hosts = {
            name: Examined(answer or {}, variables["hostvars"][name], name in given["gpu_hosts"])
            for name, answer in given["hosts"].items()
        }
        findings, now = examine(hosts, given["gateways"], catalogue), datetime.now(UTC)
        found = report(findings, list(hosts), now.isoformat(timespec="seconds"))
        answers = {name: hosts[name].answer for name in given["gpu_hosts"] if name in hosts}
        repairs = plan_repairs(findings, answers, given["mode"], now.timestamp())
        return {
            **result,
            "changed": False,
            "text": render(found),
            "data": found,
            "repairs": repairs,
            "breaker": breaker_reason(repairs, sum("signals" in answer for answer in answers.values())),
        }
