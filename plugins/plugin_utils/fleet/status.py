# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a fleet is, from what its hosts and gateways answered: a verdict for each host, with its reasons."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import natural, shorten
from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.canary import merge_traffic
from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.plan import in_service

Verdict = Literal["ok", "drained", "degraded", "down", "unreachable", "nothing"]
Tree = Mapping[str, Any]

# The worst first.
VERDICTS: tuple[Verdict, ...] = ("down", "unreachable", "degraded", "drained", "nothing", "ok")
# What tells two releases apart for a person. Their names differ also where hosts have another way to their GPUs.
RELEASE = ("recipe", "model", "revision", "image", "digest", "overrides")
# What systemd does not tell the instance itself may.
RUNS = ("active", "unknown")
# A restart is told for so many seconds. Later it is a number among others.
RECENT = 900
# What a watch had to do is told for so many.
HEALED = 86400
# Of a fleet with more hosts than that, the text names those that are ok without a row for each.
ROWS = 30
WIDTH = 120
SHORT = 12  # hexadecimal digits of a digest or a revision
COLUMNS = (
    "host",
    "verdict",
    "release",
    "age",
    "serves",
    "rotation",
    "load",
    "restarts",
    "driver",
    "GPUs",
    "memory",
    "busy",
    "hottest",
)

NEVER_VERIFIED = "Its units are of a release that was never verified: a run that goes on, or was interrupted."
NO_INSTANCE = "The release.json of its release cannot be read, or has no instance."


def make_status(
    hosts: Mapping[str, Tree | None], gateways: Mapping[str, Tree], inventory: Sequence[str], taken_at: str
) -> dict[str, Any]:
    """The status of a fleet, JSON throughout.

    ``hosts``: what ``host_status`` answered, by host; ``gateways``: what ``gateway_info`` answered, by gateway. Either
    may be the result of a task that failed or did not reach the host. ``inventory``: all hosts that may be behind one.
    """
    running = {name: gateways[name] for name in sorted(gateways, key=natural) if gateways[name].get("running")}
    told = [host_status(name, hosts[name] or {}, running, bool(gateways)) for name in sorted(hosts, key=natural)]
    instances = [instance for host in told for instance in host["instances"]]
    releases = _releases(told)
    return {
        "taken_at": taken_at,
        "summary": {
            "hosts": len(told),
            "verdicts": {
                verdict: number for verdict in VERDICTS if (number := sum(host["verdict"] == verdict for host in told))
            },
            "instances": len(instances),
            "in_rotation": sum(instance["in_rotation"] for instance in instances),
            "in_flight": sum(instance["load"] for instance in instances),
            "releases": len(releases),
            "gateways": len(gateways),
            "gateways_running": len(running),
        },
        "releases": releases,
        "hosts": told,
        "gateways": [_gateway(name, gateways[name], inventory) for name in sorted(gateways, key=natural)],
    }


def host_status(name: str, answer: Tree, gateways: Mapping[str, Tree], behind: bool) -> dict[str, Any]:
    """One host: its verdict and the reasons, and what they are made of.

    ``gateways`` are those that run, ``behind`` is whether there should be any.
    """
    looked = "instances" in answer
    release = answer.get("release")
    instances = [_instance(name, one, answer, gateways, behind) for one in answer.get("instances", [])]
    if not looked:
        # What the gateways know of it still counts.
        known = dict.fromkeys(one for gateway in gateways.values() for one in gateway["hosts"].get(name, {}))
        instances = [_instance(name, {"name": one}, {}, gateways, behind) for one in known]
    reasons = list(_reasons(name, answer, instances, gateways)) if looked else [_no_look(answer)]
    drift = list(answer.get("drift", []))
    return {
        "name": name,
        "verdict": _verdict(answer, instances, bool(reasons or drift)),
        "reasons": reasons,
        "drift": drift,
        "release": release,
        "age_seconds": _seconds(release and release["verified_at"], answer.get("time")),
        "instances": instances,
        "driver": answer.get("driver"),
        "gpus": list(answer.get("gpus", [])),
        "missing": list(answer.get("missing", [])),
    }


def _no_look(answer: Tree) -> str:
    words = " ".join(str(answer.get("msg") or "no answer").removeprefix("Task failed: ").split())[:300]
    return f"It could not be {'reached' if answer.get('unreachable') else 'looked at'}: {words}"


def _verdict(answer: Tree, instances: Sequence[Tree], troubled: bool) -> Verdict:
    if "instances" not in answer:
        return "unreachable"
    if not answer["release"] and not answer["units"]:
        return "nothing"
    if instances and all(one["rotation"] and all(at["drained"] for at in one["rotation"]) for one in instances):
        return "drained"
    # Of what was never verified nobody knows the instances.
    serving = [one["serves"] for one in instances] or [unit["active"] == "active" for unit in answer["units"]]
    if not any(serving):
        return "down"
    return "degraded" if troubled else "ok"


def _instance(host: str, one: Tree, answer: Tree, gateways: Mapping[str, Tree], behind: bool) -> dict[str, Any]:
    """An instance as its host and the gateways see it."""
    unit: Tree = next((unit for unit in answer.get("units", []) if unit["name"] == one.get("unit")), {})
    release = answer.get("release") or {}
    rotation = [
        {"gateway": name, **{key: known[key] for key in ("up", "drained", "state", "in_flight")}}
        for name, gateway in gateways.items()
        if (known := gateway["hosts"].get(host, {}).get(one["name"]))
    ]
    model = release.get("served_model")
    serves = (
        unit.get("active") in RUNS
        and unit["release"] == release.get("name")
        and one["healthy"]
        and (not model or model in one["models"])
    )
    expected = [name for name, gateway in gateways.items() if _for_model(gateway, model)]
    everywhere = 0 < len(rotation) >= len(expected) and in_service(rotation) == len(rotation)
    return {
        "name": one["name"],
        "port": one.get("port"),
        "gpus": one.get("gpus", []),
        "image": one.get("image"),
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
        "serves": serves,
        "rotation": rotation,
        "in_rotation": everywhere if behind else serves,
        # The host counts the gateways' own checks and whoever else is connected.
        "load": sum(at["in_flight"] for at in rotation) if rotation else one.get("connections", 0),
        "connections": one.get("connections"),
    }


def _for_model(gateway: Tree, model: str | None) -> bool:
    """Whether a gateway is for a model: it is for one only, and without hosts for any."""
    return not model or gateway["model"] in ("", model)


def _reasons(name: str, answer: Tree, instances: Sequence[Tree], gateways: Mapping[str, Tree]) -> Iterator[str]:
    """Why a host is not as it should be, in sentences; what drifted is told apart."""
    release, units = answer["release"], answer["units"]
    if not release:
        if units:
            yield NEVER_VERIFIED
    elif not instances:
        yield NO_INSTANCE
    for one in instances:
        yield from _instance_reasons(one, answer["time"], (release or {}).get("served_model"))
    if release:
        yield from _rotation_reasons(name, instances, release.get("served_model"), gateways)
    yield from _gpu_reasons(answer)
    for problem in answer["problems"]:
        yield f"A look failed: {problem}."


def _instance_reasons(one: Tree, now: str, model: str | None) -> Iterator[str]:
    seconds = _seconds(one["since"], now)
    since = "" if seconds is None else f" for {age(seconds)}"
    if one["start_limit_reached"]:
        yield f"{one['name']} ended as often as its start limit allows, and systemd has given it up{since}."
    elif one["active"] not in RUNS:
        yield f"{one['name']} does not run: its unit is {one['active'] or 'gone'}{since}."
    elif not one["healthy"]:
        yield f"{one['name']} runs{since} and does not serve: {one['answer']}."
    elif model and model not in one["models"]:
        yield f"{one['name']} serves {', '.join(one['models']) or 'no model'} and not {model}."
    if one["last_log_line"]:
        yield f"The last that {one['name']} said: {one['last_log_line'].rstrip('.')}."
    healed = one["healed"]
    ago = _seconds(healed["at"], now) if healed else None
    if healed and ago is not None and ago < HEALED:
        times = _times(healed["times"])
        yield f"{one['name']} was killed {times} for not answering, the last time {age(ago)} ago: {healed['reason']}."
    if one["restarts"] and not one["start_limit_reached"] and seconds is not None and seconds < RECENT:
        yield f"{one['name']} was restarted {_times(one['restarts'])} by systemd, the last time {age(seconds)} ago."


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _rotation_reasons(
    name: str, instances: Sequence[Tree], model: str | None, gateways: Mapping[str, Tree]
) -> Iterator[str]:
    for one in instances:
        drained = [at["gateway"] for at in one["rotation"] if at["drained"]]
        if drained:
            yield f"{one['name']} is drained, so it gets nothing new, at {', '.join(drained)}."
    for gateway, answer in gateways.items():
        known = answer["hosts"].get(name, {})
        if not known:
            if _for_model(answer, model):
                yield f"Gateway {gateway} does not know it, so it sends it nothing."
            continue
        for one in instances:
            at = known.get(one["name"])
            if at is None:
                yield f"Gateway {gateway} does not know {one['name']}."
            elif not at["up"] and not at["drained"]:
                yield f"Gateway {gateway} sends nothing to {one['name']}, which {at['state']}."


def _gpu_reasons(answer: Tree) -> Iterator[str]:
    driver = answer["driver"]
    if driver["message"] and all(driver["message"] != one["sentence"] for one in answer["drift"]):
        yield f"The driver is {driver['state']}: {driver['message']}."
    if answer["missing"]:
        yield f"These GPUs do not work: {', '.join(answer['missing'])}."
    if answer["fabric"] not in (None, "Completed"):
        yield f"The NVLink fabric is not ready: {answer['fabric']}."
    for gpu in answer["gpus"]:
        if gpu["recovery_action"]:
            yield f"GPU {gpu['index']} does not work as it is: the driver asks for {gpu['recovery_action']}."
        if gpu["ecc_uncorrected"]:
            yield f"GPU {gpu['index']} had {gpu['ecc_uncorrected']} memory errors that were not corrected."


def _releases(hosts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is in use, the one with most hosts first. Each host gets the number of its own, ``group``."""
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


def _gateway(name: str, answer: Tree, inventory: Sequence[str]) -> dict[str, Any]:
    state = "running" if answer.get("running") else "not running" if "running" in answer else "unreachable"
    hosts: Mapping[str, Mapping[str, Tree]] = answer.get("hosts", {})
    instances = [one for host in hosts.values() for one in host.values()]
    traffic = merge_traffic([one["traffic"] for one in instances if one.get("traffic")])
    return {
        "name": name,
        "state": state,
        "message": _no_look(answer) if state == "unreachable" else "",
        "model": answer.get("model", ""),
        "hosts": len(hosts),
        "instances": len(instances),
        "in_rotation": in_service(instances),
        "drained": sum(one["drained"] for one in instances),
        "in_flight": sum(one["in_flight"] for one in instances),
        "traffic": traffic,
        "strangers": sorted(set(hosts) - set(inventory), key=natural),
    }


def _seconds(since: str | None, now: str | None) -> int | None:
    """Seconds between two moments of one host's clock."""
    if not since or not now:
        return None
    return max(0, round((datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()))


def age(seconds: float | None) -> str:
    """A time for a person."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def short(value: str | None) -> str:
    """The beginning of a digest or a revision."""
    return (value or "-").rpartition(":")[2][:SHORT]


def number(count: int, what: str) -> str:
    """``1 host``, ``2 hosts``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def headline(summary: Tree) -> str:
    """The fleet in one line."""
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in reversed(summary["verdicts"].items()))
    gateways = f", {summary['gateways_running']} of {number(summary['gateways'], 'gateway')}"
    return (
        f"{number(summary['hosts'], 'host')}: {verdicts}. {summary['in_rotation']:,} of "
        f"{number(summary['instances'], 'instance')} in rotation, {number(summary['in_flight'], 'request')} in flight, "
        f"{number(summary['releases'], 'release')}{gateways if summary['gateways'] else ', no gateway'}"
    )


def render(status: Tree) -> str:
    """The status for a terminal."""
    by_name = {host["name"]: host for host in status["hosts"]}
    groups = [(release, [by_name[name] for name in release["hosts"]]) for release in status["releases"]]
    others = [host for host in status["hosts"] if not host["release"]]
    lines = [headline(status["summary"])]
    brief = len(by_name) > ROWS
    for release, hosts in groups:
        lines += ["", *_release_lines(release), *_table(_host_rows(hosts, brief), hosts)]
    if others:
        lines += ["", "without a verified release, or not looked at", *_table(_host_rows(others, brief), others)]
    if status["gateways"]:
        lines += ["", *_gateway_lines(status["gateways"])]
    return "\n".join(lines)


def _release_lines(release: Tree) -> Iterator[str]:
    hosts, names = number(len(release["hosts"]), "host"), ", ".join(release["names"])
    yield from _wrap(f"{release['recipe']} on {hosts}: release {names}", "", "  ")
    image = f"{release['image']} ({short(release['digest'])})"
    yield from _wrap(f"{release['model']} at {short(release['revision'])}, {image}", "  ", "  ")
    if release["overrides"]:
        values = ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(release["overrides"].items()))
        yield from _wrap(f"set here: {values}", "  ", "  ")


def _host_rows(hosts: Sequence[Tree], brief: bool) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [COLUMNS]
    for host in hosts:
        if brief and host["verdict"] == "ok":
            continue
        release, instances, gpus = host["release"], host["instances"], host["gpus"]
        total = sum(gpu["memory_total_mib"] or 0 for gpu in gpus)
        used = sum(gpu["memory_used_mib"] or 0 for gpu in gpus)
        looked = host["driver"] is not None
        count = len(instances)
        rows.append(
            (
                host["name"],
                host["verdict"],
                f"#{release['number']} {release['name']}" if release else "-",
                age(host["age_seconds"]),
                f"{sum(one['serves'] for one in instances)}/{count}" if looked else "-",
                f"{sum(one['in_rotation'] for one in instances)}/{count}",
                str(sum(one["load"] for one in instances)),
                str(sum(one["restarts"] for one in instances)) if looked else "-",
                (host["driver"]["version"] or host["driver"]["state"]) if looked else "-",
                f"{len(gpus)}" if looked else "-",
                f"{round(100 * used / total)} %" if total else "-",
                _told([gpu["utilisation_percent"] for gpu in gpus], lambda seen: sum(seen) // len(seen), "%"),
                _told([gpu["temperature"] for gpu in gpus], max, "C"),
            )
        )
    return rows


def _told(values: Sequence[int | None], made: Callable[[list[int]], int], unit: str) -> str:
    seen = [value for value in values if value is not None]
    return f"{made(seen)} {unit}" if seen else "-"


def _table(rows: Sequence[tuple[str, ...]], hosts: Sequence[Tree]) -> Iterator[str]:
    """The rows, each with the reasons of its host below."""
    by_name = {host["name"]: host for host in hosts}
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    for row in rows if len(rows) > 1 else []:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        host = by_name.get(row[0], {})
        for sentence in host.get("reasons", []):
            yield from _wrap(sentence, "    - ", "      ")
        for found in host.get("drift", []):
            yield from _wrap(f"drift: {found['sentence']}", "    - ", "      ")
    rest = [name for name in by_name if name not in {row[0] for row in rows[1:]}]
    if rest:
        yield from _wrap(f"ok: {shorten(rest)}", "  ", "    ")


def _gateway_lines(gateways: Sequence[Tree]) -> Iterator[str]:
    rows = [("gateway", "state", "in rotation", "drained", "in flight", "last minute", "failed", "first byte, p95")]
    for gateway in gateways:
        traffic = gateway["traffic"]
        slow = traffic["first_byte_ms_p95"]
        rows.append(
            (
                gateway["name"],
                gateway["state"],
                f"{gateway['in_rotation']}/{gateway['instances']}",
                str(gateway["drained"]),
                str(gateway["in_flight"]),
                number(traffic["requests"], "request"),
                str(traffic["failed"]),
                "-" if slow is None else f"{slow:,.0f} ms",
            )
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    by_name = {gateway["name"]: gateway for gateway in gateways}
    for place, row in enumerate(rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        gateway = by_name[row[0]] if place else {}
        if gateway.get("message"):
            yield from _wrap(gateway["message"], "  - ", "    ")
        if gateway.get("strangers"):
            yield from _wrap(f"Behind it and not in the inventory: {shorten(gateway['strangers'])}.", "  - ", "    ")


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
