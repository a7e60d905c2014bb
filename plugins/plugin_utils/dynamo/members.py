# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of the members of etcd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import few

Tree = Mapping[str, Any]


def member_problem(before: Sequence[str], after: Sequence[str], lost: str) -> str:
    """Return why the members of etcd cannot change, or an empty text if they do not or can.

    ``before`` and ``after`` are NAME=URL, or NAME of a single member. One member may replace ``lost``, or an empty text
    if none is.
    """

    def without(members: Sequence[str], name: str) -> list[str]:
        return sorted(member for member in members if not name or member.partition("=")[0] != name)

    names = [{member.partition("=")[0] for member in members} for members in (before, after)]
    # Reinstalled, the lost one itself.
    new = min(names[1] - names[0], default=lost)
    members = f"etcd has the members {', '.join(before)}"
    if sorted(before) == sorted(after):
        return ""
    if lost and without(before, lost) == sorted(before):
        return f"dynamo_replaced_control_host is {lost}; {members}. Set it to the one that is lost."
    if lost and without(before, lost) == without(after, new):
        return ""
    return (
        f"dynamo_control_hosts: {members}; they cannot change to {', '.join(after)}. Restore dynamo_control_hosts, "
        "their addresses, dynamo_etcd_peer_port and dynamo_tls_*. To replace one of three that is lost for good, set "
        "dynamo_replaced_control_host to its name. Or first remove all components: run the playbook with every host "
        "in group dynamo alone. The components write all data of etcd again."
    )


def replacement_problems(deployment: Tree) -> Iterator[str]:
    """Yield why a lost control host cannot be replaced in this run."""
    lost, hosts, absent = deployment["replaced"], deployment["placement"]["control"], deployment["absent"]
    if lost and len(hosts) != 3:
        yield (
            f"dynamo_replaced_control_host is {lost}, and dynamo_control_hosts has {len(hosts)}; only one of three can "
            "be replaced. Unset dynamo_replaced_control_host."
        )
    elif lost and absent:
        yield (
            f"dynamo_replaced_control_host is {lost}, and {few(absent)} of dynamo_control_hosts not in this run; etcd "
            "changes its members only while the others run. Start them, and run the playbook without --limit."
        )
