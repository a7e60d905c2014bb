# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""History of a host's verified releases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import ReleaseError

# Start of the sources of the recipe's values that the operator set, which are names of variables.
OVERRIDES = "serving_recipe_"


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a history file, newest last. Raises ReleaseError."""
    try:
        return [dict(entry, release=str(entry["release"])) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ReleaseError(f"{path} cannot be read: {error!r}. Move it away to start a new history") from None


def history_entry(number: int, name: str, verified_at: float, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a release that was verified at a time in seconds since the epoch."""
    moment = datetime.fromtimestamp(verified_at, timezone.utc).isoformat(timespec="seconds")
    return {"number": number, "release": name, "verified_at": moment, **summary(description)}


def summary(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a release's description that the history keeps."""
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
