# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers of NVIDIA Dynamo: listed by the frontend's /health, with requests counted by their own /metrics."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ENDPOINT = re.compile(r"dyn://[^\s./]+(?:\.[^\s./]+){2,}")
PLACE = re.compile(r"([\d.]+|\[[\da-fA-F:.]+\]):(\d+)")
REQUESTS = "dynamo_component_requests_total"
SAMPLE = re.compile(rf"^{REQUESTS}\{{(?P<labels>[^}}]*)\}} (?P<value>\S+)", re.MULTILINE)
PREFILL = {'dynamo_component="prefill"', 'dynamo_endpoint="generate"'}


@dataclass(frozen=True)
class Instance:
    """An endpoint of a worker. ``address`` is an IP, or empty if requests do not use TCP."""

    endpoint: str  # dyn://NAMESPACE.COMPONENT.ENDPOINT
    address: str
    port: str
    id: str  # the worker's, as text like in answers: JSON numbers are not exact for most

    @property
    def role(self) -> str:
        """``prefill`` or ``decode``, whatever a version calls the latter."""
        return "prefill" if self.endpoint.split(".")[-2] == "prefill" else "decode"

    @property
    def namespace(self) -> str:
        return self.endpoint.removeprefix("dyn://").partition(".")[0]

    @property
    def takes_requests(self) -> bool:
        return self.endpoint.endswith(".generate")

    def __str__(self) -> str:
        return f"{self.endpoint} at {self.address}:{self.port}" if self.address else self.endpoint


def place(text: str) -> tuple[str, str]:
    """Return the IP in its normal form, and the port or an empty string, of IP, IPv4:PORT or [IPv6]:PORT.

    Raises ValueError for other text.
    """
    found = PLACE.fullmatch(text)
    host, port = found.groups("") if found else (text, "")
    return str(ipaddress.ip_address(host.strip("[]"))), port


def listed(health: Mapping[str, Any]) -> list[Instance]:
    """Return the instances that a frontend lists, in its order. Raises LookupError or TypeError for another document.

    Workers list other endpoints too, whose names differ between versions and end in a random suffix.
    """
    found = []
    for entry in health["instances"]:
        authority = str(entry["transport"].get("tcp", "")).partition("/")[0]
        try:
            address, port = place(authority)
        except ValueError:  # a host name, or no TCP
            address, _colon, port = authority.rpartition(":")
        name = f"dyn://{entry['namespace']}.{entry['component']}.{entry['endpoint']}"
        found.append(Instance(name, address, port, str(entry["instance_id"])))
    return found


@dataclass(frozen=True)
class Count:
    """Number of instances by endpoint, found and expected."""

    expected: Mapping[str, int]
    found: Mapping[str, int]
    instances: Sequence[Instance]

    @property
    def missing(self) -> bool:
        return any(self.found[name] < number for name, number in self.expected.items())

    @property
    def equal(self) -> bool:
        return all(self.found[name] == number for name, number in self.expected.items())

    def __str__(self) -> str:
        """Return the numbers and, where they differ, all listed workers with their addresses."""
        numbers = ", ".join(f"{self.found[name]} of {number} {name}" for name, number in self.expected.items())
        workers = [str(entry) for entry in self.instances if entry.takes_requests]
        return numbers if self.equal else f"{numbers}; listed: {', '.join(workers) or 'no worker'}"


def count(instances: Sequence[Instance], expected: Mapping[str, int], address: str = "") -> Count:
    """Count the instances of the expected endpoints; only those at ``address``, in the form of ``place``, if given."""
    return Count(expected, Counter(entry.endpoint for entry in at(instances, address)), instances)


def at(instances: Sequence[Instance], address: str) -> list[Instance]:
    """Return the instances at an address, or at its port if it has one; all if it is empty."""
    if not address:
        return list(instances)
    host, port = place(address)
    return [entry for entry in instances if entry.address == host and port in ("", entry.port)]


def prefill_requests(metrics: str) -> int:
    """Return the number of requests of a prefill worker, from the text of its /metrics; 0 if it counts none."""
    taken = (match for match in SAMPLE.finditer(metrics) if set(match["labels"].split(",")) >= PREFILL)
    return sum(int(float(match["value"])) for match in taken)
