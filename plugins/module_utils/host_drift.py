# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drift of a GPU host: differences between its state and the state that a run left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.docker_daemon import DaemonConfigError, changed_keys
from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import changed_files
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases

# Drop-ins of systemd and of packages, which apply to all services.
VENDOR_DROP_INS = ("/usr/lib/", "/lib/", "/run/systemd/system/service.d/")

Drift = dict[str, str]


def file_drift(releases: HostReleases, name: str) -> Iterator[Drift]:
    """Yield files of the release that were changed or removed."""
    for file in changed_files(releases.path(name)):
        path = releases.path(name) / file
        if path.exists():
            yield _drift(file, f"{path} was changed at {iso_time(path.lstat().st_mtime)}")
        else:
            yield _drift(file, f"{path} is missing")


def daemon_drift(file: Path, record: Path) -> Iterator[Drift]:
    """Yield keys of daemon.json that differ from the options of the roles."""
    try:
        keys = changed_keys(read_file(file), read_file(record), (str(file), str(record)))
    except DaemonConfigError as error:
        yield _drift("docker", str(error))
        return
    if keys:
        yield _drift("docker", f"{file} has other values than the roles set: {', '.join(keys)}")


def foreign_drop_ins(shown: Mapping[str, str]) -> list[str]:
    """Return the drop-ins of a unit that neither systemd nor a package has for all services."""
    return [path for path in shown.get("DropInPaths", "").split() if not path.startswith(VENDOR_DROP_INS)]


def unit_drift(
    verified: str, units: Sequence[Mapping[str, Any]], shown: Mapping[str, Mapping[str, str]]
) -> Iterator[Drift]:
    """Yield units that differ from what host_release leaves, or that belong to another release."""
    for unit in units:
        name, state = unit["name"], shown.get(unit["name"], {})
        if state.get("LoadState") == "masked":
            yield _drift(name, f"{name} is masked, so it cannot start")
        elif not unit["release"]:
            yield _drift(name, f"{name} is no longer a link into a release")
        elif unit["release"] != verified:
            yield _drift(name, f"{name} is a link into release {unit['release']}, which is not the verified one")
        elif state.get("UnitFileState", "enabled") != "enabled":
            yield _drift(name, f"{name} is {state['UnitFileState'] or 'not enabled'}: it does not start at boot")
        drop_ins = foreign_drop_ins(state)
        if drop_ins:
            yield _drift(name, f"{name} is changed by {', '.join(drop_ins)}")
        if state.get("NeedDaemonReload") == "yes":
            yield _drift(name, f"{name} was changed after systemd loaded it. Run systemctl daemon-reload")


def image_drift(
    instances: Sequence[Mapping[str, Any]], images: Mapping[str, Sequence[str]], digest: str | None
) -> Iterator[Drift]:
    """Yield containers with another image than the release."""
    for instance in instances:
        known = images.get(instance["container"])
        if digest and known and not any(name.endswith(f"@{digest}") for name in known):
            yield _drift(
                instance["name"],
                f"container {instance['container']} runs {known[0]}; the release has {digest}",
            )


def driver_drift(driver: Mapping[str, Any], module_version: str | None) -> Iterator[Drift]:
    """Yield a loaded kernel module of another version than the installed driver."""
    if driver["state"] == "mismatch":
        yield _drift("driver", driver["message"])
    elif driver["state"] == "ok" and module_version and driver["version"] != module_version:
        yield _drift(
            "driver",
            f"the loaded kernel module is {module_version} and nvidia-smi is {driver['version']}. Reboot the host",
        )


def iso_time(moment: float) -> str:
    """Return a time in seconds since 1970 in ISO 8601."""
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="seconds")


def _drift(about: str, sentence: str) -> Drift:
    return {"about": about, "sentence": sentence}
