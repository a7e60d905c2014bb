# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of NVIDIA Dynamo, by the tag of an image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.engine_options import (
    DYNAMO_RUNTIME,
    image_name,
    image_tag,
)

Tree = Mapping[str, Any]


def version_rows(versions: Mapping[str, Tree]) -> dict[str, Tree]:
    """Return the rows with all of their values: each has what differs from the row before."""
    rows: dict[str, Tree] = {}
    last: Tree = {}
    for name, changes in versions.items():
        rows[name] = last = {**last, **changes}
    return rows


def version_row(image: str, rows: Mapping[str, Tree]) -> tuple[str, Tree]:
    """Return the minor version of Dynamo in an image, and its row of ``rows``, which are as of version_rows.

    Raises ValueError if the image has no known version in its tag.
    """
    known = f"an image {DYNAMO_RUNTIME}:TAG whose tag begins with one of {', '.join(rows)}"
    match = re.match(r"(\d+\.\d+)(?!\d)", image_tag(image) or "")
    if image_name(image) != DYNAMO_RUNTIME or not match:
        raise ValueError(f"dynamo_image {image} has no Dynamo version in its tag. Set dynamo_image to {known}.")
    if match[1] not in rows:
        raise ValueError(f"dynamo_image {image} has Dynamo {match[1]}, which is unknown. Set dynamo_image to {known}.")
    return match[1], rows[match[1]]


def has_nats_tls(row: Tree) -> bool:
    """Return whether a version supports TLS for NATS."""
    return any(variable.startswith("NATS_TLS_") for variable in row["nats_variables"])
