# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Examine a fleet: the signals of hosts, gateways and inventory, and the faults that they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible.errors import AnsibleError
from jinja2 import UndefinedError

from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import (
    LAYERS,
    SEVERITIES,
    Fault,
    Finding,
    Signal,
    diagnose,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.documents import identified
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import look_up, natural
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layout import NO_GPU
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_defaults, serving_recipe

Tree = Mapping[str, Any]
MESSAGE_LENGTH = 400
# A gateway none of whose instances is up, and an instance that is down at a gateway.
ALL_DOWN = "gateway_without_instances"
ONE_DOWN = "gateway_instance_down"


@dataclass(frozen=True)
class Examined:
    """What the control node knows of a host.

    ``answer``: result of module host_signals_info, also of a task that failed or did not reach the host. ``variables``:
    the host's variables. ``gpu_host``: whether it is to serve.
    """

    answer: Tree
    variables: Tree
    gpu_host: bool


def examine(
    hosts: Mapping[str, Examined], gateways: Mapping[str, Tree], catalogue: Mapping[str, Fault]
) -> list[Finding]:
    """Return the faults of a fleet, those first that explain others and those that are worst.

    ``gateways``: results of module gateway_info by host.
    """
    found: list[Finding] = []
    for name, host in hosts.items():
        signals: list[Signal] = [
            *connection_signals(host.answer),
            *host.answer.get("signals", ()),
            *(inventory_signals(host) if host.gpu_host else ()),
            *gateway_signals(name, host, gateways),
        ]
        found += diagnose(name, signals, catalogue)
    for name, answer in gateways.items():
        if name not in hosts and "running" not in answer:  # --limit does not name it
            found += diagnose(name, list(connection_signals(answer)), catalogue)
    _link_gateways(found)
    return sorted(found, key=_order)


def _link_gateways(findings: Sequence[Finding]) -> None:
    """Link a gateway none of whose instances is up with its instances: hosts with faults explain it, else it them."""
    for gateway in (one for one in findings if one.fault.id == ALL_DOWN):
        down = [one for one in findings if one.fault.id == ONE_DOWN and one.signal["gateway"] == gateway.host]
        unexplained = [one for one in down if not one.consequence_of]
        for one in unexplained:
            one.consequence_of = [ALL_DOWN]
        if down and not unexplained:
            gateway.consequence_of = sorted({cause for one in down for cause in one.consequence_of})


def _order(finding: Finding) -> tuple[Any, ...]:
    fault = finding.fault
    return (
        bool(finding.consequence_of),
        SEVERITIES.index(fault.severity),
        LAYERS.index(fault.layer),
        natural(finding.host),
    )


def connection_signals(answer: Tree) -> Iterator[Signal]:
    """Yield why a host could not be examined."""
    if "signals" in answer:
        return
    parts = (answer.get("msg"), answer.get("module_stderr"), answer.get("module_stdout"))
    message = " ".join(" ".join(str(part) for part in parts if part).split())[:MESSAGE_LENGTH] or "no answer"
    kind = "unreachable" if answer.get("unreachable") else "failed"
    yield {"signal": "connection", "kind": kind, "message": message, "evidence": message}


def inventory_signals(host: Examined) -> Iterator[Signal]:
    """Yield why the variables of a GPU host have no recipe, with the GPUs that it has."""
    gpus = host.answer.get("gpu_info") or {}
    known = bool(gpus.get("count"))
    variables = _Overlaid(host.variables, {"__plan_gpus": gpus if known else {"skipped": True}})
    try:
        problems = list(look_up(variables, load_defaults(), serving_recipe).problems)
    except (AnsibleError, UndefinedError) as error:
        message = " ".join(str(error).split())[:MESSAGE_LENGTH]
        yield {"signal": "variables", "message": message, "readable": False, "evidence": message}
        return
    for problem in problems:
        # That no GPU is known is a fault of the driver or of the connection.
        if known or NO_GPU not in problem:
            yield {"signal": "variables", "message": problem, "readable": True, "evidence": problem}


class _Overlaid(dict[str, Any]):
    """Variables of a host with some replaced. They are rendered when they are read, so they are not copied."""

    def __init__(self, variables: Tree, replaced: Tree) -> None:
        super().__init__(replaced)
        self._variables = variables

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else self._variables.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter({*super().__iter__(), *self._variables})


def gateway_signals(name: str, host: Examined, gateways: Mapping[str, Tree]) -> Iterator[Signal]:
    """Yield what the gateways report of a host, and of themselves if the host is one."""
    if name in gateways:
        yield from _own_gateway_signals(name, gateways[name], host.answer.get("signals", ()))
    running = {gateway: answer for gateway, answer in gateways.items() if answer.get("running")}
    known = {one["name"]: one for one in host.answer.get("signals", ()) if one["signal"] == "instance"}
    serves = any(one["healthy"] for one in known.values())
    for gateway, answer in running.items():
        instances = answer["hosts"].get(name, {})
        if not instances and serves and host.gpu_host:
            evidence = f"gateway {gateway} has {len(answer['hosts'])} hosts, and not {name}"
            yield {"signal": "registration", "gateway": gateway, "name": name, "evidence": evidence}
        for instance, state in instances.items():
            yield {
                "signal": "gateway_instance",
                "gateway": gateway,
                "host": name,
                "name": instance,
                **{key: state[key] for key in ("up", "drained", "drained_by", "state")},
                **{key: known.get(instance, {}).get(key) for key in ("healthy", "age_seconds", "gpus")},
                "evidence": f"HAProxy of {gateway}: {name}.{instance} {state['state']}"
                + (f", drained by {state['drained_by']}" if state["drained"] else ""),
            }


def _own_gateway_signals(name: str, answer: Tree, signals: Sequence[Signal]) -> Iterator[Signal]:
    deployed = any(signal["signal"] == "unit" and signal["kind"] == "gateway" for signal in signals)
    if "running" not in answer:
        if signals:  # else the signals of the connection say why
            error = str(answer.get("msg") or "no answer")[:MESSAGE_LENGTH]
            yield {"signal": "probe", "name": "gateway_info", "error": error, "evidence": f"gateway_info: {error}"}
        return
    if not (deployed or answer["running"]):
        return  # the record says that it is not deployed
    instances = [one for host in answer["hosts"].values() for one in host.values()]
    up = sum(one["up"] for one in instances)
    yield {
        "signal": "gateway",
        "name": name,
        "running": bool(answer["running"]),
        "servers": len(instances),
        "up": up,
        "evidence": f"HAProxy of {name} {'runs' if answer['running'] else 'does not listen at its socket'}; "
        f"{up} of {len(instances)} instances are up",
    }


def report(findings: Sequence[Finding], hosts: Sequence[str], taken_at: str) -> dict[str, Any]:
    """Return the report as data for JSON: faults of one kind with the same cause are one entry with its hosts."""
    entries: dict[tuple[Any, ...], dict[str, Any]] = {}
    for finding in findings:
        one = finding.as_dict()
        host, evidence = one.pop("host"), one.pop("evidence")
        key = (one["fault"], one["cause"], tuple(one["consequence_of"]))
        entry = entries.setdefault(key, {**one, "hosts": [], "evidence": []})
        if host not in entry["hosts"]:
            entry["hosts"].append(host)
        entry["evidence"].append({"host": host, "evidence": evidence})
    faults = list(entries.values())
    content = {
        "taken_at": taken_at,
        "hosts": len(hosts),
        "severity": next((name for name in SEVERITIES if any(one["severity"] == name for one in faults)), "none"),
        "counts": {name: sum(one["severity"] == name for one in faults) for name in SEVERITIES[:-1]},
        "faults": faults,
    }
    return identified("doctor", content)
