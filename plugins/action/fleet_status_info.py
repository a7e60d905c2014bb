# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Summarise the status of a fleet on the control node; the module of the same name has the documentation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status import FAILING, failure, make_status
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status_text import render
from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.description import dashboards, history
from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.status import charts, monitoring_status


class ActionModule(ActionBase):
    """From the results of hosts and gateways to the status of the fleet."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _valid, given = self.validate_argument_spec(
            argument_spec=dict(
                hosts=dict(type="dict", required=True),
                gateways=dict(type="dict", required=True),
                inventory=dict(type="list", elements="str", required=True),
                fail_on=dict(type="str", choices=list(FAILING), default="never"),
                monitoring=dict(
                    type="dict",
                    options=dict(host=dict(type="str", required=True), result=dict(type="dict", required=True)),
                ),
            )
        )
        taken_at = datetime.now(UTC).isoformat(timespec="seconds")
        status = make_status(given["hosts"], given["gateways"], given["inventory"], taken_at)
        drawn = []
        if given["monitoring"]:
            main = history(dashboards())
            status["monitoring"] = monitoring_status(**given["monitoring"], main=main, taken_at=taken_at)
            drawn = charts(status["monitoring"])
        return {
            **result,
            "changed": False,
            "text": render(status),
            "data": status,
            "charts": drawn,
            "failure": failure(status, given["fail_on"]),
        }
