# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge layers of data into one tree, and find the layer of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Tree = Mapping[str, Any]
Path = tuple[str, ...]

ABSENT = object()


def merge(lower: Any, upper: Any) -> Any:
    """Merge ``upper`` over ``lower``: dicts key by key, other values are replaced.

    Returns a copy that shares no dict or list with either.
    """
    if isinstance(upper, Mapping):
        below = lower if isinstance(lower, Mapping) else {}
        return {
            key: merge(below.get(key), upper[key]) if key in upper else merge(None, below[key])
            for key in {**below, **upper}
        }
    return [merge(None, item) for item in upper] if isinstance(upper, list) else upper


def merge_part(layers: Sequence[Tree], part: str, below: Tree | None = None) -> dict[str, Any]:
    """Merge one part of all layers over ``below``, in their order."""
    tree = dict(below or {})
    for layer in layers:
        tree = merge(tree, layer.get(part, {}))
    return tree


def leaves(tree: Tree, group: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the values of a tree as (path, value). A list is a value, and so is an empty dict."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*group, key))
        else:
            yield (*group, key), value


def get(tree: Any, path: Sequence[str], default: Any = None) -> Any:
    """Return the value at a path, or ``default``."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def applies(layer: Tree, facts: Tree) -> bool:
    """Return True if every selector under a layer's ``for`` matches; a list matches any of its members."""
    return all(
        facts[name] in (wanted if isinstance(wanted, list) else [wanted])
        for name, wanted in layer.get("for", {}).items()
    )


def source(layers: Sequence[Tree], part: str, path: Path) -> str | None:
    """Return the source of the last layer that sets a value; None if no layer does."""
    for layer in reversed(layers):
        if get(layer.get(part), path, ABSENT) is not ABSENT:
            return str(layer["source"])
    return None
