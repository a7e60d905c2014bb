# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The doctor's report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import shorten
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status_text import wrap

SHOWN = 3  # of one fault; the JSON file has all
LABEL = 10

Tree = Mapping[str, Any]


def render(report: Tree) -> str:
    """Return the report: the first answer, then the others, then what follows from them."""
    causes = [one for one in report["faults"] if not one["consequence_of"]]
    effects = [one for one in report["faults"] if one["consequence_of"]]
    lines = [headline(report)]
    for number, fault in enumerate(causes, start=1):
        lines += ["", *_fault_lines(number, fault)]
    if effects:
        lines += ["", "These follow from faults above:"]
        lines += [line for fault in effects for line in _effect_lines(fault)]
    return "\n".join(lines)


def headline(report: Tree) -> str:
    """Return the numbers of faults in one line."""
    hosts = f"{report['hosts']} host{'' if report['hosts'] == 1 else 's'} examined"
    counts = ", ".join(f"{number} {name}" for name, number in report["counts"].items() if number)
    return f"{hosts}: {counts or 'no fault'}."


def _fault_lines(number: int, fault: Tree) -> Iterator[str]:
    yield from wrap(f"{number}. {fault['title']} ({fault['severity']}) on {shorten(fault['hosts'])}", "", "   ")
    yield from _labelled("cause", fault["cause"])
    for one in fault["evidence"][:SHOWN]:
        yield from _labelled("seen", f"{one['host']}: {one['evidence']}")
    if len(fault["evidence"]) > SHOWN:
        yield from _labelled("", f"and {len(fault['evidence']) - SHOWN} more")
    yield from _labelled("do", fault["cure"])
    if fault["remedy"] not in ("none", "human"):
        yield from _labelled("remedy", fault["remedy"].replace("_", " "))
    yield from _labelled("fault", f"{fault['fault']} ({fault['source']})")


def _effect_lines(fault: Tree) -> list[str]:
    causes, shown = ", ".join(fault["consequence_of"]), fault["evidence"][0]
    text = f"{fault['title']} on {shorten(fault['hosts'])}, from {causes}: {shown['evidence']}"
    return wrap(text, "  - ", "    ")


def _labelled(label: str, text: str) -> list[str]:
    return wrap(text, f"   {label}".ljust(LABEL), " " * LABEL)
