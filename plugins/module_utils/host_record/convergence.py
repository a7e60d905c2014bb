# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether this host is as its last complete run left it, and serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.options import make_verification, validate_options
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.record import (
    RECORD,
    Record,
    changed,
    opened,
    opened_for_change,
    read_record,
    reasons,
    remove_record,
    write_record,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.state import (
    MISSING,
    Difference,
    HostState,
    Owned,
    differences,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.images import image_by_digest
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.units import UNITS

ROOT = Path("/etc/trtllm-fleet")
# Seconds. A running instance answers in less, or does not serve.
TIMEOUT = 60.0
# Tokens of the completion, which shows that the engine serves. What it says was checked when its release was started.
TOKENS = 32
CHECKS_OF_CONTENT = {"expected_text", "reasoning", "tool_call", "max_tokens"}

Release = Mapping[str, Any]
Verify = Callable[[Mapping[str, Any], Release, Mapping[str, Any]], dict[str, Any]]


def verify_instance(instance: Mapping[str, Any], release: Release, check: Mapping[str, Any]) -> dict[str, Any]:
    """Request a completion of an instance. Returns the result of module endpoint_check, with a ``message``.

    Its unit is an item of the record.
    """
    options = {
        "base_url": instance["base_url"],
        "model": instance.get("served_model", release["served_model"]),
        "harmony": instance.get("harmony", release.get("harmony", True)),
        "timeout": TIMEOUT,
        **({} if CHECKS_OF_CONTENT & set(check) else {"max_tokens": TOKENS}),
    }
    verification = make_verification(validate_options({**options, **check}))
    result = verification.run()
    return {**result, "message": "" if result["ok"] else verification.message()}


@dataclass(frozen=True)
class Convergence:
    """The record of this host and its state. With ``check_mode`` nothing is written."""

    check_mode: bool = False
    path: Path = RECORD
    state: HostState = field(default_factory=HostState)
    releases: HostReleases = field(default_factory=lambda: HostReleases(ROOT, UNITS))
    verify: Verify = verify_instance

    def compare(
        self,
        run: str,
        collection: str,
        inputs: Mapping[str, str],
        check: Mapping[str, Any],
        reason: str = "",
        serves: bool = True,
    ) -> dict[str, Any]:
        """Return whether the host is as recorded, what differs, its release and the answers of its instances.

        ``reason``: why the roles run whatever the state is. ``serves``: whether it must have a release. If something
        differs, the record is not complete until they end well in this run.
        """
        known = read_record(self.path)
        release: Release | None = None
        answers: dict[str, Any] = {}
        try:
            found = [Difference("site_full", reason)] if reason else self._differences(known, collection, inputs)
            if not found and serves:
                release = self.releases.description_or_none(self.releases.verified())
                found, answers = self._answers(release, check)
        # The roles report what is wrong with the host, or put it right.
        except Exception as error:
            found = [Difference("record", f"the host cannot be compared: {error!r}")]
        if found and not self.check_mode:
            try:
                write_record(self.path, opened(known, run, collection, inputs))
            except OSError:
                remove_record(self.path)  # the roles report a full disk
        return {
            "as_recorded": not found,
            "known": known is not None,
            "differences": [difference._asdict() for difference in found],
            "release": None if found else release,
            "answers": {} if found else answers,
        }

    def begin_change(self, run: str, same_inputs: bool) -> dict[str, Any]:
        """Open the record for a playbook that changes the host without running all roles. Returns what differs.

        Without a record of a complete run there is nothing to update, and a run of all roles that is not complete will
        not be, as the host changes below it.
        """
        known = read_record(self.path)
        if known is None:
            return {"differences": []}
        if known.run and known.drifted is None:
            if not self.check_mode:
                write_record(self.path, replace(known, run=f"{known.run} and {run}"))
            return {"differences": []}
        now = self.state.items(known.owned)
        found = differences(known.items, now)
        drifted = {
            item: now.get(item, MISSING)
            for item in {*known.items, *now}
            if now.get(item, MISSING) != known.items.get(item, MISSING)
        }
        if not self.check_mode:
            write_record(self.path, opened_for_change(known, run, drifted, same_inputs))
        return {"differences": [difference._asdict() for difference in found]}

    def record(self, run: str, owned: Owned) -> dict[str, Any]:
        """Write the record of a run that ended well. Returns the number of its items, and those that no role restored.

        Nothing is written if the roles have run here in another run since.
        """
        known = read_record(self.path)
        if self.check_mode or known is None or known.run != run:
            return {"recorded": False, "item_count": 0, "unrestored": []}
        release = self.releases.description_or_none(self.releases.verified()) or {}
        mine = replace(
            # A task that had nothing to do this time still owns what it wrote in an earlier run.
            owned.union(known.owned),
            models=[release[kind] for kind in ("weights", "draft_weights") if release.get(kind)],
            images=[image_by_digest(release)] if release.get("image") else [],
        )
        items = self.state.items(mine)
        if known.drifted is not None:
            write_record(self.path, changed(known, mine, items))
            return {"recorded": True, "item_count": len(items), "unrestored": []}
        write_record(self.path, replace(known, run="", owned=mine, items=items, repeated=True))
        # With other inputs the roles themselves made a difference.
        now = {item: items[item] for item in known.items if item in items}
        left = differences(known.items, {**known.items, **now}) if known.repeated else []
        return {"recorded": True, "item_count": len(items), "unrestored": [difference._asdict() for difference in left]}

    def remove(self) -> bool:
        """Remove the record. Returns whether there was one."""
        return self.path.exists() if self.check_mode else remove_record(self.path)

    def _differences(self, known: Record | None, collection: str, inputs: Mapping[str, str]) -> list[Difference]:
        found = reasons(known, collection, inputs)
        return found if found or known is None else differences(known.items, self.state.items(known.owned))

    def _answers(self, release: Release | None, check: Mapping[str, Any]) -> tuple[list[Difference], dict[str, Any]]:
        """Verify all instances at the same time. Returns the failures, and the answers by instance."""
        if not release:
            return [Difference("release", "the host has no verified release")], {}
        instances: Sequence[Mapping[str, Any]] = release["instances"]
        with ThreadPoolExecutor(len(instances)) as pool:
            results = list(pool.map(lambda instance: self.verify(instance, release, check), instances))
        failed = [
            Difference(instance["name"], result["message"])
            for instance, result in zip(instances, results)
            if not result["ok"]
        ]
        answers = {
            instance["name"]: {**result["completion"], "base_url": instance["base_url"]}
            for instance, result in zip(instances, results)
            if result["ok"]
        }
        return failed, answers
