# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The serving recipe: layers of data merged into one configuration, each value with its source, or what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.options import (
    check_options,
    did_you_mean,
    dotted,
    image_tag,
    select_release,
)

USE_CASES = ("low_latency", "max_throughput")
LIMITS = ("ipc", "shm_size", "ulimits")
# The parts of a recipe that layers set, and the variable in which an operator overrides each.
OVERRIDES = {
    "engine_options": "serving_recipe_engine_options",
    "environment": "serving_recipe_environment",
    "limits": "serving_recipe_limits",
}
# Options whose values depend on the hardware, and the column of the hardware table that lists those.
HARDWARE_OPTIONS = {("moe_config", "backend"): "moe_backends", ("kv_cache_config", "dtype"): "kv_cache_dtypes"}
# One process per GPU: the product of these is the number of GPUs of an instance.
PARALLEL_OPTIONS = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")

Tree = Mapping[str, Any]
Path = tuple[str, ...]


@dataclass(frozen=True)
class Tables:
    """The data a recipe is made from; the files in ``roles/serving_recipe/vars`` describe their own form.

    ``models`` is by model id, ``releases`` by release name; ``base`` holds the layers below every model's own.
    """

    hardware: Sequence[Tree]
    models: Mapping[str, Tree]
    base: Sequence[Tree]
    releases: Mapping[str, Tree]


class RecipeError(ValueError):
    """Why there is no recipe: every problem that was found, each with the variable to change."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def merge(lower: Any, upper: Any) -> Any:
    """``upper`` on top of ``lower``: dicts are merged key by key, anything else is replaced.

    Changes neither, and the result shares no dict and no list with them.
    """
    if isinstance(upper, Mapping):
        below = lower if isinstance(lower, Mapping) else {}
        return {
            key: merge(below.get(key), upper[key]) if key in upper else merge(None, below[key])
            for key in {**below, **upper}
        }
    return [merge(None, item) for item in upper] if isinstance(upper, list) else upper


def leaves(tree: Tree, group: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values of a tree as (path, value). A list is a value, and so is an empty dict."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*group, key))
        else:
            yield (*group, key), value


def resolve(request: Tree, tables: Tables) -> dict[str, Any]:
    """The recipe for a request; the docs of the filter ``trtllm.fleet.serving_recipe`` describe both.

    Raises RecipeError with every problem that can be found at once.
    """
    problems: list[str] = []
    row = _hardware(request, tables, problems)
    model = _model(request, tables, problems)
    use_case = _use_case(request, problems)
    count = _gpu_count(request, problems)
    port = _port(request, problems)
    release, warnings = _release(request, tables, problems)
    if model and row:
        count = _supported_count(model, row, count, problems)

    layers = list(tables.base)
    if model and row and use_case and count:
        facts = {**row, "use_case": use_case, "gpu_count": count}
        layers += [layer for layer in model["layers"] if _applies(layer.get("for", {}), facts)]
    layers += _operator_layers(request, problems)
    parts: dict[str, dict[str, Any]] = {part: {} for part in OVERRIDES}
    for layer in layers:
        for part, tree in parts.items():
            parts[part] = merge(tree, layer.get(part, {}))

    # A limit set to null is left to Docker.
    limits = parts["limits"]
    limits["ulimits"] = {name: value for name, value in (limits["ulimits"] or {}).items() if value is not None}

    # What can be told of the options is told even where the rest of the request is wrong.
    options, refused = parts["engine_options"], set()
    if release:
        engine = f"engine.yaml for TensorRT-LLM {release} (image tag {image_tag(request['image'])})"
        for path, sentence in check_options(options, tables.releases[release]["engine_options"]):
            problems.append(f"{_to_change(layers, path)}: {engine}: {dotted(path)!r} {sentence}")
            refused.add(path)
    if row:
        problems += _unfit_for_hardware(options, layers, row, refused)
    if not (model and row and use_case and count and port and release):
        raise RecipeError(problems)
    problems += _unfit_parallelism(options, count)
    if problems:
        raise RecipeError(problems)

    short = str(model["id"]).rsplit("/", 1)[-1]
    row_of_release = tables.releases[release]
    return {
        "name": f"{short}-{row['gpu_type']}x{count}-{use_case}",
        "model": model["id"],
        "use_case": use_case,
        "gpu_type": row["gpu_type"],
        "gpu_count": count,
        "architecture": row["architecture"],
        "image": request["image"],
        "release": release,
        "health": row_of_release["health"],
        "instances": [{"name": "serve-0", "gpus": list(range(count)), "port": port}],
        **parts,
        "requires": {
            "driver": max(row["min_driver"], row_of_release["driver_floor"], key=_version),
            "gpu_memory_mib": model["requires"]["gpu_memory_mib"],
            "gpu_count": count,
            # From the hub's manifest of the pinned revision, which role model_weights reads.
            "disk_bytes": None,
        },
        "provenance": [
            {
                "option": dotted(path if part == "engine_options" else (part, *path)),
                "value": value,
                "source": _source(layers, part, path),
            }
            for part, tree in parts.items()
            for path, value in leaves(tree)
        ],
        "warnings": warnings,
    }


def _unknown(variable: str, value: Any, what: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"{variable}: {value!r} {what}. Supported: {', '.join(names)}.{did_you_mean(str(value), names)}"


def _hardware(request: Tree, tables: Tables, problems: list[str]) -> Tree | None:
    """The hardware row: of the type asked for, else of what was detected."""
    rows = {str(row["gpu_type"]): row for row in tables.hardware}
    supported = f"Supported: {', '.join(rows)}."
    if gpu_type := request.get("gpu_type"):
        if gpu_type not in rows:
            problems.append(_unknown("serving_recipe_gpu_type", gpu_type, "is not in the hardware table", rows))
        return rows.get(gpu_type)

    detected = request.get("detected") or {}
    if not detected.get("count"):
        problems.append(
            f"serving_recipe_gpu_type: no NVIDIA GPU was found on the host. {supported} "
            "Set it, and serving_recipe_gpu_count, to plan without one."
        )
        return None
    # The product name tells; without a driver there are only PCI ids.
    product, ids = detected["product_name"], detected["pci_device_ids"]
    for row in tables.hardware if detected["homogeneous"] else []:
        if product in row["product_names"] if product else set(ids) <= set(row["pci_ids"]):
            return row
    names = sorted({gpu["product_name"] for gpu in detected["gpus"] if gpu["product_name"]})
    found = ", ".join(names or [f"PCI device {device_id}" for device_id in ids])
    why = "have no recipe" if detected["homogeneous"] else "are not all of one kind"
    problems.append(f"serving_recipe_gpu_type: the GPUs of the host ({found}) {why}. {supported}")
    return None


def _model(request: Tree, tables: Tables, problems: list[str]) -> Tree | None:
    name = request["model"]
    if name not in tables.models:
        problems.append(_unknown("serving_recipe_model", name, "has no recipe", tables.models))
    return tables.models.get(name)


def _use_case(request: Tree, problems: list[str]) -> str | None:
    use_case = request["use_case"]
    if use_case in USE_CASES:
        return str(use_case)
    problems.append(_unknown("serving_recipe_use_case", use_case, "is no use case", USE_CASES))
    return None


def _gpu_count(request: Tree, problems: list[str]) -> int | None:
    """The number of GPUs to use: as asked for, else all that were detected."""
    found = (request.get("detected") or {}).get("count") or None
    asked = request.get("gpu_count")
    if asked is None:
        if not found and request.get("gpu_type"):
            problems.append(
                "serving_recipe_gpu_count: no NVIDIA GPU was found on the host. Set it to plan without one."
            )
        return found
    # A number from the command line (-e) is a string.
    if not str(asked).isdigit():
        problems.append(f"serving_recipe_gpu_count: {asked!r} is not a number of GPUs.")
        return None
    if found and int(asked) > found:
        problems.append(f"serving_recipe_gpu_count: {asked} GPUs asked for, the host has {found}.")
    return int(asked)


def _port(request: Tree, problems: list[str]) -> int | None:
    port = request["port"]
    if str(port).isdigit() and 1 <= int(port) <= 65535:
        return int(port)
    problems.append(f"serving_recipe_port: {port!r} is not a TCP port, 1 to 65535.")
    return None


def _release(request: Tree, tables: Tables, problems: list[str]) -> tuple[str | None, list[str]]:
    """The release row that the image's tag stands for, and warnings."""
    try:
        release, warning = select_release(request["image"], tables.releases)
    except ValueError as error:
        problems.append(f"serving_recipe_image: {error}")
        return None, []
    return release, [f"serving_recipe_image: {warning}"] if warning else []


def _supported_count(model: Tree, row: Tree, count: int | None, problems: list[str]) -> int | None:
    """The count, if the model has a recipe for so many of these GPUs and fits their memory."""
    name, gpu_type, floor = model["id"], row["gpu_type"], model["requires"]["gpu_memory_mib"]
    if gpu_type not in model["supported"]:
        known = ", ".join(model["supported"])
        problems.append(f"serving_recipe_model: {name} has no recipe for {gpu_type}. It has for: {known}.")
        return None
    if floor > row["memory_mib"]:
        memory = row["memory_mib"]
        problems.append(f"serving_recipe_model: {name} needs {floor} MiB of GPU memory, {gpu_type} has {memory} MiB.")
    counts = model["supported"][gpu_type]
    if count is None or count in counts:
        return count
    allowed = ", ".join(map(str, counts))
    problems.append(
        f"serving_recipe_gpu_count: {name} has no recipe for {count} GPUs of type {gpu_type}. Supported: {allowed}."
    )
    return None


def _operator_layers(request: Tree, problems: list[str]) -> list[Tree]:
    """The operator's overrides as the topmost layers; what does not have that form is reported and left out."""
    layers: list[Tree] = []
    for part, variable in OVERRIDES.items():
        override = request.get(part) or {}
        if not isinstance(override, Mapping):
            problems.append(f"{variable}: takes a dict, not {override!r}.")
            continue
        if part == "limits":
            unknown = [name for name in override if name not in LIMITS]
            problems += [_unknown(variable, name, "is no limit", LIMITS) for name in unknown]
        if part == "environment":
            override = _environment(override, problems)
        layers.append({"source": variable, part: override})
    return layers


def _environment(override: Tree, problems: list[str]) -> dict[str, str]:
    """Environment variables as strings."""
    environment = {}
    for name, value in override.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            problems.append(f"serving_recipe_environment: {name!r} is no name of an environment variable.")
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            # YAML reads a bare `true` as a truth value; whether "true" or "1" is meant, only the operator knows.
            problems.append(f"serving_recipe_environment: {name} is {value!r}; put the string in quotes.")
        else:
            environment[str(name)] = str(value)
    return environment


def _applies(selectors: Tree, facts: Tree) -> bool:
    """Whether every selector of a layer matches; a list matches any of its members."""
    return all(facts[name] in (wanted if isinstance(wanted, list) else [wanted]) for name, wanted in selectors.items())


def _get(tree: Any, path: Path, default: Any = None) -> Any:
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def _source(layers: Sequence[Tree], part: str, path: Path) -> str:
    """The source of the topmost layer that sets a value."""
    absent = object()
    return next(str(layer["source"]) for layer in reversed(layers) if _get(layer.get(part), path, absent) is not absent)


def _to_change(layers: Sequence[Tree], path: Path) -> str:
    """What to change for a bad engine option: the operator's own, else the image, which does not take the recipe's."""
    own = OVERRIDES["engine_options"]
    return own if _source(layers, "engine_options", path) == own else "serving_recipe_image"


def _unfit_for_hardware(options: Tree, layers: Sequence[Tree], row: Tree, refused: set[Path]) -> list[str]:
    """Values that these GPUs do not take; those that the release refused are left out."""
    problems = []
    for path, column in HARDWARE_OPTIONS.items():
        value = _get(options, path)
        if path not in refused and value is not None and value not in row[column]:
            gpus, allowed = f"{row['gpu_type']} ({row['architecture']})", ", ".join(row[column])
            problems.append(
                f"{_to_change(layers, path)}: {dotted(path)!r} cannot be {value!r} on {gpus}, which takes {allowed}."
            )
    return problems


def _unfit_parallelism(options: Tree, count: int) -> list[str]:
    """One instance spans all the GPUs used. Recipes see to that, so only an override can be wrong."""
    sizes = [options.get(name, 1) for name in PARALLEL_OPTIONS]
    if not all(isinstance(size, int) for size in sizes) or sizes[0] * sizes[1] * sizes[2] == count:
        return []
    product = " x ".join(map(str, sizes))
    return [
        f"{OVERRIDES['engine_options']}: {' x '.join(PARALLEL_OPTIONS)} is {product}; "
        f"it must be the number of GPUs used, {count} (serving_recipe_gpu_count)."
    ]


def _version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
