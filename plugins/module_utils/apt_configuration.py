# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure apt for the packages of the roles: repositories, their keys and pins, or the packages of a bundle.

apt records each new package in a file, the note, before it is installed: see managed_packages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import fetch_url

from ansible_collections.trtllm.fleet.plugins.module_utils.apt_source import is_source_of
from ansible_collections.trtllm.fleet.plugins.module_utils.files import Change, put_directory, put_file
from ansible_collections.trtllm.fleet.plugins.module_utils.managed_packages import NOTE
from ansible_collections.trtllm.fleet.plugins.module_utils.openpgp import KeyFileError, key_fingerprints
from ansible_collections.trtllm.fleet.plugins.module_utils.proxy import url_secrets

# Marks the files of this collection below /etc/apt.
MARK = "Written by Ansible, role trtllm.fleet.apt_packages."
# Appended to the name of a disabled source.
ASIDE = ".replaced-by-trtllm-fleet"
SOURCES = "etc/apt/sources.list.d"
PREFERENCES = "etc/apt/preferences.d"
KEYS = "etc/apt/keyrings"
# apt's configuration for the roles, as APT_CONFIG, with the sources of the host or with a bundle.
HOST_CONFIG = "etc/apt/trtllm-fleet.conf"
BUNDLE_CONFIG = "etc/trtllm-fleet/apt.conf"
BUNDLE_SOURCE = "etc/trtllm-fleet/apt.list"
BUNDLE_KEY = "etc/trtllm-fleet/apt.asc"
BUNDLE_LISTS = "var/lib/trtllm-fleet/apt"
LISTS = "var/lib/apt/lists"
# apt lists all packages, dependencies included, before it unpacks them. Version 2 of the hook's protocol lists each
# with its installed version.
NOTING = (
    'DPkg::Tools::Options::/bin/mkdir::Version "2";\n'
    f'DPkg::Pre-Install-Pkgs {{"/bin/mkdir -p {Path(NOTE).parent}'
    rf" && sed -n 's/^\([^ ]*\) - < .*/\1/p' >> {NOTE}"
    f' && echo asked $TRTLLM_FLEET_ASKED >> {NOTE}";}};\n'
)
CONFIG_HEAD = "// Written by role trtllm.fleet.apt_packages, which uses it as APT_CONFIG.\n"
TRIES, DELAY = 4, 5.0  # downloads of a key, and the seconds between two
TIMEOUT = 30  # seconds without a byte

Fetch = Callable[[str], str]


class AptError(Exception):
    """apt cannot be configured; the message says why."""


def fetcher(module: AnsibleModule) -> Fetch:
    """Return a function that returns the text at a URL, or raises AptError."""

    def fetch(url: str) -> str:
        response, info = fetch_url(module, url, timeout=TIMEOUT)
        # A file: URL has no status.
        if response is None or (info["status"] or 0) >= 400:
            raise AptError(f"{url} cannot be downloaded: {info['msg']}")
        try:
            return str(response.read().decode(errors="replace"))
        except (OSError, HTTPException) as error:
            raise AptError(f"{url} cannot be downloaded: {error!r}") from None

    return fetch


@dataclass(frozen=True)
class Vendor:
    """A vendor's repository. A flat one has no ``components``. ``key_variable``: name of the variable of its keys."""

    name: str
    url: str
    key_url: str
    key_fingerprints: Sequence[str]
    key_variable: str
    suite: str = "/"
    components: Sequence[str] = ()

    def download_key(self, fetch: Fetch, sleep: Callable[[float], None] = time.sleep) -> str:
        """Return the key, ASCII-armoured. Raises AptError if it is not allowed or cannot be downloaded.

        apt trusts a key for packages of any name.
        """
        text = fetch_again(fetch, self.key_url, sleep)
        problem = key_problem(text, self.key_fingerprints)
        if problem:
            raise AptError(
                f"{problem} ({self.key_url}); allowed: {', '.join(self.key_fingerprints) or 'none'}. Set "
                f"{self.key_variable} to the fingerprints that the repository's vendor publishes."
            )
        return text

    def source(self) -> str:
        """Return the text of the source."""
        components = [f"Components: {' '.join(self.components)}"] if self.components else []
        lines = ["Types: deb", f"URIs: {self.url}", f"Suites: {self.suite}", *components]
        return "\n".join([f"# {MARK}", *lines, f"Signed-By: /{KEYS}/{self.name}.asc", ""])


def fetch_again(fetch: Fetch, url: str, sleep: Callable[[float], None]) -> str:
    """Return what a download returns; repeat it if it raises AptError."""
    for _attempt in range(TRIES - 1):
        try:
            return fetch(url)
        except AptError:
            sleep(DELAY)
    return fetch(url)


def key_problem(text: str, allowed: Sequence[str]) -> str:
    """Return the keys of a file that are not allowed, or why it cannot be read; empty if all are allowed.

    apt trusts every key of a key file, so every primary key in it has to be allowed.
    """
    try:
        found = key_fingerprints(text)
    except KeyFileError as error:
        return f"The key file cannot be read: {error}"
    known = {"".join(fingerprint.split()).upper() for fingerprint in allowed}
    strangers = [fingerprint for fingerprint in found if fingerprint not in known]
    return f"The key file has {', '.join(strangers) or 'no key'}" if strangers or not found else ""


@dataclass
class AptConfiguration:
    """The configuration of apt on this host. ``root`` stands for ``/``. With ``check_mode`` nothing is written.

    ``changes``: what was changed. ``owned``: all paths of this collection, changed or not.
    """

    root: Path = Path("/")
    check_mode: bool = False
    changes: list[Change] = field(default_factory=list)
    owned: list[str] = field(default_factory=list)

    def add_vendor(self, vendor: Vendor, key: str) -> bool:
        """Add a repository with its key, and disable other sources of it. Returns whether its source is new.

        apt fails if two sources name one repository with different keys.
        """
        source = f"{SOURCES}/{vendor.name}.sources"
        for path in self._other_sources(vendor, self.root / source):
            self._rename(path, path.with_name(path.name + ASIDE))
        self._put(f"{KEYS}/{vendor.name}.asc", key)
        return self._put(source, vendor.source())

    def pin(self, name: str, text: str) -> None:
        """Write a preferences file."""
        self._put(f"{PREFERENCES}/{name}", f"Explanation: {MARK}\n{text.rstrip()}\n")

    def note_packages(self) -> None:
        """Let apt record new packages."""
        self._put(HOST_CONFIG, CONFIG_HEAD + NOTING)

    def use_bundle(self, bundle: str, key: str) -> bool:
        """Let apt use a bundle, signed with this key, and nothing else. Returns whether its source is new.

        Without a key it is that of the last time. Raises AptError if there was none.

        The sources of the host stay as they are, for the time when they are reachable.
        """
        lists = self.root / BUNDLE_LISTS
        # The last as apt itself has it.
        for path, mode in (((self.root / BUNDLE_CONFIG).parent, 0o755), (lists, 0o755), (lists / "partial", 0o700)):
            self.changes += put_directory(path, mode, self.check_mode)
        self._put(
            BUNDLE_CONFIG,
            f"{CONFIG_HEAD}"
            f'Dir::Etc::SourceList "/{BUNDLE_SOURCE}";\n'
            'Dir::Etc::SourceParts "/dev/null";\n'
            f'Dir::State::Lists "/{BUNDLE_LISTS}/";\n'
            'Dir::Cache::pkgcache "";\n'
            'Dir::Cache::srcpkgcache "";\n'
            # The clock of a host without internet access may be wrong.
            'Acquire::Check-Date "false";\n'
            f"{NOTING}",
        )
        if not key:
            try:
                key = (self.root / BUNDLE_KEY).read_text(encoding="utf-8")
            except FileNotFoundError:
                raise AptError(
                    f"The packages in {bundle} have no key yet. Run site.yml or dynamo.yml, which take it from the "
                    "bundle."
                ) from None
        new_key = self._put(BUNDLE_KEY, key)
        return self._put(BUNDLE_SOURCE, f"deb [signed-by=/{BUNDLE_KEY}] file:{bundle}/ ./\n") or new_key

    def has_lists(self, bundle: bool) -> bool:
        """Return whether apt has package lists."""
        return any((self.root / (BUNDLE_LISTS if bundle else LISTS)).glob("*_Packages*"))

    def remove(self) -> None:
        """Remove all that this class wrote, and restore disabled sources."""
        marked = [path for path in self._files(SOURCES, PREFERENCES) if MARK in path.read_text(errors="replace")]
        keys = [self.root / KEYS / f"{path.stem}.asc" for path in marked if path.suffix == ".sources"]
        # A key before its source, so that a repeated run finds both.
        for path in [
            *keys,
            *marked,
            *(self.root / name for name in (HOST_CONFIG, BUNDLE_CONFIG, BUNDLE_SOURCE, BUNDLE_KEY)),
        ]:
            self._remove(path)
        lists = self.root / BUNDLE_LISTS
        for path in [*sorted(lists.rglob("*"), reverse=True), lists] if lists.is_dir() else []:
            self._remove(path)
        for path in sorted((self.root / SOURCES).glob(f"*{ASIDE}")):
            before = path.with_name(path.name[: -len(ASIDE)])
            # An operator or a package may have written it again.
            if not before.exists():
                self._rename(path, before)

    def _files(self, *folders: str) -> Iterator[Path]:
        for folder in folders:
            yield from (path for path in sorted((self.root / folder).glob("*")) if path.is_file())

    def _other_sources(self, vendor: Vendor, own: Path) -> list[Path]:
        return [
            path
            for path in self._files(SOURCES)
            if path.suffix in (".list", ".sources")
            and path != own
            and is_source_of(path.read_text(errors="replace"), vendor.url)
        ]

    def _name(self, path: Path) -> str:
        return f"/{path.relative_to(self.root)}"

    def _put(self, path: str, text: str) -> bool:
        found = put_file(self.root / path, text.encode(), 0o644, self.check_mode)
        self.changes += found
        self.owned.append(f"/{path}")
        return bool(found)

    def _rename(self, old: Path, new: Path) -> None:
        self.changes.append(Change(self._name(old), f"{self._name(old)}\n", f"{self._name(new)}\n"))
        self.owned += [self._name(old), self._name(new)]
        if not self.check_mode:
            old.replace(new)

    def _remove(self, path: Path) -> None:
        if not path.exists():
            return
        self.changes.append(Change(self._name(path), f"{self._name(path)}\n", ""))
        if not self.check_mode:
            path.rmdir() if path.is_dir() else path.unlink()


# Of a vendor's repository in the options of modules.
VENDOR_OPTIONS: dict[str, Any] = dict(
    name=dict(type="str", required=True),
    url=dict(type="str", required=True),
    suite=dict(type="str", default="/"),
    components=dict(type="list", elements="str", default=[]),
    key_url=dict(type="str", required=True, no_log=False),
    key_fingerprints=dict(type="list", elements="str", required=True, no_log=False),
    key_variable=dict(type="str", required=True, no_log=False),
)


def repository_secrets(repositories: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the passwords in the URLs of repositories, which have VENDOR_OPTIONS."""
    return url_secrets(*(one[option] for one in repositories for option in ("url", "key_url")))
