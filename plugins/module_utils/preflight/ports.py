# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the TCP ports that the host is to listen on."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check
from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.facts import at, read
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.processes import describe_process, serves
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.requirements import Find, result

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
TCP_LISTEN = "0A"  # kernel, include/net/tcp_states.h


@dataclass(frozen=True)
class Listener:
    """A TCP socket that listens, and the inode that leads to its process."""

    address: Address
    port: int
    inode: str


def read_listeners(root: Path) -> list[Listener]:
    """Return all listening TCP sockets of the host."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read(at(root, table)).splitlines()[1:]:
            fields = line.split()
            if fields[3] == TCP_LISTEN:
                address, port = fields[1].split(":")
                found.append(Listener(_address(address), int(port, 16), fields[9]))
    return found


def _address(text: str) -> Address:
    """Parse an address of ``/proc/net/tcp``: hexadecimal 32-bit words in the byte order of the machine."""
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def collides(listener: Listener, address: Address, port: int) -> bool:
    """Return True if ``listener`` occupies ``port`` at ``address``. The IPv6 wildcard covers IPv4 addresses too."""
    if listener.port != port:
        return False
    if listener.address.version != address.version:
        return (listener.address if listener.address.version == 6 else address).is_unspecified
    return listener.address == address or listener.address.is_unspecified or address.is_unspecified


def find_process(root: Path, inode: str) -> Path | None:
    """Return the ``/proc`` directory of the process that holds the socket ``inode``; None if it is hidden."""
    for process in at(root, "/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(descriptor) == f"socket:[{inode}]" for descriptor in (process / "fd").iterdir()):
                return process
        except OSError:
            continue  # the process has ended, or its descriptors are not readable
    return None


def check_ports(ports: Sequence[Mapping[str, Any]], root: Path, runner: Runner, find: Find) -> Iterator[Check]:
    """Check that each port is free, or held by a unit of this collection. Raises ValueError for a bad address."""
    listening = read_listeners(root) if ports else []
    for wanted in ports:
        port, address = wanted["port"], ipaddress.ip_address(wanted["address"])
        holder = ""
        for listener in listening:
            if collides(listener, address, port):
                process = find_process(root, listener.inode)
                if not (process and serves(process, runner, find)):
                    holder = f"{describe_process(process)} listens on {listener.address} port {port}"
                    break
        expected = f"{address} port {port} free or held by a unit trtllm-*"
        hint = f"Set {wanted['variable']} to another port, or stop the process"
        yield result(f"port:{port}", not holder, holder or "free", expected, hint)
