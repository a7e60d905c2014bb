# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model snapshot on a host: its manifest, its verification, and the lock of the process that writes it.

A snapshot is a directory with the files of one commit of a repository, named after the commit. This collection's own
files in it are in STATE. Files are moved to their places when complete, so a file of the right size was complete once.
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

# The hub's client keeps files here too. A model cannot have files in it.
CACHE = ".cache"
STATE = f"{CACHE}/trtllm-fleet"
MANIFEST = f"{STATE}/manifest.json"
MARKER = f"{STATE}/verified.json"
LOCK = f"{STATE}/lock"
# Directory of the marker if the snapshot is read-only.
FALLBACK = Path("/var/lib/trtllm-fleet/verified")
MOUNTS = Path("/proc/self/mountinfo")
# Names of mount(8), without the prefix "fuse.".
NETWORK: tuple[str, ...] = ("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs")
NETWORK += ("nfs4", "ocfs2", "smb3", "sshfs", "virtiofs", "wekafs")

# Errors of a read-only mount, and of an export that this host may only read.
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
BLOCK = 1024 * 1024
# Bytes that are read ahead of the hashing, so that disk and CPU work at the same time.
AHEAD = 16 * BLOCK
LOCK_INTERVAL = 1.0  # seconds between two tries to take a lock

COMMIT = re.compile(r"[0-9a-f]{40}")

Mark = list[Any]  # size, time of modification in ns, inode, digest


class SnapshotError(Exception):
    """A snapshot is not usable; the message gives the cause. ``result`` has what is known of it."""

    def __init__(self, message: str, result: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = dict(result or {})


@dataclass(frozen=True)
class RemoteFile:
    """A file of a revision, with ``sha256`` if it is large, else with ``git_oid``, git's checksum."""

    path: str
    size: int
    sha256: str | None = None
    git_oid: str | None = None

    def __post_init__(self) -> None:
        """Reject invalid paths and those that leave the directory: paths are joined to local directories."""
        if not isinstance(self.path, str) or {"", ".", ".."} & set(self.path.split("/")) or "\0" in self.path:
            raise ValueError(f"file {self.path!r}")
        self.path.encode()  # Half a surrogate pair is not a valid name.
        if not isinstance(self.size, int) or self.size < 0:
            raise ValueError(f"{self.size!r} as the size of {self.path!r}")
        checksum, length = (self.git_oid, 40) if self.sha256 is None else (self.sha256, 64)
        if not re.fullmatch(f"[0-9a-f]{{{length}}}", checksum or ""):
            raise ValueError(f"checksum {checksum!r} of {self.path!r}")

    @property
    def digest(self) -> str:
        """Return the checksum of the content, with the name of the algorithm."""
        return f"sha256:{self.sha256}" if self.sha256 else f"git:{self.git_oid}"

    def as_dict(self) -> dict[str, Any]:
        """Return path, size in bytes, and ``sha256`` or ``git_oid``."""
        checksum = {"sha256": self.sha256} if self.sha256 else {"git_oid": self.git_oid}
        return {"path": self.path, "size": self.size, **checksum}


@dataclass(frozen=True)
class Manifest:
    """The files of a snapshot."""

    repository: str
    commit: str
    files: list[RemoteFile]

    def __post_init__(self) -> None:
        if not COMMIT.fullmatch(self.commit):
            raise ValueError(f"{self.commit!r} is not a commit")
        for file in self.files:
            if file.path.startswith(f"{CACHE}/"):
                raise ValueError(f"its file {file.path} is in {CACHE}, which is for working files")

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that is written, and returned by modules."""
        return {
            "repository": self.repository,
            "commit": self.commit,
            "files": [file.as_dict() for file in self.files],
            "total_bytes": self.total_bytes,
        }

    @classmethod
    def parse(cls, document: Any) -> Manifest:
        """Parse a document of ``as_dict``. Raises SnapshotError."""
        try:
            files = [
                RemoteFile(entry["path"], entry["size"], entry.get("sha256"), entry.get("git_oid"))
                for entry in document["files"]
            ]
            return cls(document["repository"], document["commit"], files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SnapshotError(f"This is not a manifest ({type(error).__name__}: {error})") from error


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a snapshot. Raises SnapshotError."""
    path = directory / MANIFEST
    try:
        return Manifest.parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, SnapshotError) as error:
        raise SnapshotError(f"{path} cannot be read: {error}") from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest of a snapshot. Raises OSError."""
    write_file(directory / MANIFEST, json.dumps(manifest.as_dict(), indent=1))


def few(names: Sequence[str]) -> str:
    """Format the first three names, and the number of the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def mark(status: os.stat_result, digest: str) -> Mark:
    """Return the mark of a verified file."""
    return [status.st_size, status.st_mtime_ns, status.st_ino, digest]


def _fallback(directory: Path) -> Path:
    return FALLBACK / (hashlib.sha256(os.fsencode(os.path.abspath(directory))).hexdigest() + ".json")


def read_marker(directory: Path) -> dict[str, Mark]:
    """Return the marks of verified files by path; empty if not readable. A file with another mark has changed."""
    known: dict[str, Mark] = {}
    for path in (directory / MARKER, _fallback(directory)):
        with suppress(OSError, ValueError, TypeError):
            known.update(json.loads(path.read_text(encoding="utf-8")))
    return known


_remembering = threading.Lock()


def remember(directory: Path, good: Mapping[str, Mark], bad: Iterable[str] = ()) -> None:
    """Add marks of ``good`` files by path, and remove those of ``bad`` ones. Raises OSError.

    The content must be on the disk already: after a power loss a truncated file may still have the size, time and inode
    of its mark. If two processes write at the same time, the files of one may be hashed again.
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
    """Return the checksum of a local file, by the algorithm of ``like``. Raises OSError.

    ``full`` reads from the disk, not from memory. With ``durable``, a file that has the checksum of ``like`` is on the
    disk when this returns; that takes no time if it was.
    """
    if like.sha256:
        name, digest = "sha256", hashlib.sha256()
    else:
        # git hashes a header and the content with SHA-1.
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
        # An error of a failing disk does not have the file's name.
        error.filename = str(path)
        raise
    return result


def _sync(descriptor: int) -> None:
    """Flush a file to the disk. On a read-only file system it already is."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS):
            raise


def digests_of(files: Mapping[Path, RemoteFile], full: bool = False, durable: bool = False) -> dict[Path, str]:
    """Hash files on all cores, large ones first, so that all cores finish together. Raises OSError."""
    ordered = sorted(files, key=lambda path: files[path].size, reverse=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip(ordered, pool.map(lambda path: digest_of(path, files[path], full, durable), ordered)))


@dataclass(frozen=True)
class Findings:
    """State of the files of a snapshot, in the order of the manifest.

    ``good`` files are verified, ``unknown`` ones have the right size. ``truncated`` ones have another size, ``corrupt``
    ones other content. ``extra`` are other files and directories; directories end in a slash. ``marks`` are those of
    the files with the right size.
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
        """Return the files to fetch."""
        return sorted((*self.missing, *self.truncated, *self.corrupt), key=lambda file: file.path)

    @property
    def verified(self) -> bool:
        return not self.wanted and not self.unknown


def look(directory: Path, manifest: Manifest) -> Findings:
    """Compare sizes and marks, in milliseconds, without reading content. Raises OSError."""
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
    """Return the wanted regular files, and others except the cache. Links are not followed."""
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
    """Verify the content of files without a mark, or with ``full`` of all files. Raises OSError.

    Marks are written unless ``keep_marks`` is false.
    """
    # Marks are taken before hashing, so a file that changes during it is hashed again next time.
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
    """Verify a file that arrived elsewhere on the file system and move it to its place; False if it is wrong.

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
    """Hold the lock, which one process of all hosts with the directory can; yield whether this process does.

    While another one holds it, ``waiting`` is called every second; without it, once is tried.
    Raises OSError.
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
    """Return True if another process holds the lock. Creates nothing. Raises OSError."""
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
    """Return a descriptor that holds the lock; None if another process does."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        held = False
        try:
            if not _try_lock(descriptor):
                return None
            # The process that held the lock may have removed the snapshot with it.
            with suppress(FileNotFoundError):
                held = os.path.samestat(path.stat(), os.fstat(descriptor))
            if held:
                return descriptor
        finally:
            if not held:
                os.close(descriptor)


@dataclass(frozen=True)
class FileSystem:
    """File system of a path. ``read_only``: for this process, by the mount, the server or the modes."""

    mount_point: str
    type: str
    read_only: bool
    free_bytes: int

    @property
    def network(self) -> bool:
        """Return True for a type that other hosts may mount too."""
        return self.type.removeprefix("fuse.") in NETWORK


def file_system(path: Path) -> FileSystem:
    """Return the file system of a path, or of its nearest existing parent. Raises OSError."""
    place = Path(os.path.abspath(path))
    while not place.exists():
        place = place.parent
    status = os.statvfs(place)
    real = place.resolve()
    above = {"/": ("/", "")}
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # proc(5): optional fields precede " - "; blanks in names are octal numbers.
        mount, _separator, device = line.partition(" - ")
        name = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount.split(" ")[4])
        # Of several mounts at one place the last one is visible.
        above[name] = (name, device.split(" ")[0])
    mount_point, kind = next(above[str(name)] for name in (real, *real.parents) if str(name) in above)
    # access(2) detects an export that is read-only for this host.
    return FileSystem(mount_point, kind, not os.access(place, os.W_OK), status.f_bavail * status.f_frsize)
