# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepare a snapshot for the download, verify it, and remove it. Nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.files import FILE_MODE, size_text
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    CACHE,
    COMMIT,
    LOCK,
    MANIFEST,
    STATE,
    FileSystem,
    Findings,
    Manifest,
    Mark,
    RemoteFile,
    SnapshotError,
    adopt,
    digests_of,
    few,
    file_system,
    is_locked,
    locked,
    look,
    mark,
    read_manifest,
    read_marker,
    remember,
    verify,
    write_manifest,
)

# They use memory, or do not survive a reboot or a container.
UNFIT = ("tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "aufs", "fuse.fuse-overlayfs")
DIRECTORY_MODE = 0o755
COPIES = f"{STATE}/copies"
# Parallel copies: enough for a fast disk, not too many for a slow one.
COPIERS = 4


@dataclass
class SnapshotChange:
    """State of a snapshot and its changes; in check mode, the changes that would be made.

    ``busy``: another process writes it, so nothing was done. ``missing``: files still to fetch. ``steps``: the changes
    as text.
    """

    found: Findings
    hashed_bytes: int
    missing: list[RemoteFile]
    busy: bool = False
    reused: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Donor:
    """A file with the content of a missing one. ``link``: it may be linked to, not only copied."""

    path: Path
    mark: Mark
    link: bool


@dataclass(frozen=True)
class SpaceNeeds:
    """Free space needed: ``margin`` times the bytes of missing files, and ``reserved`` bytes of other paths."""

    margin: float = 1.1
    reserved: Mapping[str, int] = field(default_factory=dict)


def stage(
    directory: Path, manifest: Manifest, sources: Sequence[Path], needs: SpaceNeeds, full: bool, dry: bool
) -> SnapshotChange:
    """Fill the snapshot with files of this host, remove other files, and check the free space for the download.

    Raises SnapshotError, before any change, if the file system is unsuitable or too small, and OSError.
    """
    _check_name(directory, manifest)
    place = file_system(directory)
    _check_place(directory, place, look(directory, manifest).wanted)
    with ExitStack() as stack:
        # A read-only snapshot needs no lock.
        if not place.read_only and (is_locked(directory) if dry else not stack.enter_context(locked(directory))):
            found = look(directory, manifest)
            return SnapshotChange(found, 0, found.wanted, busy=True)
        found = verify(directory, manifest, full, keep_marks=not dry)
        _check_place(directory, place, found.wanted)
        donors, hashed_bytes = _find_donors(directory, found.wanted, sources, dry)
        outcome = SnapshotChange(found, found.hashed_bytes + hashed_bytes, found.wanted)
        if place.read_only:
            return outcome
        outcome.removed = [*(file.path for file in (*found.corrupt, *found.truncated)), *found.extra]
        fetched = [file for file in found.wanted if not (file.path in donors and donors[file.path].link)]
        _check_space(directory, place, fetched, outcome.removed, needs)
        if _stored(directory) != manifest:
            outcome.steps.append("write the manifest")
            if not dry:
                write_manifest(directory, manifest)
        for path in outcome.removed:
            outcome.steps.append(f"remove {path}")
            if not dry:
                _remove(directory / path)
        given = [file for file in found.wanted if file.path in donors]
        if not dry:
            given = _give(directory, given, donors)
        for file in given:
            donor = donors[file.path]
            outcome.steps.append(f"{'link' if donor.link else 'copy'} {file.path} from {donor.path}")
        outcome.reused = [file.path for file in given]
        outcome.missing = [file for file in found.wanted if file not in given]
        return outcome


def verify_snapshot(
    directory: Path, manifest: Manifest, keep: int | None, named_in: Iterable[str], full: bool, dry: bool
) -> SnapshotChange:
    """Verify every file. If all are good, set modes, and remove other snapshots except the ``keep`` last used.

    Snapshots that a file of the globs ``named_in`` names are kept too, and on a network file system all are.
    Raises SnapshotError and OSError.
    """
    _check_name(directory, manifest)
    found = verify(directory, manifest, full, keep_marks=not dry)
    outcome = SnapshotChange(found, found.hashed_bytes, found.wanted)
    place = file_system(directory)
    if found.wanted or place.read_only:
        return outcome
    outcome.steps += _tidy(directory, manifest, dry)
    if not dry:
        with suppress(FileNotFoundError):
            os.utime(directory / MANIFEST)  # the time that it was used last
    files = [Path(path) for pattern in named_in for path in glob(pattern)]
    named = [file.read_text(errors="replace") for file in files if file.exists()]  # not a link to a removed file
    # On a network file system other hosts may serve them.
    others = _finished(directory, manifest.repository)[keep:] if keep is not None and not place.network else []
    for other in others:
        if not any(str(other) in text for text in named) and remove(other, dry):
            outcome.removed.append(str(other))
            outcome.steps.append(f"remove {other}")
    return outcome


def remove(directory: Path, dry: bool) -> bool:
    """Remove a snapshot, and its parent directory if empty; False if another process writes the snapshot.

    Raises SnapshotError for a directory that this collection did not create, and OSError.
    """
    state = directory / STATE
    real = directory.parent.resolve() / directory.name / STATE
    if not (COMMIT.fullmatch(directory.name) and state.is_dir() and state.resolve() == real):
        raise SnapshotError(
            f"{directory} is not a snapshot of this collection: it has no {STATE}, or is not named after a commit. "
            "Remove it by hand."
        )
    if dry:
        return not is_locked(directory)
    with locked(directory) as mine:
        if not mine:
            return False
        # STATE is removed last, so that an interrupted removal can be repeated.
        lock = directory / LOCK
        for place in (directory, directory / CACHE, state):
            for path in place.iterdir():
                if path not in (directory / CACHE, state, lock):
                    _remove(path)
        lock.unlink()
    # After the lock is closed: NFS keeps an open file under another name.
    for empty in (state, state.parent, directory, directory.parent):
        with suppress(OSError):
            empty.rmdir()
    return True


def describe(found: Findings, count: int) -> str:
    """Describe which of ``count`` files are not good."""
    kinds = (("missing", found.missing), ("truncated", found.truncated), ("with other content", found.corrupt))
    parts = []
    for kind, files in kinds:
        if files:
            parts.append(f"{len(files)} {kind}: {few([file.path for file in files])}")
    return f"Of {count} files, " + "; ".join(parts)


def _check_name(directory: Path, manifest: Manifest) -> None:
    """Raise SnapshotError for a wrong directory, as files that are not in the manifest are removed."""
    if directory.name != manifest.commit:
        raise SnapshotError(
            f"{directory} is not for {manifest.commit}; its last part has to be the commit. Correct path."
        )


def _stored(directory: Path) -> Manifest | None:
    try:
        return read_manifest(directory)
    except SnapshotError:
        return None


def _check_place(directory: Path, place: FileSystem, wanted: Sequence[RemoteFile]) -> None:
    """Raise SnapshotError if files are wanted and the file system is read-only or unsuitable."""
    if not wanted:
        return
    where = f"{place.type} at {place.mount_point}"
    if place.read_only:
        raise SnapshotError(
            f"{_size(wanted)} are missing in {directory} ({_number(wanted)}), and {where} is read-only here. "
            "Complete it where it can be written, or set model_weights_dir to another place."
        )
    if place.type in UNFIT:
        raise SnapshotError(
            f"{directory} is on {where}, which takes memory or does not outlive a reboot. "
            "Set model_weights_dir to a directory on a disk (ext4, xfs, ...) or on a network file system."
        )


def _check_space(
    directory: Path, place: FileSystem, fetched: Sequence[RemoteFile], removed: Iterable[str], needs: SpaceNeeds
) -> None:
    """Raise SnapshotError if the file system is too small for the files that are fetched or copied to it.

    Unfinished files in the cache count as fetched, and removed files as free space.
    """
    needed = sum(file.size for file in fetched) * needs.margin - _disk_bytes([directory / CACHE])
    free = place.free_bytes + _disk_bytes(directory / path for path in removed)
    others = {path: size for path, size in needs.reserved.items() if size and _device(Path(path)) == _device(directory)}
    if fetched and needed + sum(others.values()) > free:
        more = "".join(f" and {size_text(size)} for {path}" for path, size in others.items())
        raise SnapshotError(
            f"{_size(fetched)} are missing in {directory} ({_number(fetched)}). With model_weights_disk_margin "
            f"{needs.margin:g} {size_text(needed)}{more} are needed, but {size_text(free)} are free on {place.type} at "
            f"{place.mount_point}: free some, or set model_weights_dir to a place on a larger file system."
        )


def _device(path: Path) -> int:
    """Return the device of a path, or of its nearest existing parent."""
    return next(place.stat().st_dev for place in (path, *path.parents) if place.exists())


def _disk_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes that a removal of these paths would free; a file with another link stays."""
    statuses = [path.lstat() for top in paths for path in _tree(top)]
    names: dict[tuple[int, int], list[os.stat_result]] = {}
    for status in statuses:
        names.setdefault((status.st_dev, status.st_ino), []).append(status)
    return sum(same[0].st_blocks * 512 for same in names.values() if len(same) == same[0].st_nlink)


def _tree(top: Path) -> Iterator[Path]:
    """Yield all files below a path, or the file itself. Links are not followed."""
    if not top.is_dir() or top.is_symlink():
        if top.is_symlink() or top.exists():
            yield top
        return
    for place, _directories, files in os.walk(top):
        yield from (Path(place, file) for file in files)


def _siblings(directory: Path) -> list[Path]:
    """Return the other snapshots of the repository."""
    with suppress(FileNotFoundError):
        return [
            path
            for path in sorted(directory.parent.iterdir())
            if COMMIT.fullmatch(path.name) and path.name != directory.name and path.is_dir() and not path.is_symlink()
        ]
    return []


def _finished(directory: Path, repository: str) -> list[Path]:
    """Return the other complete snapshots, last used first. Incomplete ones may be in transfer."""
    used = {}
    for path in _siblings(directory):
        stored = _stored(path)
        if stored and stored.repository == repository and not look(path, stored).wanted:
            used[path] = (path / MANIFEST).stat().st_mtime
    return sorted(used, key=lambda path: used[path], reverse=True)


def _find_donors(
    directory: Path, wanted: Sequence[RemoteFile], sources: Sequence[Path], dry: bool
) -> tuple[dict[str, Donor], int]:
    """Find files of this host with the content of wanted ones, by path, and count the bytes that were hashed.

    A source has no marks and may be a complete model, so check mode compares sizes only.
    """
    found: dict[str, Donor] = {}
    hashed_bytes = 0
    siblings = _siblings(directory)
    device = _nearest(directory).stat().st_dev
    for source in (*siblings, *sources):
        ours = source in siblings
        marks = read_marker(source) if ours else {}
        doubtful = []
        for file, name in _candidates(source, [file for file in wanted if file.path not in found]):
            path = (source / name).resolve()
            status = path.stat()
            # A link to a file that another user can write would let that user change a verified snapshot.
            private = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == FILE_MODE
            donor = Donor(path, mark(status, file.digest), status.st_dev == device and (ours or private))
            if marks.get(name) == donor.mark or (dry and not ours):
                found[file.path] = donor
            else:
                doubtful.append((file, donor))
        digests = digests_of({donor.path: file for file, donor in doubtful}, durable=not dry)
        hashed_bytes += sum(file.size for file, donor in doubtful)
        found.update((file.path, donor) for file, donor in doubtful if digests[donor.path] == file.digest)
    return found, hashed_bytes


def _candidates(source: Path, wanted: Sequence[RemoteFile]) -> Iterator[tuple[RemoteFile, str]]:
    """Yield the wanted files that a directory may have, and their names there, by its manifest or the same."""
    stored = _stored(source)
    names = {file.digest: file.path for file in (stored.files if stored else wanted)}
    for file in wanted:
        name = names.get(file.digest)
        if name and (source / name).is_file() and (source / name).stat().st_size == file.size:
            yield file, name


def _nearest(path: Path) -> Path:
    return path if path.exists() else _nearest(path.parent)


def _give(directory: Path, files: Sequence[RemoteFile], donors: Mapping[str, Donor]) -> list[RemoteFile]:
    """Link or copy files to their places; return those that succeeded."""
    copies = directory / COPIES

    def give(number: int, file: RemoteFile) -> bool:
        donor, path = donors[file.path], directory / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if donor.link:
            # Another mount of the same file system, or one without links, raises an error.
            with suppress(OSError):
                os.link(donor.path, path)
                remember(directory, {file.path: donor.mark})
                return True
        copies.mkdir(exist_ok=True)
        shutil.copyfile(donor.path, copies / str(number))
        return adopt(directory, file, copies / str(number))

    try:
        with ThreadPoolExecutor(COPIERS) as pool:
            there = list(pool.map(give, range(len(files)), files))
    finally:
        shutil.rmtree(copies, ignore_errors=True)
    return [file for file, is_there in zip(files, there) if is_there]


def _tidy(directory: Path, manifest: Manifest, dry: bool) -> Iterator[str]:
    """Make the snapshot readable for all users and writable for the owner of STATE only; yield the changes.

    That owner is root, or the user that an NFS server maps root to.
    """
    state = directory / STATE
    if not state.exists():
        return
    owner = state.stat()
    names = {parent for file in manifest.files for parent in Path(file.path).parents}
    for path in (*sorted(directory / name for name in names), *(directory / file.path for file in manifest.files)):
        status = path.lstat()
        mode = DIRECTORY_MODE if stat.S_ISDIR(status.st_mode) else FILE_MODE
        same_owner = (status.st_uid, status.st_gid) == (owner.st_uid, owner.st_gid)
        if same_owner and status.st_mode & 0o777 == mode:
            continue
        # An NFS server may deny changes to the files of other users; their content is verified.
        with suppress(PermissionError):
            if not dry and not same_owner:
                os.chown(path, owner.st_uid, owner.st_gid)
            if not dry:
                path.chmod(mode)
            yield f"set owner and mode of {path}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _size(files: Iterable[RemoteFile]) -> str:
    return size_text(sum(file.size for file in files))


def _number(files: Sequence[RemoteFile]) -> str:
    return "1 file" if len(files) == 1 else f"{len(files)} files"
