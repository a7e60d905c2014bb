# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directory of a release: its files, their checksums, and its name."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.files import FILE_MODE, write_file

UNIT_SUFFIX = ".service"
# Describes the release for people and later runs. No unit uses it, so it is not part of the release's name.
DESCRIPTION = "release.json"
# Checksums of the written files in the format of sha256sum(1), to find later changes. Not part of the name either.
SUMS = "SHA256SUMS"
# In the files, stands for the release's directory, whose name depends on their content.
PLACEHOLDER = "@release@"
SECRET = "(a secret)"
NAME_LENGTH = 12  # hexadecimal digits of SHA-256

# A container's user that is not root is often in root's group.
SECRET_MODE = 0o640
DIRECTORY_MODE = 0o755

Difference = dict[str, str]  # as in Ansible's --diff


class ReleaseError(Exception):
    """A release that cannot be written or run."""


@dataclass(frozen=True)
class StagedRelease:
    """A written release. ``intact``: the files that its units use did not have to be written."""

    name: str
    intact: bool
    differences: Sequence[Difference]


def release_name(files: Mapping[str, str]) -> str:
    """Return the name of the release with these files, by name."""
    content = {name: text for name, text in files.items() if name != DESCRIPTION}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:NAME_LENGTH]


def check_files(files: Mapping[str, str]) -> None:
    """Raise ReleaseError for a file name or content that a release cannot have."""
    for file, text in files.items():
        if not isinstance(text, str):
            raise ReleaseError(f"files: the content of {file!r} is {text!r}; it must be a string. Put it in quotes")
        if not re.fullmatch(r"[\w@-][\w.@-]*", file):
            raise ReleaseError(f"files: {file!r} is not a file name; use letters, digits and -_.@")
        if file == SUMS:
            raise ReleaseError(f"files: this module writes {SUMS}. Give the file another name")


def write_release(
    directory: Path, files: Mapping[str, str], secrets: Mapping[str, str], shown: Path, check_mode: bool
) -> StagedRelease:
    """Write these files, by name, to a release's directory, and remove all others.

    ``secrets`` are further files, for root and its group only. Differences of a file that is not in the directory are
    to the directory ``shown``.
    """
    files = {**files, **secrets}
    if not check_mode:
        directory.mkdir(parents=True, exist_ok=True)
        for folder in (directory.parent, directory):  # regardless of the umask
            folder.chmod(DIRECTORY_MODE)
    differences, intact = [], True
    for file, text in sorted(files.items()):
        path, text = directory / file, text.replace(PLACEHOLDER, str(directory))
        mode = SECRET_MODE if file in secrets else FILE_MODE
        if _is_file(path, text, mode):
            continue
        intact = intact and file == DESCRIPTION
        known = path if path.exists() else shown / file
        old = known.read_text(errors="replace") if known.exists() else ""
        was_secret = bool(old) and (file in secrets or _is_secret(known))
        new = f"{SECRET}, another" if file in secrets else text
        differences.append(_difference(known, SECRET if was_secret else old, path, new))
        if not check_mode:
            _replace(path, text, mode)
    for other in sorted(set(file_names(directory)) - {*files, SUMS}):
        # An editor's file, or left by a full disk. No unit uses it, so the release stays intact.
        differences.append({"before": f"{directory / other}\n", "after": ""})
        if not check_mode:
            remove_path(directory / other)
    path, text = directory / SUMS, _sums(files, str(directory))
    mode = SECRET_MODE if secrets else FILE_MODE  # a short secret could be guessed from its checksum
    if not _is_file(path, text, mode):
        if not differences:  # else they imply this one
            differences.append(_difference(path, path.read_text(errors="replace") if path.exists() else "", path, text))
        if not check_mode:
            _replace(path, text, mode)
    return StagedRelease(directory.name, intact, differences)


def release_texts(directory: Path) -> dict[str, str]:
    """Return the files of a release by name, as ``write_release`` takes them."""
    return {
        file: (directory / file).read_text(errors="replace").replace(str(directory), PLACEHOLDER)
        for file in file_names(directory)
        if file != SUMS and (directory / file).is_file()
    }


def alike_units(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the units that run the same in two releases, each given as the texts of its files by name.

    A file that no unit names is of all units, other than the description.
    """
    if _common(old) != _common(new):
        return []
    units = sorted(name for name in new if name.endswith(UNIT_SUFFIX) and name in old)
    return [unit for unit in units if _used(unit, old) == _used(unit, new)]


def _common(texts: Mapping[str, str]) -> dict[str, str]:
    used = {name for unit in texts if unit.endswith(UNIT_SUFFIX) for name in _used(unit, texts)}
    return {name: text for name, text in texts.items() if name not in used and name != DESCRIPTION}


def _used(file: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Return a file, those that it names with a path, and those that these name."""
    used: dict[str, str] = {}
    left = [file]
    while left:
        name = left.pop()
        if name not in used:
            used[name] = texts[name]
            left += [other for other in texts if re.search(rf"/{re.escape(other)}(?![\w.@-])", texts[name])]
    return used


def has_secrets(directory: Path, secrets: Mapping[str, str]) -> bool:
    """Return whether a release has exactly these secrets, by file name."""
    private = {file for file in file_names(directory) if file != SUMS and _is_secret(directory / file)}
    return private == set(secrets) and all(
        _is_file(directory / file, text.replace(PLACEHOLDER, str(directory)), SECRET_MODE)
        for file, text in secrets.items()
    )


def file_names(directory: Path) -> list[str]:
    """Return the sorted names in a directory; none if it does not exist."""
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def unit_names(directory: Path) -> list[str]:
    """Return the names of a release's units."""
    return [file for file in file_names(directory) if file.endswith(UNIT_SUFFIX)]


def remove_path(path: Path) -> None:
    """Remove a file, a link or a whole directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _difference(known: Path, old: str, path: Path, new: str) -> Difference:
    header = {"before_header": str(known) if old else "", "after_header": str(path)}
    return {"before": old, "after": new, **header}


def _sums(files: Mapping[str, str], directory: str) -> str:
    return "".join(
        f"{hashlib.sha256(text.replace(PLACEHOLDER, directory).encode()).hexdigest()}  {file}\n"
        for file, text in sorted(files.items())
        if file != DESCRIPTION
    )


def _is_secret(path: Path) -> bool:
    return path.stat().st_mode & 0o7777 == SECRET_MODE


def _is_file(path: Path, text: str, mode: int) -> bool:
    """Return whether a path is a regular file with this content and mode."""
    if path.is_symlink() or not path.is_file():
        return False
    return path.read_bytes() == text.encode() and path.stat().st_mode & 0o7777 == mode


def _replace(path: Path, text: str, mode: int) -> None:
    """Write a file, also in place of a directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    write_file(path, text, mode)
