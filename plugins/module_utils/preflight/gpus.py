# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the GPUs that the host is to use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check
from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.facts import at
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.processes import describe_process, serves
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.requirements import Find, Wanted, result


def check_gpus(gpu: Mapping[str, Any], wanted: Wanted, root: Path, runner: Runner, find: Find) -> Iterator[Check]:
    """Check the number, type, memory, modes and processes of the GPUs that the host is to use."""
    shown = {entry["index"]: entry for entry in gpu["gpus"]}
    used = [entry for index, entry in shown.items() if not wanted.gpus or index in wanted.gpus]
    yield _check_count(gpu["missing"], shown, wanted)
    if used and (wanted.gpu_products or wanted.gpu_pci_ids):
        yield _check_type(used, wanted)
    if not used or gpu["driver"]["state"] != "ok":
        return  # sizes, modes and processes are unknown without a driver
    if wanted.gpu_memory_mib:
        sizes = [entry["memory_total_mib"] for entry in used]
        expected = f"at least {wanted.gpu_memory_mib} MiB on each GPU"
        if None in sizes:
            yield Check("gpu_memory", "unknown", "no size from nvidia-smi", expected, "Run nvidia-smi -q to see why")
        else:
            hint = "Set serving_recipe_model to a smaller model, or serving_recipe_gpu_count to more GPUs"
            yield result("gpu_memory", min(sizes) >= wanted.gpu_memory_mib, f"{min(sizes)} MiB", expected, hint)
    others = "or set serving_recipe_gpus to GPUs"
    cut = [entry for entry in used if entry["mig"]]
    yield result(
        "gpu_mig",
        not cut,
        f"MIG mode on {_named(cut)}" if cut else "whole GPUs",
        "whole GPUs",
        f"{_switch(cut, '--multi-instance-gpu=0')}, {others} that are whole",
    )
    closed = [entry for entry in used if entry["compute_mode"] == "Prohibited"]
    yield result(
        "gpu_mode",
        not closed,
        f"compute mode Prohibited on {_named(closed)}" if closed else "processes allowed",
        "processes allowed",
        f"{_switch(closed, '--compute-mode=0')}, {others} that allow processes",
    )
    strangers = [
        f"{describe_process(process)} on {_named([entry])}"
        for entry in used
        for process in (at(root, f"/proc/{pid}") for pid in entry["processes"] or ())
        if not serves(process, runner, find)
    ]
    yield result(
        "gpu_processes",
        not strangers,
        "; ".join(strangers) or "no other processes",
        "no processes on the GPUs except those of units trtllm-*",
        f"Stop these processes, {others} that are free",
    )


def _check_count(missing: Sequence[str], shown: Mapping[int, Any], wanted: Wanted) -> Check:
    """Check that the GPUs to be used are present and work."""
    count = len(shown)
    if wanted.gpus:
        absent = [str(index) for index in wanted.gpus if index not in shown]
        enough = not absent
        observed = f"{count}, without GPU {', '.join(absent)}" if absent else str(count)
        expected = f"GPU {', '.join(map(str, wanted.gpus))}"
    else:
        enough = count >= wanted.gpu_count and not missing
        observed = str(count)
        expected = f"at least {wanted.gpu_count}" + (", and none that does not work" if missing else "")
    if missing:
        observed += f"; not working: {', '.join(missing)}"
        hint = "Search the kernel log for Xid errors of these GPUs and reboot, or set serving_recipe_gpus to other GPUs"
    elif count:
        hint = f"Set serving_recipe_gpu_count to at most {count}"
        hint += f", or serving_recipe_gpus to some of {', '.join(map(str, shown))}" if wanted.gpus else ""
    else:
        hint = "The PCI bus has no NVIDIA GPU. Exclude the host with --limit, or pass a GPU through in its hypervisor"
    return result("gpu_count", enough, observed, expected, hint)


def _check_type(used: Sequence[Mapping[str, Any]], wanted: Wanted) -> Check:
    """Check the GPU type by product name, or by PCI id, which is known without a driver."""
    strange = [
        entry
        for entry in used
        if entry["product_name"] not in wanted.gpu_products and entry["device_id"] not in wanted.gpu_pci_ids
    ]
    found: dict[str, list[str]] = {}
    for entry in strange or used:
        name = entry["product_name"] or f"PCI device {entry['device_id']}"
        found.setdefault(name, []).append(str(entry["index"]))
    observed = "; ".join(f"{name} (GPU {', '.join(indices)})" for name, indices in found.items())
    allowed = [*wanted.gpu_products, *(f"PCI device {device_id}" for device_id in wanted.gpu_pci_ids)]
    hint = "Set serving_recipe_gpu_type to the type in the host, or leave it unset"
    return result("gpu_type", not strange, observed, f"one of {', '.join(allowed)}", hint)


def _named(gpus: Iterable[Mapping[str, Any]]) -> str:
    """Return the GPUs with index and PCI address: ``GPU 0 (0000:1b:00.0), GPU 3 (0000:5f:00.0)``."""
    return ", ".join(f"GPU {entry['index']} ({entry['address']})" for entry in gpus)


def _switch(gpus: Sequence[Mapping[str, Any]], option: str) -> str:
    """Return the advice to change a mode of some GPUs with nvidia-smi."""
    return f"Run nvidia-smi --id={','.join(str(entry['index']) for entry in gpus)} {option}"
