# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Save a container image from a registry to a file for ``docker load``. Docker is not needed.

The archive is as ``docker save`` writes it, with the layers compressed as the registry sends them: moby reads each
layer with ``DecompressStream`` (image/tarexport/load.go), and go-containerregistry writes such archives, too. Sizes are
in the manifest, so every byte of the archive has its place before the download, and an incomplete one can go on.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.files import sync_directory
from ansible_collections.trtllm.fleet.plugins.module_utils.registry import Blob, Image, RegistryError

CHUNK = 1 << 20

# Yields a blob from a byte on.
Read = Callable[[Blob, int], Iterator[bytes]]


def holds(path: Path, name: str, image: Image) -> bool:
    """Return True if the archive has this image under this name, with the registry that Docker would add."""
    with suppress(OSError, tarfile.TarError, KeyError, ValueError), tarfile.open(path) as archive:
        content = archive.extractfile("manifest.json")
        (entry,) = json.load(content) if content else [{}]
        (tag,) = entry["RepoTags"]
        return entry["Config"] == _file(image.config, ".json") and f"/{tag}".endswith(f"/{name}")
    return False


def fetch(path: Path, name: str, image: Image, read: Read) -> None:
    """Write the image to the archive atomically, from the end of what an earlier call left.

    Raises:
        RegistryError: A blob is not available, or has another content than its digest says.
        OSError: The archive cannot be written, or another run writes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part_file = incomplete(path)
    part_file.touch()
    with part_file.open("r+b") as archive:
        _lock(archive, part_file)
        for part in parts(name, image):
            start = archive.tell()
            if isinstance(part, Blob):
                _complete(archive, part, read)
            elif archive.read(len(part)) != part:
                archive.seek(start)
                archive.truncate()
                archive.write(part)
        archive.truncate()
        # A name on the disk before its content would be a complete archive to the next run after a power loss.
        archive.flush()
        os.fsync(archive.fileno())
        os.replace(part_file, path)
    sync_directory(path.parent)


def incomplete(path: Path) -> Path:
    """Return where the archive is until it is complete."""
    return path.with_name(f"{path.name}.part")


def _lock(archive: BinaryIO, path: Path) -> None:
    """Exclude other runs until the file is closed. Raises BlockingIOError."""
    try:
        fcntl.flock(archive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = path.exists() and os.path.samestat(os.fstat(archive.fileno()), path.stat())
    except BlockingIOError:
        mine = False
    if not mine:  # the other run may have completed it in the meantime
        raise BlockingIOError(f"Another run downloads to {path}. Wait for its end.")


def parts(name: str, image: Image) -> Iterator[bytes | Blob]:
    """Yield the content of the archive in order."""
    layers = [_file(layer, ".tar") for layer in image.layers]
    entry: dict[str, Any] = {"Config": _file(image.config, ".json"), "RepoTags": [name], "Layers": layers}
    index = json.dumps([entry]).encode()
    yield _header("manifest.json", len(index)) + index + _padding(len(index))
    blobs = {entry["Config"]: image.config, **dict(zip(layers, image.layers))}  # a layer may be there twice
    for file, blob in blobs.items():
        yield _header(file, blob.size)
        yield blob
        yield _padding(blob.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _file(blob: Blob, suffix: str) -> str:
    return f"{blob.digest.partition(':')[2]}{suffix}"


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)  # the format for more than 8 GiB


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _complete(archive: BinaryIO, blob: Blob, read: Read) -> None:
    """Move behind a blob in the archive, after writing what is missing of it."""
    start, have, checksum = archive.tell(), 0, hashlib.sha256()
    while have < blob.size:
        chunk = archive.read(min(CHUNK, blob.size - have))
        if not chunk:
            break
        checksum.update(chunk)
        have += len(chunk)
    if have < blob.size:
        for chunk in read(blob, have):
            archive.write(chunk)
            checksum.update(chunk)
    if f"sha256:{checksum.hexdigest()}" == blob.digest:
        return
    archive.seek(start)
    archive.truncate()
    if not have:
        raise RegistryError(f"{blob.digest} has the SHA-256 {checksum.hexdigest()}")
    _complete(archive, blob, read)  # what was there is of another image or damaged
