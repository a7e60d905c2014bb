# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What action host_record prints of a host that differs from its record."""

from __future__ import annotations

import pytest

from ansible_collections.trtllm.fleet.plugins.action.host_record import line


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (["a differs"], "gpu1: a differs"),
        (["a", "b", "c"], "gpu1: a; b; c"),
        (["a", "b", "c", "d", "e"], "gpu1: a; b; c; and 2 more"),
    ],
)
def test_the_first_differences_are_one_line(sentences: list[str], expected: str) -> None:
    assert line("gpu1", sentences) == expected
