# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The convergence record of a host: what the last complete run of the roles left, and from which inputs."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.state import (
    MISSING,
    Difference,
    Items,
    Owned,
)

RECORD = Path("/var/lib/trtllm-fleet/record.json")
# The items are state of root's files, such as the owners and sizes of secrets.
RECORD_MODE = 0o600
FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What a run left on a host.

    ``run``: identifier of the run that runs the roles; empty once it ended well. ``collection``: checksum of the
    collection. ``inputs``: salted checksums of the variables by name. ``items``: values by item, of what the roles own;
    while the roles run, those of the run before, and ``repeated`` says whether that had the same inputs.
    ``drifted``: while a playbook changes the host without running all roles, the items that differed when it began,
    with their values of then.
    """

    run: str
    collection: str
    salt: str
    inputs: Mapping[str, str]
    owned: Owned
    items: Items
    repeated: bool = True
    drifted: Items | None = None

    @property
    def complete(self) -> bool:
        return not self.run


def read_record(path: Path) -> Record | None:
    """Return the record of the host; None without a readable one of this format."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("format") != FORMAT:
            return None
        return Record(**{**document, "owned": Owned(**document["owned"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Write a record. Raises OSError."""
    write_file(path, json.dumps({"format": FORMAT, **asdict(record)}, indent=1, sort_keys=True), RECORD_MODE)


def opened(record: Record | None, run: str, collection: str, inputs: Mapping[str, str]) -> Record:
    """Return the record of a host whose roles are about to run, from these inputs."""
    before = record or Record("", "", "", {}, Owned(), {}, repeated=False)
    same = before.collection == collection and before.inputs == salted(inputs, before.salt)
    salt = secrets.token_hex(16)
    return replace(
        before,
        run=run,
        collection=collection,
        salt=salt,
        inputs=salted(inputs, salt),
        repeated=before.repeated and same and before.drifted is None,
        drifted=None,
    )


def opened_for_change(record: Record, run: str, drifted: Items, same_inputs: bool) -> Record:
    """Return the record of a host that a playbook is about to change without running all roles.

    Without ``same_inputs`` the record tells drift, and holds for no later run. After an interrupted one, its changes
    cannot be distinguished from drift, so what differed before that one counts.
    """
    return replace(
        record,
        run=run,
        collection=record.collection if same_inputs else "",
        drifted=drifted if record.drifted is None else record.drifted,
    )


def changed(record: Record, owned: Owned, items: Items) -> Record:
    """Return the record after that playbook, with the items as they are, except earlier drift that is still there."""
    kept = {item for item, value in (record.drifted or {}).items() if items.get(item, MISSING) == value}
    now = {item: value for item, value in items.items() if item not in kept}
    before = {item: value for item, value in record.items.items() if item in kept}
    return replace(record, run="", drifted=None, owned=owned, items={**now, **before})


def remove_record(path: Path) -> bool:
    """Remove the record. Returns whether there was one. Raises OSError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def salted(inputs: Mapping[str, str], salt: str) -> dict[str, str]:
    """Return checksums of checksums with a salt: those of short secrets could be guessed otherwise."""
    return {name: hashlib.sha256(f"{salt}{digest}".encode()).hexdigest() for name, digest in inputs.items()}


def reasons(record: Record | None, collection: str, inputs: Mapping[str, str]) -> list[Difference]:
    """Return why a record does not hold for these inputs, whatever the state of the host."""
    if record is None:
        return [Difference("record", "the host has no record of a complete run")]
    if not record.complete:
        return [Difference("record", "the last run did not end well")]
    if not record.collection:
        return [Difference("record", "another playbook changed the host since")]
    if record.collection != collection:
        return [Difference("record", "another version of the collection wrote the record")]
    now = salted(inputs, record.salt)
    return [
        Difference(name, f"{name} has another value")
        for name in sorted({*now, *record.inputs})
        if now.get(name) != record.inputs.get(name)
    ]
