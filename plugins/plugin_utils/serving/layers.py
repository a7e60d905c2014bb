# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers of data merged into one tree, each value with the layer that it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Tree = Mapping[str, Any]
Path = tuple[str, ...]

ABSENT = object()


def merge(lower: Any, upper: Any) -> Any:
    """``upper`` on top of ``lower``: dicts are merged key by key, anything else is replaced.

    Changes neither, and the result shares no dict and no list with them.
    """
    if isinstance(upper, Mapping):
        below = lower if isinstance(lower, Mapping) else {}
        return {
            key: merge(below.get(key), upper[key]) if key in upper else merge(None, below[key])
            for key in {**below, **upper}
        }
    return [merge(None, item) for item in upper] if isinstance(upper, list) else upper


def merge_part(layers: Sequence[Tree], part: str, below: Tree | None = None) -> dict[str, Any]:
    """One part of all layers, the last on top, the first on what is ``below`` them."""
    tree = dict(below or {})
    for layer in layers:
        tree = merge(tree, layer.get(part, {}))
    return tree


def leaves(tree: Tree, group: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values of a tree as (path, value). A list is a value, and so is an empty dict."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*group, key))
        else:
            yield (*group, key), value


def get(tree: Any, path: Sequence[str], default: Any = None) -> Any:
    """The value at a path; ``default`` where there is none."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def applies(layer: Tree, facts: Tree) -> bool:
    """Whether every selector under a layer's ``for`` matches; a list matches any of its members."""
    return all(
        facts[name] in (wanted if isinstance(wanted, list) else [wanted])
        for name, wanted in layer.get("for", {}).items()
    )


def source(layers: Sequence[Tree], part: str, path: Path) -> str | None:
    """The source of the topmost layer that sets a value; None where no layer does."""
    for layer in reversed(layers):
        if get(layer.get(part), path, ABSENT) is not ABSENT:
            return str(layer["source"])
    return None
