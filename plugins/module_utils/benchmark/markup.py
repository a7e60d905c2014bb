# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTML in which text is text, whoever wrote it: a ``str`` is escaped, and only what was made here is not."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Union

VOID = ("br", "meta")


class Html(str):
    """Markup that is ready to be written."""

    __slots__ = ()


Content = Union[str, int, None, Iterable["Content"]]


def tag(element: str, /, *content: Content, **attributes: str | None) -> Html:
    """An element. Attributes that are None are left out; ``class_`` and ``data_label`` are class and data-label."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{element}{named}>" if element in VOID else f"<{element}{named}>{join(content)}</{element}>")


def join(content: Content, between: str = "") -> Html:
    """All of it after each other; None is nothing."""
    if content is None:
        return Html()
    if isinstance(content, Html):
        return content
    if isinstance(content, (str, int)):
        return Html(escape(str(content)))
    return Html(escape(between).join(join(one) for one in content if one is not None))
