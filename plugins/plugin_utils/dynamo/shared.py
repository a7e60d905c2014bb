# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings that are equal on all components of NVIDIA Dynamo, or on all workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import few

Tree = Mapping[str, Any]

# Engine options that must be equal on both ends of a KV cache transfer, with TensorRT-LLM's defaults:
# CacheFormatter::inquireSupport.
SHARED = {
    "kv_cache_config.dtype": "auto",
    "kv_cache_config.tokens_per_block": "32",
    "cache_transceiver_config.backend": "none",
}
WORKER_OPTIONS = "dynamo_prefill_engine_options and dynamo_decode_engine_options"
# Variables of other settings that are equal on all components.
SHARED_VARIABLES = {
    "image": "dynamo_image",
    "namespace": "dynamo_namespace",
    "etcd": "dynamo_control_hosts, dynamo_address, dynamo_interface or dynamo_etcd_port",
    "nats": "dynamo_control_hosts, dynamo_address, dynamo_interface or dynamo_nats_port",
}


class Worker(NamedTuple):
    """The workers of one kind on one host."""

    host: str
    kind: str  # prefill or decode
    recipe: Tree


def shared_options(engine_options: Tree) -> dict[str, str]:
    """Return the engine options that must be equal on all workers, by name."""
    found = {}
    for name, default in SHARED.items():
        group, _dot, option = name.partition(".")
        found[name] = str((engine_options.get(group) or {}).get(option) or default)
    return found


def shared_differs(before: Tree, after: Tree) -> bool:
    """Return whether a component has to change together with all others: its shared settings differ.

    Of the URLs of etcd one that stays is enough: all are of one cluster.
    """

    def others(shared: Tree) -> Tree:
        return {name: value for name, value in shared.items() if name != "etcd"}

    etcd = [set(shared.get("etcd", ())) for shared in (before, after)]
    return others(before) != others(after) or (etcd[0] != etcd[1] and not etcd[0] & etcd[1])


def unequal_workers(workers: Sequence[Worker], image: str) -> Iterator[str]:
    """Yield settings that must be equal on all workers, because KV caches are transferred between them."""
    shared = [shared_options(worker.recipe["engine_options"]) for worker in workers]
    settings = {
        "the model": ("serving_recipe_model", [worker.recipe["model"] for worker in workers]),
        **{name: (WORKER_OPTIONS, [its[name] for its in shared]) for name in SHARED},
    }
    for what, (variable, values) in settings.items():
        if len({*values}) > 1:
            yield f"{what} must be equal on all workers, and is {_holders(workers, values)}. Set {variable} alike."
    images = [worker.recipe["image"] for worker in workers]
    if {*images} - {image}:
        yield (
            f"The image of workers is {_holders(workers, images)}; the frontend's is {image}. Set dynamo_image to the "
            "image of both, and leave serving_recipe_image unset."
        )


def unequal_components(deployment: Tree, workers: Sequence[Worker]) -> Iterator[str]:
    """Yield settings that differ from those of running components outside of the run. All of them serve one model."""
    here = {"image": {str(deployment["image"])}, **{name: {str(its)} for name, its in deployment["shared"].items()}}
    for worker in workers:
        for name, value in shared_options(worker.recipe["engine_options"]).items():
            here.setdefault(name, set()).add(value)
    for component in deployment["outside"]:
        for name, its in component["shared"].items():
            values = here.get(name, {str(its)})
            if str(its) in values or (name == "etcd" and {*its} & {*deployment["shared"]["etcd"]}):
                continue
            yield (
                f"{SHARED_VARIABLES.get(name, WORKER_OPTIONS)}: {name} is {', '.join(sorted(values))} in this run, "
                f"and {its} on {component['host']} ({component['name']}), which is not in it. All components need "
                "the same. Set it alike, or run the playbook without --limit."
            )


def _holders(workers: Sequence[Worker], values: Sequence[str]) -> str:
    """Return each value with the workers that have it."""
    holders: dict[str, list[str]] = {}
    for worker, value in zip(workers, values, strict=True):
        holders.setdefault(value, []).append(f"{worker.kind} on {worker.host}")
    return ", ".join(f"{value} ({few(places)})" for value, places in sorted(holders.items()))
