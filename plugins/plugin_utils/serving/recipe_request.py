# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build a recipe request from host variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = "serving_recipe_"


def read_request(variables: Mapping[str, Any], defaults: Mapping[str, Any], detected: Any) -> dict[str, Any]:
    """Return the request from a host's ``variables`` and the ``defaults`` of role serving_recipe.

    ``detected`` is the result of ``trtllm.fleet.gpu_info`` or None.
    """
    return {
        # The keys of a request are the role's variables without the prefix.
        **{name[len(PREFIX) :]: variables.get(name, default) for name, default in defaults.items()},
        "detected": detected,
        # To report misspelt variables.
        "variables": [name for name in variables if name.startswith(PREFIX)],
    }
