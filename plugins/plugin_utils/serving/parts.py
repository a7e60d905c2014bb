# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolve the recipe of a host with several models: one for the GPUs of each, and one that has these as its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import Tree
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layout import choose_gpus
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import RecipeError, Tables, resolve

VARIABLE = "serving_recipe_models"
# What an entry may set, besides its model and GPUs; the rest is the host's.
OWN = (
    "base_model",
    "use_case",
    "name",
    "gpus_per_instance",
    "engine_options",
    "environment",
)
# What is different for each model, in the parts of the recipe. Instances have the number of their part.
PART = (
    "name",
    "document",
    "as_written",
    "model",
    "base_model",
    "config",
    "draft_model",
    "served_model",
    "use_case",
    "gpu_count",
    "gpus_per_instance",
    "harmony",
    "vocabulary",
    "engine_options",
    "flags",
    "environment",
    "limits",
    "memory",
)

# Of these, what an instance has itself, so that its readers need not know of parts.
INSTANCE = ("model", "served_model", "harmony")


def resolve_host(request: Tree, tables: Tables) -> dict[str, Any]:
    """Return the recipe for a request; with ``models`` in it, one that has ``parts``.

    Raises RecipeError with all problems that can be found.
    """
    entries = request.get("models")
    if not entries:
        return resolve({**request, "models": None}, tables)
    problems = _problems(request, entries)
    if problems:
        raise RecipeError(problems)
    parts: list[dict[str, Any]] = []
    for number, entry in enumerate(entries):
        port = int(request.get("port") or 0) + sum(len(part["instances"]) for part in parts)
        asked = {**request, **entry, "gpu_count": None, "port": port, "models": None, "shares_host": len(entries) > 1}
        try:
            parts.append(resolve(asked, tables))
        except RecipeError as error:
            problems += [f"{VARIABLE}, entry {number + 1}: {problem}" for problem in error.problems]
    images = {part["image"] for part in parts}
    if len(images) > 1:
        problems.append(
            f"{VARIABLE}: its models need different images ({', '.join(sorted(images))}), and a host runs one. "
            "Set serving_recipe_image."
        )
    if problems:
        raise RecipeError(problems)
    return combine(parts)


def _problems(request: Tree, entries: Any) -> list[str]:
    """Return what is wrong with the entries themselves."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return [f"{VARIABLE}: {entries!r} is not a list; each entry has a model and its gpus."]
    found, used = [], set[int]()
    for number, entry in enumerate(entries, start=1):
        where = f"{VARIABLE}, entry {number}"
        if not isinstance(entry, Mapping):
            found.append(f"{where}: {entry!r} is not a dictionary with model and gpus.")
            continue
        allowed = ("model", "gpus", *OWN)
        found += [
            f"{where}: {name} cannot be set for one model.{did_you_mean(name, allowed)}"
            for name in entry
            if name not in allowed
        ]
        found += [f"{where}: {name} is missing." for name in ("model", "gpus") if not entry.get(name)]
        slots = choose_gpus({**request, "gpus": entry.get("gpus"), "gpu_count": None}, []) or []
        twice = {slot.index for slot in slots} & used
        if twice:
            found.append(f"{where}: GPU {', '.join(map(str, sorted(twice)))} is in an entry before.")
        used |= {slot.index for slot in slots}
    names = [entry.get("model") for entry in entries if isinstance(entry, Mapping)]
    found += [
        f"{VARIABLE}: {name} is there twice." for name in sorted({str(one) for one in names if names.count(one) > 1})
    ]
    for name in ("gpus", "gpu_count", "worker", "draft_model"):
        if request.get(name):
            found.append(f"serving_recipe_{name}: cannot be set with {VARIABLE}. Remove it.")
    return found


def combine(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one recipe: what is equal, the instances of all, and ``parts`` with what is different."""
    first = parts[0]
    instances = [
        {**instance, "name": "", "part": number, **{key: part[key] for key in INSTANCE}}
        for number, part in enumerate(parts)
        for instance in part["instances"]
    ]
    for number, instance in enumerate(instances):
        instance["name"] = f"serve-{number}"
    requires = [part["requires"] for part in parts]
    return {
        **first,
        "name": "+".join(part["name"] for part in parts),
        "gpu_count": sum(part["gpu_count"] for part in parts),
        "instances": instances,
        "vocabulary": any(part["vocabulary"] for part in parts),
        "requires": {
            **requires[0],
            "driver": max((one["driver"] for one in requires), key=lambda text: [int(n) for n in text.split(".")]),
            "gpu_memory_mib": max(one["gpu_memory_mib"] for one in requires),
            "gpu_count": sum(one["gpu_count"] for one in requires),
        },
        "parts": [{name: part[name] for name in PART if name in part} for part in parts],
        "provenance": [{**value, "model": part["model"]} for part in parts for value in part["provenance"]],
        "notes": [f"{part['model']}: {note}" for part in parts for note in part["notes"]],
        "warnings": list(dict.fromkeys(warning for part in parts for warning in part["warnings"])),
    }
