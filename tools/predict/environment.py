# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of NVIDIA's AIConfigurator."""

from __future__ import annotations

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_prediction
from tools.environment import prepared


def python() -> str:
    """Return an interpreter that has AIConfigurator. The first call installs it below .cache (850 MB)."""
    return str(prepared("aiconfigurator", [f"aiconfigurator=={load_prediction()['version']}"]) / "bin/python")
