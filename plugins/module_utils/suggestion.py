# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Suggest the known name nearest to a misspelt one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest known name; empty where none is near."""
    near = nearest(name, known)
    return "" if near is None else f" Did you mean {near!r}?"


def nearest(name: Any, known: Iterable[Any]) -> Any:
    """Return the known name nearest to another; None where none is near.

    Case and the separators of words make no difference: ``NVIDIA H200`` is near ``h200``.
    """
    wanted, names = _folded(name), {_folded(each): each for each in known}
    for folded, each in names.items():
        if folded.replace("_", "") == wanted.replace("_", ""):
            return each
    alike = [folded for folded in names if _same_numbers(wanted, folded)]
    near = difflib.get_close_matches(wanted, alike, n=1)
    # The full name of a product contains its short name, and is far from it.
    held = [folded for folded in alike if _numbered(folded) and folded in wanted]
    return names[near[0]] if near else names[max(held, key=len)] if held else None


def _folded(name: Any) -> str:
    return re.sub(r"[\s-]", "_", str(name).casefold())


def _numbered(folded: str) -> list[str]:
    """Return the words with digits, such as ``h100`` and ``120b``."""
    return [word for word in re.split(r"[\W_]", folded) if re.search(r"\d", word)]


def _same_numbers(one: str, other: str) -> bool:
    """Return True if the numbered words are equal or cut short: ``a100`` is not a misspelt ``h100``."""
    return all(a.startswith(b) or b.startswith(a) for a, b in zip(_numbered(one), _numbered(other)))
