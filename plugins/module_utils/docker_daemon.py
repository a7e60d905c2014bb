# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge settings into Docker's daemon.json and keep the settings of others."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file, write_file

Config = dict[str, Any]

UNIT = "docker.service"
VALIDATE_SECONDS = 60
SYSTEMCTL_SECONDS = 20
_MISSING = object()

# dockerd's flags whose key in daemon.json has another name (its reference lists both).
_SHORT_FLAGS = {
    "D": "debug",
    "G": "group",
    "H": "host",
    "b": "bridge",
    "l": "log-level",
    "p": "pidfile",
    "s": "storage-driver",
}
_PLURAL_KEYS = {
    "authorization-plugin": "authorization-plugins",
    "cdi-spec-dir": "cdi-spec-dirs",
    "default-address-pool": "default-address-pools",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "feature": "features",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "node-generic-resource": "node-generic-resources",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
}


class DaemonConfigError(ValueError):
    """The configuration cannot be merged; the message says where and what to change."""


@dataclass(frozen=True)
class Plan:
    """The planned daemon.json and record; ``before`` and ``after`` are texts, None without a file."""

    before: str | None
    after: str | None
    config: Config
    record: Config
    config_changed: bool
    record_changed: bool


def _same(left: Any, right: Any) -> bool:
    """Return True if two values are equal in JSON: in any order of keys, and ``true`` is not ``1``."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _without(items: Sequence[Any], removed: Sequence[Any]) -> list[Any]:
    return [item for item in items if not any(_same(item, other) for other in removed)]


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "a single value"


def parse(text: str, path: str) -> Config:
    """Return the mapping in ``text``; empty for an empty file. Raises DaemonConfigError with line and column."""
    if not text.strip():
        return {}
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1].strip() if error.lineno <= len(text.splitlines()) else "end of file"
        raise DaemonConfigError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}: {line!r}. "
            "Correct it or move it away; nothing was changed"
        ) from error
    if not isinstance(config, dict):
        raise DaemonConfigError(f"{path} holds {_kind(config)}, expected a mapping. Correct it or move it away")
    return config


def merge_fragments(fragments: Mapping[str, Config]) -> Config:
    """Merge the settings of all owners, ``{owner: config}``: mappings are merged, lists become a union.

    Raises DaemonConfigError if two owners set a key to different values.
    """
    owners: dict[str, str] = {}

    def merge(into: Config, other: Config, owner: str, where: str) -> None:
        for key, value in other.items():
            place = f"{where}{key}"
            have = into.get(key, _MISSING)
            if isinstance(value, dict) and (have is _MISSING or isinstance(have, dict)):
                merge(into.setdefault(key, {}), value, owner, f"{place}.")
            elif isinstance(value, list) and isinstance(have, list):
                into[key] = have + _without(value, have)
            elif have is _MISSING or _same(have, value):
                into[key] = value
            else:
                raise DaemonConfigError(
                    f"{owners[place]} sets {place} to {json.dumps(have)} and {owner} sets it to {json.dumps(value)}; "
                    "the values have to be equal. Run this module with one of these names and an empty config"
                )
            owners.setdefault(place, owner)

    merged: Config = {}
    for owner, config in fragments.items():
        merge(merged, config, owner, "")
    return merged


def reconcile(existing: Config, owned: Config, wanted: Config, original: Config | None = None) -> tuple[Config, Config]:
    """Return the new content and its managed share, from the present content, its managed share and the wanted one.

    Keys and list items of others stay. A managed value that is no longer wanted is removed, unless it was changed
    since. A value that others had set first is not managed; one in ``original`` that was overridden is restored.
    """
    original = original or {}
    content: Config = {}
    share: Config = {}
    for key in [*existing, *(key for key in wanted if key not in existing)]:
        now, ours, want = (source.get(key, _MISSING) for source in (existing, owned, wanted))
        if want is _MISSING:
            kept = _withdraw(now, ours, original.get(key, _MISSING))
            if kept is not _MISSING:
                content[key] = kept
        elif isinstance(want, dict):
            inside, before_us = (one if isinstance(one, dict) else {} for one in (now, original.get(key)))
            content[key], part = reconcile(inside, ours if isinstance(ours, dict) else {}, want, before_us)
            if part or not isinstance(now, dict) or ours == {}:
                share[key] = part
        elif isinstance(want, list) and isinstance(now, list):
            before = ours if isinstance(ours, list) else []
            rest = _without(now, _without(before, want))
            content[key] = rest + _without(want, rest)
            if mine := _without(want, _without(now, before)):
                share[key] = mine
        else:
            content[key] = want
            if now is _MISSING or not _same(now, want) or (ours is not _MISSING and _same(ours, want)):
                share[key] = want
    return content, share


def _withdraw(now: Any, ours: Any, original: Any) -> Any:
    """Return ``now`` without the managed share; _MISSING if nothing is left."""
    if ours is _MISSING:
        return now
    if isinstance(now, dict) and isinstance(ours, dict):
        if not isinstance(original, dict):
            return reconcile(now, ours, {})[0] or original
        return reconcile(now, ours, {}, original)[0] or _MISSING
    if isinstance(now, list) and isinstance(ours, list):
        return _without(now, ours) or _MISSING
    return original if _same(now, ours) else now


def make_plan(text: str | None, record_text: str | None, name: str, config: Config, paths: tuple[str, str]) -> Plan:
    """Plan the files for the owner ``name`` with ``config``.

    ``text`` and ``record_text`` are the content of daemon.json and of the record at ``paths``, None without the file.
    The record has the settings of each owner (``fragments``), the part of daemon.json that came from them (``ours``),
    and the text before the first of them (``original``). Without owners and other changes, the text is restored.
    Raises DaemonConfigError.
    """
    existing = parse(text or "", paths[0])
    before = parse(record_text or "", paths[1])
    original = before.get("original") if before else text
    fragments = {**before.get("fragments", {}), name: config}
    if not config:
        del fragments[name]
    left = parse(original or "", paths[1])
    content, ours = reconcile(existing, before.get("ours", {}), merge_fragments(fragments), left)
    record = {"fragments": fragments, "ours": ours, "original": original} if fragments else {}
    changed = not _same(existing, content)
    after = json.dumps(content, indent=2) + "\n" if changed else text
    if before and not fragments and _same(content, left):
        after = original
    return Plan(
        before=text,
        after=after,
        config=content,
        record=record,
        config_changed=changed,
        record_changed=not _same(before, record),
    )


def changed_keys(text: str | None, record_text: str | None, paths: tuple[str, str]) -> list[str]:
    """Return the keys of daemon.json that differ from the settings of their owners; empty without owners.

    The texts are those of ``make_plan``. Raises DaemonConfigError.
    """
    fragments = parse(record_text or "", paths[1]).get("fragments", {})
    if not fragments:
        return []
    name, config = next(iter(fragments.items()))
    existing, wanted = parse(text or "", paths[0]), make_plan(text, record_text, name, config, paths).config
    return [key for key in wanted if not _same(existing.get(key), wanted[key])]


def daemon_difference(file: Path, record: Path) -> str:
    """Return how a daemon.json differs from the settings of its owners, or why it cannot be read; empty if equal."""
    try:
        keys = changed_keys(read_file(file), read_file(record), (str(file), str(record)))
    except DaemonConfigError as error:
        return str(error)
    return f"{file} has other values than the roles set: {', '.join(keys)}" if keys else ""


def unit_flags(systemctl: str | None, runner: Runner) -> tuple[list[str], list[str]]:
    """Return the flags of dockerd in its systemd unit, and the files that set them; empty without the unit."""
    if systemctl is None:
        return [], []
    properties = ["ExecStart", "Environment", "EnvironmentFiles", "FragmentPath", "DropInPaths"]
    result = runner([systemctl, "show", UNIT, *(f"--property={name}" for name in properties)], SYSTEMCTL_SECONDS)
    lines = [line.split("=", 1) for line in result.stdout.splitlines() if "=" in line]
    shown = dict(lines)
    command = re.search(r"argv\[\]=(.*?) ; ", shown.get("ExecStart", ""))
    if result.rc != 0 or not command:
        return [], []
    files = [shown.get("FragmentPath", ""), *shown.get("DropInPaths", "").split()]
    environment = dict(item.split("=", 1) for item in shlex.split(shown.get("Environment", "")) if "=" in item)
    for file in [value.split(" (")[0] for name, value in lines if name == "EnvironmentFiles"]:
        text = read_text(file)
        if text is not None:
            files.append(file)
            environment.update(re.findall(r"^[ \t]*(\w+)=[\"']?(.*?)[\"']?[ \t]*$", text, re.MULTILINE))
    arguments = re.sub(r"\$\{?(\w+)\}?", lambda found: environment.get(found.group(1), ""), command.group(1))
    return [word for word in arguments.split() if word.startswith("-")], list(filter(None, files))


def find_conflicts(config: Config, flags: Sequence[str]) -> dict[str, str]:
    """Return the keys of ``config`` that are flags too, with the flag: dockerd rejects an option in both places."""
    conflicts = {}
    for flag in flags:
        name = flag.lstrip("-").split("=", 1)[0]
        if not flag.startswith("--"):
            name = _SHORT_FLAGS.get(name[:1], name)
        key = _PLURAL_KEYS.get(name, name)
        if key in config:
            conflicts[key] = flag
    return conflicts


def assert_no_conflicts(plan: Plan, path: str, flags: Sequence[str], files: Sequence[str]) -> None:
    """Raise DaemonConfigError with the keys that are flags of the unit too, and their owners."""
    conflicts = []
    for key, flag in find_conflicts(plan.config, flags).items():
        owners = [name for name, config in plan.record.get("fragments", {}).items() if key in config]
        conflicts.append(f"{key} (set by {', '.join(owners) or path}) is also the flag {flag}")
    if conflicts:
        raise DaemonConfigError(
            f"Docker cannot start: {'; '.join(conflicts)} of {UNIT}. "
            f"Remove the flag from {' or '.join(files)}, or the key from its owner"
        )


def validate(dockerd: str | None, config: Config, name: str, path: str, runner: Runner) -> bool:
    """Validate ``config`` with dockerd; False if dockerd is missing or older than 23.0.

    Raises DaemonConfigError with dockerd's reason, the ``path`` of the file and the owner ``name``.
    """
    if dockerd is None:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".json") as candidate:
        json.dump(config, candidate)
        candidate.flush()
        result = runner([dockerd, "--validate", "--config-file", candidate.name], VALIDATE_SECONDS)
    if result.rc == 0:
        return True
    if "unknown flag: --validate" in result.text:
        return False
    reason = " ".join(result.text.replace(candidate.name, path).split()) or f"no answer in {VALIDATE_SECONDS} s"
    raise DaemonConfigError(f"dockerd rejects {path} with the settings of {name}; nothing was changed: {reason}")


def put(path: str, text: str | None) -> None:
    """Write ``text`` to a file or its link target; remove the file if ``text`` is None."""
    if text is not None:
        write_file(Path(path).resolve(), text, mode=None)
    elif os.path.lexists(path):
        os.unlink(path)


def read_text(path: str) -> str | None:
    """Return the text of a file; None if it does not exist."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
