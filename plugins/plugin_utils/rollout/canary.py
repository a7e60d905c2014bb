# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a canary with the other hosts behind the same gateways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def canary_problems(
    host: str,
    gateways: Sequence[Mapping[str, Any]],
    canaries: Sequence[str],
    models: Sequence[str],
    max_failed: float,
    max_ratio: float,
    min_requests: int,
) -> list[str]:
    """Return why a canary is worse than the hosts of its ``models`` that are not canaries; empty if it is not.

    gateways: results of module ``gateway_info`` with traffic. For the limits see ``traffic_problems``.
    """
    found = []
    for gateway in gateways:
        at = f"at {gateway['__rollout_gateway']}"
        canary = gateway["hosts"].get(host, {})
        if not canary:
            found.append(f"{host} is not behind {gateway['__rollout_gateway']}")
        found += [f"{host}.{name} {one['state']} {at}" for name, one in canary.items() if not one["up"]]
        served = {one["model"] for one in canary.values()}
        for model in sorted(served.intersection(models)):
            ours = _traffic({host: canary}, model)
            others = {name: instances for name, instances in gateway["hosts"].items() if name != host}
            apart = {name: instances for name, instances in others.items() if name not in canaries}
            theirs = _traffic(apart, model) or _traffic(others, model)
            compared = (merge_traffic(ours), merge_traffic(theirs))
            of = f"{at} {model}:" if len(served) > 1 else at
            found += [f"{of} {problem}" for problem in traffic_problems(*compared, max_failed, max_ratio, min_requests)]
    return found


def _traffic(hosts: Mapping[str, Mapping[str, Any]], model: str) -> list[Mapping[str, Any]]:
    return [one["traffic"] for instances in hosts.values() for one in instances.values() if one["model"] == model]


def traffic_problems(
    canary: Mapping[str, Any], others: Mapping[str, Any], max_failed: float, max_ratio: float, min_requests: int
) -> list[str]:
    """Return why the canary's traffic is worse than that of the others.

    max_failed: percentage points by which its share of failed requests may be higher. max_ratio: how many times longer
    its first byte may take, at the median and at p95; compared only if both answered ``min_requests`` or more.
    """
    found = []
    rates = [100 * one["failed"] / one["requests"] if one["requests"] else 0.0 for one in (canary, others)]
    if rates[0] > rates[1] + max_failed:
        found.append(
            f"{canary['failed']} of its {canary['requests']} requests failed ({rates[0]:.1f} %), of the others' "
            f"{rates[1]:.1f} %; rollout_canary_max_failed allows {max_failed:g} percentage points more"
        )
    enough = min(canary["timed"], others["timed"]) >= min_requests
    for share in ("p50", "p95"):
        ours, theirs = canary[f"first_byte_ms_{share}"], others[f"first_byte_ms_{share}"]
        if enough and ours is not None and theirs and ours > theirs * max_ratio:
            found.append(
                f"the {share} of its time to the first byte is {ours:.0f} ms, the others' {theirs:.0f} ms; "
                f"rollout_canary_max_latency_ratio allows {max_ratio:g} times that"
            )
    return found


def merge_traffic(traffic: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the requests of several instances; of times, take the median of theirs."""

    def median(key: str) -> float | None:
        values = sorted(one[key] for one in traffic if one[key] is not None)
        return values[len(values) // 2] if values else None

    return {
        "requests": sum(one["requests"] for one in traffic),
        "failed": sum(one["failed"] for one in traffic),
        "timed": sum(one["timed"] for one in traffic),
        "first_byte_ms_p50": median("first_byte_ms_p50"),
        "first_byte_ms_p95": median("first_byte_ms_p95"),
    }
