# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status of a fleet: a verdict for each host, with its reasons."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ansible_collections.trtllm.fleet.plugins.module_utils.host_status import seconds_between
from ansible_collections.trtllm.fleet.plugins.plugin_utils.documents import identified
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.components import (
    RUNS,
    component_reasons,
    components_of,
    is_drained,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import natural, shorten
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.registrations import (
    all_send,
    down_reasons,
    drained_reasons,
    registrations,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status_text import age, number
from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.canary import merge_traffic
from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.plan import in_service

Verdict = Literal["ok", "drained", "degraded", "down", "unreachable", "nothing"]
Tree = Mapping[str, Any]

# From worst to best.
VERDICTS: tuple[Verdict, ...] = ("down", "unreachable", "degraded", "drained", "nothing", "ok")
# The verdicts that fail a run, by the mildest of them.
FAILING: Mapping[str, tuple[Verdict, ...]] = {
    "down": VERDICTS[:1],
    "unreachable": VERDICTS[:2],
    "degraded": VERDICTS[:3],
    "never": (),
}
# The verdict that the state of a gateway stands for.
GATEWAY_VERDICTS: Mapping[str, Verdict] = {"not running": "down", "unreachable": "unreachable"}
# Two releases that differ only in their names are shown as one: hosts may mount their GPUs differently.
RELEASE = ("recipe", "model", "revision", "image", "digest", "overrides")
RECENT = 900  # seconds for which a restart is a reason; later it is only a number
HEALED = 86400  # seconds for which an action of the watchdog is a reason

SILENT = 300  # seconds after which role host_health, which examines the host every few seconds, is a reason

NEVER_VERIFIED = "Its units are of a release that was never verified: a run is in progress or was interrupted."
NO_INSTANCE = "The release.json of its release cannot be read, or has no instance."


def make_status(
    hosts: Mapping[str, Tree | None], gateways: Mapping[str, Tree], inventory: Sequence[str], taken_at: str
) -> dict[str, Any]:
    """Return the status of a fleet as data for JSON.

    ``hosts``: results of module host_status_info by host. ``gateways``: results of module gateway_info by gateway. Both
    may be results of tasks that failed or did not reach the host. ``inventory``: all hosts that a gateway may have.
    """
    running = {name: gateways[name] for name in sorted(gateways, key=natural) if gateways[name].get("running")}
    rows = [host_status(name, hosts[name] or {}, running, bool(gateways)) for name in sorted(hosts, key=natural)]
    instances = [instance for host in rows for instance in host["instances"]]
    components = [component for host in rows for component in host["components"]]
    releases = _releases(rows)
    content = {
        "taken_at": taken_at,
        "summary": {
            "hosts": len(rows),
            "verdicts": {
                verdict: number for verdict in VERDICTS if (number := sum(host["verdict"] == verdict for host in rows))
            },
            "instances": len(instances),
            "in_rotation": sum(instance["in_rotation"] for instance in instances),
            "components": len(components),
            "components_in_rotation": sum(component["in_rotation"] for component in components),
            "in_flight": sum(one["load"] for one in (*instances, *components)),
            "releases": len(releases),
            "gateways": len(gateways),
            "gateways_running": len(running),
        },
        "releases": releases,
        "hosts": rows,
        "gateways": [_gateway(name, gateways[name], inventory) for name in sorted(gateways, key=natural)],
        "api_keys": _api_keys(running.values()),
    }
    return identified("status", content)


def host_status(name: str, answer: Tree, gateways: Mapping[str, Tree], behind: bool) -> dict[str, Any]:
    """Return one host: its verdict, the reasons, and the data behind them.

    ``gateways``: those that run. ``behind``: whether the fleet has gateways.
    """
    answered = "instances" in answer
    release = answer.get("release")
    instances = [_instance(name, one, answer, gateways, behind) for one in answer.get("instances", [])]
    if not answered:
        # The gateways' data still counts.
        known = dict.fromkeys(one for gateway in gateways.values() for one in gateway["hosts"].get(name, {}))
        instances = [_instance(name, {"name": one}, {}, gateways, behind) for one in known]
    components = components_of(name, answer, gateways)
    reasons = list(_reasons(name, answer, instances, components, gateways)) if answered else [no_answer(answer)]
    drift, accepted = list(answer.get("drift", [])), answer.get("acceptance")
    return {
        "name": name,
        "verdict": _verdict(answer, instances, components, bool(reasons or drift)),
        "reasons": reasons,
        "drift": drift,
        "recorded": bool(answer.get("recorded")),
        "release": release,
        "age_seconds": seconds_between(release and release["verified_at"], answer.get("time")),
        "instances": instances,
        "components": components,
        "drained_by": answer.get("drained_by"),
        "driver": answer.get("driver"),
        "gpus": list(answer.get("gpus", [])),
        "missing": list(answer.get("missing", [])),
        "acceptance": accepted,
        "accepted_seconds": seconds_between(accepted and accepted["at"], answer.get("time")),
        "health": answer.get("health"),
    }


def failure(status: Tree, fail_on: str) -> str:
    """Return the hosts and gateways that fail a run, in a sentence; empty if none does.

    ``fail_on``: a key of ``FAILING``.
    """
    verdicts = {
        "host": {host["name"]: host["verdict"] for host in status["hosts"]},
        "gateway": {one["name"]: GATEWAY_VERDICTS.get(one["state"], "ok") for one in status["gateways"]},
    }
    found = [
        f"{number(len(names), what)} {verdict}: {shorten(names)}."
        for what, by_name in verdicts.items()
        for verdict in FAILING[fail_on]
        if (names := [name for name, one in by_name.items() if one == verdict])
    ]
    return " ".join(found)


def no_answer(answer: Tree) -> str:
    """Return why a task has no result of its module, in a sentence."""
    message = " ".join(str(answer.get("msg") or "no answer").removeprefix("Task failed: ").split())[:300]
    return f"{'It is unreachable' if answer.get('unreachable') else 'Its status is unknown'}: {message}"


def _verdict(answer: Tree, instances: Sequence[Tree], components: Sequence[Tree], has_reasons: bool) -> Verdict:
    if "instances" not in answer:
        return "unreachable"
    if not answer["release"] and not answer["units"]:
        if is_drained(answer, components):
            return "drained"
        if not components:
            return "nothing"
    if instances and all(one["rotation"] and all(at["drained"] for at in one["rotation"]) for one in instances):
        return "drained"
    # The instances of a release that was never verified are unknown, so its units decide.
    serving = [one["serves"] for one in (*instances, *components)] or [
        unit["active"] == "active" for unit in answer["units"]
    ]
    if not any(serving):
        return "down"
    return "degraded" if has_reasons else "ok"


def _instance(host: str, one: Tree, answer: Tree, gateways: Mapping[str, Tree], behind: bool) -> dict[str, Any]:
    """Return an instance with the data of its host and of the gateways."""
    unit: Tree = next((unit for unit in answer.get("units", []) if unit["name"] == one.get("unit")), {})
    release = answer.get("release") or {}
    registered = registrations(host, one["name"], gateways)
    model = one.get("served_model") or release.get("served_model")
    serves = (
        unit.get("active") in RUNS
        and unit["release"] == release.get("name")
        and one["healthy"]
        and (not model or model in one["models"])
    )
    return {
        "name": one["name"],
        "port": one.get("port"),
        "gpus": one.get("gpus", []),
        "image": one.get("image"),
        "image_of_release": one.get("image_of_release"),
        "active": unit.get("active"),
        "sub": unit.get("sub"),
        "start_limit_reached": unit.get("start_limit_reached"),
        "last_log_line": unit.get("last_log_line"),
        "restarts": unit.get("restarts", 0),
        "since": unit.get("since"),
        "healthy": one.get("healthy"),
        "answer": one.get("answer"),
        "healed": one.get("healed"),
        "models": one.get("models", []),
        "served_model": model,
        "serves": serves,
        "rotation": registered,
        "in_rotation": all_send(registered, gateways) if behind else serves,
        # The host's count includes the gateways' checks and other clients.
        "load": sum(at["in_flight"] for at in registered) if registered else one.get("connections", 0),
        "connections": one.get("connections"),
    }


def _reasons(
    name: str, answer: Tree, instances: Sequence[Tree], components: Sequence[Tree], gateways: Mapping[str, Tree]
) -> Iterator[str]:
    """Yield the reasons, in sentences, for which a host is not ok, except drift."""
    release, units = answer["release"], answer["units"]
    if not release:
        if units:
            yield NEVER_VERIFIED
    elif not instances:
        yield NO_INSTANCE
    for unit in units if release else []:
        if unit["release"] != release["name"]:
            what = f"of release {unit['release']}" if unit["release"] else "no longer a link into a release"
            yield f"{unit['name']} is {what}, and the verified release is {release['name']}."
    for one in (*instances, *components):
        yield from _instance_reasons(one, answer["time"])
    yield from component_reasons(answer, components)
    if release:
        yield from _rotation_reasons(name, instances, gateways)
    yield from _gpu_reasons(answer)
    yield from _health_reasons(answer.get("health"))
    for problem in answer["problems"]:
        yield f"A check failed: {problem}."


def _health_reasons(health: Tree | None) -> Iterator[str]:
    """Yield what role host_health found, if it is deployed."""
    if not health:
        return
    if health["age_seconds"] > SILENT:
        yield f"trtllm-health.service has not examined the host for {age(health['age_seconds'])}."
    for name, reason in health["unfit"].items():
        yield f"{name} is unfit to serve: {reason}. Run doctor.yml."


def _instance_reasons(one: Tree, now: str) -> Iterator[str]:
    seconds = seconds_between(one["since"], now)
    since = "" if seconds is None else f" for {age(seconds)}"
    name, model = one["name"], one["served_model"]
    if one["start_limit_reached"]:
        yield f"{name} has been down{since}: its unit reached the start limit."
    elif one["active"] not in RUNS:
        yield f"{name} does not run: its unit is {one['active'] or 'missing'}{since}."
    elif one["healthy"] is False:
        yield f"{name} runs{since} and is not healthy: {one['answer']}."
    elif model and model not in one["models"]:
        yield f"{name} serves {', '.join(one['models']) or 'no model'} and not {model}."
    if one["image_of_release"] is False:
        yield f"{name} runs {one['image']}, which is not the image of the release."
    if one["last_log_line"]:
        yield f"Last log line of {name}: {one['last_log_line'].rstrip('.')}."
    healed = one["healed"]
    ago = seconds_between(healed["at"], now) if healed else None
    if healed and ago is not None and ago < HEALED:
        yield f"The watchdog killed {name} {_times(healed['times'])}, the last time {age(ago)} ago: {healed['reason']}."
    if one["restarts"] and not one["start_limit_reached"] and seconds is not None and seconds < RECENT:
        yield f"systemd restarted {name} {_times(one['restarts'])}, the last time {age(seconds)} ago."


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _rotation_reasons(name: str, instances: Sequence[Tree], gateways: Mapping[str, Tree]) -> Iterator[str]:
    for one in instances:
        yield from drained_reasons(one["name"], one["rotation"])
    for gateway, answer in gateways.items():
        known = answer["hosts"].get(name, {})
        if not known:
            yield f"It is not registered at gateway {gateway}."
            continue
        for one in instances:
            at = known.get(one["name"])
            if at is None:
                yield f"{one['name']} is not registered at gateway {gateway}."
            else:
                yield from down_reasons(one["name"], gateway, at)


def _gpu_reasons(answer: Tree) -> Iterator[str]:
    driver = answer["driver"]
    if driver["message"]:
        yield f"The driver is {driver['state']}: {driver['message']}."
    if answer["missing"]:
        yield f"These GPUs do not work: {', '.join(answer['missing'])}."
    if answer["fabric"] not in (None, "Completed"):
        yield f"The NVLink fabric is not ready: {answer['fabric']}."
    for gpu in answer["gpus"]:
        action = gpu["health"]["recovery_action"]
        if action not in (None, "None"):
            yield f"GPU {gpu['index']} needs a recovery action: {action}."
        if gpu["ecc_uncorrected"]:
            yield f"GPU {gpu['index']} had {gpu['ecc_uncorrected']} uncorrected memory errors."


def _releases(hosts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the releases in use, the one with most hosts first. Sets ``group``, its number, in each host."""
    groups: dict[str, dict[str, Any]] = {}
    for host in hosts:
        if host["release"]:
            about = {key: host["release"].get(key) for key in RELEASE}
            group = groups.setdefault(json.dumps(about, sort_keys=True), {**about, "names": [], "hosts": []})
            group["hosts"].append(host["name"])
            if host["release"]["name"] not in group["names"]:
                group["names"].append(host["release"]["name"])
    found = sorted(groups.values(), key=lambda group: -len(group["hosts"]))
    numbers = {name: number for number, group in enumerate(found) for name in group["hosts"]}
    for host in hosts:
        host["group"] = numbers.get(host["name"])
    return found


def _api_keys(gateways: Iterable[Tree]) -> dict[str, Any]:
    """Return the requests of each API key at all gateways."""
    found: dict[str, list[Tree]] = {}
    for gateway in gateways:
        for name, one in (gateway.get("api_keys") or {}).items():
            found.setdefault(name, []).append(one)
    return {
        name: {**merge_traffic(found[name]), "rejected": sum(one["rejected"] for one in found[name])}
        for name in sorted(found, key=natural)
    }


def _gateway(name: str, answer: Tree, inventory: Sequence[str]) -> dict[str, Any]:
    state = "running" if answer.get("running") else "not running" if "running" in answer else "unreachable"
    hosts: Mapping[str, Mapping[str, Tree]] = answer.get("hosts", {})
    instances = [one for host in hosts.values() for one in host.values()]
    return {
        "name": name,
        "state": state,
        "message": no_answer(answer) if state == "unreachable" else "",
        "models": [
            {"name": model, **_service([one for one in instances if one["model"] == model])}
            for model in sorted({one["model"] for one in instances})
        ],
        "hosts": len(hosts),
        **_service(instances),
        "strangers": sorted(set(hosts) - set(inventory), key=natural),
    }


def _service(instances: Sequence[Tree]) -> dict[str, Any]:
    """Return what a gateway sends to instances."""
    return {
        "instances": len(instances),
        "in_rotation": in_service(instances).total(),
        "drained": sum(one["drained"] for one in instances),
        "in_flight": sum(one["in_flight"] for one in instances),
        "traffic": merge_traffic([one["traffic"] for one in instances if one.get("traffic")]),
    }
