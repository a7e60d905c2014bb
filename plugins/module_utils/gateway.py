# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which instances a gateway sends requests to: a note for each host, and the configuration made of them.

A request in flight is never touched: a drained instance gets no new one, and a reload leaves the old process to finish.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import ipaddress
import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner, output, run
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file

HEAD = "head.cfg"
CONFIG = "haproxy.cfg"
HOSTS = "hosts"
# In the head: what the gateway's own completion asks for, and what tells one configuration from another.
MODEL = "@model@"
FINGERPRINT = "@fingerprint@"
# Of hosts and instances, which together are the names of HAProxy's servers.
NAME = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]*")
NO_NAME = "{!r} is no name that HAProxy takes; it takes letters, digits and -_.:"
FINGERPRINT_LENGTH = 12  # hexadecimal digits of SHA-256: enough to tell a gateway's configurations apart

# Who drains. A rollout does not put in rotation what an operator took out.
OPERATOR = "operator"
DRAINERS = (OPERATOR, "rollout")

BACKEND = "instances"
WEIGHT = 100  # of 256 that HAProxy takes; all instances have the same, and leastconn does the rest

# Seconds. haproxy -c looks names up; a reload starts a process, which loads the certificate.
COMMAND_TIMEOUT = 30.0
RELOAD_TIMEOUT = 30.0
SOCKET_TIMEOUT = 5.0
INTERVAL = 0.5
OLD_PROCESSES = 2.0  # until a process that a reload has replaced knows what is drained (progress.lua)
LOOKUPS = 32  # names at a time: each waits for DNS as long as the resolver of the gateway lets it

Difference = dict[str, str]  # in the form of Ansible's --diff


class GatewayError(Exception):
    """The gateway cannot be brought to what is asked; the message says why."""


class NotRunning(GatewayError):
    """No HAProxy answers at the socket."""


@dataclass(frozen=True)
class Server:
    """One instance. ``max_requests``: how many the gateway lets it have at a time; more wait in the gateway.

    ``drained_by``: who wants it to get no new request, one of DRAINERS; empty where nobody does.
    ``resolved``: the IP address that was found for ``address``; empty where that is one.
    """

    address: str
    port: int
    max_requests: int
    drained_by: str = ""
    resolved: str = ""

    @property
    def drained(self) -> bool:
        return bool(self.drained_by)

    def drain(self, by: str) -> Server:
        """The instance drained; what an operator drained stays the operator's."""
        return replace(self, drained_by=OPERATOR if self.drained_by == OPERATOR else by)

    def ready(self, by: str) -> Server:
        """The instance in rotation again, unless a rollout asks for what an operator drained."""
        return self if self.drained_by == OPERATOR != by else replace(self, drained_by="")


@dataclass(frozen=True)
class Host:
    """A GPU host: the model that it serves, and its instances by name."""

    model: str
    servers: Mapping[str, Server]


Hosts = Mapping[str, Host]
Change = Callable[[Optional[Host]], Optional[Host]]


def host_from(values: Mapping[str, Any]) -> Host:
    """A host as its note has it. Raises TypeError, KeyError, AttributeError for a note that is none."""
    servers = {name: Server(**server) for name, server in values["servers"].items()}
    for server in servers.values():
        if [type(value) for value in vars(server).values()] != [str, int, int, str, str]:
            raise TypeError(f"{server} has a value of another type")
    return Host(str(values["model"]), servers)


def present(
    old: Host | None, model: str, servers: Mapping[str, Server], found: Mapping[str, Sequence[str]] | None = None
) -> Host:
    """A host with exactly these servers; one that was drained stays drained.

    ``found``: the IP addresses of their names. Raises GatewayError for a name without any, now or before.
    """
    known = old.servers if old else {}
    return Host(
        model,
        {
            name: replace(
                server,
                drained_by=known[name].drained_by if name in known else "",
                resolved=_resolved(server.address, known.get(name), (found or {}).get(server.address, ())),
            )
            for name, server in sorted(servers.items())
        },
    )


def look_up(names: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return the IP addresses of names, none for a name that does not resolve. IP addresses are left out."""
    wanted = sorted({name for name in names if not _is_ip(name)})
    with ThreadPoolExecutor(LOOKUPS) as threads:
        return dict(zip(wanted, threads.map(addresses, wanted)))


def addresses(name: str) -> list[str]:
    """Return the IP addresses of a name in the resolver's order; none where it does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except (OSError, UnicodeError):
        return []
    return [str(one[4][0]) for one in found]


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _resolved(address: str, old: Server | None, found: Sequence[str]) -> str:
    """Return the IP address to use for a name: the known one, unless the name has others now."""
    if _is_ip(address):
        return ""
    known = old.resolved if old and old.address == address else ""
    if known and (known in found or not found):
        return known
    if not found:
        raise GatewayError(
            f"{address!r} does not resolve on the gateway; it needs an IP address. Set gateway_host_address to one"
        )
    return found[0]


def marked(name: str, old: Host | None, mark: Callable[[Server], Server], instances: Sequence[str]) -> Host:
    """A host with these instances, or all, marked as drained or ready. Raises GatewayError for what is not there."""
    if old is None:
        raise GatewayError(f"{name} is not known to this gateway; playbook trtllm.fleet.gateway puts hosts in rotation")
    unknown = sorted(set(instances) - set(old.servers))
    if unknown:
        raise GatewayError(f"{name} has no instance {', '.join(unknown)}; it has {', '.join(old.servers)}")
    chosen = instances or old.servers
    return replace(
        old,
        servers={instance: mark(server) if instance in chosen else server for instance, server in old.servers.items()},
    )


def host_problems(host: Host) -> list[str]:
    """What keeps a host from being behind any gateway."""
    found = [NO_NAME.format(one) for one in host.servers if not NAME.fullmatch(one)]
    if not re.fullmatch(r"[^\s'\"\\]+", host.model):
        found.append(f"{host.model!r} is no model id; it has no space, quote or backslash")
    for instance, server in host.servers.items():
        if not 0 < server.port < 65536:
            found.append(f"{instance}: port {server.port} is not from 1 to 65535")
        if server.max_requests < 1:
            found.append(f"{instance}: max_requests {server.max_requests} is less than 1")
    return found


def problems(hosts: Hosts) -> list[str]:
    """What keeps these hosts from being behind one gateway together."""
    names = Counter(name for host, value in hosts.items() for name in (f"{host}.{server}" for server in value.servers))
    found = [f"{name} is the name of two instances" for name, number in names.items() if number > 1]
    by_model: dict[str, list[str]] = {}
    for name, host in hosts.items():
        by_model.setdefault(host.model, []).append(name)
    if len(by_model) > 1:
        models = "; ".join(f"{', '.join(sorted(names))}: {model}" for model, names in sorted(by_model.items()))
        found.append(
            f"A gateway is for one model, and its hosts serve several ({models}). Give each a gateway of its own"
        )
    return found


def served_model(hosts: Hosts) -> str:
    """The model id that the hosts serve; empty where there are none."""
    return next(iter(sorted(host.model for host in hosts.values())), "")


def weights(hosts: Hosts) -> dict[str, int]:
    """The weight of each server by its name in HAProxy. 0: gets no new request, and is still looked at."""
    return {
        f"{host}.{instance}": 0 if server.drained else WEIGHT
        for host, value in sorted(hosts.items())
        for instance, server in value.servers.items()
    }


def served(hosts: Hosts) -> set[str]:
    """The servers that get requests, by their names in HAProxy."""
    return {name for name, weight in weights(hosts).items() if weight}


def render(head: str, hosts: Hosts) -> tuple[str, str]:
    """HAProxy's configuration and its fingerprint, of which being drained is no part: that needs no reload."""
    model = served_model(hosts)
    body = head.replace(MODEL, model)

    def servers(weight: Callable[[Server], int]) -> str:
        return "".join(
            f"  server {name}.{instance} {_bracketed(server.resolved or server.address)}:{server.port}"
            f" maxconn {server.max_requests} weight {weight(server)}\n"
            for name, host in sorted(hosts.items())
            for instance, server in host.servers.items()
        )

    fingerprint = hashlib.sha256((body + servers(lambda server: WEIGHT)).encode()).hexdigest()[:FINGERPRINT_LENGTH]
    text = body + servers(lambda server: 0 if server.drained else WEIGHT)
    return text.replace(FINGERPRINT, fingerprint), fingerprint


class Haproxy:
    """A running HAProxy, asked through its socket. Methods raise NotRunning, or GatewayError if it does not answer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, command: str) -> str:
        """The answer to one command of the runtime API, or to several joined by semicolons."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SOCKET_TIMEOUT)
            answer = b""
            try:
                connection.connect(str(self._path))
                connection.sendall(f"{command}\n".encode())
                while part := connection.recv(65536):
                    answer += part
            except (FileNotFoundError, ConnectionRefusedError) as error:
                raise NotRunning(f"no HAProxy listens at {self._path}: {error.strerror}") from None
            except OSError as error:
                # One that runs and cannot be told anything goes on sending requests.
                raise GatewayError(f"HAProxy does not answer at {self._path}: {error}") from None
        return answer.decode(errors="replace")

    def fingerprint(self) -> str:
        """Of the configuration that it runs with; empty where it is none of ours."""
        found = re.search(r"^description: (.*)$", self.ask("show info"), re.MULTILINE | re.IGNORECASE)
        return found[1].strip() if found else ""

    def weights(self) -> dict[str, int]:
        """The weight of each server, as it was set."""
        lines = self.ask(f"show servers state {BACKEND}").splitlines()
        columns = next((line[1:].split() for line in lines if line.startswith("#")), [])
        rows = [dict(zip(columns, line.split())) for line in lines[2:] if line.strip()]
        return {row["srv_name"]: int(row["srv_uweight"]) for row in rows}

    def statistics(self) -> dict[str, dict[str, str]]:
        """HAProxy's statistics of each server, by name, in the words of its documentation."""
        rows = csv.DictReader(io.StringIO(self.ask("show stat").lstrip("# ")))
        return {
            row["svname"]: dict(row)
            for row in rows
            if row["pxname"] == BACKEND and row["svname"] not in ("BACKEND", "FRONTEND")
        }

    def set_weights(self, wanted: Mapping[str, int]) -> None:
        """Set the weight of servers. Raises GatewayError for what HAProxy refuses."""
        for name, weight in wanted.items():
            answer = self.ask(f"set weight {BACKEND}/{name} {weight}").strip()
            if answer:
                raise GatewayError(f"HAProxy does not set the weight of {name} to {weight}: {answer}")


@dataclass(frozen=True)
class Result:
    """What was done.

    ``running``: whether a HAProxy answered. ``hosts``: those of the call as they are now.
    ``problems``: why others of the call are as before.
    """

    changed: bool
    reloaded: bool
    running: bool
    differences: Sequence[Difference]
    hosts: Mapping[str, Host] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


class Gateway:
    """The gateway below ``root``. Methods raise GatewayError, and OSError for a file system that does not let them."""

    def __init__(
        self,
        root: Path,
        haproxy: Haproxy,
        check_mode: bool = False,
        runner: Runner = run,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root = root
        self._haproxy = haproxy
        self._check_mode = check_mode
        self._runner = runner
        self._clock = clock
        self._sleep = sleep

    def hosts(self) -> dict[str, Host]:
        """The hosts in this gateway's notes."""
        found = {}
        for path in sorted((self._root / HOSTS).glob("*.json")):
            try:
                found[path.stem] = host_from(json.loads(path.read_text()))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise GatewayError(f"{path} cannot be read: {error!r}. Remove it and run site.yml again") from None
        return found

    def apply(self, unit: str, changes: Mapping[str, Change] | None = None) -> Result:
        """Change the notes of some hosts, and have HAProxy run with what all notes say, by one reload at most.

        ``changes`` give a host's new note from its old one; None removes it. A host whose change raises GatewayError
        stays as it is and does not keep the others from changing.
        """
        with self._locked():
            before = self.hosts()
            after = dict(before)
            failures: dict[str, str] = {}
            for name, change in (changes or {}).items():
                try:
                    if not NAME.fullmatch(name):
                        raise GatewayError(NO_NAME.format(name))
                    new = change(before.get(name))
                    if new is not None and (own := host_problems(new)):
                        raise GatewayError(". ".join(own))
                except GatewayError as error:
                    failures[name] = str(error)
                    continue
                after.pop(name, None)
                if new is not None:
                    after[name] = new
            now = {name: after[name] for name in changes or {} if name in after and name not in failures}
            found = problems(after)
            if found:
                raise GatewayError(". ".join(found))
            differences = list(_differences(self._root / HOSTS, before, after))
            head = self._root / HEAD
            if not head.exists():
                if self._check_mode:
                    return Result(bool(differences), False, False, differences, now, failures)
                raise GatewayError(f"{head} is not there: role trtllm.fleet.gateway has not been run on this host")
            text, fingerprint = render(head.read_text(), after)
            config = self._root / CONFIG
            old = config.read_text() if config.exists() else ""
            if text != old:
                differences.append(
                    {"before": old, "after": text, "before_header": str(config), "after_header": str(config)}
                )
            if not self._check_mode:
                self._write(config, text if text != old else None, before, after)
            done = self._run_with(unit, fingerprint, weights(after), differences)
        # Without the lock: the other hosts of a batch need not wait one after the other.
        if done.running and not self._check_mode and served(before) - served(after):
            self._sleep(OLD_PROCESSES)
        return replace(done, hosts=now, problems=failures)

    def survey(self) -> dict[str, Any]:
        """What HAProxy says of every instance in the notes."""
        hosts = self.hosts()
        try:
            rows, running = self._haproxy.statistics(), True
        except NotRunning:
            rows, running = {}, False

        def told_of(name: str, server: Server) -> dict[str, Any]:
            row = rows.get(name, {})
            return {
                "drained": server.drained,
                "drained_by": server.drained_by,
                "up": is_up(row),
                "state": told(row),
                "in_flight": int(row.get("scur") or 0),
                "requests": int(row.get("stot") or 0),
                "address": f"{_bracketed(server.address)}:{server.port}",
            }

        return {
            "running": running,
            "model": served_model(hosts),
            "hosts": {
                name: {instance: told_of(f"{name}.{instance}", server) for instance, server in host.servers.items()}
                for name, host in hosts.items()
            },
        }

    def wait_until_up(self, names: Sequence[str], timeout: float) -> dict[str, str]:
        """Wait until these servers are up. Return the state of those that are not after ``timeout`` seconds."""
        end = self._clock() + timeout
        while True:
            try:
                found = self._haproxy.statistics()
            except GatewayError:
                found = {}  # between two processes: another host's change reloads, too
            down = {name: found.get(name, {}) for name in names if not is_up(found.get(name, {}))}
            if not down or self._clock() >= end:
                return {name: told(row) for name, row in down.items()}
            self._sleep(INTERVAL)

    def _write(self, config: Path, text: str | None, before: Hosts, after: Hosts) -> None:
        """Write the notes once the configuration is found valid, and before it is put in place."""
        new = config.with_name(f".{CONFIG}.new")
        if text is not None:
            write_file(new, text)
            try:
                self._check("haproxy", "-c", "-q", "-f", str(new))
            except GatewayError:
                new.unlink()
                raise
        for name, host in after.items():
            if host != before.get(name):
                write_file(self._root / HOSTS / f"{name}.json", _noted(host))
        for name in before.keys() - after.keys():
            (self._root / HOSTS / f"{name}.json").unlink()
        if text is not None:
            os.replace(new, config)

    def _run_with(
        self, unit: str, fingerprint: str, wanted: Mapping[str, int], differences: list[Difference]
    ) -> Result:
        """Have the running HAProxy do as its file says, by a reload only where that is needed."""
        try:
            stale = self._haproxy.fingerprint() != fingerprint
            known = {} if stale else self._haproxy.weights()
        except NotRunning:
            return Result(bool(differences), False, False, differences)
        heavy = {name: weight for name, weight in wanted.items() if known.get(name) != weight}
        if not self._check_mode:
            if stale:
                self._reload(unit, fingerprint)
            else:
                self._haproxy.set_weights(heavy)
        return Result(bool(differences or stale or heavy), stale, True, differences)

    def _reload(self, unit: str, fingerprint: str) -> None:
        self._check("systemctl", "reload", "--", unit)
        end = self._clock() + RELOAD_TIMEOUT
        while True:
            try:
                if self._haproxy.fingerprint() == fingerprint:
                    return
            except GatewayError:
                pass  # between two processes, of which the old one may reset the connection
            if self._clock() >= end:
                raise GatewayError(
                    f"{unit} does not run with its new configuration after {RELOAD_TIMEOUT:g} s: see its journal"
                )
            self._sleep(INTERVAL)

    def _check(self, *argv: str) -> None:
        output(argv, COMMAND_TIMEOUT, self._runner, GatewayError)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else changes the gateway: the hosts of a batch come at the same time."""
        if self._check_mode or not self._root.is_dir():
            yield
            return
        with (self._root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def is_up(row: Mapping[str, str]) -> bool:
    """Whether a server's row says that HAProxy's own check of it passes."""
    # HAProxy puts a star before the last result while the next check runs.
    return row.get("status") == "UP" and row.get("check_status", "").removeprefix("* ") == "L7OK"


def told(row: Mapping[str, str]) -> str:
    """A server's state for a person."""
    if not row:
        return "is not there"
    return " ".join(
        filter(None, ("is", row["status"], row.get("check_status"), row.get("check_code"), row.get("last_chk")))
    )


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _noted(host: Host) -> str:
    return json.dumps(asdict(host), indent=2, sort_keys=True) + "\n"


def _differences(directory: Path, before: Hosts, after: Hosts) -> Iterator[Difference]:
    for name in sorted({*before, *after}):
        old, new = (_noted(hosts[name]) if name in hosts else "" for hosts in (before, after))
        if old != new:
            path = str(directory / f"{name}.json")
            yield {"before": old, "after": new, "before_header": path, "after_header": path}
