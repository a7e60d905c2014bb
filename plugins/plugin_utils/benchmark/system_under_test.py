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


def behind_gateway(
    gateway: Mapping[str, Mapping[str, Mapping[str, Any]]], hosts: Mapping[str, Mapping[str, Any]], model: str
) -> dict[str, Any]:
    """Return what a gateway sends the requests of a model to.

    Instances that are drained or down do no work, so their GPUs do not count.

    Args:
        gateway: ``hosts`` of module gateway_info.
        hosts: The releases (``release.json``) of the hosts of the run, by name.
        model: The model to measure; empty for the only one.

    Returns:
        ``hosts`` in service, sorted; ``gpus``, the number of GPUs of their instances in service; ``model``, the name
        for requests; ``weights``, their path on these hosts; and ``problems``, why the figures would be wrong.
    """
    serving = {
        host: {name for name, one in instances.items() if one["up"] and not one["drained"]}
        for host, instances in gateway.items()
    }
    models = sorted({gateway[host][name]["model"] for host, names in serving.items() for name in names})
    chosen = model or (models[0] if len(models) == 1 else "")
    problems = []
    if not models:
        problems.append("The gateway has no instance in service. Run status.yml.")
    elif chosen not in models:
        problems.append(
            f"The gateway serves {' and '.join(models)}, and benchmark_model is {model or 'not set'}. Set it to one of "
            "them."
        )
    wanted = {
        host: {name for name in names if gateway[host][name]["model"] == chosen} for host, names in serving.items()
    }
    found = sorted(host for host, names in wanted.items() if names)
    if absent := [host for host in found if host not in hosts]:
        problems.append(
            f"The gateway sends requests to {', '.join(absent)}, too, which are not in this run, so their GPUs are "
            "unknown. Run it without --limit."
        )
    gpus = [
        gpu
        for host in found
        for instance in hosts.get(host, {"instances": []})["instances"]
        if instance["name"] in wanted[host]
        for gpu in instance["gpus"]
    ]
    # Several models of a host are parts of its release.
    parts = [part for host in found if host in hosts for part in hosts[host].get("parts") or [hosts[host]]]
    part: Mapping[str, Any] = next((one for one in parts if one["model"] == chosen), {})
    return {
        "hosts": found,
        "gpus": len(gpus),
        "model": part.get("served_model", chosen),
        "weights": part.get("weights", ""),
        "problems": problems,
    }
