# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate JSON documents by the published schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from jsonschema import Draft202012Validator, FormatChecker

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

FOLDER = ROOT / "docs/reference/schemas"
SCHEMAS: dict[str, dict[str, Any]] = {
    path.name.removesuffix(".schema.json"): json.loads(path.read_text()) for path in FOLDER.glob("*.schema.json")
}
Document = TypeVar("Document", bound=Mapping[str, Any])
FORMATS = FormatChecker(formats=())


@FORMATS.checks("date-time", raises=ValueError)
def is_time(value: Any) -> bool:
    """Return True for a time in ISO 8601 with its time zone. Raises ValueError for other texts."""
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


def closed(schema: Any) -> Any:
    """Return a schema that rejects keys without a description, so that none is written that is not published."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    return {"additionalProperties": False, **found} if isinstance(schema.get("properties"), dict) else found


def valid(document: Document) -> Document:
    """Return the document if it is as its schema says, and has no other key. Raises AssertionError."""
    schema = SCHEMAS[document["kind"]]
    found = Draft202012Validator(closed(schema), format_checker=FORMATS).iter_errors(json.loads(json.dumps(document)))
    errors = [f"{error.json_path}: {error.message[:300]}" for error in found]
    assert not errors, "\n".join(errors)
    return document
