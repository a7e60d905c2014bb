# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts that share a snapshot tell each other over HTTP: which files they have, and the torrents of those."""

from __future__ import annotations

import http.client
import json
import random
import socket
import socketserver
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from .plan import Share

INDEX = "/index.json"
INDEX_LIMIT = 4 * 1024 * 1024
ASK_TIMEOUT = 3.0
ASK_ERRORS = (OSError, http.client.HTTPException, ValueError)
LONGEST_PAUSE = 60.0
HOLDERS, NEIGHBOURS = 8, 24  # connections that a loading host makes: to hosts with the whole file, and in all


class ShareError(Exception):
    """Sharing is not possible; the message says why, and names the variable to change."""


@dataclass(frozen=True)
class Index:
    """What a host has, by name: whole, or some of it. ``hub``: whether it is loading from the hub."""

    whole: frozenset[str]
    loading: frozenset[str]
    done_bytes: int
    hub: bool

    def as_json(self) -> bytes:
        document = {
            "files": sorted(self.whole),
            "loading": sorted(self.loading),
            "done_bytes": self.done_bytes,
            "hub": self.hub,
        }
        return json.dumps(document).encode()

    @classmethod
    def parse(cls, body: bytes, names: Collection[str]) -> Index:
        """What another host said, as far as it is about these names. Raises ValueError."""
        try:
            document = json.loads(body)
            whole, loading = (frozenset(document[key]).intersection(names) for key in ("files", "loading"))
            return cls(whole, loading, int(document["done_bytes"]), bool(document["hub"]))
        except (TypeError, KeyError, RecursionError, OverflowError) as error:
            raise ValueError(f"no index: {error!r}") from error


@dataclass
class Peer:
    """Another host. ``index`` is what it said last, none while it does not answer; ``due``: when to ask again."""

    address: str
    index: Index | None = None
    asked: bool = False
    busy: bool = False
    failures: int = 0
    due: float = 0

    def helps(self, missing: Collection[str]) -> bool:
        return self.index is not None and not self.index.whole.isdisjoint(missing)


def pause(fleet: int, missing: int, helping: int, hub: bool, helps: bool) -> float:
    """Seconds until a host is asked again; ``missing`` files are, and ``helping`` hosts have some of them.

    A host that loads from the hub is asked most often, yet a few dozen times a second at most by all together. Of the
    others that help some eight are asked each second, and of the rest some ten. Who has everything hardly asks.
    """
    if not missing:
        return LONGEST_PAUSE
    often = max(0.5, fleet / 50)
    if hub:
        return often
    return max(often, helping / 8) if helps else max(2.0, fleet / 10)


def retry_pause(failures: int) -> float:
    """Seconds until a host that does not answer is asked again."""
    return min(2.0 ** min(failures - 1, 10), LONGEST_PAUSE)


def neighbours(holders: Iterable[str], others: Iterable[str], chance: random.Random) -> list[str]:
    """The hosts to connect to for a file: some of those that have it whole, and some of the others."""
    holders, others = list(holders), list(others)
    chosen = chance.sample(holders, min(HOLDERS, len(holders)))
    return chosen + chance.sample(others, min(NEIGHBOURS - len(chosen), len(others)))


def ask(share: Share, address: str, path: str, limit: int) -> bytes:
    """What another host answers. Raises OSError, HTTPException and ValueError."""
    connection = http.client.HTTPConnection(
        address, share.port + 1, timeout=ASK_TIMEOUT, source_address=(share.address, 0)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(limit + 1)
    finally:
        connection.close()
    if answer.status != 200 or len(body) > limit:
        raise ValueError(f"status {answer.status}, {len(body)} bytes")
    return body


class Told(socketserver.ThreadingTCPServer):
    """The index and the torrents over HTTP, for the hosts of the plan only."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, share: Share) -> None:
        self.address_family = socket.AF_INET6 if ":" in share.address else socket.AF_INET
        self.peers = frozenset(share.peers)
        self.pages: Mapping[str, bytes] = {}
        try:
            super().__init__((share.address, share.port + 1), Page)
        except OSError as error:
            raise ShareError(cannot_listen(share, share.port + 1, str(error))) from error

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Others find the connection closed."""
        return client_address[0] in self.peers

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away in the middle of an answer is nobody's concern."""


class Page(BaseHTTPRequestHandler):
    """One request to Told."""

    server: Told
    timeout = 10

    def do_GET(self) -> None:
        body = self.server.pages.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def cannot_listen(share: Share, port: int, cause: str) -> str:
    return (
        f"Cannot listen on {share.address} port {port} ({cause}): set model_weights_share_port to a port that is free, "
        "as is the one behind it, and model_weights_share_interface to an interface of this host."
    )
