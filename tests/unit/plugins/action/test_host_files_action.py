# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text that action host_files sends."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.action.host_files import text


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        (None, ""),
        ("a\n", "a\n"),
        (1, "1"),
        # As filter to_nice_json has it.
        ({"b": 1, "a": []}, '{\n    "a": [],\n    "b": 1\n}\n'),
    ],
)
def test_content_is_text(content: Any, sent: str) -> None:
    assert text(content) == sent
