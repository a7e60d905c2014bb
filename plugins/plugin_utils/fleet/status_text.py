# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status of a fleet as text for a terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.components import summary as component_summary
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import shorten

Tree = Mapping[str, Any]

ROWS = 30  # a fleet with more hosts has no row for each host that is ok
WIDTH = 120
SHORT = 12  # hexadecimal digits of a digest or a revision
COLUMNS = (
    "host",
    "verdict",
    "release",
    "age",
    "serves",
    "in service",
    "load",
    "restarts",
    "driver",
    "GPUs",
    "mem",
    "busy",
    "temp",
    "burn-in",
    "faults",
)

# Severities that a row has.
FAULTS = ("critical", "warning", "unknown")


def age(seconds: float | None) -> str:
    """Return a duration as text."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def short(value: str | None) -> str:
    """Return the beginning of a digest or a revision."""
    return (value or "-").rpartition(":")[2][:SHORT]


def number(count: int, what: str) -> str:
    """Return ``1 host`` or ``2 hosts``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def headline(summary: Tree) -> str:
    """Return the summary of the fleet in one line."""
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in reversed(summary["verdicts"].items()))
    components = (
        f"{summary['components_in_rotation']:,} of {number(summary['components'], 'component')} of Dynamo in service, "
        if summary["components"]
        else ""
    )
    gateways = f"{summary['gateways_running']} of {number(summary['gateways'], 'gateway')}"
    return (
        f"{number(summary['hosts'], 'host')}: {verdicts}. {summary['in_rotation']:,} of "
        f"{number(summary['instances'], 'instance')} in service, {components}"
        f"{number(summary['in_flight'], 'request')} in flight, {number(summary['releases'], 'release')}, "
        f"{gateways if summary['gateways'] else 'no gateway'}"
    )


def render(status: Tree) -> str:
    """Return the status for a terminal."""
    by_name = {host["name"]: host for host in status["hosts"]}
    groups = [(release, [by_name[name] for name in release["hosts"]]) for release in status["releases"]]
    dynamo = [host for host in status["hosts"] if not host["release"] and (host["components"] or host["drained_by"])]
    others = [host for host in status["hosts"] if not host["release"] and host not in dynamo]
    lines = [headline(status["summary"])]
    brief = len(by_name) > ROWS
    for release, hosts in groups:
        lines += ["", *_release_lines(release), *_table(_host_rows(hosts, brief), hosts)]
    if dynamo:
        lines += ["", "disaggregated serving", *_table(_host_rows(dynamo, brief), dynamo)]
    if others:
        lines += ["", "without a verified release, or unreachable", *_table(_host_rows(others, brief), others)]
    unrecorded = [host["name"] for host in status["hosts"] if host["release"] and not host["recorded"]]
    if unrecorded:
        sentence = (
            f"No drift is known of hosts without a record of a complete run: {shorten(unrecorded)}. Run site.yml."
        )
        lines += ["", *wrap(sentence, "", "  ")]
    if status["gateways"]:
        lines += ["", *_gateway_lines(status["gateways"])]
    if "monitoring" in status:
        lines += ["", *_monitoring_lines(status["monitoring"])]
    return "\n".join(lines)


def _release_lines(release: Tree) -> Iterator[str]:
    hosts, names = number(len(release["hosts"]), "host"), ", ".join(release["names"])
    yield from wrap(f"{release['recipe']} on {hosts}: release {names}", "", "  ")
    image = f"{release['image']} ({short(release['digest'])})"
    yield from wrap(f"{release['model']} at {short(release['revision'])}, {image}", "  ", "  ")
    if release["overrides"]:
        values = ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(release["overrides"].items()))
        yield from wrap(f"set here: {values}", "  ", "  ")


def _host_rows(hosts: Sequence[Tree], brief: bool) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [COLUMNS]
    for host in hosts:
        if brief and host["verdict"] == "ok":
            continue
        release, gpus = host["release"], host["gpus"]
        parts = [*host["instances"], *host["components"]]
        total = sum(gpu["memory_total_mib"] or 0 for gpu in gpus)
        used = sum(gpu["memory_used_mib"] or 0 for gpu in gpus)
        answered = host["driver"] is not None
        count = len(parts)
        rows.append(
            (
                host["name"],
                host["verdict"],
                f"#{release['number']} {release['name']}" if release else component_summary(host["components"]) or "-",
                age(host["age_seconds"]),
                f"{sum(one['serves'] for one in parts)}/{count}" if answered else "-",
                f"{sum(one['in_rotation'] for one in parts)}/{count}",
                str(sum(one["load"] for one in parts)),
                str(sum(one["restarts"] for one in parts)) if answered else "-",
                (host["driver"]["version"] or host["driver"]["state"]) if answered else "-",
                f"{len(gpus)}" if answered else "-",
                f"{round(100 * used / total)} %" if total else "-",
                _combined([gpu["utilisation_percent"] for gpu in gpus], lambda seen: sum(seen) // len(seen), "%"),
                _combined([gpu["temperature"] for gpu in gpus], max, "C"),
                _acceptance(host),
                _faults(host["health"]),
            )
        )
    return rows


def _acceptance(host: Tree) -> str:
    """Return the age of a valid burn-in; for another one its verdict, or that it is of other GPUs or another driver."""
    result = host["acceptance"]
    if not result:
        return "-"
    if result["valid"]:
        return age(host["accepted_seconds"])
    return "outdated" if result["verdict"] == "pass" else str(result["verdict"])


def _faults(health: Tree | None) -> str:
    """Return the number of open faults by severity, worst first; ``0`` without one."""
    if not health:
        return "-"
    counts = {name: sum(one["severity"] == name for one in health["faults"]) for name in FAULTS}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "0"


def _combined(values: Sequence[int | None], combine: Callable[[list[int]], int], unit: str) -> str:
    known = [value for value in values if value is not None]
    return f"{combine(known)} {unit}" if known else "-"


def _table(rows: Sequence[tuple[str, ...]], hosts: Sequence[Tree]) -> Iterator[str]:
    """Yield the rows, each followed by the reasons of its host."""
    by_name = {host["name"]: host for host in hosts}
    for row, line in zip(rows, aligned(rows), strict=True) if len(rows) > 1 else []:
        yield f"  {line}"
        host = by_name.get(row[0], {})
        for sentence in host.get("reasons", []):
            yield from wrap(sentence, "    - ", "      ")
        for found in host.get("drift", []):
            yield from wrap(f"drift: {found['sentence']}", "    - ", "      ")
    rest = [name for name in by_name if name not in {row[0] for row in rows[1:]}]
    if rest:
        yield from wrap(f"ok: {shorten(rest)}", "  ", "    ")


def _gateway_lines(gateways: Sequence[Tree]) -> Iterator[str]:
    rows = [("gateway", "state", "in service", "drained", "in flight", "last minute", "failed", "first byte, p95")]
    for gateway in gateways:
        rows.append((gateway["name"], gateway["state"], *_service(gateway)))
        if len(gateway["models"]) > 1:
            rows += [(f"  {model['name']}", "", *_service(model)) for model in gateway["models"]]
    by_name = {gateway["name"]: gateway for gateway in gateways}
    for place, line in enumerate(aligned(rows)):
        yield line
        gateway = by_name.get(rows[place][0], {}) if place else {}
        if gateway.get("message"):
            yield from wrap(gateway["message"], "  - ", "    ")
        if gateway.get("strangers"):
            yield from wrap(f"Registered, but not in the inventory: {shorten(gateway['strangers'])}.", "  - ", "    ")


def _service(sent: Tree) -> tuple[str, str, str, str, str, str]:
    traffic = sent["traffic"]
    slow = traffic["first_byte_ms_p95"]
    return (
        f"{sent['in_rotation']}/{sent['instances']}",
        str(sent["drained"]),
        str(sent["in_flight"]),
        number(traffic["requests"], "request"),
        str(traffic["failed"]),
        "-" if slow is None else f"{slow:,.0f} ms",
    )


def _monitoring_lines(monitoring: Tree) -> Iterator[str]:
    """Yield the state of the monitoring, and the firing alerts by name, the worst first."""
    parts = [f"monitoring {monitoring['host']}: {monitoring['state']}"]
    firing: dict[tuple[str, str, bool], list[Tree]] = {}
    for alert in monitoring["alerts"]:
        if alert["state"] == "firing":
            firing.setdefault((alert["severity"], alert["name"], alert["silenced"]), []).append(alert)
    if monitoring["version"]:
        jobs = monitoring["targets"].values()
        up, known = sum(job["up"] for job in jobs), sum(job["up"] + job["down"] + job["unknown"] for job in jobs)
        alerts = number(sum(map(len, firing.values())), "alert")
        parts += [f"Prometheus {monitoring['version']}", f"{up:,} of {number(known, 'target')} up", f"{alerts} firing"]
    yield from wrap(", ".join(parts), "", "  ")
    if monitoring["message"]:
        yield from wrap(monitoring["message"], "  - ", "    ")
    for (severity, name, silenced), same in firing.items():
        about = f"{severity} {name}".strip() + (" (silenced)" if silenced else "")
        times = f", {len(same)} times" if same[1:] else ""
        yield from wrap(f"{about}{times}, for {age(same[0]['seconds'])}: {same[0]['summary']}", "  - ", "    ")


def aligned(rows: Sequence[Sequence[str]], texts: int | None = None) -> list[str]:
    """Return the rows of a table as lines. Cells behind the first ``texts`` are numbers; by default none is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) if texts is None else texts
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def wrap(text: str, first: str, rest: str) -> list[str]:
    """Return the lines of a text for a terminal; ``first`` and ``rest`` begin the first line and the others."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
