# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab downloads the wheels that a lock has for the Python of a host, whatever Python runs the lab."""

from __future__ import annotations

import pytest

from lab import wheels

LOCK = """\
# program==1.0 for Python 3.11 to 3.14 on Linux, written by tools/lock.py.
contourpy==1.3.3 ; python_full_version < '3.12' \\
    --hash=sha256:aa
contourpy==1.4.0 ; python_full_version >= '3.12' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
uvloop==0.22.1 ; sys_platform != 'win32' \\
    --hash=sha256:dd
winloop==0.1 ; sys_platform == 'win32' \\
    --hash=sha256:ee
"""


@pytest.mark.parametrize(
    ("version", "contourpy"),
    [
        ("3.11", "contourpy==1.3.3 --hash=sha256:aa"),
        ("3.13", "contourpy==1.4.0 --hash=sha256:bb --hash=sha256:cc"),
    ],
)
def test_markers_are_those_of_the_host(version: str, contourpy: str) -> None:
    assert list(wheels.requirements(LOCK, version)) == [contourpy, "uvloop==0.22.1 --hash=sha256:dd"]
