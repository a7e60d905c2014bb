# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the weights programs of a host are to do (the plan file), and what they tell of it (the status files)."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

RUN_DIR = "/run/trtllm-fleet"
FETCH_STATUS = "weights.json"
SHARE_STATUS = "weights-share.json"
FRESH = 10.0  # seconds; an older status tells of a program that has ended

Part = TypeVar("Part")


class PlanError(Exception):
    """The plan file cannot be used; the message says why."""


@dataclass(frozen=True)
class HubAccess:
    """Where the files are, and the way there. The token file may be missing. Empty strings: none, ``url`` too."""

    url: str
    token_file: str
    ca_file: str
    proxy: str
    no_proxy: str


@dataclass(frozen=True)
class Share:
    """How the fleet's hosts hand files on to each other.

    ``address`` and ``port``: where this host listens; the index is on the port behind it. ``peers``: the fleet's
    addresses, the own one too. ``seeds``: how many hosts go to the hub at once, each for its part. ``rank``: this
    host's place among those that lacked files, -1 if it lacked none. ``fallback``: seconds without a byte gained in
    the fleet until the next host goes to the hub. Rates are bytes per second, 0 for no cap.
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
class Plan:
    """The snapshot directory, which has its manifest in it, and how to complete it.

    ``client``: virtual environment of the hub's client. ``workers``: files that it loads at once. ``stall_timeout``:
    seconds without a byte until it is killed. ``attempts``: runs of it without progress before giving up.
    ``max_rate``: bytes per second from the hub, 0 for no cap.
    """

    path: str
    hub: HubAccess
    client: str
    workers: int
    stall_timeout: int
    attempts: int
    max_rate: int
    share: Share | None


def read_plan(path: str) -> Plan:
    """The plan in a file. Raises PlanError."""
    try:
        with open(path, encoding="utf-8") as source:
            return parse_plan(json.load(source))
    except (OSError, ValueError) as error:
        raise PlanError(f"Cannot read the plan {path}: {error}.") from error
    except PlanError as error:
        raise PlanError(f"The plan {path} is unusable: {error}.") from error


def parse_plan(document: Any) -> Plan:
    """The plan that a JSON document holds. Raises PlanError."""
    if isinstance(document, dict):
        document = dict(document)
        if "hub" in document:
            document["hub"] = _build(HubAccess, document["hub"], "hub.")
        if document.get("share") is not None:
            document["share"] = _build(Share, document["share"], "share.")
    return _build(Plan, document, "")


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "list[str]": (list,),
    "HubAccess": (HubAccess,),
    "Share | None": (Share, type(None)),
}


def _build(part: type[Part], document: Any, prefix: str) -> Part:
    """A dataclass from a JSON object that has exactly its fields. Raises PlanError."""
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


@dataclass
class FetchStatus:
    """How far the snapshot is. ``hub_bytes``: what came from the hub in this run; ``rate``: bytes per second."""

    state: str = "waiting"
    message: str = ""
    total_bytes: int = 0
    done_bytes: int = 0
    files: int = 0
    files_done: int = 0
    rate: int = 0
    seconds_left: int | None = None
    hub_bytes: int = 0


def write_status(path: str, status: Mapping[str, Any]) -> None:
    """Replace a status file in one step, with the time in it. Raises OSError.

    It is time.monotonic(), which all processes of a boot share, and which nobody sets; the file goes with the boot.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as target:
        json.dump({**status, "updated": time.monotonic()}, target)
    os.replace(path + ".new", path)


def read_status(path: str) -> dict[str, Any]:
    """What a program that runs says in its status file; empty when there is none."""
    try:
        with open(path, encoding="utf-8") as source:
            document = dict(json.load(source))
    except (OSError, ValueError, TypeError):
        return {}
    return document if time.monotonic() - document.get("updated", -FRESH) <= FRESH else {}
