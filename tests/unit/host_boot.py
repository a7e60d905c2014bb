# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's program that boots a host, as a module."""

from __future__ import annotations

import types
from typing import Any

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

BOOT = ROOT / "lab/host/boot"


def boot(**names: Any) -> Any:
    """Return the program as a module, with other values of its names. Its file has no suffix to import it by."""
    module = types.ModuleType("boot")
    exec(compile(BOOT.read_text(), BOOT, "exec"), module.__dict__)
    module.__dict__.update(names)
    return module
