# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variations of a recipe: dimensions with values, and combinations of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import merge

# The variables of role serving_recipe that a variation may set, without their prefix.
VARIABLES = ("engine_options", "gpus_per_instance", "use_case", "environment", "draft_model")

Space = Mapping[str, Sequence[Mapping[str, Any]]]
Choice = dict[str, int]  # the index of a value by dimension; other dimensions are as in the inventory


def problems(space: Any) -> Iterator[str]:
    """Yield the errors of a search space."""
    if not isinstance(space, Mapping) or not space:
        yield f"tune_space is {space!r}; it must have dimensions by name, each a list of variations."
        return
    for name, values in space.items():
        if not isinstance(values, (list, tuple)) or not values:
            yield f"tune_space.{name} is {values!r}; it must be a list of variations."
            continue
        for value in values:
            if not isinstance(value, Mapping) or not value:
                yield f"tune_space.{name} has {value!r}; a variation sets one or more of {', '.join(VARIABLES)}."
                continue
            for unknown in (variable for variable in value if variable not in VARIABLES):
                known = ", ".join(VARIABLES)
                yield f"tune_space.{name} sets {unknown!r}; allowed are {known}.{did_you_mean(unknown, VARIABLES)}"


def load_problems(space: Space, loads: Sequence[Mapping[str, Any]], gpus: int, instances: int) -> list[str]:
    """Return why loads cannot rank the values of a space.

    ``loads``: as module benchmark_run returns them; ``gpus`` and ``instances``: those of the inventory's recipe. Values
    that no load reaches act alike, so noise would choose between them.
    """
    names = ", ".join(load["scenario"] for load in loads)
    every = [value for values in space.values() for value in values]
    batches = [int((value.get("engine_options") or {}).get("max_batch_size") or 1) for value in every]
    counts = [gpus // int(value["gpus_per_instance"]) for value in every if value.get("gpus_per_instance")]
    batch, most = max(batches, default=1), max([*counts, instances])
    highest = max((load["concurrency"] for load in loads), default=0)
    found = []
    if random := [load["scenario"] for load in loads if not load["concurrency"]]:
        found.append(
            f"benchmark_scenarios has {', '.join(random)} with a request_rate, whose tokens/s are those of the "
            "arrivals with any variation. Choose another scenario."
        )
    if most > 1 and any(load["tool"] == "benchmark_serving" for load in loads):
        found.append(
            f"benchmark_serving measures one instance; {most} are tried. Set the scenario's tool to aiperf in "
            "benchmark_scenario_options."
        )
    if (counts or batch > 1) and highest < batch * most:
        tried = f"max_batch_size {batch} on {most} instance(s)" if batch > 1 else f"{most} instances"
        found.append(
            f"benchmark_scenarios ({names}) has at most {highest} requests at a time; tune_space "
            f"tries {tried}, so it needs {batch * most}. Choose another scenario, set its concurrency in "
            "benchmark_scenario_options, or leave the larger values out of tune_space."
        )
    return found


def variables(space: Space, choice: Mapping[str, int]) -> dict[str, Any]:
    """Return the variables of a choice; later dimensions override earlier ones."""
    found: dict[str, Any] = {}
    for name in space:
        if name in choice:
            found = merge(found, space[name][choice[name]])
    return found


def named(space: Space, choice: Mapping[str, int]) -> str:
    """Describe a choice: each dimension with its values."""
    told = [f"{name}: {', '.join(_told(space[name][choice[name]]))}" for name in space if name in choice]
    return "; ".join(told) or "the inventory's recipe"


def _told(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            # Names of options and environment are enough.
            yield from _told(value, f"{above}{name}." if above or name not in VARIABLES else above)
        else:
            yield f"{above}{name}={str(value).lower() if isinstance(value, bool) else value}"
