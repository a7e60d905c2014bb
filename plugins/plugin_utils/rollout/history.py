# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select the releases that a rollback restores, from the histories of the hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def newest_rollout(histories: Iterable[Sequence[Mapping[str, Any]]]) -> str:
    """Return the name of the rollout that last updated a host or was undone there; empty if none did.

    A rollout is named after its start time, so names sort by time.
    """
    return max((entry.get("rollout") or "" for history in histories for entry in history), default="")


def rollback_release(history: Sequence[Mapping[str, Any]], verified: str, rollout: str) -> str:
    """Return the release to which a host rolls back; empty if it has none.

    It is the newest kept release from before ``rollout``. A host that the rollout did not update, or that has rolled
    back already, keeps its release, so that an interrupted rollback can run again.

    history: entries of module ``host_release_info``, oldest first; an entry with ``back`` has the rollout that it
    undid. verified: the release verified last.
    """
    last = history[-1] if history else {}
    if last.get("release") == verified and (last.get("back") or (last.get("rollout") or "") != rollout):
        return verified
    names = [entry.get("rollout") for entry in history]
    if rollout and rollout in names:
        before = [entry["release"] for entry in history[: names.index(rollout)] if entry["kept"]]
    else:
        before = [entry["release"] for entry in history if entry["kept"] and entry["release"] != verified]
    return str(before[-1]) if before else ""
