# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out whether connections reach TCP ports of other hosts, also before anything listens there."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor


def blocked_ports(ports: Sequence[str], timeout: float) -> dict[str, str]:
    """Return the ports that connections do not reach, in order, each with the reason.

    ``ports``: each with its address, as ``192.0.2.14:9250`` or ``[2001:db8::14]:9250``; ``timeout``: seconds.

    Raises:
        ValueError: A port has another form.
    """
    targets = [_parse(port) for port in ports]
    with ThreadPoolExecutor(max(len(targets), 1)) as pool:
        reasons = list(pool.map(lambda target: _reason(target, timeout), targets))
    return {port: reason for port, reason in zip(ports, reasons) if reason}


def _parse(port: str) -> tuple[str, int]:
    address, _colon, number = port.rpartition(":")
    if not address or not number.isdecimal() or not 0 < int(number) < 65536:
        raise ValueError(f"ports: {port!r} is not ADDRESS:PORT with a port from 1 to 65535.")
    return address.strip("[]"), int(number)


def _reason(target: tuple[str, int], timeout: float) -> str:
    """Return why no connection reaches the target; empty if one does, even if its host refuses it."""
    try:
        socket.create_connection(target, timeout).close()
    except ConnectionError:  # refused, or closed at once
        return ""
    except socket.timeout:  # another exception before Python 3.10
        return f"no answer in {timeout:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return ""
