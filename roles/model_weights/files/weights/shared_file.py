# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file that the fleet shares, and the torrents that were made before."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import STATE, Mark, RemoteFile

from .torrents import is_metadata, name_of

TORRENTS = f"{STATE}/torrents"


@dataclass
class SharedFile:
    """Files of the snapshot with the same content, and the state of its transfer.

    ``phase``: missing; asking for metadata; loading; flushing and checking when all has arrived; placing; seeding.
    ``here``: a file is in its place, possibly not yet verified. ``busy``: it is being hashed, or metadata queried.
    ``metadata``: that of ``handle``, which came from ``source``; ``own_metadata``: made from the verified file.
    ``tried``: hosts whose metadata is unusable; ``refused``: metadata with which wrong content came.
    """

    files: list[RemoteFile]
    phase: str = "missing"
    busy: bool = False
    handle: Any = None
    metadata: bytes = b""
    source: str = ""
    tried: set[str] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    here: bool = False
    own_metadata: bytes = b""
    mark: Mark | None = None  # of the file that is seeded, or about to be
    corrupt: Mark | None = None  # of a file with the right size and wrong content
    done: int = 0
    moved: float = 0  # when ``done`` last changed
    retry: float = 0

    @property
    def file(self) -> RemoteFile:
        return self.files[0]

    @property
    def name(self) -> str:
        return name_of(self.file)


class TorrentStore:
    """Torrents of verified files, kept in the snapshot across runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / TORRENTS

    def load(self, item: SharedFile) -> bytes:
        """Return the torrent of a file if it was made before; else an empty one."""
        if not item.own_metadata:
            with suppress(OSError):
                metadata = self._path(item).read_bytes()
                item.own_metadata = metadata if is_metadata(item.file, metadata) else b""
        return item.own_metadata

    def save(self, item: SharedFile, metadata: bytes) -> None:
        """Keep the torrent of a verified file, for later runs too if the snapshot is writable."""
        item.own_metadata = metadata
        path = self._path(item)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            with open(new, "wb") as target:
                target.write(metadata)
                target.flush()
                os.fsync(target.fileno())
            os.replace(new, path)

    def remove(self, item: SharedFile) -> None:
        item.own_metadata = b""
        self._path(item).unlink(missing_ok=True)

    def _path(self, item: SharedFile) -> Path:
        return self.directory / f"{item.name}.torrent"
