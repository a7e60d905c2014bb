# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Token quotas of API keys: what a gateway's usage service tells its HAProxy, and what gateways tell each other.

Each gateway writes the tokens that it counted to a stick table, which HAProxy copies to its peers, and adds those of
the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage import DAY, MINUTE, Meter

TABLE = "token_counts"
# Settings of a key.
PER_MINUTE = "tokens_per_minute"
PER_DAY = "tokens_per_day"
# Entries of the stick table.
ENTRY = re.compile(r"key=(\S+) .*\bgpc0=(\d+) .*?gpc1=(\d+)")
LARGEST = 2**32 - 1


@dataclass(frozen=True)
class Count:
    """Tokens of a key that a gateway counted. ``moment``: seconds since 1970 for the last minute, or days for a day."""

    gateway: str
    key: str
    limit: str
    tokens: int
    moment: int

    def command(self) -> str:
        """Return the command of HAProxy's runtime API that sets the entry."""
        name = f"{self.gateway}|{self.key}|{self.limit}"
        return f"set table {TABLE} key {name} data.gpc0 {min(self.tokens, LARGEST)} data.gpc1 {self.moment}"


def read_table(text: str) -> Iterator[Count]:
    """Yield the counts of ``show table``."""
    for name, tokens, moment in ENTRY.findall(text):
        parts = name.split("|")
        if len(parts) == 3:
            yield Count(parts[0], parts[1], parts[2], int(tokens), int(moment))


def own_counts(
    gateway: str, limits: Mapping[str, Mapping[str, int]], meters: Mapping[str, Meter], now: float
) -> list[Count]:
    """Return the counts of this gateway for all keys with limits."""
    found = []
    for key, settings in limits.items():
        meter = meters.get(key, Meter())
        if PER_MINUTE in settings:
            found.append(Count(gateway, key, PER_MINUTE, meter.minute(now), int(now)))
        if PER_DAY in settings:
            found.append(Count(gateway, key, PER_DAY, meter.today(now), int(now // DAY)))
    return found


@dataclass(frozen=True)
class Quota:
    """A limit of a key now: tokens that are left, until when it gets none, and when all are there again.

    Times in seconds since 1970; ``until`` is 0 while tokens are left.
    """

    key: str
    limit: str
    left: int
    until: int
    reset: int


def quotas(
    gateway: str,
    limits: Mapping[str, Mapping[str, int]],
    meters: Mapping[str, Meter],
    others: Iterable[Count],
    now: float,
) -> list[Quota]:
    """Return the quotas of all keys with limits, with the counts of other gateways that are of this minute or day."""
    counted: dict[tuple[str, str], int] = {}
    for one in others:
        current = int(now) - one.moment < MINUTE if one.limit == PER_MINUTE else one.moment == int(now // DAY)
        if one.gateway != gateway and current:
            counted[one.key, one.limit] = counted.get((one.key, one.limit), 0) + one.tokens
    found = []
    for own in own_counts(gateway, limits, meters, now):
        left = limits[own.key][own.limit] - own.tokens - counted.get((own.key, own.limit), 0)
        if own.limit == PER_DAY:
            until = reset = (int(now // DAY) + 1) * DAY
        else:
            meter = meters.get(own.key, Meter())
            until = max(meter.free_at(now, -left), math.ceil(now + 1))
            reset = meter.free_at(now, own.tokens - 1) if own.tokens else 0
        found.append(Quota(own.key, own.limit, max(0, left), 0 if left > 0 else until, reset))
    return found
