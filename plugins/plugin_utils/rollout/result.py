# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of a rollout or rollback: one JSON document that grows with the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from ansible_collections.trtllm.fleet.plugins.plugin_utils.documents import identified

# unchanged: runs its release already. updating: the run is at this host, or was interrupted there. failed: serves
# neither of its releases for certain.
HostState = Literal["unchanged", "not_started", "updating", "updated", "rolled_back", "failed"]
GOOD: tuple[HostState, ...] = ("unchanged", "updated")
Result = Mapping[str, Any]


def message(result: Result) -> str:
    """Return the message of a failed task; of a loop, that of the first item that failed."""
    items = [item for item in result.get("results") or () if item.get("failed")]
    return str((items[0] if items else result).get("msg") or result.get("msg") or "no message")


class RolloutResult:
    """The result of a run of playbook ``rollout`` or ``rollback``. ``started``: its start in ISO 8601."""

    def __init__(self, playbook: str, started: str) -> None:
        self._failures: dict[str, dict[str, str]] = {}
        self._planned = False
        self.document = identified(
            "rollout",
            {
                "playbook": playbook,
                "state": "running",
                "started": started,
                "ended": None,
                "rollout": None,
                "steps": [],
                "canaries": [],
                "hosts": [],
                "problems": [],
            },
        )

    def name(self, rollout: str) -> None:
        """Set the name of the rollout, which a run that continues it has, too."""
        self.document["rollout"] = rollout

    def plan(self, plan: Result) -> None:
        """Set steps and hosts from the result of module rollout_plan."""
        self._planned = True
        places = {name: place for place, step in enumerate(plan["steps"], 1) for name in step}
        self.document.update(
            steps=plan["steps"],
            canaries=plan["canaries"],
            hosts=[
                {
                    "name": name,
                    "step": places.get(name),
                    **releases,
                    "state": "not_started" if name in places else "unchanged",
                }
                for name, releases in plan["releases"].items()
            ],
        )

    def set_state(self, host: str, state: HostState) -> None:
        """Set the state of a host of the plan."""
        for one in self.document["hosts"]:
            if one["name"] == host:
                one["state"] = state

    def add_failure(self, host: str, task: str, result: Result) -> None:
        """Add a failed task, or one that did not reach the host. A block may still rescue the host."""
        self._failures[host] = {"host": host, "task": task, "message": message(result)}

    def end(self, ended: str, failed: Collection[str]) -> None:
        """End the document. ``failed``: the hosts that failed, or became unreachable, and were not rescued."""
        problems = [failure for host, failure in self._failures.items() if host in failed]
        good = self._planned and not failed and all(host["state"] in GOOD for host in self.document["hosts"])
        self.document.update(state="complete" if good else "failed", ended=ended, problems=problems)
