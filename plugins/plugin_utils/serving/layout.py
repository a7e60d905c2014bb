# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of a host's GPUs are used, what they are, and how instances are laid out on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import Tree, applies

MAX_PORT = 65535


# What is said of a host on which none was found, and of one that nobody asked.
NO_GPU = "no NVIDIA GPU was found on the host"


@dataclass(frozen=True)
class GpuSlot:
    """One GPU to use: its index as nvidia-smi counts, and what gpu_info found there; nothing where nobody asked."""

    index: int
    found: Tree = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What people call it."""
        return str(self.found.get("product_name") or f"PCI device {self.found.get('device_id')}")


def choose_gpus(request: Tree, problems: list[str]) -> list[GpuSlot] | None:
    """The GPUs to use: those named, else the first so many, else all that the host has; None where that is not known.

    Appends to ``problems`` what is wrong with the request.
    """
    detected = _detected(request)
    asked, count = request.get("gpus"), request.get("gpu_count")
    # A number from the command line (-e) is a string.
    if count is not None and not _is_count(count):
        problems.append(f"serving_recipe_gpu_count: {count!r} is not a number of GPUs.")
        return None
    if asked is not None:
        return _named_gpus(asked, count, detected, problems)
    if count is None:
        if not detected and request.get("gpu_type"):
            problems.append(f"serving_recipe_gpu_count: {NO_GPU}. Set it to plan without one.")
        return detected or None
    if detected and int(count) > len(detected):
        lost = ", ".join(request["detected"].get("missing") or [])
        problems.append(
            f"serving_recipe_gpu_count: {count} GPUs asked for, the host has {len(detected)}"
            f"{f' that work, and {lost} that does not' if lost else ''}."
        )
    return detected[: int(count)] if detected else [GpuSlot(index) for index in range(int(count))]


def _detected(request: Tree) -> list[GpuSlot]:
    """The host's GPUs."""
    gpus = (request.get("detected") or {}).get("gpus") or []
    return [GpuSlot(gpu.get("index", position), gpu) for position, gpu in enumerate(gpus)]


def _is_count(value: Any) -> bool:
    return not isinstance(value, bool) and str(value).isdecimal() and int(value) > 0


def _is_index(value: Any) -> bool:
    return not isinstance(value, bool) and str(value).strip().isdecimal()


def _named_gpus(asked: Any, count: Any, detected: list[GpuSlot], problems: list[str]) -> list[GpuSlot] | None:
    """The GPUs of ``serving_recipe_gpus``."""
    variable = "serving_recipe_gpus"
    # A list from the command line (-e) is a string, as 0,1.
    asked = asked.split(",") if isinstance(asked, str) else asked
    if not isinstance(asked, list) or not asked or not all(_is_index(index) for index in asked):
        problems.append(f"{variable}: takes a list of GPU indices as nvidia-smi prints them, as [0, 1], not {asked!r}.")
        return None
    indices = [int(index) for index in asked]
    if len(set(indices)) < len(indices):
        problems.append(f"{variable}: {asked!r} names a GPU twice.")
    if count is not None and int(count) != len(indices):
        problems.append(f"{variable}: names {len(indices)} GPUs, serving_recipe_gpu_count is {count}. Set one of them.")
    known = {slot.index: slot for slot in detected} or {index: GpuSlot(index) for index in indices}
    absent = [str(index) for index in indices if index not in known]
    if absent:
        there = ", ".join(map(str, known))
        problems.append(f"{variable}: the host has no GPU {', '.join(absent)}; it has {there}.")
        return None
    return [known[index] for index in indices]


def find_hardware(
    request: Tree, table: Sequence[Tree], slots: Sequence[GpuSlot] | None, problems: list[str]
) -> Tree | None:
    """The hardware row of the GPUs to use: of the type asked for, else of what was detected.

    Appends to ``problems`` why there is none, or why those GPUs cannot serve.
    """
    row = _row(request, table, slots, problems)
    if row and row.get("refused"):
        problems.append(f"serving_recipe_gpu_type: {row['gpu_type']} cannot serve gpt-oss: {row['refused']}")
        return None
    return row


def _row(request: Tree, table: Sequence[Tree], slots: Sequence[GpuSlot] | None, problems: list[str]) -> Tree | None:
    variable = "serving_recipe_gpu_type"
    rows = {str(row["gpu_type"]): row for row in table}
    supported = f"Supported: {', '.join(name for name, row in rows.items() if not row.get('refused'))}."
    asked = request.get("gpu_type")
    if asked and asked not in rows:
        problems.append(f"{variable}: {asked!r} is not in the hardware table. {supported}{did_you_mean(asked, rows)}")
        return None

    gpus = [slot for slot in slots or _detected(request) if slot.found]
    matches = [(slot, _match(slot.found, table)) for slot in gpus]
    found = {str(row["gpu_type"]) if row else slot.kind for slot, row in matches}
    if asked:
        if found - {asked}:
            problems.append(f"{variable}: {asked} was set, the host has {_by_kind(gpus)}.")
        return rows[asked]
    if not found:
        problems.append(f"{variable}: {NO_GPU}. {supported} Set it, and serving_recipe_gpu_count, to plan without one.")
    elif len(found) > 1:
        problems.append(
            f"{variable}: the GPUs of the host are not all of one kind ({_by_kind(gpus)}). "
            "Set serving_recipe_gpus to the indices of those to use."
        )
    elif not found <= set(rows):
        problems.append(f"{variable}: the GPUs of the host ({', '.join(found)}) have no recipe. {supported}")
    else:
        return rows[found.pop()]
    return None


def _match(gpu: Tree, table: Sequence[Tree]) -> Tree | None:
    """The row of one GPU: the product name tells; without a driver there is only the PCI id."""
    product = gpu.get("product_name")
    return next(
        (
            row
            for row in table
            if (product in row["product_names"] if product else gpu.get("device_id") in row["pci_ids"])
        ),
        None,
    )


def _by_kind(gpus: Sequence[GpuSlot]) -> str:
    """Which GPU is of which kind: ``0, 1: NVIDIA H200; 2: NVIDIA L40S``."""
    kinds: dict[str, list[str]] = {}
    for slot in gpus:
        kinds.setdefault(slot.kind, []).append(str(slot.index))
    return "; ".join(f"{', '.join(indices)}: {kind}" for kind, indices in kinds.items())


def instance_size(request: Tree, book: Tree, facts: Mapping[str, Any], count: int, problems: list[str]) -> int | None:
    """GPUs of one instance: as asked for, else as the recipe prefers, else the most that divide ``count``.

    ``book`` is the recipe's file: ``supported`` has the sizes by GPU type, ``layouts`` what it prefers where.
    """
    sizes, gpu_type = list(book["supported"][facts["gpu_type"]]), facts["gpu_type"]
    fitting = [size for size in sizes if count % size == 0]
    allowed = ", ".join(map(str, sizes))
    asked = request.get("gpus_per_instance")
    if asked is not None:
        if not _is_count(asked) or int(asked) not in sizes:
            problems.append(
                f"serving_recipe_gpus_per_instance: there is no recipe for instances of {asked} GPUs of type "
                f"{gpu_type}. Supported: {allowed}."
            )
            return None
        if int(asked) not in fitting:
            problems.append(
                f"serving_recipe_gpus_per_instance: {count} GPUs are not a multiple of {asked}. "
                "Set serving_recipe_gpu_count to how many to use."
            )
            return None
        return int(asked)
    if not fitting:
        problems.append(
            f"serving_recipe_gpu_count: {count} GPUs of type {gpu_type} cannot be shared out in instances of "
            f"{allowed} GPUs, which there are recipes for."
        )
        return None
    preferred = _preferred_size(book, facts)
    return max([size for size in fitting if size <= preferred] or fitting)


def _preferred_size(book: Tree, facts: Tree) -> int:
    """What the recipe prefers, the last layout that applies; else the largest there is a recipe for."""
    wanted = [layout["gpus_per_instance"] for layout in book.get("layouts", []) if applies(layout, facts)]
    return int(wanted[-1]) if wanted else max(book["supported"][facts["gpu_type"]])


def odd_number(request: Tree, book: Tree, facts: Tree, count: int, size: int) -> list[str]:
    """What to say where the number of GPUs leaves only instances much smaller than the recipe prefers."""
    possible = [
        each for each in book["supported"][facts["gpu_type"]] if each <= min(count, _preferred_size(book, facts))
    ]
    if request.get("gpus_per_instance") is not None or not possible or size >= max(possible):
        return []
    return [
        f"serving_recipe_gpu_count: {count} GPUs make {count // size} instances of {size}. "
        f"Set it to {max(possible)} for one of {max(possible)}."
    ]


def lay_out(
    slots: Sequence[GpuSlot], size: int, kind: str, first_port: Any, problems: list[str]
) -> list[dict[str, Any]]:
    """The instances: names of their ``kind``, GPUs, TCP ports in a row, and the NUMA node where all GPUs share one.

    GPUs of one NUMA node stay together. Nothing is pinned to it: from 1.2 on the engine binds each worker to the CPUs
    near its GPU by itself unless something else has (TensorRT-LLM deployment guide, configuring-cpu-affinity.md).
    """
    instances = len(slots) // size
    if not _is_count(first_port) or int(first_port) + instances - 1 > MAX_PORT:
        span = f", and {instances} instances take as many ports" if instances > 1 else ""
        problems.append(f"serving_recipe_port: {first_port!r} is not a TCP port, 1 to {MAX_PORT}{span}.")
        return []
    placed = [(slot.index, slot.found.get("numa_node")) for slot in slots]
    together = sorted(placed, key=lambda place: -1 if place[1] is None else place[1])
    layout = []
    for number in range(instances):
        members = together[number * size : (number + 1) * size]
        nodes = {node for _index, node in members}
        layout.append(
            {
                "name": f"{kind}-{number}",
                "gpus": [index for index, _node in members],
                "port": int(first_port) + number,
                "numa_node": nodes.pop() if len(nodes) == 1 else None,
            }
        )
    return layout
