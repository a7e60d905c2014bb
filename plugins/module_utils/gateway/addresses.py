# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""IP addresses of the GPU hosts: HAProxy gets no names."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError

LOOKUPS = 32  # names at a time: each waits for DNS as long as the gateway's resolver allows


def look_up(names: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return the IP addresses of names, none for a name that does not resolve. IP addresses are left out."""
    wanted = sorted({name for name in names if not is_ip(name)})
    with ThreadPoolExecutor(LOOKUPS) as threads:
        return dict(zip(wanted, threads.map(addresses, wanted)))


def addresses(name: str) -> list[str]:
    """Return the IP addresses of a name in the resolver's order; none if it does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except (OSError, UnicodeError):
        return []
    return [str(one[4][0]) for one in found]


def is_ip(address: str) -> bool:
    """Return True for an IP address."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def select_address(name: str, last: str, found: Sequence[str]) -> str:
    """Return the last address of a name, or the first found one if the name lost it. Raises GatewayError for none."""
    if last and (last in found or not found):
        return last
    if not found:
        raise GatewayError(
            f"{name!r} does not resolve on the gateway; it needs an IP address. Set gateway_host_address to one"
        )
    return found[0]


def bracketed(address: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if ":" in address else address
