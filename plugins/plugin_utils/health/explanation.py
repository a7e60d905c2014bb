# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explain the result of a failed task by the fault catalogue, without a look at the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import diagnose, fill
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.fault_rows import read_catalogue

TEXTS = ("msg", "stderr", "stdout", "module_stderr", "module_stdout", "exception")


def texts(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a result says, with the results of a loop that failed."""
    yield from (str(result[key]) for key in TEXTS if result.get(key))
    for one in result.get("results") or ():
        if isinstance(one, Mapping) and (one.get("failed") or one.get("unreachable")):
            yield from texts(one)


def explain(result: Mapping[str, Any], unreachable: bool) -> str:
    """Return cause and cure of a failure; empty if the catalogue does not have it."""
    message = "\n".join(texts(result))
    signals = [{"signal": "task", "message": message, "name": "", "evidence": ""}]
    if unreachable:
        signals = [{"signal": "connection", "kind": "unreachable", "message": message, "evidence": ""}]
    elif "sudo" in message or "ython" in message:
        signals.append({"signal": "connection", "kind": "task", "message": message, "evidence": ""})
    # The operator's rows change what hosts show, and not what Ansible prints.
    found = [one for one in diagnose("", signals, read_catalogue()) if not one.consequence_of]
    if not found:
        return ""
    fault = found[0].fault
    return f"{fill(fault.cause, signals[0])} {fill(fault.cure, signals[0])} ({fault.id})"
