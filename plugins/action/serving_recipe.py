# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolves the recipe of a host on the control node; the module of the same name has the documentation."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import RecipeError
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe_request import read_request
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import (
    load_defaults,
    load_tables,
    serving_recipe,
)

# Ansible imports an action before it forks a worker for each host, so all workers share this data. If each worker read
# the tables, that would take longer than the recipe.
load_tables()
load_defaults()


class ActionModule(ActionBase):
    """From the host's variables to its recipe."""

    _VALID_ARGS = frozenset(("detected",))
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        asked = read_request(variables, load_defaults(), self._task.args.get("detected"))
        try:
            recipe = serving_recipe(self._templar.template(asked))
        except RecipeError as error:
            return {**result, "failed": True, "msg": str(error)}
        for warning in recipe["warnings"]:
            Display().warning(warning)
        return {**result, "recipe": recipe}
