# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Markdown helpers of the generated documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any


def literal(value: Any) -> str:
    """Return a value as YAML on one line."""
    return f"`{value}`" if isinstance(value, str) and value else f"`{json.dumps(value)}`"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def bullets(sentences: Iterable[str]) -> str:
    return "".join(f"- {sentence}\n" for sentence in sentences)
