# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a host with its record, or write it; the module of the same name has the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.collected import RUN
from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.inputs import ADDRESS, input_checksums

MODULE = "trtllm.fleet.host_record"
NO_CALLBACK = "callback plugin trtllm_fleet_record is not loaded, so the results of tasks are unknown"

# Opens a record, which no run then completes.
NO_RUN = "unknown"
# Differences of a host in the output.
SHOWN = 3


def line(host: str, sentences: Sequence[str]) -> str:
    """Return what differs on a host as one line."""
    more = len(sentences) - SHOWN
    return f"{host}: {'; '.join(sentences[:SHOWN])}" + (f"; and {more} more" if more > 0 else "")


class ActionModule(ActionBase):
    """The module, with the checksums and results that only the control node has."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = {**self._task.args, "collection": RUN.collection, "run": RUN.identifier or NO_RUN}
        if arguments.get("phase") == "compared":
            arguments["inputs"] = self._inputs(variables)
            if not RUN.collection:
                arguments["reason"] = NO_CALLBACK
        elif arguments.get("phase") == "recorded":
            problem = NO_CALLBACK if not RUN.collection else RUN.problem()
            if problem:
                return {**result, "recorded": False, "warnings": [f"The host is not recorded: {problem}."]}
            arguments["owned"] = RUN.owned(variables["inventory_hostname"])
        found: dict[str, Any] = self._execute_module(MODULE, module_args=arguments, task_vars=variables)
        # A run of all roles or with tags needs no explanation.
        if found.get("differences") and not arguments.get("reason"):
            sentences = [difference["sentence"] for difference in found["differences"]]
            Display().display(line(variables["inventory_hostname"], sentences))
        return {**result, **found}

    def _inputs(self, variables: dict[str, Any]) -> dict[str, str]:
        hosts = variables["hostvars"]
        return input_checksums(
            variables,
            variables["group_names"],
            variables["groups"],
            lambda host: hosts[host].get(ADDRESS),
            self._templar.template,
        )
