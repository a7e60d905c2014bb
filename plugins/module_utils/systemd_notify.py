# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the state of a service to systemd: sd_notify(3)."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send a state, such as READY=1 or WATCHDOG=1. Without systemd it does nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(state.encode(), address.replace("@", "\0", 1))
