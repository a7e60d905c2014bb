# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the gateways of a fleet know of an instance, or of a frontend of NVIDIA Dynamo.

``gateways``: results of module gateway_info by gateway, of those that run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Tree = Mapping[str, Any]


def registrations(host: str, instance: str, gateways: Mapping[str, Tree]) -> list[dict[str, Any]]:
    """Return the state of an instance at each gateway that knows it."""
    return [
        {"gateway": name, **{key: known[key] for key in ("up", "drained", "state", "in_flight")}}
        for name, gateway in gateways.items()
        if (known := gateway["hosts"].get(host, {}).get(instance))
    ]


def all_send(registered: Sequence[Tree], gateways: Mapping[str, Tree]) -> bool:
    """Return whether each gateway sends requests to an instance."""
    return 0 < sum(at["up"] and not at["drained"] for at in registered) == len(gateways)


def drained_reasons(instance: str, registered: Sequence[Tree]) -> Iterator[str]:
    """Yield where an instance is drained, in a sentence."""
    drained = [at["gateway"] for at in registered if at["drained"]]
    if drained:
        yield f"{instance} is drained at {', '.join(drained)}."


def down_reasons(instance: str, gateway: str, at: Tree) -> Iterator[str]:
    """Yield that a gateway sends no request to an instance in service, in a sentence."""
    if not at["up"] and not at["drained"]:
        yield f"Gateway {gateway} sends no request to {instance}, which {at['state']}."
