# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predicts layouts on the control node; the module of the same name has the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.candidates import candidates
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import PredictorError, ask
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables

ARGUMENTS = {
    "predictor": {"type": "path", "required": True},
    "recipe": {"type": "dict", "required": True},
    "gpus": {"type": "int", "required": True},
    "loads": {"type": "list", "elements": "dict", "required": True},
    "objective": {
        "type": "str",
        "required": True,
        "choices": [f"output_tokens_per_second{of}" for of in ("_per_gpu", "_per_user", "")],
    },
    "count": {"type": "int", "required": True},
}


def supported_sizes(recipe: Mapping[str, Any]) -> Sequence[int]:
    """Return the GPUs that an instance of the recipe's model may have on its GPU type."""
    model = load_tables().models[recipe["base_model"] or recipe["model"]]
    sizes: Sequence[int] = model["supported"].get(recipe["gpu_type"], ())
    return sizes


class ActionModule(ActionBase):
    """From a recipe and a load to variations."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _valid, given = self.validate_argument_spec(ARGUMENTS)
        query = partial(ask, python=given["predictor"])
        try:
            found, said = candidates(
                given["recipe"],
                supported_sizes(given["recipe"]),
                given["gpus"],
                given["loads"],
                given["objective"],
                given["count"],
                query,
            )
        except (OSError, PredictorError) as error:
            raise AnsibleActionFail(f"Nothing can be predicted (tune_predicted): {error}") from None
        return {**result, "candidates": found, "predictions": said}
