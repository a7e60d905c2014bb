# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/reference/faults.md from the fault catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import LAYERS, PLACEHOLDER
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.fault_rows import fault_rows
from tools.markdown import table

HEAD = """# Fault catalogue

<!-- Written by `make docs` from playbooks/vars/faults. -->

The faults that [the doctor](../how-to/doctor.md) finds. *Seen* are the signals of `host_signals_info` and
their conditions. *Remedy* is the cheapest step that helps; if the driver asks for another recovery
action, that one comes first. A host with a fault marked † should get no request.
"""
COLUMNS = ("Fault", "Severity", "Seen", "Cause", "What to do", "Remedy", "Source")
TITLES = {"gpu": "GPU", "run": "Run", "dynamo": "Dynamo"}


def page() -> str:
    """Return the page: a table for each layer, in the order of causes."""
    rows = sorted(fault_rows(), key=lambda row: LAYERS.index(row["layer"]))
    sections = [HEAD]
    for layer, found in groupby(rows, key=lambda row: row["layer"]):
        title = TITLES.get(layer, layer.replace("_", " ").capitalize())
        sections.append(f"## {title}\n\n{table(COLUMNS, map(_cells, found))}")
    return "\n".join(sections)


def _cells(row: Mapping[str, Any]) -> list[str]:
    name = f"`{row['id']}`{' †' if row.get('out_of_service') else ''}"
    remedy = str(row["remedy"]).replace("_", " ")
    texts = [PLACEHOLDER.sub(r"*\1*", row[key]) for key in ("cause", "cure")]
    seen = "; ".join(map(_seen, row["seen"]))
    return [f"{name} {row['title']}", row["severity"], seen, *texts, remedy, row["source"]]


def _seen(condition: Mapping[str, Any]) -> str:
    parts = [f"{key} {_wanted(wanted)}" for key, wanted in condition.items() if key != "signal"]
    return f"`{condition['signal']}`{': ' if parts else ''}{', '.join(parts)}"


def _wanted(wanted: Any) -> str:
    if isinstance(wanted, Mapping):
        words = {"min": "at least", "max": "at most", "matches": "like", "not": "not"}
        return " and ".join(f"{words[key]} {_wanted(value)}" for key, value in wanted.items())
    if isinstance(wanted, list):
        return " or ".join(map(str, wanted))
    return f"`{wanted}`" if isinstance(wanted, str) else str(wanted).lower()
