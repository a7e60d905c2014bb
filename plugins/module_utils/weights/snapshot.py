# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model snapshot on a host: what it must be, what it is, and whose turn it is to write it.

A snapshot is a directory that holds the files of one commit of a repository and is named after it. What is ours in it
lies in STATE. Files come to their place whole, by renaming, so a file of the right size was complete once.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.files import FILE_MODE, write_file

# Not ours alone: the hub's client has its own things in it. No file of a model may lie there.
CACHE = ".cache"
STATE = f"{CACHE}/trtllm-fleet"
MANIFEST = f"{STATE}/manifest.json"
MARKER = f"{STATE}/verified.json"
LOCK = f"{STATE}/lock"
# Where the marker goes if the snapshot cannot be written: STATE on a host of ours.
FALLBACK = Path("/var/lib/trtllm-fleet/verified")
MOUNTS = Path("/proc/self/mountinfo")
# As mount(8) names them, without the "fuse." of those that have it.
NETWORK: tuple[str, ...] = ("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs")
NETWORK += ("nfs4", "ocfs2", "smb3", "sshfs", "virtiofs", "wekafs")

# What a read-only mount answers, and an export that lets this host only read.
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
BLOCK = 1024 * 1024
# So far the disk is ahead of the hashing, or a file that is not in memory would have one of them wait for the other.
AHEAD = 16 * BLOCK
LOCK_INTERVAL = 1.0  # seconds between two looks at a lock that somebody else holds

COMMIT = re.compile(r"[0-9a-f]{40}")

Mark = list[Any]  # size, time of modification in ns, inode, digest


class SnapshotError(Exception):
    """A snapshot cannot be used or made; the message says why. ``result`` is what is known even so."""

    def __init__(self, message: str, result: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = dict(result or {})


@dataclass(frozen=True)
class RemoteFile:
    """A file of a revision: with ``sha256`` if it is a large one, else with ``git_oid``, git's name for the content."""

    path: str
    size: int
    sha256: str | None = None
    git_oid: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is no file, or one elsewhere: paths are joined to local directories."""
        if not isinstance(self.path, str) or {"", ".", ".."} & set(self.path.split("/")) or "\0" in self.path:
            raise ValueError(f"file {self.path!r}")
        self.path.encode()  # Half a surrogate pair is no name.
        if not isinstance(self.size, int) or self.size < 0:
            raise ValueError(f"{self.size!r} as the size of {self.path!r}")
        checksum, length = (self.git_oid, 40) if self.sha256 is None else (self.sha256, 64)
        if not re.fullmatch(f"[0-9a-f]{{{length}}}", checksum or ""):
            raise ValueError(f"checksum {checksum!r} of {self.path!r}")

    @property
    def digest(self) -> str:
        """What the content must hash to, with the name of the algorithm."""
        return f"sha256:{self.sha256}" if self.sha256 else f"git:{self.git_oid}"

    def as_dict(self) -> dict[str, Any]:
        """Path, size in bytes, and ``sha256`` or ``git_oid``."""
        checksum = {"sha256": self.sha256} if self.sha256 else {"git_oid": self.git_oid}
        return {"path": self.path, "size": self.size, **checksum}


@dataclass(frozen=True)
class Manifest:
    """What a snapshot consists of."""

    repository: str
    commit: str
    files: list[RemoteFile]

    def __post_init__(self) -> None:
        if not COMMIT.fullmatch(self.commit):
            raise ValueError(f"{self.commit!r} is not a commit")
        for file in self.files:
            if file.path.startswith(f"{CACHE}/"):
                raise ValueError(f"its file {file.path} is where only working files may be")

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        """As it is written, and as modules return it."""
        return {
            "repository": self.repository,
            "commit": self.commit,
            "files": [file.as_dict() for file in self.files],
            "total_bytes": self.total_bytes,
        }

    @classmethod
    def parse(cls, document: Any) -> Manifest:
        """The manifest that ``as_dict`` made a document of. Raises SnapshotError on another."""
        try:
            files = [
                RemoteFile(entry["path"], entry["size"], entry.get("sha256"), entry.get("git_oid"))
                for entry in document["files"]
            ]
            return cls(document["repository"], document["commit"], files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SnapshotError(f"This is no manifest ({type(error).__name__}: {error})") from error


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a snapshot. Raises SnapshotError where there is none."""
    path = directory / MANIFEST
    try:
        return Manifest.parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, SnapshotError) as error:
        raise SnapshotError(f"{path} cannot be read: {error}") from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Say what the snapshot must be. Raises OSError."""
    write_file(directory / MANIFEST, json.dumps(manifest.as_dict(), indent=1))


def few(names: Sequence[str]) -> str:
    """The first three, and how many more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def mark(status: os.stat_result, digest: str) -> Mark:
    """What is remembered of a good file."""
    return [status.st_size, status.st_mtime_ns, status.st_ino, digest]


def _fallback(directory: Path) -> Path:
    return FALLBACK / (hashlib.sha256(os.fsencode(os.path.abspath(directory))).hexdigest() + ".json")


def read_marker(directory: Path) -> dict[str, Mark]:
    """What was good before, by path; it still is where the file is the one described. Empty when it cannot be read."""
    known: dict[str, Mark] = {}
    for path in (directory / MARKER, _fallback(directory)):
        with suppress(OSError, ValueError, TypeError):
            known.update(json.loads(path.read_text(encoding="utf-8")))
    return known


_remembering = threading.Lock()


def remember(directory: Path, good: Mapping[str, Mark], bad: Iterable[str] = ()) -> None:
    """Add to what is known to be good, by path, and forget what is not. Raises OSError.

    The content must be on the disk already: a file that lost its end with the power may still have the size, time and
    inode that are remembered. Of two processes that do this at one time one may have its files hashed again.
    """
    with _remembering:
        known = read_marker(directory)
        marks = {path: known[path] for path in known.keys() - set(bad)}
        marks.update(good)
        if marks == known:
            return
        text = json.dumps(marks, indent=1, sort_keys=True)
        try:
            write_file(directory / MARKER, text)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            write_file(_fallback(directory), text)


def digest_of(path: Path, like: RemoteFile, full: bool = False, durable: bool = False) -> str:
    """Checksum of a local file, of the kind that the hub has for ``like``. Raises OSError.

    ``full`` reads what is on the disk, not what is left of it in memory. With ``durable``, a file that has the checksum
    of ``like`` is on the disk when this returns: costs nothing if it was.
    """
    if like.sha256:
        name, digest = "sha256", hashlib.sha256()
    else:
        # git's names for contents are SHA-1 over a header and the content.
        name, digest = "git", hashlib.new("sha1", b"blob %d\0" % like.size, usedforsecurity=False)
    try:
        with open(path, "rb", buffering=0) as content:
            if full:
                os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(content.fileno(), 0, AHEAD, os.POSIX_FADV_WILLNEED)
            for block in iter(lambda: content.read(BLOCK), b""):
                os.posix_fadvise(content.fileno(), content.tell() + AHEAD, BLOCK, os.POSIX_FADV_WILLNEED)
                digest.update(block)
            result = f"{name}:{digest.hexdigest()}"
            if durable and result == like.digest:
                _sync(content.fileno())
    except OSError as error:
        # A disk that fails while it is read does not say with what.
        error.filename = str(path)
        raise
    return result


def _sync(descriptor: int) -> None:
    """Have a file on the disk, where it is for sure on a file system that cannot be written at all."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS):
            raise


def digests_of(files: Mapping[Path, RemoteFile], full: bool = False, durable: bool = False) -> dict[Path, str]:
    """``digest_of`` many, on all cores; the large ones first, so that none is left alone at the end. Raises OSError."""
    ordered = sorted(files, key=lambda path: files[path].size, reverse=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip(ordered, pool.map(lambda path: digest_of(path, files[path], full, durable), ordered)))


@dataclass(frozen=True)
class Findings:
    """What there is of a snapshot, in the order of the manifest.

    ``good`` has the content of the manifest, ``unknown`` its size at least. ``truncated`` has another size, ``corrupt``
    another content. ``extra`` is what else there is; directories end in a slash. ``marks`` are of what has its size.
    """

    good: list[RemoteFile]
    unknown: list[RemoteFile]
    corrupt: list[RemoteFile]
    truncated: list[RemoteFile]
    missing: list[RemoteFile]
    extra: list[str]
    marks: Mapping[str, Mark]
    hashed_bytes: int = 0

    @property
    def wanted(self) -> list[RemoteFile]:
        """What has to be fetched."""
        return sorted((*self.missing, *self.truncated, *self.corrupt), key=lambda file: file.path)

    @property
    def verified(self) -> bool:
        return not self.wanted and not self.unknown


def look(directory: Path, manifest: Manifest) -> Findings:
    """What there is, as far as it can be said in milliseconds: nothing is read. Raises OSError."""
    statuses, extra = _scan(directory, {file.path for file in manifest.files})
    known = read_marker(directory)
    present = [file for file in manifest.files if file.path in statuses]
    whole = [file for file in present if statuses[file.path].st_size == file.size]
    marks = {file.path: mark(statuses[file.path], file.digest) for file in whole}
    return Findings(
        good=[file for file in whole if known.get(file.path) == marks[file.path]],
        unknown=[file for file in whole if known.get(file.path) != marks[file.path]],
        corrupt=[],
        truncated=[file for file in present if file.path not in marks],
        missing=[file for file in manifest.files if file.path not in statuses],
        extra=extra,
        marks=marks,
    )


def _scan(directory: Path, wanted: set[str]) -> tuple[dict[str, os.stat_result], list[str]]:
    """The wanted plain files that are there, and what else is, the cache apart. No link is followed."""
    parents = {str(parent) for path in wanted for parent in Path(path).parents}
    statuses: dict[str, os.stat_result] = {}
    extra: list[str] = []

    def scan(place: Path, prefix: str) -> None:
        with os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = prefix + entry.name
                if path == CACHE:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if path in parents:
                        scan(place / entry.name, f"{path}/")
                    else:
                        extra.append(f"{path}/")
                elif path in wanted and entry.is_file(follow_symlinks=False):
                    statuses[path] = entry.stat(follow_symlinks=False)
                else:
                    extra.append(path)

    with suppress(FileNotFoundError):
        scan(directory, "")
    return statuses, extra


def verify(directory: Path, manifest: Manifest, full: bool = False, keep_marks: bool = True) -> Findings:
    """Compare content too, of what is not known to be good, or with ``full`` of everything. Raises OSError.

    What is found is remembered, unless ``keep_marks`` is false, for the next look or verification.
    """
    # The marks are older than the hashes, so what changes meanwhile is hashed again next time.
    found = look(directory, manifest)
    doubtful = {directory / file.path: file for file in (*found.unknown, *(found.good if full else ()))}
    digests = digests_of(doubtful, full, durable=keep_marks)
    corrupt = {file.path for path, file in doubtful.items() if digests[path] != file.digest}
    good = {path: value for path, value in found.marks.items() if path not in corrupt}
    if keep_marks:
        remember(directory, good, bad={file.path for file in manifest.files} - good.keys())
    return Findings(
        good=[file for file in manifest.files if file.path in good],
        unknown=[],
        corrupt=[file for file in manifest.files if file.path in corrupt],
        truncated=found.truncated,
        missing=found.missing,
        extra=found.extra,
        marks=found.marks,
        hashed_bytes=sum(file.size for file in doubtful.values()),
    )


def adopt(directory: Path, file: RemoteFile, arrived: Path) -> bool:
    """Move a file that came to lie elsewhere on the file system to its place; false if its content is not right.

    Raises OSError.
    """
    status = arrived.lstat()
    if status.st_size != file.size or digest_of(arrived, file, durable=True) != file.digest:
        return False
    place = directory / file.path
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(arrived, place)
    remember(directory, {file.path: mark(status, file.digest)})
    return True


@contextmanager
def locked(directory: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Be the only process, of all hosts that share the directory, that holds the lock; says whether it is.

    While another one holds it, ``waiting`` is called every second; without, it is not waited for. Raises OSError.
    """
    descriptor = _take(directory / LOCK)
    while descriptor is None and waiting:
        waiting()
        time.sleep(LOCK_INTERVAL)
        descriptor = _take(directory / LOCK)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_locked(directory: Path) -> bool:
    """Whether another process holds the lock. Nothing is made for the question. Raises OSError."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Take the lock if it is free. It ends with the process, or when a descriptor of the file is closed."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _take(path: Path) -> int | None:
    """A descriptor that holds the lock; None if another process does."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        held = False
        try:
            if not _try_lock(descriptor):
                return None
            # Who held it before may have removed the snapshot, and the lock with it.
            with suppress(FileNotFoundError):
                held = os.path.samestat(path.stat(), os.fstat(descriptor))
            if held:
                return descriptor
        finally:
            if not held:
                os.close(descriptor)


@dataclass(frozen=True)
class FileSystem:
    """Where a path is, or would be made. ``read_only``: for this process, by the mount, the server or the modes."""

    mount_point: str
    type: str
    read_only: bool
    free_bytes: int

    @property
    def network(self) -> bool:
        """Whether other hosts may have it too, by its type."""
        return self.type.removeprefix("fuse.") in NETWORK


def file_system(path: Path) -> FileSystem:
    """The file system of a path, or of the nearest directory above it that is there. Raises OSError."""
    place = Path(os.path.abspath(path))
    while not place.exists():
        place = place.parent
    status = os.statvfs(place)
    real = place.resolve()
    above = {"/": ("/", "")}
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # proc(5): optional fields lie between the mount's own and " - "; blanks in names are written as octal numbers.
        mount, _separator, device = line.partition(" - ")
        name = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount.split(" ")[4])
        # Of mounts on top of each other the last one is seen.
        above[name] = (name, device.split(" ")[0])
    mount_point, kind = next(above[str(name)] for name in (real, *real.parents) if str(name) in above)
    # Of an export that is read-only for this host only access(2) knows.
    return FileSystem(mount_point, kind, not os.access(place, os.W_OK), status.f_bavail * status.f_frsize)
