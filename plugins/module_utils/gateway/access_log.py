# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A gateway's access log: the requests of its instances, and their counts and times."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError

TIMEOUT = 60.0  # seconds; journalctl reads some hundred thousand lines in that time
# HAProxy 8.5, session state at disconnection: the server's faults. A client that disconnects is not one.
FAULTS = ("S", "s", "D", "P", "R", "I")

# In a JSON string a quote follows a backslash, so the path of a client cannot match.
INSTANCE = re.compile(r'"instance": ?"([^"]*)"')
# It is before the path in a line. HAProxy writes - without a known key.
KEY = re.compile(r'"key": ?"([^"]*)"')
NO_KEY = ("", "-")


def access_log(unit: str, seconds: int, instances: Collection[str], runner: Runner) -> list[dict[str, Any]]:
    """Return the requests of these instances and of known keys that ended in the last seconds. Raises GatewayError.

    Other lines are skipped: a client can cause them without a key.
    """
    argv = ["journalctl", f"--unit={unit}", f"--since=-{seconds}s", "--output=cat", "--quiet", "--no-pager"]
    try:
        done = runner(argv, TIMEOUT)
    except OSError as error:
        raise GatewayError(f"journalctl: {error.strerror}") from None
    if done.rc != 0:
        raise GatewayError(f"{' '.join(argv)}: {done.text or f'no answer within {TIMEOUT:g} s'}")
    lines = [
        line
        for line in done.stdout.splitlines()
        if ((name := INSTANCE.search(line)) and name[1] in instances)
        or ((key := KEY.search(line)) and key[1] not in NO_KEY)
    ]
    found = []
    for line in lines:
        try:
            found.append(dict(json.loads(line)))
        except ValueError:
            continue  # another format, or cut by HAProxy at the length of a log line
    if len(found) < len(lines) / 2:
        raise GatewayError(
            f"{len(lines) - len(found)} of {len(lines)} lines of the access log of {unit} have another format; "
            "half of them need the format of role gateway. Run gateway.yml"
        )
    return found


def failed(request: Mapping[str, Any]) -> bool:
    """Return True if the instance caused the failure of a request."""
    return request.get("status", 0) >= 500 or str(request.get("end", "-"))[:1] in FAULTS


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that ``share`` of all do not exceed; None without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def traffic(requests: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return counts and times of each server by its name in HAProxy."""
    by_server: dict[str, list[Mapping[str, Any]]] = {}
    for request in requests:
        by_server.setdefault(str(request.get("instance")), []).append(request)
    return {name: measured(ones) for name, ones in by_server.items()}


def by_key(requests: Iterable[Mapping[str, Any]], instances: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return counts and times of each API key by its name.

    ``rejected`` are requests that the gateway answered itself, such as those over a limit of the key.
    """
    found: dict[str, tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]] = {}
    for request in requests:
        if (name := str(request.get("key", "-"))) not in NO_KEY:
            own = request.get("instance") not in instances and request.get("status", 0) < 500
            found.setdefault(name, ([], []))[own].append(request)
    return {
        name: {**measured(sent), "requests": len(sent) + len(rejected), "rejected": len(rejected)}
        for name, (sent, rejected) in sorted(found.items())
    }


def measured(requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return counts, and times in milliseconds, of some requests."""
    good = [one for one in requests if not failed(one) and one.get("first_byte_ms", -1) >= 0]
    # The first byte of an answer that is not streamed is its end, so the two are not mixed.
    streamed = [one for one in good if one.get("streamed") == "yes"]
    times = [float(one["first_byte_ms"]) for one in streamed or good]
    return {
        "requests": len(requests),
        "failed": sum(map(failed, requests)),
        "timed": len(times),
        "first_byte_ms_p50": percentile(times, 0.5),
        "first_byte_ms_p95": percentile(times, 0.95),
    }
