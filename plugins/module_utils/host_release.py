# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host is set to run: release directories, and the systemd units that are links into one of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner, output, run
from ansible_collections.trtllm.fleet.plugins.module_utils.files import FILE_MODE, write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import paragraphs

# Where an administrator's units are: systemd.unit(5).
UNITS = Path("/etc/systemd/system")
UNIT_SUFFIX = ".service"
# What the release serves, for people and later runs. Nothing that runs reads it, so it is no part of a release's name.
DESCRIPTION = "release.json"
# What was written, as sha256sum(1) has it, so that a look at the host tells what was changed since. It follows from the
# files, so it is no part of a release's name either.
SUMS = "SHA256SUMS"
# Which releases were proven, one after the other, the newest last; for people, and for going back.
HISTORY = "history.json"
# What the sources of a recipe's values that an operator set begin with: the names of the variables.
OVERRIDES = "serving_recipe_"
HISTORY_LENGTH = 100  # of some hundred bytes each; a release is there for the last few of them only
# In the files this stands for the release's directory, whose name follows from them.
PLACEHOLDER = "@release@"
SECRET = "(a secret)"
NAME_LENGTH = 12  # hexadecimal digits of SHA-256: enough to tell the few releases of a host apart

# Root's group, too: a container's user that is not root is often of that group.
SECRET_MODE = 0o640
DIRECTORY_MODE = 0o755

# Names of the images that role container_image pulled or loaded here, one a line. No other image is removed.
IMAGES = Path("/var/lib/trtllm-fleet/images")
# A port of the registry comes before a slash.
TAG = re.compile(r"(:[^:/@]*)?(@.*)?$")
# Seconds. Tens of GiB of layers are deleted in less.
IMAGE_TIMEOUT = 600.0

# Seconds. systemctl answers in milliseconds; for stopping, systemd keeps each unit's own TimeoutStopSec.
COMMAND_TIMEOUT = 30.0
STOP_TIMEOUT = 3600.0

Difference = dict[str, str]  # in the form of Ansible's --diff


class ReleaseError(Exception):
    """A release cannot be written or run; the message says why."""


@dataclass(frozen=True)
class State:
    """A unit as systemd sees it, in its own words, and what its file is a link to (None: no link)."""

    active: str
    enabled: str
    link: str | None
    sub: str = ""

    @property
    def stopped(self) -> bool:
        return self.active in ("inactive", "failed")

    @property
    def waits(self) -> bool:
        """Whether systemd is going to start it again after a while, as after a restart of Docker."""
        return self.sub.startswith("auto-restart")


@dataclass(frozen=True)
class Plan:
    """What has to be done so that a host runs exactly one release. Units are in the order of their names."""

    stop: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    start: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return any(vars(self).values())

    def steps(self) -> str:
        """What is done, one step a line."""
        return "".join(f"{verb} {unit}\n" for verb, units in vars(self).items() for unit in units)


def name_release(files: Mapping[str, str]) -> str:
    """The name of the release with these files, by name: the same files, the same name."""
    content = {name: text for name, text in files.items() if name != DESCRIPTION}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:NAME_LENGTH]


def summary(description: Mapping[str, Any]) -> dict[str, Any]:
    """What the history says of a release, from what the release says of itself."""
    overrides = {
        value["option"]: value["value"]
        for value in description.get("provenance") or []
        if str(value.get("source", "")).startswith(OVERRIDES)
    }
    return {
        "recipe": description.get("name"),
        "model": description.get("model"),
        "revision": Path(description["weights"]).name if description.get("weights") else None,
        "image": description.get("image"),
        "digest": description.get("digest"),
        "overrides": overrides,
    }


def plan(states: Mapping[str, State], wanted: Mapping[str, str], restart: bool) -> Plan:
    """How to get from ``states``, by unit, to exactly the units in ``wanted``, each with the file that it links to.

    Every unit that has to go or to be started afresh is stopped before any is started: the GPUs and ports of one may
    be those of another before.
    """
    remove = [unit for unit in states if unit not in wanted]
    link = [unit for unit, file in wanted.items() if states[unit].link != file]
    # What waits is left waiting by a start, so it is stopped, too.
    again = [unit for unit in wanted if restart or unit in link or states[unit].waits]
    start = [unit for unit in wanted if unit in again or states[unit].stopped]
    # systemd's link for the boot names the file behind the unit's own link, so it is made anew with that.
    enable = [unit for unit in wanted if unit in link or states[unit].enabled != "enabled"]
    stop = [unit for unit in (*remove, *again) if not states[unit].stopped]
    return Plan(*(tuple(sorted(units)) for units in (stop, remove, link, enable, start)))


@dataclass(frozen=True)
class Staged:
    """A release that is on the host. ``intact``: what runs from it did not have to be written."""

    name: str
    intact: bool
    differences: Sequence[Difference]


def image_by_digest(release: Mapping[str, Any]) -> str:
    """Return the image of a release by its digest; by its ID on the host, or else its tag, where it has no digest."""
    image, digest = str(release["image"]), release.get("digest")
    return f"{TAG.sub('', image, count=1)}@{digest}" if digest else str(release.get("image_id") or image)


class HostReleases:
    """The releases below ``root``, and the links to their units in ``units``.

    With ``check_mode`` nothing is changed, and the answers are what would have been done. Methods raise ReleaseError,
    and OSError for a file system that does not let them.
    """

    def __init__(
        self, root: Path, units: Path, check_mode: bool = False, runner: Runner = run, images: Path = IMAGES
    ) -> None:
        self._root = root
        self._images = images
        self._releases = root / "releases"
        self._verified = root / "verified"
        self._history = root / HISTORY
        self._units = units
        self._check_mode = check_mode
        self._runner = runner

    def path(self, name: str) -> Path:
        """The directory of a release."""
        return self._releases / name

    def verified(self) -> str:
        """Name of the release that was proven last; empty where there is none, or it is no longer there."""
        path = Path(os.readlink(self._verified)) if self._verified.is_symlink() else None
        return path.name if path and path.parent == self._releases and path.is_dir() else ""

    def serving(self) -> str:
        """Name of the release to go back to; empty where there is none.

        It is the one that was proven last. A host where none was may serve all the same, its first run having broken
        off: then it is the one that all units of ours are links into, if nothing of it is missing.
        """
        ours = self._ours(self._links())
        names = set(ours.values())
        complete = all(
            (self.path(name) / file).is_file() for unit, name in ours.items() for file in (unit, DESCRIPTION)
        )
        return self.verified() or (names.pop() if len(names) == 1 and complete else "")

    def survey(self, booted: bool) -> dict[str, Any]:
        """The release that was proven last, what it serves, and the state of its units and all others of ours.

        Where systemd did not boot the host no unit is active.
        """
        with suppress(FileNotFoundError):
            self._releases.stat()  # A directory that may not be read is not an empty one.
        verified, ours = self.verified(), self._ours(self._links())
        names = sorted({*(self._unit_files(verified) if verified else []), *ours})
        shown = self._show(names) if booted else {}
        units = [
            {"name": unit, "release": ours.get(unit, ""), "active": shown.get(unit, {}).get("ActiveState", "inactive")}
            for unit in names
        ]
        history = self._kept_history()
        return {
            "verified": verified,
            "previous": next((name for name in reversed(_proven(history)) if name != verified), ""),
            "description": self.described(verified),
            "history": history,
            "units": units,
        }

    def _kept_history(self) -> list[dict[str, Any]]:
        return [dict(entry, kept=self.path(entry["release"]).is_dir()) for entry in self.history()]

    def history(self) -> list[dict[str, Any]]:
        """The releases that were proven, the newest last.

        Without the file it is the one that was proven before there was a history, if any.
        """
        if not self._history.exists():
            verified = self.verified()
            return [self._entry(1, verified, self._verified.lstat().st_mtime)] if verified else []
        try:
            return [dict(entry, release=str(entry["release"])) for entry in json.loads(self._history.read_text())]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ReleaseError(
                f"{self._history} cannot be read: {error!r}. Move it away, and a new one is begun"
            ) from None

    def _entry(self, number: int, name: str, verified_at: float) -> dict[str, Any]:
        """What the history says of a release that was proven at a moment, seconds since the epoch."""
        moment = datetime.fromtimestamp(verified_at, timezone.utc).isoformat(timespec="seconds")
        return {
            "number": number,
            "release": name,
            "verified_at": moment,
            **summary(self.described(name) or {}),
        }

    def target(self, name: str) -> dict[str, Any]:
        """Return a release, and what it serves.

        Raises ReleaseError for one that was not verified here, is not kept, or whose weights or image are gone.
        """
        proven = _proven(self._kept_history())
        if name not in proven:
            there = ", ".join(sorted(set(proven))) or "none"
            raise ReleaseError(f"release {name} was not proven here, or is no longer kept; there is {there}")
        description = self.description(name) or {}
        gone = self._gone(description)
        if gone:
            raise ReleaseError(
                f"release {name} has no {' and no '.join(gone)} on the host; a rollback needs both weights and image. "
                "Run rollout.yml with the values of that release, or set rollback_to to another release"
            )
        return {"name": name, "description": description}

    def _gone(self, description: Mapping[str, Any]) -> list[str]:
        """Return what a release needs and the host does not have: its weights, its image."""
        gone = []
        weights = description.get("weights")
        # Docker makes an empty directory of one that it is to mount.
        if weights and not (Path(weights).is_dir() and any(Path(weights).iterdir())):
            gone.append(f"weights ({weights})")
        if description.get("image"):
            image = image_by_digest(description)
            if "No such image" in self._docker("inspect", "--format", "{{.Id}}", image).text:
                gone.append(f"image ({image})")
        return gone

    def _docker(self, *arguments: str) -> CommandResult:
        """Run a command of ``docker image``. A host without Docker gives the answer that says so."""
        try:
            return self._runner(["docker", "image", *arguments], IMAGE_TIMEOUT)
        except OSError as error:
            return CommandResult(None, "", f"docker: {error.strerror}")

    def described(self, name: str) -> dict[str, Any] | None:
        """What a release serves; None where there is none, or where it does not say."""
        try:
            return self.description(name) if name else None
        except ReleaseError:
            return None

    def description(self, name: str) -> dict[str, Any] | None:
        """What a release serves; None where a dry run did not write it."""
        path = self.path(name) / DESCRIPTION
        if self._check_mode and not path.exists():
            return None
        try:
            return dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ReleaseError(f"{path} cannot be read: {error}") from None

    def changed_files(self, name: str) -> list[str]:
        """Files of a release that are gone or not as they were written; none where it does not say how that was."""
        directory = self.path(name)
        try:
            lines = (directory / SUMS).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        sums = {file: digest for digest, _separator, file in (line.partition("  ") for line in lines)}
        return [file or SUMS for file, digest in sums.items() if _sum(directory / file) != digest]

    def has_secrets(self, name: str, secrets: Mapping[str, str]) -> bool:
        """Whether these, by name of the file, are all secrets of a release."""
        directory = self.path(name)
        private = {file for file in _names(directory) if file != SUMS and _is_secret(directory / file)}
        return private == set(secrets) and all(
            _is(directory / file, text.replace(PLACEHOLDER, str(directory)), SECRET_MODE)
            for file, text in secrets.items()
        )

    def stage(self, files: Mapping[str, str], secrets: Mapping[str, str] | None = None) -> Staged:
        """Write the release with these files, by name, and no others.

        ``secrets`` are files that only root and its group may read.
        Differences are to it, else to the one verified last.
        """
        secret = set(secrets or {})
        files = {**files, **(secrets or {})}
        for file, text in files.items():
            if not isinstance(text, str):
                raise ReleaseError(f"files: {file!r} is {text!r}; it must be a text, so put quotes around it")
            if not re.fullmatch(r"[\w@-][\w.@-]*", file):
                raise ReleaseError(f"files: {file!r} is no name of a file; use letters, digits and -_.@")
            if file == SUMS:
                raise ReleaseError(f"files: {SUMS} is written by this module; give the file another name")
        name = name_release(files)
        directory, before = self.path(name), self.path(self.verified() or name)
        if not self._check_mode:
            directory.mkdir(parents=True, exist_ok=True)
            for made in (self._releases, directory):  # whatever the umask is
                made.chmod(DIRECTORY_MODE)
        differences, intact = [], True
        for file, text in sorted(files.items()):
            path, text = directory / file, text.replace(PLACEHOLDER, str(directory))
            mode = SECRET_MODE if file in secret else FILE_MODE
            if _is(path, text, mode):
                continue
            intact = intact and file == DESCRIPTION
            known = path if path.exists() else before / file
            old = known.read_text(errors="replace") if known.exists() else ""
            was_secret = bool(old) and (file in secret or _is_secret(known))
            header = {"before_header": str(known) if old else "", "after_header": str(path)}
            shown = {"before": SECRET if was_secret else old, "after": f"{SECRET}, another" if file in secret else text}
            differences.append({**shown, **header})
            if not self._check_mode:
                _put(path, text, mode)
        for stranger in sorted(set(_names(directory)) - {*files, SUMS}):
            # An editor's, or left by a full disk: nothing that runs was started from it.
            differences.append({"before": f"{directory / stranger}\n", "after": ""})
            if not self._check_mode:
                _remove(directory / stranger)
        path, text = directory / SUMS, _sums(files, str(directory))
        mode = SECRET_MODE if secret else FILE_MODE  # a short secret could be guessed from its sum
        if not _is(path, text, mode):
            if not differences:  # else it says nothing that they do not
                old = path.read_text(errors="replace") if path.exists() else ""
                header = {"before_header": str(path) if old else "", "after_header": str(path)}
                differences.append({"before": old, "after": text, **header})
            if not self._check_mode:
                _put(path, text, mode)
        return Staged(name, intact, differences)

    def start(self, name: str, restart: bool, units: Sequence[str] = (), only: Sequence[str] = ()) -> Plan:
        """Have the host run exactly this release, without waiting for it to serve.

        Units of other releases go. Those of this one are started afresh if ``restart`` or if they were another's.
        With ``only`` these units of it, and nothing is done to any other.
        A dry run may say in ``units`` which it has, for it may not be there.
        """
        directory = self.path(name)
        wanted = units if units and self._check_mode else self._unit_files(name)
        if not wanted and not self._check_mode:
            raise ReleaseError(f"{directory} has no unit to run")
        unknown = sorted(set(only) - set(wanted))
        if unknown:
            raise ReleaseError(f"{directory} has no {', '.join(unknown)}; it has {', '.join(wanted)}")
        return self._make_true({unit: str(directory / unit) for unit in only or wanted}, restart, others=not only)

    def withdraw(self) -> Plan:
        """Have the host run no release at all."""
        return self._make_true({}, restart=False, others=True)

    def remember(self, name: str, keep: int, back: bool = False, rollout: str = "") -> tuple[bool, list[str]]:
        """Remember a release as proven, and remove old ones, but for the ``keep`` that were written or proven last.

        The answer is whether something changed, and which were removed. Never removed is what was proven before.
        ``back``: the host has gone back to it. ``rollout``: the name of the rollout that brought it.
        """
        before = self.verified()
        if before == name:
            return False, []
        history = self.history()[-HISTORY_LENGTH + 1 :]
        number = history[-1].get("number", 0) + 1 if history else 1
        entry = {**self._entry(number, name, time.time()), "back": back, "rollout": rollout}
        others = sorted(
            (other for other in _names(self._releases) if other not in (name, before)),
            key=lambda other: self.path(other).stat().st_mtime,
            reverse=True,
        )
        old = sorted(others[max(0, keep - (2 if before else 1)) :])
        if not self._check_mode:
            os.utime(self.path(name))
            write_file(self._history, json.dumps([*history, entry], indent=2) + "\n")
            _link(self._verified, str(self.path(name)))
            for other in old:
                _remove(self.path(other))
        return True, old

    def images(self) -> list[tuple[str, str | None]]:
        """Return tag and digest, or ID, of the image of each release that is or was verified here, or is on the host.

        Each is a name that Docker takes.
        """
        releases = [self.described(name) or {} for name in _names(self._releases)]
        found = [each for each in [*self.history(), *releases] if each.get("image")]
        exact = [image_by_digest(each) if each.get("digest") or each.get("image_id") else None for each in found]
        return list(dict.fromkeys((str(each["image"]), name) for each, name in zip(found, exact)))

    def remove_images(self, images: Iterable[tuple[str, str | None]]) -> tuple[list[str], list[str]]:
        """Remove those images that no kept release names; return their names, and why others stay.

        Only what role container_image pulled or loaded is removed, and nothing that a container uses.
        """
        noted = self._images.read_text().split() if self._images.exists() else []
        # Of a Dynamo component, too, whose files name the image in their units.
        files = [*self._root.glob("releases/*/*"), *self._root.glob("dynamo/*/releases/*/*")]
        kept = "\n".join(path.read_text(errors="replace") for path in files if path.is_file())
        removed, left = [], []
        for image, exact in images:
            if image not in noted:
                continue
            tags = [] if image in kept else [image]
            digests = [exact] if exact and exact.rpartition("@")[2] not in kept else []
            # The last tag of an image takes its digest along.
            for name in [*tags, *digests]:
                if self._docker("inspect", "--format", "{{.Id}}", name).rc != 0:
                    continue
                answer = CommandResult(0) if self._check_mode else self._docker("rm", name)
                if answer.rc == 0:
                    removed.append(name)
                elif "No such image" not in answer.text:
                    left.append(f"{name}: {answer.text}")
        if removed and not self._check_mode:
            write_file(self._images, "".join(f"{name}\n" for name in dict.fromkeys(noted) if name not in removed))
        return removed, left

    def _make_true(self, wanted: Mapping[str, str], restart: bool, others: bool) -> Plan:
        """``others``: whether units of other releases are to go."""
        todo = plan(self._states(wanted, others), wanted, restart)
        if self._check_mode or not todo.changed:
            return todo
        self._systemctl("stop", todo.stop, STOP_TIMEOUT)
        for unit in todo.remove:
            for path in (self._units / unit, *self._units.glob(f"*.wants/{unit}")):
                path.unlink()
        for unit in todo.link:
            _link(self._units / unit, wanted[unit])
        self._systemctl("enable", todo.enable, options=["--no-reload", "--quiet"])
        self._check("systemctl", "daemon-reload")
        anew = sorted({*todo.remove, *todo.start})
        if anew:
            # systemd keeps a failed unit in its lists until told, and how often one was started, which has a limit. It
            # knows nothing of one that never ran, and says so.
            self._runner(["systemctl", "reset-failed", "--", *anew], COMMAND_TIMEOUT)
        self._systemctl("start", todo.start, options=["--no-block"])
        return todo

    def _states(self, wanted: Iterable[str], others: bool) -> dict[str, State]:
        """The wanted units, and all ``others`` that are links into a release: units of ours, whoever left them."""
        links = self._links()
        shown = self._show(sorted({*wanted, *(self._ours(links) if others else ())}))
        return {
            unit: State(
                value.get("ActiveState", "inactive"),
                value.get("UnitFileState", ""),
                links.get(unit),
                value.get("SubState", ""),
            )
            for unit, value in shown.items()
        }

    def _links(self) -> dict[str, str]:
        """What units are links to, whoever they are of."""
        return {path.name: os.readlink(path) for path in self._units.glob(f"*{UNIT_SUFFIX}") if path.is_symlink()}

    def _ours(self, links: Mapping[str, str]) -> dict[str, str]:
        """Those of the units that are links into a release, and its name."""
        directories = {unit: Path(target).parent for unit, target in links.items()}
        return {unit: path.name for unit, path in directories.items() if path.parent == self._releases}

    def _unit_files(self, name: str) -> list[str]:
        """Units of a release that is on the host."""
        return [file for file in _names(self.path(name)) if file.endswith(UNIT_SUFFIX)]

    def _show(self, units: Sequence[str]) -> dict[str, dict[str, str]]:
        """What systemd says of units."""
        if not units:
            return {}
        shown = self._check("systemctl", "show", "--property=ActiveState,SubState,UnitFileState", "--", *units)
        return paragraphs(units, shown)

    def _systemctl(
        self, verb: str, units: Sequence[str], timeout: float = COMMAND_TIMEOUT, options: Sequence[str] = ()
    ) -> None:
        if units:
            self._check("systemctl", verb, *options, "--", *units, timeout=timeout)

    def _check(self, *argv: str, timeout: float = COMMAND_TIMEOUT) -> str:
        return output(argv, timeout, self._runner, ReleaseError)


def _sums(files: Mapping[str, str], directory: str) -> str:
    return "".join(
        f"{hashlib.sha256(text.replace(PLACEHOLDER, directory).encode()).hexdigest()}  {file}\n"
        for file, text in sorted(files.items())
        if file != DESCRIPTION
    )


def _sum(path: Path) -> str:
    """The sum of a plain file; empty where there is none."""
    return "" if path.is_symlink() or not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def _proven(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the releases of a history that are still there, the one proven last at the end."""
    return [entry["release"] for entry in history if entry["kept"]]


def _is_secret(path: Path) -> bool:
    return path.stat().st_mode & 0o7777 == SECRET_MODE


def _is(path: Path, text: str, mode: int) -> bool:
    """Whether a path is a plain file with this text and mode."""
    if path.is_symlink() or not path.is_file():
        return False
    return path.read_bytes() == text.encode() and path.stat().st_mode & 0o7777 == mode


def _put(path: Path, text: str, mode: int) -> None:
    """Put the file there, also where somebody has made a directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    write_file(path, text, mode)


def _link(path: Path, target: str) -> None:
    """Point a link at ``target`` at one stroke; a file in its place goes."""
    new = path.with_name(f".{path.name}.new")
    if new.is_symlink():  # left by a run that broke off
        new.unlink()
    new.symlink_to(target)
    os.replace(new, path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
