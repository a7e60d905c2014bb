# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select the GPUs of a host, their row of the hardware table, and the layout of instances on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import Tree, applies

MAX_PORT = 65535

# Also the message for a host whose GPUs were not gathered.
NO_GPU = "no NVIDIA GPU was found on the host"


@dataclass(frozen=True)
class GpuSlot:
    """A GPU to use: its nvidia-smi index, and its result of gpu_info, empty if GPUs were not gathered."""

    index: int
    found: Tree = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The product name, or the PCI device ID."""
        return str(self.found.get("product_name") or f"PCI device {self.found.get('device_id')}")


def choose_gpus(request: Tree, problems: list[str]) -> list[GpuSlot] | None:
    """Return the GPUs to use: the listed ones, else the first of a count, else all of the host; None if unknown.

    Appends to ``problems``.
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
            problems.append(f"serving_recipe_gpu_count: {NO_GPU}. Set it to plan without a GPU.")
        return detected or None
    if detected and int(count) > len(detected):
        lost = ", ".join(request["detected"].get("missing") or [])
        problems.append(
            f"serving_recipe_gpu_count: is {count}; the host has {len(detected)} GPUs"
            f"{f' that work, and {lost} that does not' if lost else ''}."
        )
    return detected[: int(count)] if detected else [GpuSlot(index) for index in range(int(count))]


def _detected(request: Tree) -> list[GpuSlot]:
    """Return the GPUs that gpu_info found."""
    gpus = (request.get("detected") or {}).get("gpus") or []
    return [GpuSlot(gpu.get("index", position), gpu) for position, gpu in enumerate(gpus)]


def _is_count(value: Any) -> bool:
    return not isinstance(value, bool) and str(value).isdecimal() and int(value) > 0


def _is_index(value: Any) -> bool:
    return not isinstance(value, bool) and str(value).strip().isdecimal()


def _named_gpus(asked: Any, count: Any, detected: list[GpuSlot], problems: list[str]) -> list[GpuSlot] | None:
    """Return the GPUs of ``serving_recipe_gpus``."""
    variable = "serving_recipe_gpus"
    # A list from the command line (-e) is a string such as 0,1.
    asked = asked.split(",") if isinstance(asked, str) else asked
    if not isinstance(asked, list) or not asked or not all(_is_index(index) for index in asked):
        problems.append(f"{variable}: {asked!r} is not a list of GPU indices of nvidia-smi, such as [0, 1].")
        return None
    indices = [int(index) for index in asked]
    if len(set(indices)) < len(indices):
        problems.append(f"{variable}: {asked!r} has a GPU twice.")
    if count is not None and int(count) != len(indices):
        problems.append(f"{variable}: has {len(indices)} GPUs, serving_recipe_gpu_count is {count}. Set one of them.")
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
    """Return the hardware row of the GPUs to use: of the requested type, else of the detected one.

    Appends to ``problems`` why there is none, or why these GPUs cannot serve.
    """
    row = _row(request, table, slots, problems)
    if row and row.get("refused"):
        problems.append(f"serving_recipe_gpu_type: {row['gpu_type']} is not supported: {row['refused']}")
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
            problems.append(f"{variable}: is {asked}; the host has {_by_kind(gpus)}.")
        return rows[asked]
    if not found:
        problems.append(f"{variable}: {NO_GPU}. {supported} Set it and serving_recipe_gpu_count to plan without a GPU.")
    elif len(found) > 1:
        problems.append(
            f"{variable}: the host has GPUs of several types ({_by_kind(gpus)}). "
            "Set serving_recipe_gpus to the indices of the GPUs to use."
        )
    elif not found <= set(rows):
        problems.append(f"{variable}: the GPUs of the host ({', '.join(found)}) have no recipe. {supported}")
    else:
        return rows[found.pop()]
    return None


def _match(gpu: Tree, table: Sequence[Tree]) -> Tree | None:
    """Return the row of a GPU by its product name, or by its PCI ID if no driver is installed."""
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
    """Return the GPUs by type: ``0, 1: NVIDIA H200; 2: NVIDIA L40S``."""
    kinds: dict[str, list[str]] = {}
    for slot in gpus:
        kinds.setdefault(slot.kind, []).append(str(slot.index))
    return "; ".join(f"{', '.join(indices)}: {kind}" for kind, indices in kinds.items())


def instance_size(request: Tree, book: Tree, facts: Mapping[str, Any], count: int, problems: list[str]) -> int | None:
    """Return the GPUs of an instance: as requested, else as preferred, else the largest size that divides ``count``.

    ``book`` is the recipe file: ``supported`` has the sizes by GPU type, ``layouts`` the preferred sizes.
    """
    sizes, gpu_type = list(book["supported"][facts["gpu_type"]]), facts["gpu_type"]
    fitting = [size for size in sizes if count % size == 0]
    allowed = ", ".join(map(str, sizes))
    asked = request.get("gpus_per_instance")
    if asked is not None:
        if not _is_count(asked) or int(asked) not in sizes:
            problems.append(
                f"serving_recipe_gpus_per_instance: {asked} has no recipe on {gpu_type}. Supported: {allowed}."
            )
            return None
        if int(asked) not in fitting:
            problems.append(
                f"serving_recipe_gpus_per_instance: {count} GPUs are not a multiple of {asked}. "
                "Set serving_recipe_gpu_count to a multiple."
            )
            return None
        return int(asked)
    if not fitting:
        problems.append(
            f"serving_recipe_gpu_count: {count} {gpu_type} GPUs cannot be divided into instances of {allowed} GPUs."
        )
        return None
    preferred = _preferred_size(book, facts)
    return max([size for size in fitting if size <= preferred] or fitting)


def _preferred_size(book: Tree, facts: Tree) -> int:
    """Return the size of the last layout that applies; else the largest supported one."""
    wanted = [layout["gpus_per_instance"] for layout in book.get("layouts", []) if applies(layout, facts)]
    return int(wanted[-1]) if wanted else max(book["supported"][facts["gpu_type"]])


def odd_number(request: Tree, book: Tree, facts: Tree, count: int, size: int) -> list[str]:
    """Return a warning if the number of GPUs makes instances much smaller than the preferred size."""
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
    """Return the instances: name of their ``kind``, GPUs, consecutive TCP ports, and the NUMA node of all GPUs if one.

    first_port: serving_recipe_port.

    GPUs of a NUMA node stay together. Nothing is pinned to it: from 1.2 on the engine itself binds each worker to the
    CPUs near its GPU (TensorRT-LLM deployment guide, configuring-cpu-affinity.md).
    """
    instances = len(slots) // size
    if not _is_count(first_port) or int(first_port) + instances - 1 > MAX_PORT:
        span = f" for {instances} consecutive ports" if instances > 1 else ""
        problems.append(f"serving_recipe_port: {first_port!r} is not a TCP port from 1 to {MAX_PORT}{span}.")
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
