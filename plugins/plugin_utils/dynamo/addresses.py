# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses at which components of NVIDIA Dynamo reach each other."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import few
from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.versions import version_row

Tree = Mapping[str, Any]


def stream_host(facts: Tree, address: str, way: str) -> str:
    """Return the DYN_TCP_RESPONSE_STREAM_HOST with which a frontend listens at ``address``; empty for unset.

    ``facts`` are the network facts of the host, and ``way`` is the version's response_stream_host. Raises ValueError if
    there is no such value.
    """
    default = (facts.get("default_ipv4") or {}).get("address", "")
    loopback = ipaddress.ip_address(address).is_loopback
    if way == "address":
        return address
    if way == "ignored" and not loopback and address != default:
        raise ValueError(f"listens for workers' answers at {default or 'no address'}, that of the default route, only")
    if way == "ignored" or address == default:
        return ""
    if loopback:
        return "lo"
    for interface in facts.get("interfaces", ()):
        its = facts.get(re.sub(r"\W", "_", interface)) or {}
        found = [one["address"] for one in ((its.get("ipv4") or {}), *its.get("ipv4_secondaries", ())) if one]
        if address in found:
            last = [*found, *(one["address"] for one in its.get("ipv6", ()))][-1]
            if last == address:
                return str(interface)
            raise ValueError(f"listens for workers' answers at the last address of {interface}, {last}")
    raise ValueError("listens for workers' answers on an interface, and none has this address")


def address_problems(deployment: Tree) -> Iterator[str]:
    """Yield addresses that other hosts cannot reach."""
    hosts = list(dict.fromkeys(host for hosts in deployment["placement"].values() for host in hosts))
    # Hosts that are not in the run have no known address.
    addresses = {host: address for host, address in deployment["addresses"].items() if host in hosts}
    bad = [f"{host} ({address or 'none'})" for host, address in addresses.items() if not _reachable(address)]
    if len(hosts) > 1 and bad:
        yield (
            f"The components are on {len(hosts)} hosts, and others cannot reach {few(bad)}. Set dynamo_interface to "
            "the interface with an IPv4 address in their network, or, for an unreachable host, set dynamo_address."
        )


def stream_problems(deployment: Tree) -> Iterator[str]:
    """Yield addresses at which a frontend does not listen for the answers of workers: no model would ever load."""
    try:
        name, row = version_row(deployment["image"], deployment["versions"])
    except ValueError:
        return  # problems.py reports it
    others = [other for other, its in deployment["versions"].items() if its["response_stream_host"] == "address"]
    for host, facts in deployment["networks"].items():
        address = deployment["addresses"].get(host, "")
        if _valid(address):
            try:
                stream_host(facts, address, row["response_stream_host"])
            except ValueError as error:
                yield (
                    f"dynamo_address or dynamo_interface gives {host} the address {address}; a frontend of Dynamo "
                    f"{name} {error}. Set both to the address of the default route, dynamo_interface to an interface "
                    f"whose last address is IPv4, or dynamo_image to a version that takes an address "
                    f"({', '.join(others)})."
                )


def _valid(address: str) -> bool:
    try:
        return bool(ipaddress.ip_address(address))
    except ValueError:
        return False


def _reachable(address: str) -> bool:
    if not _valid(address):
        return False
    ip = ipaddress.ip_address(address)
    return not (ip.is_loopback or ip.is_unspecified)
