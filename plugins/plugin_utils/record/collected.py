# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tasks of this run own, by host: filled by the callback, read by action host_record.

Ansible forks a process for each task, so the action sees what the callback of the main process has collected.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.collection import collection_checksum
from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.inputs import only_facts
from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.owned import OWNED, owned


class Collected:
    """The results of a run. ``collection`` and ``identifier`` are empty until the run starts."""

    def __init__(self) -> None:
        self.collection = ""
        self.identifier = ""
        self._owned: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._unknown: set[str] = set()

    def start(self) -> None:
        """Begin a run, and compute what the processes of the tasks share."""
        self.collection = collection_checksum()
        self.identifier = secrets.token_hex(8)
        only_facts()

    def add(self, host: str, action: str, result: Mapping[str, Any]) -> None:
        """Add the result of a task of this collection that did not fail."""
        if action not in OWNED:
            self._unknown.add(action)
            return
        for kind, name in owned(action, result):
            self._owned[host][kind].add(name)

    def owned(self, host: str) -> dict[str, list[str]]:
        """Return the names of what the run owns on a host, by kind."""
        return {kind: sorted(names) for kind, names in self._owned[host].items()}

    def problem(self) -> str:
        """Return why the results are not complete; empty if they are."""
        return f"it is not known what tasks of {', '.join(sorted(self._unknown))} own" if self._unknown else ""


RUN = Collected()
