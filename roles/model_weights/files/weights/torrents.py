# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the torrents of a snapshot's files, the same on all hosts, and run libtorrent 2.0."""

from __future__ import annotations

import hashlib
import importlib
import os
import select
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import RemoteFile

from .exchange import ShareError
from .plan import SharePlan

# Small pieces can be passed on sooner; many pieces make the metadata large. Hosts with other values make other
# torrents and cannot share with each other.
SMALLEST_PIECE = 256 * 1024
MOST_PIECES = 2048
CHECKSUM = 20  # bytes of a SHA-1

MOST_CONNECTIONS = 60  # for one file, in both directions
# All IPv4 and IPv6 addresses.
EVERYTHING = (("0.0.0.0", "255.255.255.255"), ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))

# Metadata is written and checked without libtorrent, as all hosts have to make the same bytes.


def name_of(file: RemoteFile) -> str:
    """Return the name of a file in the fleet: its checksum, whatever its path."""
    return file.sha256 or str(file.git_oid)


def piece_length(size: int) -> int:
    length = SMALLEST_PIECE
    while length * MOST_PIECES < size:
        length *= 2
    return length


def _frame(file: RemoteFile) -> tuple[bytes, int, bytes]:
    """Return the metadata before the checksums of the pieces, their length, and the metadata after them."""
    name, length = name_of(file).encode(), piece_length(file.size)
    checksums = CHECKSUM * -(-file.size // length)
    before = b"d4:infod6:lengthi%de4:name%d:%b12:piece lengthi%de6:pieces%d:"
    return before % (file.size, len(name), name, length, checksums), checksums, b"7:privatei1eee"


def metadata_of(file: RemoteFile, checksums: bytes) -> bytes:
    """Build the torrent of a file (BEP 3, BEP 27) from the SHA-1 of its pieces; the same on every host."""
    before, _length, behind = _frame(file)
    return before + checksums + behind


def metadata_size(file: RemoteFile) -> int:
    before, length, behind = _frame(file)
    return len(before) + length + len(behind)


def is_metadata(file: RemoteFile, metadata: bytes) -> bool:
    """Return True for the torrent of the file. Its checksums are verified only with the file's content."""
    before, _length, behind = _frame(file)
    return len(metadata) == metadata_size(file) and metadata.startswith(before) and metadata.endswith(behind)


def checksums_of(path: Path, size: int) -> bytes:
    """Hash each piece of a local file with SHA-1. Raises OSError."""
    length = piece_length(size)
    with open(path, "rb") as content:
        pieces = iter(lambda: content.read(length), b"")
        return b"".join(hashlib.new("sha1", piece, usedforsecurity=False).digest() for piece in pieces)


def bracketed(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def settings(share: SharePlan) -> dict[str, Any]:
    """Return the settings of libtorrent. All discovery of peers is off."""
    return {
        "listen_interfaces": bracketed(share.address, share.port),
        "outgoing_interfaces": share.address,
        "listen_system_port_fallback": False,
        "max_retry_port_bind": 0,
        "enable_dht": False,
        "enable_lsd": False,
        "enable_upnp": False,
        "enable_natpmp": False,
        "enable_ip_notifier": False,
        # uTP and obfuscation are for internet providers that throttle, and cost time.
        "enable_incoming_utp": False,
        "enable_outgoing_utp": False,
        "in_enc_policy": 2,
        "out_enc_policy": 2,
        "upload_rate_limit": share.max_upload_rate,
        "download_rate_limit": share.max_download_rate,
        # All peers are of the fleet, so none has to upload first.
        "unchoke_slots_limit": -1,
        "connections_limit": 800,
        "connection_speed": 200,
        "listen_queue_size": 128,
        # Hosts start within seconds of each other; one that is not ready refuses connections.
        "min_reconnect_time": 2,
        "max_failcount": 250,
        # A host that loses power does not close its connections.
        "peer_connect_timeout": 5,
        "handshake_timeout": 5,
        "piece_timeout": 10,
        "request_timeout": 20,
        "peer_timeout": 30,
        # For 10 Gbit/s and more; the defaults are for home connections.
        "tick_interval": 100,
        "max_queued_disk_bytes": 32 * 1024 * 1024,
        "request_queue_time": 1,
        "hashing_threads": 2,
    }


class Engine:
    """A libtorrent session that connects to the hosts of the plan only. Raises ShareError without libtorrent."""

    def __init__(self, share: SharePlan, directory: Path) -> None:
        try:
            self.lt = lt = importlib.import_module("libtorrent")
        except ImportError as error:
            raise ShareError(
                f"libtorrent cannot be imported ({error}): install the package python3-libtorrent."
            ) from error
        self.share = share
        self.directory = directory
        kinds = lt.alert.category_t
        mask = kinds.error_notification | kinds.status_notification | kinds.storage_notification
        self.session = lt.session({**settings(share), "alert_mask": mask})
        self.news, write_end = os.pipe()
        self.session.set_alert_fd(write_end)
        allowed, capped = lt.ip_filter(), lt.ip_filter()
        for first, last in EVERYTHING:
            allowed.add_rule(first, last, 1)
            # By default libtorrent exempts private addresses from rate limits.
            capped.add_rule(first, last, 1 << lt.session.global_peer_class_id)
        for address in share.peers:
            allowed.add_rule(address, address, 0)
        self.session.set_ip_filter(allowed)
        self.session.set_peer_class_filter(capped)

    def alerts(self, timeout: float) -> list[Any]:
        """Return new alerts, after waiting for one for ``timeout`` seconds at most."""
        # Not with wait_for_alert: it reads an alert that another thread may move, which crashes the process.
        if select.select([self.news], [], [], timeout)[0]:
            os.read(self.news, 4096)
        return self.session.pop_alerts()

    def add(self, metadata: bytes, path: str, complete: bool) -> Any:
        """Share the file at a path in the snapshot, or receive it there; return the torrent's handle."""
        flags = self.lt.torrent_flags
        parameters = self.lt.add_torrent_params()
        parameters.ti = self.lt.torrent_info(self.lt.bdecode(metadata))
        parameters.save_path = str(self.directory)
        parameters.renamed_files = {0: path}
        parameters.max_connections = MOST_CONNECTIONS
        # Of a complete file, each piece is hashed before it is first sent, and nothing is written.
        kind = (flags.seed_mode | flags.upload_mode) if complete else flags.update_subscribe
        parameters.flags = flags.apply_ip_filter | kind
        return self.session.add_torrent(parameters)

    def is_damaged(self, handle: Any) -> bool:
        """Return True if a piece to send had the wrong checksum: libtorrent then checks the file again."""
        states = self.lt.torrent_status
        return bool(handle.status().state in (states.checking_files, states.downloading))

    def connect(self, handle: Any, addresses: Iterable[str]) -> None:
        for address in addresses:
            handle.connect_peer((address, self.share.port))
