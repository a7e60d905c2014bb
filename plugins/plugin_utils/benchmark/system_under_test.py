# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the system under test of a benchmark, and compare two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Values of a GPU; a value that all GPUs of a host share is listed once.
GPU = (
    "product_name",
    "memory_total_mib",
    "ecc",
    "mig",
    "power_limit_watts",
    "sm_clock_mhz",
    "sm_clock_max_mhz",
    "memory_clock_mhz",
)
RELEASE = ("model", "draft_model", "gpu_type", "use_case", "image", "digest", "engine_options", "flags", "environment")


def subject(runs: Mapping[str, Any], gpus: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a host from the results of host_release_info and gpu_info."""
    said = runs.get("description") or {}
    return {
        "release": runs.get("verified", ""),
        "recipe": said.get("name"),
        **{name: said.get(name) for name in RELEASE},
        "revision": str(said.get("weights") or "").rpartition("/")[2] or None,
        "sources": {value["option"]: value["source"] for value in said.get("provenance") or []},
        "driver": (gpus.get("driver") or {}).get("version"),
        "kernel_module": gpus.get("kernel_module"),
        "gpus": {"count": gpus.get("count", 0), **{name: shared(gpus.get("gpus") or [], name) for name in GPU}},
    }


def shared(gpus: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Return the value that all GPUs have, or the list of their values by index."""
    values = [gpu.get(name) for gpu in gpus]
    return values[0] if values and all(one == values[0] for one in values) else values or None


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the differences by path, as ``image: a, b``. Sources are omitted, because they follow from the values."""
    found = []
    for name in dict.fromkeys([*one, *other]):
        ours, theirs = one.get(name), other.get(name)
        if ours == theirs or name in ("sources", "sm_clock_mhz"):
            continue
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            found += [f"{name}.{line}" for line in differences(ours, theirs)]
        else:
            found.append(f"{name}: {_told(ours)}, {_told(theirs)}")
    return found


def _told(value: Any) -> str:
    return "none" if value in (None, "", [], {}) else str(value)
