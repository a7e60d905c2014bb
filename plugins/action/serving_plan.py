# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the plan of a fleet on the control node; the module of the same name has the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import RESULT, RunError, read_run
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import failure, fleet_plan, render, stale
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.revisions import readable, revision_hosts
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.plan import Settings, predict
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import PredictorError, ask
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import (
    load_prediction,
    load_prediction_errors,
    load_tables,
)

ARGUMENTS = {
    "select_revision_hosts": {"type": "bool", "default": False},
    "predictor": {"type": "path"},
    "prompt_tokens": {"type": "int"},
    "answer_tokens": {"type": "int"},
    "gpu_hour_price": {"type": "float"},
    "results": {"type": "path"},
}


def add_predictions(plan: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Add what AIConfigurator predicts to each group of a plan. Raises AnsibleActionFail if that fails."""
    found = Path(options["results"]).glob(f"*/{RESULT}") if options["results"] else ()
    groups = plan["groups"]
    try:
        settings = Settings(
            load_prediction(),
            load_prediction_errors(),
            [read_run(path) for path in sorted(found)],
            options["prompt_tokens"],
            options["answer_tokens"],
            options["gpu_hour_price"],
        )
        predictions = predict(
            [group["recipe"] for group in groups], settings, partial(ask, python=options["predictor"])
        )
    except (OSError, PredictorError, RunError) as error:
        raise AnsibleActionFail(f"Nothing can be predicted (plan_predict): {error}") from None
    for group, one in zip(groups, predictions, strict=True):
        group["prediction"] = one


class ActionModule(ActionBase):
    """From the variables of the play's hosts to the plan."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _valid, options = self.validate_argument_spec(ARGUMENTS)
        hosts, hostvars = variables["ansible_play_hosts_all"], variables["hostvars"]
        if options["select_revision_hosts"]:
            return {**result, "revision_hosts": revision_hosts(readable(hosts, hostvars))}
        plan = fleet_plan(hosts, hostvars)
        if options["predictor"]:
            add_predictions(plan, options)
        old = stale(load_tables().releases, date.today())
        warnings = {"warnings": [old]} if old else {}
        return {**result, **warnings, "text": render(plan), "data": plan, "failure": failure(plan)}
