# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan file, which configures the weights programs, and each host's share of the download."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import RemoteFile

Part = TypeVar("Part")


class PlanError(Exception):
    """The plan file is not usable; the message gives the cause."""


@dataclass(frozen=True)
class HubAccess:
    """Hub and access to it. The token file may be missing. An empty string means none, for ``url`` too."""

    url: str
    token_file: str
    ca_file: str
    proxy: str
    no_proxy: str


@dataclass(frozen=True)
class SharePlan:
    """Peer-to-peer transfer between the hosts of the fleet.

    ``address`` and ``port``: where this host listens; the index is on the next port. ``peers``: the addresses of the
    fleet, including this host's. ``seeds``: number of hosts that download from the hub, each its own part. ``rank``:
    position of this host among those that lacked files, -1 if it lacked none. ``fallback``: seconds without a byte
    gained in the fleet until another host downloads from the hub. Rates are bytes per second, 0 for no limit.
    """

    address: str
    port: int
    peers: list[str]
    seeds: int
    rank: int
    fallback: int
    max_upload_rate: int
    max_download_rate: int


@dataclass(frozen=True)
class DownloadPlan:
    """Snapshot directory, which contains its manifest, and the settings of its download.

    ``client``: virtual environment of the hub's client. ``workers``: files that it downloads at once.
    ``stall_timeout``: seconds without a byte until it is killed. ``attempts``: runs without progress until the
    download fails. ``max_rate``: bytes per second from the hub, 0 for no limit.
    """

    path: str
    hub: HubAccess
    client: str
    workers: int
    stall_timeout: int
    attempts: int
    max_rate: int
    share: SharePlan | None


def read_plan(path: str) -> DownloadPlan:
    """Read a plan file. Raises PlanError."""
    try:
        with open(path, encoding="utf-8") as source:
            return parse_plan(json.load(source))
    except (OSError, ValueError) as error:
        raise PlanError(f"Cannot read the plan {path}: {error}.") from error
    except PlanError as error:
        raise PlanError(f"The plan {path} is unusable: {error}.") from error


def parse_plan(document: Any) -> DownloadPlan:
    """Parse a JSON document. Raises PlanError."""
    if isinstance(document, dict):
        document = dict(document)
        if "hub" in document:
            document["hub"] = _build(HubAccess, document["hub"], "hub.")
        if document.get("share") is not None:
            document["share"] = _build(SharePlan, document["share"], "share.")
    return _build(DownloadPlan, document, "")


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "list[str]": (list,),
    "HubAccess": (HubAccess,),
    "SharePlan | None": (SharePlan, type(None)),
}


def _build(part: type[Part], document: Any, prefix: str) -> Part:
    """Build a dataclass from a JSON object with exactly its fields. Raises PlanError."""
    if not isinstance(document, dict):
        raise PlanError(f"{prefix.rstrip('.') or 'it'} is not an object")
    types = {field.name: field.type for field in dataclasses.fields(part)}  # type: ignore[arg-type]
    for name in sorted(types.keys() - document.keys()):
        raise PlanError(f"{prefix}{name} is missing")
    for name in sorted(document.keys() - types.keys()):
        raise PlanError(f"{prefix}{name} means nothing here")
    for name, value in document.items():
        if not isinstance(value, _TYPES[str(types[name])]) or isinstance(value, bool):
            raise PlanError(f"{prefix}{name} cannot be {value!r}")
    return part(**document)


def own_part(files: Sequence[RemoteFile], share: SharePlan | None) -> list[RemoteFile]:
    """Return the files that this host downloads even if others have them: all, its part as a seed, or none."""
    if share is None:
        return list(files)
    if not 0 <= share.rank < share.seeds:
        return []
    return sorted(files, key=lambda file: (-file.size, file.path))[share.rank :: share.seeds]


def peer_timeout(share: SharePlan, alone: bool) -> float:
    """Return the seconds without a byte gained in the fleet until this host downloads from the hub.

    One host starts first, then twice as many each time. A fleet whose seed has died thus gets one new seed, and one
    that lost half its hosts does not wait for each of these. A host that no other answers (``alone``) does not wait
    for the hosts before it.
    """
    behind = 0 if alone else max(0, share.rank - share.seeds + 1)
    return share.fallback * (1 + behind.bit_length())
