# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases of a host: which are written, verified, running and kept."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner, run
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import (
    DESCRIPTION,
    ReleaseError,
    StagedRelease,
    alike_units,
    check_files,
    file_names,
    release_name,
    release_texts,
    remove_path,
    unit_names,
    write_release,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.history import history_entry, read_history
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.images import (
    IMAGES,
    ReleaseImages,
    image_by_digest,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.units import (
    ReleaseUnits,
    UnitChanges,
    replace_link,
)

HISTORY_LENGTH = 100  # entries, of some hundred bytes each
# Directory of empty files, each named as a temporary release. It exists until trtllm-restore.service has run.
TEMPORARY = "temporary"


class HostReleases:
    """The releases below ``root``, and the links to their units in the folder ``units``.

    With ``check_mode`` nothing is changed, and methods return what would change. Methods raise ReleaseError and
    OSError.
    """

    def __init__(
        self, root: Path, units: Path, check_mode: bool = False, runner: Runner = run, images: Path = IMAGES
    ) -> None:
        self._releases = root / "releases"
        self._verified = root / "verified"
        self._history = root / "history.json"
        self._temporary = root / TEMPORARY
        self._check_mode = check_mode
        self._units = ReleaseUnits(units, self._releases, check_mode, runner)
        self._images = ReleaseImages(root, images, check_mode, runner)

    def path(self, name: str) -> Path:
        """Return the directory of a release."""
        return self._releases / name

    def verified(self) -> str:
        """Return the release that was verified last; empty if there is none or it was removed."""
        path = Path(os.readlink(self._verified)) if self._verified.is_symlink() else None
        return path.name if path and path.parent == self._releases and path.is_dir() else ""

    def current(self) -> str:
        """Return the release to roll back to; empty if there is none.

        It is the release that was verified last. After an interrupted first run none is: then it is the release that
        all units are links into, if none of its units and not its description is missing.
        """
        linked = self._units.linked()
        names = set(linked.values())
        complete = all(
            (self.path(name) / file).is_file() for unit, name in linked.items() for file in (unit, DESCRIPTION)
        )
        return self.verified() or (names.pop() if len(names) == 1 and complete else "")

    def status(self, booted: bool) -> dict[str, Any]:
        """Return the verified release, its description, the history and the state of all units.

        ``booted``: whether systemd booted the host. If not, no unit is active.
        """
        with suppress(FileNotFoundError):
            self._releases.stat()  # fails for a directory that cannot be read
        verified, linked = self.verified(), self._units.linked()
        names = sorted({*(unit_names(self.path(verified)) if verified else []), *linked})
        shown = self._units.show(names) if booted else {}
        units = [
            {
                "name": unit,
                "release": linked.get(unit, ""),
                "active": shown.get(unit, {}).get("ActiveState", "inactive"),
            }
            for unit in names
        ]
        history = self._kept_history()
        return {
            "verified": verified,
            "previous": next((name for name in reversed(_kept(history)) if name != verified), ""),
            "description": self.description_or_none(verified),
            "history": history,
            "units": units,
            "temporary": self.temporary(),
        }

    def history(self) -> list[dict[str, Any]]:
        """Return the verified releases, newest last. Without a history file that is the verified release."""
        if self._history.exists():
            return read_history(self._history)
        verified = self.verified()
        return [self._entry(1, verified, self._verified.lstat().st_mtime)] if verified else []

    def temporary(self) -> bool:
        """Return whether trtllm-restore.service is to restore the verified release."""
        return self._temporary.is_dir()

    def has_units(self, name: str) -> bool:
        """Return whether units of the host are of a release: it runs, or a switch to it began."""
        return name in self._units.linked().values()

    def rollback_target(self, name: str) -> dict[str, Any]:
        """Return the name and the description of a release, and the verified release's units that run the same in it.

        Raises ReleaseError if it was not verified on this host, was removed, or lacks its weights or image.
        """
        kept = _kept(self._kept_history())
        if name not in kept:
            known = ", ".join(sorted(set(kept))) or "none"
            raise ReleaseError(
                f"release {name} was not verified on this host or was removed; available releases: {known}. "
                "Set rollback_to to one of them"
            )
        description = self.description(name) or {}
        missing = self._missing(description)
        if missing:
            raise ReleaseError(
                f"release {name} has no {' and no '.join(missing)} on the host; a rollback needs both weights and "
                "image. Run rollout.yml with the values of that release, or set rollback_to to another release"
            )
        return {"name": name, "description": description, "alike": self.alike(release_texts(self.path(name)))}

    def description(self, name: str) -> dict[str, Any] | None:
        """Return the description of a release; None if check mode did not write it. Raises ReleaseError."""
        path = self.path(name) / DESCRIPTION
        if self._check_mode and not path.exists():
            return None
        try:
            return dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ReleaseError(f"{path} cannot be read: {error}") from None

    def description_or_none(self, name: str) -> dict[str, Any] | None:
        """Return the description of a release; None if there is no release or no readable description."""
        try:
            return self.description(name) if name else None
        except ReleaseError:
            return None

    def stage(self, files: Mapping[str, str], secrets: Mapping[str, str] | None = None) -> StagedRelease:
        """Write the release with these files, by name, and ``secrets``, which only root and its group may read.

        Differences are to its files on the host, else to those of the verified release.
        """
        secrets = secrets or {}
        check_files({**files, **secrets})
        name = release_name({**files, **secrets})
        return write_release(self.path(name), files, secrets, self.path(self.verified() or name), self._check_mode)

    def alike(self, texts: Mapping[str, str]) -> list[str]:
        """Return the units of the verified release that run the same in a release with these files, by name."""
        verified = self.verified()
        return alike_units(self._texts(verified), texts) if verified else []

    def _texts(self, name: str) -> dict[str, str]:
        """Return the files of a release; none if one was changed since, because its units may run what it was."""
        texts = release_texts(self.path(name))
        return texts if release_name(texts) == name else {}

    def start(self, name: str, restart: bool, units: Sequence[str] = (), only: Sequence[str] = ()) -> UnitChanges:
        """Start the units of a release and remove those of all others, without waiting for the instances.

        Units that run already restart with ``restart``, or if they are of another release, unless they run the same in
        both. With ``only``, start these units and leave all others as they are. In check mode ``units`` names those of
        a release that is not written.
        """
        directory = self.path(name)
        known = units if units and self._check_mode else unit_names(directory)
        if not known and not self._check_mode:
            raise ReleaseError(f"{directory} has no unit to start")
        unknown = sorted(set(only) - set(known))
        if unknown:
            raise ReleaseError(f"{directory} has no {', '.join(unknown)}; it has {', '.join(known)}")
        wanted = {unit: str(directory / unit) for unit in only or known}
        texts = release_texts(directory)
        linked = {unit: release for unit, release in self._units.linked().items() if unit in wanted}
        alike = {
            unit
            for release in sorted({*linked.values()} - {name})
            for unit in alike_units(self._texts(release), texts)
            if linked.get(unit) == release
        }
        return self._units.apply(wanted, restart, others=not only, alike=alike)

    def stop(self) -> UnitChanges:
        """Stop and remove the units of all releases."""
        return self._units.apply({}, restart=False, others=True)

    def mark_verified(self, name: str, keep: int, back: bool = False, rollout: str = "") -> tuple[bool, list[str]]:
        """Record a release as verified, and remove all but the ``keep`` releases that were written or verified last.

        The release that was verified before always stays. ``back``: this is a rollback. ``rollout``: name of the
        rollout, or of the one that the rollback undoes. Returns whether something changed, and the removed releases.
        """
        before = self.verified()
        history = self.history()[-HISTORY_LENGTH + 1 :]
        # A host that the rollout never changed has to know that it was undone, too.
        undone = bool(back and rollout and history) and history[-1].get("rollout") != rollout
        if before == name and not undone:
            return False, []
        number = history[-1].get("number", 0) + 1 if history else 1
        entry = {**self._entry(number, name, time.time()), "back": back, "rollout": rollout}
        others = sorted(
            (other for other in file_names(self._releases) if other not in (name, before)),
            key=lambda other: self.path(other).stat().st_mtime,
            reverse=True,
        )
        old = sorted(others[max(0, keep - (2 if before else 1)) :])
        if not self._check_mode:
            os.utime(self.path(name))
            write_file(self._history, json.dumps([*history, entry], indent=2) + "\n")
            replace_link(self._verified, str(self.path(name)))
            for other in old:
                remove_path(self.path(other))
        return True, old

    def images(self) -> list[tuple[str, str | None]]:
        """Return the images of all releases in the history or on the host, each as tag and digest or ID."""
        releases = [self.description_or_none(name) or {} for name in file_names(self._releases)]
        found = [each for each in [*self.history(), *releases] if each.get("image")]
        exact = [image_by_digest(each) if each.get("digest") or each.get("image_id") else None for each in found]
        return list(dict.fromkeys((str(each["image"]), name) for each, name in zip(found, exact)))

    def remove_images(self, images: Iterable[tuple[str, str | None]]) -> tuple[list[str], list[str]]:
        """Remove images that no release needs. Returns the removed names, and the reasons for those that stay."""
        return self._images.remove_unused(images)

    def _entry(self, number: int, name: str, verified_at: float) -> dict[str, Any]:
        return history_entry(number, name, verified_at, self.description_or_none(name) or {})

    def _kept_history(self) -> list[dict[str, Any]]:
        return [dict(entry, kept=self.path(entry["release"]).is_dir()) for entry in self.history()]

    def _missing(self, description: Mapping[str, Any]) -> list[str]:
        """Return which of weights and image a release needs and the host lacks."""
        missing = []
        for weights in (description[kind] for kind in ("weights", "draft_weights") if description.get(kind)):
            # Docker creates an empty directory for a mount that does not exist.
            if not (Path(weights).is_dir() and any(Path(weights).iterdir())):
                missing.append(f"weights ({weights})")
        if description.get("image"):
            image = image_by_digest(description)
            if self._images.is_missing(image):
                missing.append(f"image ({image})")
        return missing


def _kept(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the releases of a history that are on the host, the last verified one last."""
    return [entry["release"] for entry in history if entry["kept"]]
