# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HAProxy's configuration, made of the head that role gateway writes and of the registered hosts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.addresses import bracketed
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import (
    RegisteredHosts,
    Server,
    backend_name,
    served_models,
    servers_by_name,
)

# Placeholders in the head.
FINGERPRINT = "@fingerprint@"
BACKENDS = "@backends@"
FINGERPRINT_LENGTH = 12  # hexadecimal digits of SHA-256
WEIGHT = 100  # of at most 256. All instances have the same; leastconn balances


def read_aliases(text: str) -> dict[str, str]:
    """Return the operator's names of models, each with the model's name on the hub. Raises GatewayError."""
    try:
        return {str(alias): str(model) for alias, model in json.loads(text).items()}
    except (ValueError, AttributeError) as error:
        raise GatewayError(f"aliases.json cannot be read: {error}. Run gateway.yml") from None


def model_names(model: str, models: Collection[str], aliases: Mapping[str, str]) -> list[str]:
    """Return the names of one of the models: on the hub, its last part, and aliases.

    Not a last part that another model has, or that is an alias of another model, registered or not.
    """
    last = model.rpartition("/")[2]
    shared = aliases.get(last, model) != model or any(
        other != model and last in (other, other.rpartition("/")[2]) for other in models
    )
    others = [alias for alias, target in aliases.items() if target == model and alias not in models]
    return list(dict.fromkeys([model, *([] if shared else [last]), *others]))


def weights(hosts: RegisteredHosts) -> dict[str, int]:
    """Return the weight of each server by BACKEND/SERVER. 0: checked, but no new request."""
    servers = servers_by_name(hosts)
    return {
        f"{backend_name(model)}/{name}": _weight(servers[name])
        for model, names in served_models(hosts).items()
        for name in names
    }


def in_service(hosts: RegisteredHosts) -> set[str]:
    """Return the servers that get requests, as BACKEND/SERVER."""
    return {name for name, weight in weights(hosts).items() if weight}


def render(head: str, hosts: RegisteredHosts, aliases: Mapping[str, str]) -> tuple[str, str]:
    """Return the configuration and its fingerprint, which ignores drains because they need no reload.

    ``aliases``: names of the operator, each with the model's name on the hub.
    """
    models = served_models(hosts)
    servers = servers_by_name(hosts)

    def for_model(model: str, lines: str) -> str:
        exact = any(servers[name].exact_model for name in models[model])
        names = [model] if exact else model_names(model, models, aliases)
        listed = [model, *(name for name in names if name in aliases and name != model)]
        for kind, values in {"name": names, "listed name": listed}.items():
            lines = _repeated(kind, lines, values, lambda name, line: line.replace("@name@", name))
        return lines.replace("@backend@", backend_name(model)).replace("@model@", model)

    def text(weight: Callable[[Server], int]) -> str:
        def with_servers(model: str, lines: str) -> str:
            found = [(name, servers[name]) for name in models[model]]
            server_lines = [
                f"  server {name} {bracketed(server.resolved or server.address)}:{server.port}"
                f" maxconn {server.max_requests} weight {weight(server)}\n"
                for name, server in found
            ]
            return for_model(model, lines).replace("  @servers@\n", "".join(server_lines))

        body = _repeated("model", head, models, with_servers)
        return body.replace(BACKENDS, " ".join(f"{backend_name(model)}={model}" for model in models))

    fingerprint = hashlib.sha256(text(lambda server: WEIGHT).encode()).hexdigest()[:FINGERPRINT_LENGTH]
    return text(_weight).replace(FINGERPRINT, fingerprint), fingerprint


def _repeated(kind: str, text: str, values: Iterable[str], line: Callable[[str, str], str]) -> str:
    """Return a text whose blocks of lines for each value of a kind are repeated, with the value in them."""
    block = re.compile(rf"^ *# For each {kind}:\n(.*?)^ *# End of {kind}\.\n", re.MULTILINE | re.DOTALL)
    return block.sub(lambda found: "".join(line(value, found[1]) for value in values), text)


def _weight(server: Server) -> int:
    return 0 if server.drained else WEIGHT
