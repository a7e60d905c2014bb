# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write packages with all their dependencies to a directory, as an apt repository.

apt itself selects and fetches them, with separate sources and state in which no package is installed. The machine's
installed packages, lists and sources are not touched.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from ansible_collections.trtllm.fleet.plugins.module_utils.apt_source import is_source_of

ETC = Path("/etc/apt")
INDEX = "Packages"
STARTER = "starter.tar"
# In the repository, while apt fetches.
INCOMING = ".incoming"
# Settings of this machine for access to repositories: proxies, timeouts and similar ones.
ACCESS = re.compile(r"Acquire::(?!Languages|IndexTargets)")
URI = re.compile(r"'[^']+' ([^ _]+)_([^ _]+)_([^ _]+)\.deb (\d+) SHA256:(\w+)")
FILENAME = re.compile(r"^Filename: .*$", re.MULTILINE)
VERSION = re.compile(r"^Version: (.*)$", re.MULTILINE)
CHECKSUM = re.compile(r"^SHA256: (\w+)$", re.MULTILINE)


class PackagesError(Exception):
    """The packages are not available; the message gives the cause."""


@dataclass(frozen=True)
class Repository:
    """A vendor's repository. ``key`` is its public key, ASCII-armoured; a flat repository has no ``components``.

    Without a key its index is read unverified, for queries only: no package may be installed from it.
    """

    name: str
    url: str
    key: str | None
    suite: str = "/"
    components: Sequence[str] = ()


@dataclass(frozen=True)
class Package:
    """A package at a version; ``file`` is its name in the repository."""

    name: str
    version: str
    architecture: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        """Return the file name as in Debian's pool: without the epoch, whose colon some file systems reject."""
        return f"{self.name}_{self.version.split(':', 1)[-1]}_{self.architecture}.deb"

    @property
    def apt_file(self) -> str:
        """Return the file name in apt's archives."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"

    def is_in(self, directory: Path) -> bool:
        """Return True if the file is present and verified. Raises OSError."""
        path = directory / self.file
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256


class Apt:
    """apt with its sources and state in ``root``, an empty directory."""

    def __init__(self, root: Path, repositories: Sequence[Repository], pins: str) -> None:
        self.root = root
        for name in ("sources", "keys", "lists/partial", "cache", "archives/partial"):
            (root / name).mkdir(parents=True)
        (root / "status").touch()
        (root / "pins").write_text(pins, encoding="utf-8")
        for path in sources(ETC, [repository.url for repository in repositories], self.architecture()):
            shutil.copy(path, root / "sources")
        for repository in repositories:
            option = "trusted=yes"
            if repository.key is not None:
                key = root / "keys" / f"{repository.name}.asc"
                key.write_text(repository.key, encoding="utf-8")
                option = f"signed-by={key}"
            where = " ".join([repository.url, repository.suite, *repository.components])
            source = root / "sources" / f"{repository.name}.trtllm-fleet.list"
            source.write_text(f"deb [{option}] {where}\n", encoding="utf-8")
        dump = self.run("apt-config", "dump").splitlines()
        settings = [line for line in dump if ACCESS.match(line)]
        settings += [f'{name} "{value}";' for name, value in self.settings().items()]
        (root / "apt.conf").write_text("\n".join(settings) + "\n", encoding="utf-8")
        self.run("apt-get", "update")

    def settings(self) -> dict[str, str]:
        return {
            "APT::Architectures": self.architecture(),
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
            "APT::Update::Error-Mode": "any",
            "Acquire::ForceHash": "SHA256",
            "Acquire::Languages": "none",
            "Dir::Cache": f"{self.root}/cache/",
            "Dir::Cache::Archives": f"{self.root}/archives/",
            # Without this machine's hooks and pins.
            "Dir::Etc::Main": "/dev/null",
            "Dir::Etc::Parts": "/dev/null",
            "Dir::Etc::Preferences": f"{self.root}/pins",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": f"{self.root}/sources",
            "Dir::State": f"{self.root}/",
            "Dir::State::Lists": f"{self.root}/lists/",
            "Dir::State::Status": f"{self.root}/status",
        }

    def architecture(self) -> str:
        return self.run("dpkg", "--print-architecture").strip()

    def run(self, *argv: str) -> str:
        """Run a program and return its output. Raises PackagesError with the program's errors."""
        conf = self.root / "apt.conf"
        environment = {**os.environ, "LC_ALL": "C", **({"APT_CONFIG": str(conf)} if conf.exists() else {})}
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
            raise PackagesError(" ".join(errors or done.stderr.splitlines()[-1:]) or f"{argv[0]} fails")
        return done.stdout

    def knows(self, wanted: str) -> bool:
        """Return True if a repository has the package, ``name`` or ``name=version``."""
        name, _equals, version = wanted.partition("=")
        try:
            entries = self.run("apt-cache", "show", name)
        except PackagesError:
            return False
        return bool(fnmatch.filter(VERSION.findall(entries), version or "*"))

    def versions(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the versions of each package that the repositories have, newest first."""
        found: dict[str, list[str]] = {name: [] for name in names}
        for line in self.run("apt-cache", "madison", *names).splitlines():
            name, version = (field.strip() for field in line.split("|")[:2])
            if version not in found.setdefault(name, []):
                found[name].append(version)
        return found

    def closure(self, names: Sequence[str]) -> list[Package]:
        """Return packages, ``name`` or ``name=version``, with all dependencies on a machine without any package."""
        listed = self.run("apt-get", "install", "--print-uris", "--yes", *names)
        return [
            Package(match[1], unquote(match[2]), match[3], int(match[4]), match[5])
            for match in map(URI.fullmatch, listed.splitlines())
            if match
        ]

    def entries(self, packages: Sequence[Package]) -> dict[str, str]:
        """Return the index entries of their repositories by file, each with the new file name."""
        known = self.run("apt-cache", "show", *(f"{package.name}={package.version}" for package in packages))
        # A version may be in several repositories.
        by_checksum = {match[1]: entry.strip() for entry in known.split("\n\n") for match in CHECKSUM.finditer(entry)}
        return {
            package.file: FILENAME.sub(f"Filename: ./{package.file}", by_checksum[package.sha256]) + "\n"
            for package in packages
        }

    def fetch(self, names: Sequence[str], directory: Path) -> None:
        """Fetch missing packages into a directory."""
        (directory / "partial").mkdir(parents=True, exist_ok=True)
        self.run("apt-get", "install", "--download-only", "--yes", "-o", f"Dir::Cache::Archives={directory}/", *names)


def available_versions(repository: Repository, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the versions of packages, newest first, in a repository and in this machine's own sources.

    apt reads the indices as it would for an installation, through the machine's proxies, into a directory of its own.
    Raises PackagesError and OSError.
    """
    with tempfile.TemporaryDirectory() as root:
        return Apt(Path(root), [repository], "").versions(names)


@dataclass(frozen=True)
class RepositoryChange:
    """Packages of the repository, those it lacked (``fetched``), and files ``removed`` from it.

    In check mode nothing was fetched or removed yet.
    """

    packages: Sequence[Package]
    fetched: Sequence[Package]
    removed: Sequence[str]
    changed: bool


def sources(etc: Path, urls: Sequence[str], architecture: str) -> list[Path]:
    """Return this machine's source files, without those of the given repositories."""
    found = []
    for path in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if path.suffix in (".list", ".sources") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            if not any(is_source_of(text, url, [architecture]) for url in urls):
                found.append(path)
    return found


def write_repository(
    directory: Path,
    names: Sequence[str],
    optional: Sequence[str],
    starter: Sequence[str],
    repositories: Sequence[Repository],
    pins: str,
    dry: bool,
) -> RepositoryChange:
    """Write packages with their dependencies to the directory, and remove other packages from it.

    ``optional`` packages may be unknown to every source. ``starter`` packages and their dependencies are also in the
    archive STARTER, which is such a repository too. Raises PackagesError and OSError.
    """
    with tempfile.TemporaryDirectory() as root:
        apt = Apt(Path(root), repositories, pins)
        wanted = [*names, *starter, *(name for name in optional if apt.knows(name))]
        first = apt.closure(starter) if starter else []
        packages = sorted({*first, *apt.closure(wanted)}, key=lambda package: package.file)
        missing = [package for package in packages if not package.is_in(directory)]
        files = {package.file for package in packages}
        removed = sorted(path.name for path in directory.glob("*.deb") if path.name not in files)
        outdated = bool(missing or removed) or not is_indexed(directory, files, {package.file for package in first})
        if outdated and not dry:
            check_room(directory, missing)
            fetch(apt, wanted, packages, missing, directory)
            for name in removed:
                (directory / name).unlink()
            write_index(apt, directory, packages, first)
    return RepositoryChange(packages, missing, removed, outdated)


def check_room(directory: Path, missing: Sequence[Package]) -> None:
    """Raise PackagesError if the disk has too little free space."""
    place = directory
    while not place.exists():
        place = place.parent
    needed, free = sum(package.size for package in missing), shutil.disk_usage(place).free
    if needed > free:
        raise PackagesError(
            f"{directory} needs {needed / 1e6:.0f} MB for packages and has {free / 1e6:.0f} MB free. "
            "Set bundle_dir to a larger disk."
        )


def fetch(
    apt: Apt, wanted: Sequence[str], packages: Sequence[Package], missing: Sequence[Package], directory: Path
) -> None:
    """Fetch missing packages and verify them. Raises PackagesError and OSError."""
    incoming = directory / INCOMING
    incoming.mkdir(parents=True, exist_ok=True)
    for package in packages:
        link = incoming / package.apt_file
        # Replaces a file with a wrong checksum. On a file system without links apt fetches all packages again.
        with suppress(OSError):
            link.unlink()
        with suppress(OSError):
            if package not in missing:
                link.symlink_to(Path("..", package.file))
    if missing:
        apt.fetch(wanted, incoming)
    for package in missing:
        arrived = incoming / package.apt_file
        if not arrived.is_file():
            raise PackagesError(f"apt did not fetch {package.file}; its source must be a remote repository.")
        os.replace(arrived, directory / package.file)
        if not package.is_in(directory):
            raise PackagesError(f"{package.file} differs from the index of its repository. Run the playbook again.")
    shutil.rmtree(incoming)


def is_indexed(directory: Path, files: set[str], first: set[str]) -> bool:
    """Return True if index and archive exist and list these files."""
    try:
        listed = [line[12:] for line in FILENAME.findall((directory / INDEX).read_text(encoding="utf-8"))]
        with tarfile.open(directory / STARTER) as archive:
            archived = archive.getnames()
    except (OSError, tarfile.TarError):
        return False
    return set(listed) == files and set(archived) == {INDEX, *first}


def write_index(apt: Apt, directory: Path, packages: Sequence[Package], first: Sequence[Package]) -> None:
    """Write index and archive, the same bytes for the same packages. Raises PackagesError and OSError."""
    entries = apt.entries(packages)
    files = [package.file for package in packages if package in first]
    contents = {INDEX: "\n".join(entries[file] for file in files).encode()}
    contents.update((file, (directory / file).read_bytes()) for file in files)
    with tarfile.open(directory / f"{STARTER}.new", "w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    os.replace(directory / f"{STARTER}.new", directory / STARTER)
    (directory / f"{INDEX}.new").write_text("\n".join(entries.values()), encoding="utf-8")
    os.replace(directory / f"{INDEX}.new", directory / INDEX)
