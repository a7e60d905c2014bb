# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exchange over HTTP which files each host has, and their torrents."""

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

from .plan import SharePlan

INDEX = "/index.json"
INDEX_LIMIT = 4 * 1024 * 1024
ASK_TIMEOUT = 3.0
ASK_ERRORS = (OSError, http.client.HTTPException, ValueError)
LONGEST_INTERVAL = 60.0
HOLDERS, NEIGHBOURS = 8, 24  # connections of a receiving host: to hosts with the complete file, and in total


class ShareError(Exception):
    """Sharing is not possible; the message gives the cause and the variable to change."""


@dataclass(frozen=True)
class Index:
    """Names of the files that a host has: complete, and in part. ``hub``: it is downloading from the hub."""

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
        """Parse the index of another host, limited to these names. Raises ValueError."""
        try:
            document = json.loads(body)
            whole, loading = (frozenset(document[key]).intersection(names) for key in ("files", "loading"))
            return cls(whole, loading, int(document["done_bytes"]), bool(document["hub"]))
        except (TypeError, KeyError, RecursionError, OverflowError) as error:
            raise ValueError(f"not an index: {error!r}") from error


@dataclass
class Peer:
    """Another host. ``index``: its last one, None while it does not answer; ``due``: time of the next query."""

    address: str
    index: Index | None = None
    asked: bool = False
    busy: bool = False
    failures: int = 0
    due: float = 0

    def helps(self, missing: Collection[str]) -> bool:
        return self.index is not None and not self.index.whole.isdisjoint(missing)


def query_interval(fleet: int, missing: int, helping: int, hub: bool, helps: bool) -> float:
    """Return the seconds until the next query of a host.

    ``missing`` is the number of files that this host lacks, ``helping`` that of hosts which have some of them. A host
    that downloads from the hub is queried most often, yet by all hosts together a few dozen times a second at most.
    This host queries about eight others a second that help, and about ten that do not. One that has everything
    queries each once a minute.
    """
    if not missing:
        return LONGEST_INTERVAL
    often = max(0.5, fleet / 50)
    if hub:
        return often
    return max(often, helping / 8) if helps else max(2.0, fleet / 10)


def retry_interval(failures: int) -> float:
    """Return the seconds until the next query of a host that does not answer."""
    return min(2.0 ** min(failures - 1, 10), LONGEST_INTERVAL)


def neighbours(holders: Iterable[str], others: Iterable[str], chance: random.Random) -> list[str]:
    """Choose the hosts to connect to for a file: some that have it completely, and some others."""
    holders, others = list(holders), list(others)
    chosen = chance.sample(holders, min(HOLDERS, len(holders)))
    return chosen + chance.sample(others, min(NEIGHBOURS - len(chosen), len(others)))


def ask(share: SharePlan, address: str, path: str, limit: int) -> bytes:
    """Query another host. Raises OSError, HTTPException and ValueError."""
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


class IndexServer(socketserver.ThreadingTCPServer):
    """HTTP server of the index and the torrents, for the hosts of the plan only."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, share: SharePlan) -> None:
        self.address_family = socket.AF_INET6 if ":" in share.address else socket.AF_INET
        self.peers = frozenset(share.peers)
        self.pages: Mapping[str, bytes] = {}
        try:
            super().__init__((share.address, share.port + 1), IndexRequest)
        except OSError as error:
            raise ShareError(cannot_listen(share, share.port + 1, str(error))) from error

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Close the connections of other hosts."""
        return client_address[0] in self.peers

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a peer that closes the connection early."""


class IndexRequest(BaseHTTPRequestHandler):
    """A request to IndexServer."""

    server: IndexServer
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


def cannot_listen(share: SharePlan, port: int, cause: str) -> str:
    return (
        f"Cannot listen on {share.address} port {port} ({cause}): set model_weights_share_port to a port that is free, "
        "as is the one behind it, and model_weights_share_interface to an interface of this host."
    )
