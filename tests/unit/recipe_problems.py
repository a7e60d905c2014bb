"""List the problems of a recipe request."""

from __future__ import annotations

from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import RecipeError
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import serving_recipe


def recipe_problems(request: dict[str, Any]) -> list[str]:
    """Return the problems of a request; empty if it has a recipe."""
    try:
        serving_recipe(request)
    except RecipeError as error:
        return error.problems
    return []
