# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Suggest the known name that a misspelt one is nearest to."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """`` Did you mean 'x'?`` for the nearest known name; empty where none is near.

    Case, and what parts the words, make no difference: ``NVIDIA H200`` is near ``h200``.
    """
    near = _nearest(_folded(name), {_folded(each): each for each in known})
    return "" if near is None else f" Did you mean {near!r}?"


def _nearest(name: str, known: Mapping[str, Any]) -> Any:
    """The value of the folded name nearest to another; None where none is near."""
    for folded, each in known.items():
        if folded.replace("_", "") == name.replace("_", ""):
            return each
    alike = [folded for folded in known if _same_numbers(name, folded)]
    near = difflib.get_close_matches(name, alike, n=1)
    # A product's full name is far from its short one, and holds it.
    held = [folded for folded in alike if _numbered(folded) and folded in name]
    return known[near[0]] if near else known[max(held, key=len)] if held else None


def _folded(name: Any) -> str:
    return re.sub(r"[\s-]", "_", str(name).casefold())


def _numbered(folded: str) -> list[str]:
    """The words with digits in them, ``h100`` or ``120b``."""
    return [word for word in re.split(r"[\W_]", folded) if re.search(r"\d", word)]


def _same_numbers(one: str, other: str) -> bool:
    """Whether numbered words are the same, or cut short: ``a100`` is no slip of the pen for ``h100``."""
    return all(a.startswith(b) or b.startswith(a) for a, b in zip(_numbered(one), _numbered(other)))
