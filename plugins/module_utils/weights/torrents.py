# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Torrents of a snapshot's files, the same on all hosts, and the engine that shares them: libtorrent 2.0."""

from __future__ import annotations

import hashlib
import importlib
import os
import select
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .exchange import ShareError
from .plan import Share
from .snapshot import RemoteFile

# Small pieces are handed on sooner, many make the metadata large. These are part of what makes a torrent the same on
# all hosts: hosts with other values cannot share with each other.
SMALLEST_PIECE = 256 * 1024
MOST_PIECES = 2048
CHECKSUM = 20  # bytes of a SHA-1

MOST_CONNECTIONS = 60  # for one file, those that others made too
# For addresses of both kinds: everything there is.
EVERYTHING = (("0.0.0.0", "255.255.255.255"), ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))

# Metadata is written and checked byte by byte, without the engine: all hosts have to make the same.


def name_of(file: RemoteFile) -> str:
    """What a file is called in the fleet, wherever it lies in a snapshot: its checksum."""
    return file.sha256 or str(file.git_oid)


def piece_length(size: int) -> int:
    length = SMALLEST_PIECE
    while length * MOST_PIECES < size:
        length *= 2
    return length


def _frame(file: RemoteFile) -> tuple[bytes, int, bytes]:
    """What stands before the checksums of the pieces in the metadata, how long those are, and what stands behind."""
    name, length = name_of(file).encode(), piece_length(file.size)
    checksums = CHECKSUM * -(-file.size // length)
    before = b"d4:infod6:lengthi%de4:name%d:%b12:piece lengthi%de6:pieces%d:"
    return before % (file.size, len(name), name, length, checksums), checksums, b"7:privatei1eee"


def metadata_of(file: RemoteFile, checksums: bytes) -> bytes:
    """The torrent of a file (BEP 3, BEP 27), from the SHA-1 of its pieces. Nothing in it differs from host to host."""
    before, _length, behind = _frame(file)
    return before + checksums + behind


def metadata_size(file: RemoteFile) -> int:
    before, length, behind = _frame(file)
    return len(before) + length + len(behind)


def is_metadata(file: RemoteFile, metadata: bytes) -> bool:
    """Whether it is the torrent of the file, but for the checksums, which only the file itself can prove."""
    before, _length, behind = _frame(file)
    return len(metadata) == metadata_size(file) and metadata.startswith(before) and metadata.endswith(behind)


def checksums_of(path: Path, size: int) -> bytes:
    """The SHA-1 of each piece of a local file. Raises OSError."""
    length = piece_length(size)
    with open(path, "rb") as content:
        pieces = iter(lambda: content.read(length), b"")
        return b"".join(hashlib.new("sha1", piece, usedforsecurity=False).digest() for piece in pieces)


def bracketed(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def settings(share: Share) -> dict[str, Any]:
    """libtorrent's. It is made for the internet: everything that looks for other peers is off."""
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
        # Its own transport and obfuscation cost time and hide from providers; there is none between these hosts.
        "enable_incoming_utp": False,
        "enable_outgoing_utp": False,
        "in_enc_policy": 2,
        "out_enc_policy": 2,
        "upload_rate_limit": share.max_upload_rate,
        "download_rate_limit": share.max_download_rate,
        # Nobody has to be bought with uploads.
        "unchoke_slots_limit": -1,
        "connections_limit": 800,
        "connection_speed": 200,
        "listen_queue_size": 128,
        # Hosts start within seconds of each other, and one that is not ready refuses.
        "min_reconnect_time": 2,
        "max_failcount": 250,
        # A host that loses its power says nothing.
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
    """A libtorrent session that talks to the hosts of the plan only. Raises ShareError where there is no libtorrent."""

    def __init__(self, share: Share, directory: Path) -> None:
        try:
            self.lt = lt = importlib.import_module("libtorrent")
        except ImportError as error:
            raise ShareError(f"libtorrent cannot be used ({error}): install the package python3-libtorrent.") from error
        self.share = share
        self.directory = directory
        kinds = lt.alert.category_t
        mask = kinds.error_notification | kinds.status_notification | kinds.storage_notification
        self.session = lt.session({**settings(share), "alert_mask": mask})
        self.news, tell = os.pipe()
        self.session.set_alert_fd(tell)
        allowed, capped = lt.ip_filter(), lt.ip_filter()
        for first, last in EVERYTHING:
            allowed.add_rule(first, last, 1)
            # By itself it exempts private addresses from rate limits.
            capped.add_rule(first, last, 1 << lt.session.global_peer_class_id)
        for address in share.peers:
            allowed.add_rule(address, address, 0)
        self.session.set_ip_filter(allowed)
        self.session.set_peer_class_filter(capped)

    def alerts(self, patience: float) -> list[Any]:
        """What has happened, after waiting so many seconds for it at most."""
        # Not by wait_for_alert: it looks at an alert that may be moved at the same moment, which ends the process.
        if select.select([self.news], [], [], patience)[0]:
            os.read(self.news, 4096)
        return self.session.pop_alerts()

    def add(self, metadata: bytes, path: str, whole: bool) -> Any:
        """Share a file that lies, or will lie, at a path in the snapshot; the torrent's handle."""
        flags = self.lt.torrent_flags
        parameters = self.lt.add_torrent_params()
        parameters.ti = self.lt.torrent_info(self.lt.bdecode(metadata))
        parameters.save_path = str(self.directory)
        parameters.renamed_files = {0: path}
        parameters.max_connections = MOST_CONNECTIONS
        # A whole file is not hashed again, only each of its pieces before it is sent the first time, and never written.
        kind = (flags.seed_mode | flags.upload_mode) if whole else flags.update_subscribe
        parameters.flags = flags.apply_ip_filter | kind
        return self.session.add_torrent(parameters)

    def is_damaged(self, handle: Any) -> bool:
        """Whether a piece that was asked for is not what it should be: everything is checked then, and some missing."""
        states = self.lt.torrent_status
        return bool(handle.status().state in (states.checking_files, states.downloading))

    def connect(self, handle: Any, addresses: Iterable[str]) -> None:
        for address in addresses:
            handle.connect_peer((address, self.share.port))
