# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the state of everything on a host that the roles own, as a flat mapping from items to values.

An item is a kind and a name, such as ``file /etc/docker/daemon.json`` or ``unit docker.service``; a value is a text to
compare. Reading takes tens of milliseconds and two commands, because every run of site.yml does it on every host.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner, run
from ansible_collections.trtllm.fleet.plugins.module_utils.docker_daemon import daemon_difference
from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.gateway import HEAD, ROOT, SOCKET, UNIT, Gateway
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError, Haproxy
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import kernel_module
from ansible_collections.trtllm.fleet.plugins.module_utils.managed_packages import NOTE, Note
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import paragraphs
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import SnapshotError, look, read_manifest

MISSING = "missing"
CONTENT = ", sha256 "
# Everything in these directories is the collection's, so a file that was added there is a difference, too.
OWN_DIRECTORIES = ("etc/trtllm-fleet", "usr/local/lib/trtllm-fleet", "var/lib/trtllm-fleet")
UNITS = "etc/systemd/system"
OWN_UNITS = "trtllm-*"
# Written while the host serves: the record itself, the result of a burn-in, marks of verified weights, apt's package
# lists of a bundle, the lock of rollouts, the program that ends a trial of a release, the hosts of a gateway, which
# rollouts and drains change, and the tokens that it counts.
VOLATILE = (
    "etc/trtllm-fleet/gateway/.lock",
    "etc/trtllm-fleet/gateway/haproxy.cfg",
    "etc/trtllm-fleet/gateway/hosts",
    "var/lib/trtllm-fleet/record.json",
    "var/lib/trtllm-fleet/acceptance.json",
    "var/lib/trtllm-fleet/remedies.json",
    "var/lib/trtllm-fleet/verified",
    "var/lib/trtllm-fleet/apt",
    "var/lib/trtllm-fleet/rollout.json",
    "var/lib/trtllm-fleet/.rollout.json.lock",
    "var/lib/trtllm-fleet/usage",
    "usr/local/lib/trtllm-fleet/restore_verified.pyz",
)
# Starts of the names of packages that make up driver, Docker and toolkit.
PLATFORM = (
    "containerd",
    "cuda-drivers",
    "docker",
    "libcuda",
    "libnvidia",
    "nvidia",
    "runc",
    "xserver-xorg-video-nvidia",
)
# Python writes these by itself.
CACHES = "__pycache__"
# Drop-ins of systemd and of packages, which apply to all services.
VENDOR_DROP_INS = ("/usr/lib/", "/lib/", "/run/systemd/system/service.d/")
PROPERTIES = ("Type", "LoadState", "UnitFileState", "ActiveState", "NeedDaemonReload", "DropInPaths")
ACTIVITIES = ("active", "reloading", "inactive", "failed", "activating", "deactivating", "maintenance", "unknown")
COMMAND_TIMEOUT = 20.0  # seconds
BLOCK = 1024 * 1024

Items = dict[str, str]


class Difference(NamedTuple):
    """A difference: ``about`` a file, a unit or a variable, and a ``sentence``."""

    about: str
    sentence: str


@dataclass(frozen=True)
class Owned:
    """Names of what the roles own outside the collection's own directories, by kind.

    ``files``: paths, of removed files too. ``trees``: directories of Python programs. ``packages``: Debian packages.
    ``units``: systemd units. ``models``: directories of model snapshots. ``images``: container images.
    """

    files: Sequence[str] = field(default_factory=list)
    trees: Sequence[str] = field(default_factory=list)
    packages: Sequence[str] = field(default_factory=list)
    units: Sequence[str] = field(default_factory=list)
    models: Sequence[str] = field(default_factory=list)
    images: Sequence[str] = field(default_factory=list)

    def union(self, other: Owned) -> Owned:
        """Return the names of both."""
        mine, others = asdict(self), asdict(other)
        return Owned(**{kind: sorted({*mine[kind], *others[kind]}) for kind in mine})


def file_value(path: str | Path, content: bool = True) -> str:
    """Return type, mode, owner and content of a path; for a directory its mode and owner.

    Without ``content``, size and time of modification stand for the content of a file.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return MISSING
    if stat.S_ISLNK(status.st_mode):
        return f"link to {os.readlink(path)}"
    rights = f"mode {stat.S_IMODE(status.st_mode):04o}, owner {status.st_uid}:{status.st_gid}"
    if stat.S_ISDIR(status.st_mode):
        return f"directory, {rights}"
    if not stat.S_ISREG(status.st_mode):
        return f"special file, {rights}"
    if not content:
        return f"{rights}, {status.st_size} bytes of {status.st_mtime_ns}"
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as opened:
        for block in iter(lambda: opened.read(BLOCK), b""):
            digest.update(block)
    return f"{rights}{CONTENT}{digest.hexdigest()}"


def below(path: Path) -> Iterator[Path]:
    """Yield a path and everything below it, except Python's caches. Links are not followed."""
    yield path
    if path.is_symlink() or not path.is_dir():
        return
    for entry in sorted(path.iterdir()):
        if entry.name != CACHES:
            yield from below(entry)


def tree_value(path: Path) -> str:
    """Return a checksum of the names, modes, owners, sizes and times in a directory.

    A program has a thousand files, so their paths are strings. A directory's time changes with Python's caches.
    """
    if not path.is_dir():
        return file_value(path)
    root = str(path)
    lines = [file_value(root)]
    for folder, directories, files in os.walk(root):
        directories[:] = [name for name in directories if name != CACHES]
        lines += [
            f"{folder[len(root) :]}/{name}\0{file_value(f'{folder}/{name}', content=False)}"
            for name in (*directories, *files)
        ]
    return f"tree {hashlib.sha256(os.fsencode(chr(10).join(sorted(lines)))).hexdigest()}"


def package_values(status: str, names: Iterable[str]) -> dict[str, str]:
    """Return version and selection (``install`` or ``hold``) of packages, from the text of dpkg's status file.

    Packages of the platform are among them even if they were installed before, and the roles left them.
    """
    wanted = set(names)
    found = {}
    for paragraph in status.split("\n\n"):
        name, _newline, rest = paragraph.partition("\n")
        name = name[len("Package: ") :]
        if name not in wanted and not name.startswith(PLATFORM):
            continue
        fields = dict(line.split(": ", 1) for line in rest.splitlines() if line.startswith(("Status: ", "Version: ")))
        found[name] = f"{fields.get('Version', '')} {fields.get('Status', '')}"
    return {name: found.get(name, MISSING) for name in wanted | found.keys()}


def unit_value(shown: Mapping[str, str]) -> str:
    """Return load state, enablement, activity and foreign drop-ins of a unit. A oneshot unit has no activity."""
    values = [shown.get("LoadState", "unknown"), shown.get("UnitFileState") or "static"]
    if shown.get("Type") != "oneshot":
        values.append(shown.get("ActiveState", "unknown"))
    if shown.get("NeedDaemonReload") == "yes":
        values.append("changed since systemd loaded it")
    drop_ins = [path for path in shown.get("DropInPaths", "").split() if not path.startswith(VENDOR_DROP_INS)]
    return ", ".join(values + [f"drop-in {path}" for path in drop_ins])


def idle(value: str) -> str:
    """Return the value of a unit without its activity."""
    return re.sub(f", ({'|'.join(ACTIVITIES)})(?=,|$)", "", value)


def model_value(path: Path) -> str:
    """Return the state of a model snapshot by sizes, times and marks of its files, without reading them."""
    try:
        manifest = read_manifest(path)
        found = look(path, manifest)
    except (SnapshotError, OSError) as error:
        return str(error)
    problems = {
        "missing": [file.path for file in found.missing],
        "of another size": [file.path for file in found.truncated],
        "not verified": [file.path for file in found.unknown],
        "not of the model": found.extra,
    }
    bad = [f"{what}: {', '.join(names)}" for what, names in problems.items() if names]
    return "; ".join(bad) or f"verified, commit {manifest.commit}"


@dataclass(frozen=True)
class HostState:
    """Reads the state of this host. ``root``: the directory that stands for ``/`` in paths."""

    root: Path = Path("/")
    runner: Runner = run

    def items(self, owned: Owned) -> Items:
        """Return the values of all items. A failed command is a value, too, which equals no other."""
        files = sorted({*owned.files, *self._own_files()})
        units = sorted(
            {*owned.units, *(path.name for path in self.root.glob(f"{UNITS}/{OWN_UNITS}") if path.suffix != ".d")}
        )
        return {
            **{
                f"file {path}": file_value(self._path(path))
                for path in files
                if not self._is_in_tree(path, owned.trees)
            },
            **{f"program {path}": tree_value(self._path(path)) for path in sorted(owned.trees)},
            **{f"package {name}": value for name, value in sorted(self._packages(owned.packages).items())},
            **{f"unit {name}": value for name, value in self._units(units).items()},
            **{f"model {path}": model_value(self._path(path)) for path in sorted(owned.models)},
            **{f"image {name}": value for name, value in self._images(sorted(owned.images)).items()},
            **self._docker(),
            **self._driver(),
            **self._gateway(),
        }

    def _path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _own_files(self) -> Iterator[str]:
        places = [self.root / directory for directory in OWN_DIRECTORIES]
        places += sorted(self.root.glob(f"{UNITS}/{OWN_UNITS}"))
        places += sorted(self.root.glob(f"{UNITS}/*.wants/{OWN_UNITS}"))
        volatile = {self.root / path for path in VOLATILE}
        for place in places:
            if not os.path.lexists(place):
                continue
            for path in below(place):
                if volatile.isdisjoint([path, *path.parents]):
                    yield f"/{path.relative_to(self.root)}"

    @staticmethod
    def _is_in_tree(path: str, trees: Iterable[str]) -> bool:
        return any(path == tree or path.startswith(f"{tree}/") for tree in trees)

    def _packages(self, names: Iterable[str]) -> dict[str, str]:
        """Return the packages of the roles, and those that came with them."""
        noted = Note.parse(read_file(self._path(NOTE)))
        return package_values(read_file(self.root / "var/lib/dpkg/status"), {*names, *noted.came, *noted.asked})

    def _run(self, *argv: str) -> CommandResult:
        try:
            return self.runner(argv, COMMAND_TIMEOUT)
        except OSError as error:
            return CommandResult(127, "", f"{argv[0]}: {error.strerror}")

    def _units(self, names: Sequence[str]) -> dict[str, str]:
        if not names:
            return {}
        done = self._run("systemctl", "show", f"--property={','.join(PROPERTIES)}", "--", *names)
        if done.rc != 0:
            return dict.fromkeys(names, f"systemctl: {done.text or 'no answer'}")
        return {name: unit_value(shown) for name, shown in paragraphs(names, done.stdout).items()}

    def _images(self, names: Sequence[str]) -> dict[str, str]:
        if not names:
            return {}
        done = self._run("docker", "image", "inspect", "--format={{json .}}", *names)
        if done.rc is None:
            return dict.fromkeys(names, "docker: no answer")
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        known = {
            name: row["Id"]
            for row in rows
            for name in [row["Id"], *(row.get("RepoTags") or []), *(row.get("RepoDigests") or [])]
        }
        return {name: known.get(name, MISSING) for name in names}

    def _docker(self) -> Items:
        """Return whether daemon.json has the values of the roles; other keys are not theirs."""
        files = self.root / "etc/docker/daemon.json", self.root / "var/lib/trtllm-fleet/daemon.json.state"
        return {"docker /etc/docker/daemon.json": daemon_difference(*files) or "as set"}

    def _gateway(self) -> Items:
        """Return whether HAProxy's configuration is what the role and the registered hosts make; only of a gateway."""
        folder = self._path(ROOT)
        if not (folder / HEAD).exists():
            return {}
        gateway = Gateway(folder, Haproxy(self._path(SOCKET)), check_mode=True)
        try:
            value = "not as generated" if gateway.apply(UNIT).changed else "as generated"
        except (GatewayError, OSError) as error:
            value = str(error)
        return {"gateway configuration": value}

    def _driver(self) -> Items:
        """Return the loaded driver, the GPUs that it found, and the kernels that can boot next."""
        _flavour, version = kernel_module(read_file(self.root / "proc/driver/nvidia/version"))
        gpus = sorted(path.name for path in self.root.glob("proc/driver/nvidia/gpus/*"))
        kernels = sorted(path.name for path in self.root.glob("boot/vmlinuz-*"))
        return {
            "driver loaded": version or MISSING,
            "driver GPUs": ", ".join(gpus) or "none",
            "driver kernels": ", ".join(kernels) or "none",
        }


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[Difference]:
    """Return the items whose value differs."""
    found = []
    for item in sorted({*before, *now}):
        old, new = before.get(item, MISSING), now.get(item, MISSING)
        if old != new:
            kind, _space, name = item.partition(" ")
            found.append(Difference(name, f"{kind} {name} {_change(old, new)}"))
    return found


def _change(old: str, new: str) -> str:
    """Return a change in words, without the checksum of a content, which may be a secret."""
    old_rights, _separator, old_content = old.partition(CONTENT)
    rights, _separator, content = new.partition(CONTENT)
    if old_content and content and rights == old_rights:
        return "has another content"
    return f"is {rights}; recorded: {old_rights}"
