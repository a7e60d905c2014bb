# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read files that may be missing, and write files atomically: a power loss leaves the old or the new content."""

from __future__ import annotations

import os
import stat
import tempfile
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


def write_file(path: Path, text: str | bytes, mode: int | None = FILE_MODE) -> None:
    """Write a file atomically with its final mode. Raises OSError.

    With ``mode`` None it keeps mode and owner of an existing file, and a new one gets 0644.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as content:
            content.write(text.encode() if isinstance(text, str) else text)
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
    # The rename survives a power cut only once the directory is on disk.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
