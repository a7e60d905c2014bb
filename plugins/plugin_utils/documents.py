# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON documents for other programs: docs/reference/interfaces.md has their rules and schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Versions by kind. One increases when a reader of older documents would misread newer ones.
VERSIONS = {"benchmark": 1, "doctor": 1, "plan": 1, "rollout": 1, "status": 1}


def identified(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document that begins with its kind and the version of its schema. Raises KeyError for another kind."""
    return {"kind": kind, "schema": VERSIONS[kind], **content}
