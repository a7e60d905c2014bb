# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU hosts that are registered at a gateway, and the changes of them: present, drained, ready."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, Optional

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.addresses import is_ip, select_address
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import BACKEND, GatewayError

# Names of hosts and of instances; joined by a dot they are the names of HAProxy's servers.
NAME = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]*")
NOT_A_NAME = "{!r} is not a name for HAProxy; it takes letters, digits and -_.:"

# A rollout or a repair returns to service only what it drained itself.
OPERATOR, ROLLOUT = "operator", "rollout"
DRAINERS = (OPERATOR, ROLLOUT, "repair")


@dataclass(frozen=True)
class Server:
    """One instance.

    ``model``: what it serves, by its name on the hub.
    ``max_requests``: requests in flight that a gateway gives it; more wait in the gateway.
    ``exact_model``: whether it knows ``model`` by this name only.
    ``drained_by``: one of DRAINERS; empty if the instance is in service.
    ``resolved``: the IP address that was found for ``address``; empty if ``address`` is one.
    ``drain_changed``: when ``drained_by`` changed last, in ISO 8601 and UTC; empty if it never did.
    """

    address: str
    port: int
    model: str
    max_requests: int
    drained_by: str = ""
    resolved: str = ""
    drain_changed: str = ""
    exact_model: bool = False

    @property
    def drained(self) -> bool:
        return bool(self.drained_by)

    def drain(self, by: str, now: str) -> Server:
        """Return the instance drained. It stays drained by another than the operator if it was."""
        return self._drained(by if by == OPERATOR else self.drained_by or by, now)

    def ready(self, by: str, now: str) -> Server:
        """Return the instance in service, unless another drained it. The operator returns all."""
        return self._drained("", now) if by in (OPERATOR, self.drained_by) else self

    def _drained(self, by: str, now: str) -> Server:
        return self if by == self.drained_by else replace(self, drained_by=by, drain_changed=now)


@dataclass(frozen=True)
class RegisteredHost:
    """A GPU host: its instances by name."""

    servers: Mapping[str, Server]


@dataclass(frozen=True)
class Drain:
    """Whether a gateway has an instance drained, with the names of Server."""

    drained_by: str
    drain_changed: str

    @property
    def age(self) -> tuple[str, bool]:
        """A larger one is newer. Of two that never changed, the drained one counts."""
        return self.drain_changed, bool(self.drained_by)


RegisteredHosts = Mapping[str, RegisteredHost]
Change = Callable[[Optional[RegisteredHost]], Optional[RegisteredHost]]


def read_note(text: str) -> RegisteredHost:
    """Return the host of a note. Raises TypeError, KeyError, ValueError or AttributeError for an invalid one."""
    values = json.loads(text)
    # Before a gateway served several models, a host had one.
    of_host = {"model": values["model"]} if "model" in values else {}
    servers = {name: Server(**{**of_host, **server}) for name, server in values["servers"].items()}
    for server in servers.values():
        if [type(value) for value in vars(server).values()] != [str, int, str, int, str, str, str, bool]:
            raise TypeError(f"{server} has a value of another type")
    return RegisteredHost(servers)


def write_note(host: RegisteredHost) -> str:
    """Return the note of a host."""
    return json.dumps(asdict(host), indent=2, sort_keys=True) + "\n"


def present(
    old: RegisteredHost | None,
    servers: Mapping[str, Server],
    found: Mapping[str, Sequence[str]] | None = None,
) -> RegisteredHost:
    """Return a host with exactly these servers; a drained one stays drained.

    ``found``: the IP addresses of their names. Raises GatewayError for a name that has none and had none.
    """
    known = old.servers if old else {}

    def registered(name: str, server: Server) -> Server:
        before = known.get(name)
        resolved = ""
        if not is_ip(server.address):
            last = before.resolved if before and before.address == server.address else ""
            resolved = select_address(server.address, last, (found or {}).get(server.address, ()))
        drained = (before.drained_by, before.drain_changed) if before else ("", "")
        return replace(server, drained_by=drained[0], drain_changed=drained[1], resolved=resolved)

    return RegisteredHost({name: registered(name, server) for name, server in sorted(servers.items())})


def agreed(host: RegisteredHost, drains: Mapping[str, Drain]) -> RegisteredHost:
    """Return a host whose instances are drained as at the gateway where that changed last.

    ``drains``: the newest of the other gateways, by instance. Gateways that drained or returned an instance one after
    the other agree, so each keeps its own time.
    """

    def newest(name: str, server: Server) -> Server:
        own = Drain(server.drained_by, server.drain_changed)
        other = drains.get(name, own)
        if other.drained_by == own.drained_by or other.age < own.age:
            return server
        return replace(server, **asdict(other))

    return replace(host, servers={name: newest(name, server) for name, server in host.servers.items()})


def newest_drains(hosts: Sequence[Mapping[str, Mapping[str, Any]]], name: str) -> dict[str, Drain]:
    """Return the newest drain of each instance of a host. ``hosts``: those of each gateway, as gateway_info returns."""
    found: dict[str, Drain] = {}
    for one in hosts:
        for instance, state in one.get(name, {}).items():
            drain = Drain(state["drained_by"], state["drain_changed"])
            found[instance] = max(found.get(instance, drain), drain, key=lambda value: value.age)
    return found


def marked(
    name: str, old: RegisteredHost | None, mark: Callable[[Server], Server], instances: Sequence[str]
) -> RegisteredHost:
    """Return a host with these instances, or all, marked as drained or ready. Raises GatewayError for unknown ones."""
    if old is None:
        raise GatewayError(f"{name} is not known to this gateway; state ready needs a registered host. Run site.yml")
    unknown = sorted(set(instances) - set(old.servers))
    if unknown:
        raise GatewayError(f"{name} has no instance {', '.join(unknown)}; it has {', '.join(old.servers)}")
    chosen = instances or old.servers
    return replace(
        old,
        servers={instance: mark(server) if instance in chosen else server for instance, server in old.servers.items()},
    )


def host_problems(host: RegisteredHost) -> Iterator[str]:
    """Yield what makes a host invalid at any gateway."""
    for name in host.servers:
        if not NAME.fullmatch(name):
            yield NOT_A_NAME.format(name)
    for name, server in host.servers.items():
        if not re.fullmatch(r"[A-Za-z0-9._:/-]+", server.model):
            yield f"{name}: {server.model!r} is not the name of a model; it takes letters, digits and ._-:/"
        if not 0 < server.port < 65536:
            yield f"{name}: port {server.port} is not from 1 to 65535"
        if server.max_requests < 1:
            yield f"{name}: max_requests {server.max_requests} is less than 1"


def combination_problems(hosts: RegisteredHosts) -> Iterator[str]:
    """Yield what makes these hosts invalid together at one gateway."""
    names = Counter(f"{host}.{server}" for host, value in hosts.items() for server in value.servers)
    for name, number in names.items():
        if number > 1:
            yield f"{name} is the name of two instances; HAProxy needs different names. Rename a host"
    for backend, models in Counter(map(backend_name, served_models(hosts))).items():
        if models > 1:
            yield f"{backend} is the backend of two models, whose names differ only in / and :. Rename one"


def servers_by_name(hosts: RegisteredHosts) -> dict[str, Server]:
    """Return all instances by their names in HAProxy."""
    return {f"{host}.{name}": server for host, value in hosts.items() for name, server in value.servers.items()}


def served_models(hosts: RegisteredHosts) -> dict[str, list[str]]:
    """Return the names in HAProxy of the instances of each model, by its name on the hub, sorted."""
    models = {server.model for host in hosts.values() for server in host.servers.values()}
    found: dict[str, list[str]] = {}
    for host, value in sorted(hosts.items()):
        for name, server in value.servers.items():
            found.setdefault(_whole_name(server.model, models), []).append(f"{host}.{name}")
    return dict(sorted(found.items()))


def backend_name(model: str) -> str:
    """Return the name of HAProxy's backend for a model. HAProxy takes no slash in it."""
    return BACKEND + model.replace("/", ":")


def _whole_name(model: str, models: Collection[str]) -> str:
    """Return a model's name on the hub. Hosts that an older version of the collection registered have its last part.

    A last part that several of the models have stays: their instances must not get each other's requests.
    """
    found = [name for name in models if name != model and name.rpartition("/")[2] == model]
    return found[0] if len(found) == 1 else model
