# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The components of NVIDIA Dynamo in the status of a fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.registrations import (
    all_send,
    down_reasons,
    drained_reasons,
    registrations,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import WORKERS

Tree = Mapping[str, Any]

# A unit is unknown if systemd does not answer; the component may still run.
RUNS = ("active", "unknown")


def components_of(host: str, answer: Tree, gateways: Mapping[str, Tree]) -> list[dict[str, Any]]:
    """Return the components of a host, with what the gateways know of its frontend.

    ``gateways``: results of module gateway_info, of those that run.
    """
    return [_component(host, one, gateways) for one in answer.get("components", [])]


def summary(components: Sequence[Tree]) -> str:
    """Return the components of a host in a few words, such as ``etcd, nats, frontend, 2 decode``."""
    counts = Counter(one["kind"] or one["name"] for one in components)
    return ", ".join(f"{count} {kind}" if kind in WORKERS else kind for kind, count in counts.items())


def is_drained(answer: Tree, components: Sequence[Tree]) -> bool:
    """Return whether a host gets no new request, because it was drained."""
    frontends = [one for one in components if one["kind"] == "frontend"]
    workers = [one for one in components if one["kind"] in WORKERS]
    at = [known for one in frontends for known in one["rotation"]]
    drained_frontend = bool(at) and all(known["drained"] for known in at)
    others = [one for one in components if one["kind"] in ("etcd", "nats")]
    if workers or not all(one["serves"] for one in others):
        return False
    return drained_frontend or (bool(answer.get("drained_by")) and not frontends)


def component_reasons(answer: Tree, components: Sequence[Tree]) -> Iterator[str]:
    """Yield which components were never verified, and which part of a host gets no request."""
    for one in components:
        if one["active"] in RUNS and not one["of_release"]:
            name = one["name"]
            yield f"{name} runs a release that was never verified: a run is in progress or was interrupted."
    if answer.get("drained_by"):
        yield "It is drained and has no workers. Playbook undrain.yml returns it to service."
    for one in components:
        yield from drained_reasons(one["name"], one["rotation"])
        for at in one["rotation"]:
            yield from down_reasons(one["name"], at["gateway"], at)


def _component(host: str, one: Tree, gateways: Mapping[str, Tree]) -> dict[str, Any]:
    registered = registrations(host, one["name"], gateways) if one["kind"] == "frontend" else []
    serves = one["active"] in RUNS and one["of_release"] and one["healthy"] is not False
    return {
        **one,
        "serves": serves,
        "rotation": registered,
        # Workers are not behind gateways, and neither is a frontend that the gateways cannot reach.
        "in_rotation": all_send(registered, gateways) if registered else serves,
        "load": sum(at["in_flight"] for at in registered),
        # What an instance of trtllm-serve has besides; a component does not list models.
        "served_model": None,
        "models": [],
        "image_of_release": None,
    }
