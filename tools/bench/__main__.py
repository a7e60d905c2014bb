# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a benchmark: ``python -m tools.bench NAME [OPTION...]``."""

from __future__ import annotations

import importlib
import sys

from ansible.plugins.loader import init_plugin_loader

if __name__ == "__main__":
    # Initialize before the first import of the collection, or Ansible does not find its plugins.
    init_plugin_loader()
    importlib.import_module(f"tools.bench.{sys.argv.pop(1)}").main()
