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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import unquote

from ansible_collections.trtllm.fleet.plugins.module_utils.apt_source import is_source_of
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file

ETC = Path("/etc/apt")
INDEX = "Packages"
STARTER = "starter.tar"
# The signed list of checksums, and the public key that verifies it, ASCII-armoured.
SIGNED = "InRelease"
KEY = "bundle.asc"
# Time of key and signatures. sqv, apt's verifier in Debian 13, refuses those of the future, and a host without internet
# access may have a wrong clock. In gpg's form of a time that stands still.
LONG_AGO = "20200101T000000!"
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


class Signer:
    """A key for one repository, of which only the public part stays. ``home`` is an empty directory.

    A context manager. Methods raise PackagesError.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def __enter__(self) -> Signer:
        self._home.mkdir(mode=0o700)
        self._gpg("--quick-generate-key", "trtllm.fleet bundle", "ed25519", "sign", "never")
        return self

    def __exit__(self, *_error: object) -> None:
        subprocess.run(
            ["gpgconf", "--homedir", str(self._home), "--kill", "gpg-agent"], capture_output=True, check=False
        )

    def public_key(self) -> str:
        return self._gpg("--armor", "--export")

    def sign(self, text: str) -> str:
        return self._gpg("--clearsign", "--digest-algo", "SHA512", text=text)

    def _gpg(self, *arguments: str, text: str = "") -> str:
        options = ["--homedir", str(self._home), "--batch", "--pinentry-mode", "loopback", "--passphrase", ""]
        options += ["--faked-system-time", LONG_AGO]
        try:
            done = subprocess.run(
                ["gpg", *options, *arguments], input=text, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            raise PackagesError("Command gpg not found. Run: apt install gnupg.") from None
        if done.returncode:
            raise PackagesError(f"gpg: {' '.join(done.stderr.splitlines()[-2:])}")
        return done.stdout


def release_text(index: bytes, architecture: str, now: datetime) -> str:
    """Return the list of checksums of a flat repository with this index, as apt reads it: apt-ftparchive(1)."""
    return (
        f"Origin: trtllm.fleet\nLabel: bundle\nDate: {format_datetime(now)}\nArchitectures: {architecture}\n"
        f"SHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)} {INDEX}\n"
    )


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
            with Signer(Path(root, "gnupg")) as signer:
                write_index(apt, directory, packages, first, signer)
    return RepositoryChange(packages, missing, removed, outdated)


def public_key(directory: Path) -> str:
    """Return the public key of a repository; empty if it is not written yet. Raises OSError."""
    path = directory / KEY
    return path.read_text(encoding="utf-8") if path.exists() else ""


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
    """Return True if index, signature, key and archive exist and list these files."""
    try:
        index = (directory / INDEX).read_bytes()
        signed = (directory / SIGNED).read_text(encoding="utf-8")
        with tarfile.open(directory / STARTER) as archive:
            archived = archive.getnames()
    except (OSError, tarfile.TarError):
        return False
    listed = {line[12:] for line in FILENAME.findall(index.decode())}
    is_signed = f" {hashlib.sha256(index).hexdigest()} " in signed and (directory / KEY).exists()
    return listed == files and set(archived) == {INDEX, SIGNED, *first} and is_signed


def write_index(
    apt: Apt, directory: Path, packages: Sequence[Package], first: Sequence[Package], signer: Signer
) -> None:
    """Write index, signature, key and archive. Raises PackagesError and OSError."""
    entries = apt.entries(packages)
    files = [package.file for package in packages if package in first]
    architecture, now = apt.architecture(), datetime.now(timezone.utc)

    def indexed(of: Iterable[str]) -> dict[str, bytes]:
        index = "\n".join(entries[file] for file in of).encode()
        return {INDEX: index, SIGNED: signer.sign(release_text(index, architecture, now)).encode()}

    contents = indexed(files)
    contents.update((file, (directory / file).read_bytes()) for file in files)
    with tarfile.open(directory / f"{STARTER}.new", "w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    # The signature last: without it the next run writes all of them.
    (directory / SIGNED).unlink(missing_ok=True)
    os.replace(directory / f"{STARTER}.new", directory / STARTER)
    for name, content in {KEY: signer.public_key().encode(), **indexed(entries)}.items():
        write_file(directory / name, content)
