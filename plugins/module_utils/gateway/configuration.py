# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HAProxy's configuration, made of the head that role gateway writes and of the registered hosts."""

from __future__ import annotations

import hashlib
from typing import Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.addresses import bracketed
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import RegisteredHosts, Server, served_model

# Placeholders in the head: the model that the hosts serve, the last part of its name, and the fingerprint.
MODEL = "@model@"
LAST_PART = "@model_last_part@"
FINGERPRINT = "@fingerprint@"
FINGERPRINT_LENGTH = 12  # hexadecimal digits of SHA-256
WEIGHT = 100  # of at most 256. All instances have the same; leastconn balances


def weights(hosts: RegisteredHosts) -> dict[str, int]:
    """Return the weight of each server by its name in HAProxy. 0: checked, but no new request."""
    return {
        f"{host}.{instance}": _weight(server)
        for host, value in sorted(hosts.items())
        for instance, server in value.servers.items()
    }


def in_service(hosts: RegisteredHosts) -> set[str]:
    """Return the names in HAProxy of the servers that get requests."""
    return {name for name, weight in weights(hosts).items() if weight}


def render(head: str, hosts: RegisteredHosts) -> tuple[str, str]:
    """Return the configuration and its fingerprint, which ignores drains because they need no reload."""
    model = served_model(hosts)
    body = head.replace(MODEL, model).replace(LAST_PART, model.rpartition("/")[2])

    def servers(weight: Callable[[Server], int]) -> str:
        return "".join(
            f"  server {name}.{instance} {bracketed(server.resolved or server.address)}:{server.port}"
            f" maxconn {server.max_requests} weight {weight(server)}\n"
            for name, host in sorted(hosts.items())
            for instance, server in host.servers.items()
        )

    fingerprint = hashlib.sha256((body + servers(lambda server: WEIGHT)).encode()).hexdigest()[:FINGERPRINT_LENGTH]
    return (body + servers(_weight)).replace(FINGERPRINT, fingerprint), fingerprint


def _weight(server: Server) -> int:
    return 0 if server.drained else WEIGHT
