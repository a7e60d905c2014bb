# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway: a note for each registered GPU host, and a HAProxy that runs with all of them.

A request in flight is never touched: a drained instance gets no new one, and after a reload the old process finishes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner, output, run
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.addresses import bracketed
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.configuration import (
    in_service,
    read_aliases,
    render,
    weights,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import (
    GatewayError,
    Haproxy,
    NotRunning,
    is_up,
    state_text,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import (
    NAME,
    NOT_A_NAME,
    Change,
    RegisteredHost,
    RegisteredHosts,
    Server,
    combination_problems,
    host_problems,
    read_note,
    served_models,
    write_note,
)

# Of the gateway that role gateway deploys.
ROOT = "/etc/trtllm-fleet/gateway"
SOCKET = "/run/trtllm-gateway/admin.sock"
UNIT = "trtllm-gateway.service"
HEAD = "head.cfg"
ALIASES = "aliases.json"
CONFIG = "haproxy.cfg"
HOSTS = "hosts"

# Seconds. haproxy -c resolves names; a reload starts a process, which loads the certificate.
COMMAND_TIMEOUT = 30.0
RELOAD_TIMEOUT = 30.0
INTERVAL = 0.5
OLD_PROCESSES = 2.0  # until a process that a reload replaced knows what is drained (progress.lua)

Difference = dict[str, str]  # in the form of Ansible's --diff


@dataclass(frozen=True)
class Applied:
    """Result of Gateway.apply.

    ``running``: whether HAProxy answered. ``hosts``: those of the call in their new state.
    ``problems``: the reasons for which other hosts of the call did not change.
    """

    changed: bool
    reloaded: bool
    running: bool
    differences: Sequence[Difference]
    hosts: RegisteredHosts = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


class Gateway:
    """The gateway in directory ``root``. Methods raise GatewayError, and OSError of the file system."""

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

    def hosts(self) -> dict[str, RegisteredHost]:
        """Return the hosts of this gateway's notes."""
        found = {}
        for path in sorted((self._root / HOSTS).glob("*.json")):
            try:
                found[path.stem] = read_note(path.read_text())
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise GatewayError(f"{path} cannot be read: {error!r}. Remove it and run site.yml") from None
        return found

    def apply(self, unit: str, changes: Mapping[str, Change] | None = None) -> Applied:
        """Change the notes of some hosts, and run HAProxy with all notes, with one reload at most.

        ``changes`` return a host's new note from its old one; None removes it. A host whose change raises GatewayError
        stays as it is, and the others change.
        """
        with self._locked():
            before = self.hosts()
            after, failures = self._changed(before, changes or {})
            changed_hosts = {name: after[name] for name in changes or {} if name in after and name not in failures}
            differences = list(_differences(self._root / HOSTS, before, after))
            head = self._root / HEAD
            if not head.exists():
                if self._check_mode:
                    return Applied(bool(differences), False, False, differences, changed_hosts, failures)
                raise GatewayError(f"{head} is not there; HAProxy's configuration needs it. Run gateway.yml")
            text, fingerprint = render(head.read_text(), after, self._aliases())
            config = self._root / CONFIG
            old = config.read_text() if config.exists() else ""
            if text != old:
                differences.append(_difference(config, old, text))
            if not self._check_mode:
                self._write(config, text if text != old else None, before, after)
            done = self._run_with(unit, fingerprint, weights(after), differences)
        # Without the lock, so that the other hosts of a batch need not wait in turn.
        if done.running and not self._check_mode and in_service(before) - in_service(after):
            self._sleep(OLD_PROCESSES)
        return replace(done, hosts=changed_hosts, problems=failures)

    def survey(self) -> dict[str, Any]:
        """Return what HAProxy reports of every registered instance."""
        hosts = self.hosts()
        try:
            rows, running = self._haproxy.statistics(), True
        except NotRunning:
            rows, running = {}, False

        models = {name: model for model, names in served_models(hosts).items() for name in names}

        def surveyed(name: str, server: Server) -> dict[str, Any]:
            row = rows.get(name, {})
            return {
                "model": models[name],
                "drained": server.drained,
                "drained_by": server.drained_by,
                "drain_changed": server.drain_changed,
                "up": is_up(row),
                "state": state_text(row),
                "in_flight": int(row.get("scur") or 0),
                "requests": int(row.get("stot") or 0),
                "address": f"{bracketed(server.address)}:{server.port}",
            }

        return {
            "running": running,
            "hosts": {
                name: {instance: surveyed(f"{name}.{instance}", server) for instance, server in host.servers.items()}
                for name, host in hosts.items()
            },
        }

    def wait_until_up(self, names: Sequence[str], timeout: float) -> dict[str, str]:
        """Wait until these servers are up. Return the states of those that are not after ``timeout`` seconds."""
        end = self._clock() + timeout
        while True:
            try:
                found = self._haproxy.statistics()
            except GatewayError:
                found = {}  # between two processes: a change of another host reloads, too
            down = {name: found.get(name, {}) for name in names if not is_up(found.get(name, {}))}
            if not down or self._clock() >= end:
                return {name: state_text(row) for name, row in down.items()}
            self._sleep(INTERVAL)

    def _aliases(self) -> dict[str, str]:
        path = self._root / ALIASES
        return read_aliases(path.read_text()) if path.exists() else {}

    def _changed(
        self, before: RegisteredHosts, changes: Mapping[str, Change]
    ) -> tuple[dict[str, RegisteredHost], dict[str, str]]:
        """Return the hosts after the changes, and why some did not change. Raises GatewayError for the combination."""
        after = dict(before)
        failures: dict[str, str] = {}
        for name, change in changes.items():
            try:
                if not NAME.fullmatch(name):
                    raise GatewayError(NOT_A_NAME.format(name))
                new = change(before.get(name))
                if new is not None and (found := ". ".join(host_problems(new))):
                    raise GatewayError(found)
            except GatewayError as error:
                failures[name] = str(error)
                continue
            after.pop(name, None)
            if new is not None:
                after[name] = new
        if found := ". ".join(combination_problems(after)):
            raise GatewayError(found)
        return after, failures

    def _write(self, config: Path, text: str | None, before: RegisteredHosts, after: RegisteredHosts) -> None:
        """Write the notes after the configuration is found valid and before it is moved into place."""
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
                write_file(self._root / HOSTS / f"{name}.json", write_note(host))
        for name in before.keys() - after.keys():
            (self._root / HOSTS / f"{name}.json").unlink()
        if text is not None:
            os.replace(new, config)

    def _run_with(
        self, unit: str, fingerprint: str, wanted: Mapping[str, int], differences: list[Difference]
    ) -> Applied:
        """Run HAProxy with its file: reload if the fingerprint differs, else set the weights that differ."""
        try:
            stale = self._haproxy.fingerprint() != fingerprint
            known = {} if stale else self._haproxy.weights()
        except NotRunning:
            return Applied(bool(differences), False, False, differences)
        different = {name: weight for name, weight in wanted.items() if known.get(name) != weight}
        if not self._check_mode:
            if stale:
                self._reload(unit, fingerprint)
            else:
                self._haproxy.set_weights(different)
        return Applied(bool(differences or stale or different), stale, True, differences)

    def _reload(self, unit: str, fingerprint: str) -> None:
        self._check("systemctl", "reload", "--", unit)
        end = self._clock() + RELOAD_TIMEOUT
        while True:
            try:
                if self._haproxy.fingerprint() == fingerprint:
                    return
            except GatewayError:
                pass  # between two processes; the old one may reset the connection
            if self._clock() >= end:
                raise GatewayError(
                    f"{unit} does not run with its new configuration after {RELOAD_TIMEOUT:g} s. "
                    f"Run journalctl -u {unit}"
                )
            self._sleep(INTERVAL)

    def _check(self, *argv: str) -> None:
        output(argv, COMMAND_TIMEOUT, self._runner, GatewayError)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the gateway's lock: the hosts of a batch come at the same time."""
        if self._check_mode or not self._root.is_dir():
            yield
            return
        with (self._root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _differences(directory: Path, before: RegisteredHosts, after: RegisteredHosts) -> Iterator[Difference]:
    for name in sorted({*before, *after}):
        old, new = (write_note(hosts[name]) if name in hosts else "" for hosts in (before, after))
        if old != new:
            yield _difference(directory / f"{name}.json", old, new)


def _difference(path: Path, before: str, after: str) -> Difference:
    return {"before": before, "after": after, "before_header": str(path), "after_header": str(path)}
