# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find promtool."""

from __future__ import annotations

import shutil

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT


def promtool() -> str:
    """Return the path of promtool; fail without one, because a test that is skipped finds nothing."""
    found = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".cache/promtool")
    assert found, "promtool is missing. Run tools/promtool.sh"
    return found
