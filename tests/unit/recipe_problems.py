"""Problems of a recipe request, as a list."""

from __future__ import annotations

from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import RecipeError
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import serving_recipe


def recipe_problems(request: dict[str, Any]) -> list[str]:
    """Return the problems; empty for a valid request."""
    try:
        serving_recipe(request)
    except RecipeError as error:
        return error.problems
    return []
