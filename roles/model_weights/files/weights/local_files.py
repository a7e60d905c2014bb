# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Local files of a snapshot while it is downloaded: complete, unfinished and missing ones."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import STATE, RemoteFile

UNFINISHED = f"{STATE}/partial"
ARRIVING = f"{STATE}/peers"
# The client's own. It names unfinished files after their checksum on the hub: sha256 for large ones.
CLIENT_FILES = ".cache/huggingface/download"
CLIENT_UNFINISHED = re.compile(r".*\.([0-9a-f]{64})\.[0-9a-f]+\.incomplete")


def occupied(status: os.stat_result) -> int:
    """Return the bytes that a file has on disk: one with holes has less than its size."""
    return min(status.st_size, status.st_blocks * 512)


class UnfinishedFiles:
    """Unfinished files of the client, under names that outlive it: the largest one of each checksum."""

    def __init__(self, directory: Path) -> None:
        self.kept = directory / UNFINISHED
        self.clients = directory / CLIENT_FILES

    def statuses(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield all files, the kept ones first. The client may remove one at any time."""
        for path in [*self.kept.glob("*"), *self.clients.rglob("*.incomplete")]:
            with suppress(FileNotFoundError):
                yield path, path.stat()

    def found(self) -> Iterator[tuple[str, Path, os.stat_result]]:
        """Yield checksum, path and status of the large files. Small ones are downloaded again."""
        for path, status in self.statuses():
            match = CLIENT_UNFINISHED.fullmatch(path.name)
            if path.parent == self.kept or match:
                yield match[1] if match else path.name, path, status

    def sizes(self) -> dict[str, int]:
        """Return bytes by checksum."""
        sizes: dict[str, int] = {}
        for sha256, _path, status in self.found():
            sizes[sha256] = max(sizes.get(sha256, 0), occupied(status))
        return sizes

    def marks(self) -> frozenset[tuple[int, int, int]]:
        """Return a value that changes whenever the client writes."""
        return frozenset((status.st_ino, status.st_size, status.st_mtime_ns) for _path, status in self.statuses())

    def keep(self) -> None:
        """Link the client's files to a second name; the client unlinks the first when it fails."""
        self.kept.mkdir(parents=True, exist_ok=True)
        for sha256, path, _status in self.found():
            # Without hard links, only the files of a killed client are kept, not those that it unlinks itself.
            with suppress(OSError):
                os.link(path, self.kept / sha256)

    def adopt(self, path: Path, sha256: str) -> None:
        """Keep a file as a possible beginning of the one with this checksum, unless a larger one is kept."""
        kept = self.kept / sha256
        if not kept.exists() or occupied(kept.stat()) < occupied(path.stat()):
            self.kept.mkdir(parents=True, exist_ok=True)
            os.replace(path, kept)

    def collect(self, wanted: Iterable[RemoteFile]) -> None:
        """After the client has ended: keep beginnings of wanted files, remove its other files."""
        for sha256, path, _status in list(self.found()):
            self.adopt(path, sha256)
        useful = {file.sha256 for file in wanted}
        for path in self.kept.glob("*"):
            if path.name not in useful:
                path.unlink()
        # On some file systems the lock of a killed client blocks the next one.
        for pattern in ("*.incomplete", "*.lock"):
            for path in self.clients.rglob(pattern):
                path.unlink()


class LocalFiles:
    """Files of the snapshot on this host."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.unfinished = UnfinishedFiles(directory)

    def has(self, file: RemoteFile) -> bool:
        """Return True if the file is in its place with its size."""
        try:
            status = os.lstat(self.directory / file.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == file.size

    def missing(self, files: Iterable[RemoteFile]) -> list[RemoteFile]:
        return [file for file in files if not self.has(file)]

    def held_bytes(self, files: Iterable[RemoteFile], arriving: bool = False) -> int:
        """Return the bytes present, of unfinished files too, and with ``arriving`` of those from peers."""
        sizes = self.unfinished.sizes()
        total = 0
        for file in files:
            if self.has(file):
                total += file.size
                continue
            held = sizes.get(file.sha256 or "", 0)
            if arriving:
                with suppress(FileNotFoundError):
                    held = max(held, occupied((self.directory / ARRIVING / (file.sha256 or str(file.git_oid))).stat()))
            total += min(held, file.size)
        return total

    def clear_places(self, files: Iterable[RemoteFile]) -> None:
        """Remove incomplete files from the places of missing ones, as the client may take them for complete.

        A file may be a beginning of the missing one, so a large one is kept as unfinished.
        """
        for file in self.missing(files):
            place = self.directory / file.path
            if file.sha256 and place.is_file() and not place.is_symlink():
                self.unfinished.adopt(place, file.sha256)
            with suppress(FileNotFoundError, NotADirectoryError):
                place.unlink()
