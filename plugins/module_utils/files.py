# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read files that may be missing, and write files atomically: a power loss leaves the old or the new content."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE_MODE = 0o644
GIB, MIB = 2**30, 2**20


def read_file(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def size_text(size: float) -> str:
    """Return a number of bytes in MiB or GiB, as text."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def write_file(path: Path, text: str | bytes | Iterable[bytes], mode: int | None = FILE_MODE) -> None:
    """Write a file atomically with its final mode. Raises OSError.

    Parts of a text are written one by one. With ``mode`` None it keeps mode and owner of an existing file, and a new
    one gets 0644.
    """
    _make_parents(path)
    descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as content:
            if isinstance(text, (str, bytes)):
                content.write(text.encode() if isinstance(text, str) else text)
            else:
                content.writelines(text)
            content.flush()
            if mode is None and path.exists():
                old = path.stat()
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
                os.fchown(descriptor, old.st_uid, old.st_gid)
            else:
                os.fchmod(descriptor, FILE_MODE if mode is None else mode)
            os.fsync(descriptor)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush the names of a directory to the disk, so that a rename survives a power loss. Raises OSError."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@dataclass(frozen=True)
class Change:
    """A changed path, with its content or its mode and owner before and after."""

    path: str
    before: str
    after: str

    def diff(self) -> dict[str, str]:
        """Return the change as Ansible shows it."""
        return {"before_header": self.path, "after_header": self.path, "before": self.before, "after": self.after}


def put_directory(path: Path, mode: int, dry: bool = False) -> list[Change]:
    """Create a directory of root, or set its mode. Return the change; ``dry`` makes none. Raises OSError.

    An existing directory keeps its owner: apt gives one of those of its configuration to its own user.
    """
    old = path.stat() if path.exists() else None
    if old is not None and not stat.S_ISDIR(old.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is not a directory", str(path))
    before = _access(old)
    wanted = _access_text(mode, old.st_uid if old else 0, old.st_gid if old else 0)
    if before == wanted:
        return []
    if not dry:
        _make_parents(path)
        path.mkdir(exist_ok=True)
        path.chmod(mode)
    return [Change(str(path), before, wanted)]


def put_file(path: Path, content: bytes, mode: int, dry: bool = False, group: int = 0) -> list[Change]:
    """Write a file of root, or set its mode and owner. Return the change; ``dry`` makes none. Raises OSError.

    ``group``: id of its group.
    """
    try:
        old = path.lstat()
        if stat.S_ISDIR(old.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
        text = path.read_bytes() if stat.S_ISREG(old.st_mode) else None
    except (FileNotFoundError, NotADirectoryError):  # a unit may remove it at any moment
        text = None
    if text != content:
        change = Change(str(path), (text or b"").decode(errors="replace"), content.decode(errors="replace"))
    else:
        change = Change(str(path), _access(old), _access_text(mode, 0, group))
        if change.before == change.after:
            return []
    if not dry:
        write_file(path, content, mode)
        os.chown(path, 0, group)  # a directory may give its group to new files
    return [change]


def _make_parents(path: Path) -> None:
    """Create the directories above a path with mode 0755, whatever the umask is."""
    for parent in [parent for parent in reversed(path.parents) if not parent.exists()]:
        parent.mkdir(exist_ok=True)
        parent.chmod(0o755)


def _access(status: os.stat_result | None) -> str:
    return "" if status is None else _access_text(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _access_text(mode: int, owner: int, group: int) -> str:
    return f"mode {mode:04o}, owner {owner}, group {group}\n"
