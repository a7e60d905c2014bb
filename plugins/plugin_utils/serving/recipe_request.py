# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's variables ask for: the request that its recipe is resolved from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = "serving_recipe_"


def read_request(variables: Mapping[str, Any], defaults: Mapping[str, Any], detected: Any) -> dict[str, Any]:
    """The request of a host with these ``variables``, in a fleet with the ``defaults`` of role serving_recipe.

    ``detected`` is the result of ``trtllm.fleet.gpu_info``, None where there is none.
    """
    return {
        # The role names what it asks for after its variables.
        **{name[len(PREFIX) :]: variables.get(name, default) for name, default in defaults.items()},
        "detected": detected,
        # A misspelt one would be passed over in silence.
        "variables": [name for name in variables if name.startswith(PREFIX)],
    }
