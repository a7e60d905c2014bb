# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate searches and gates, and fail if their error rates do not hold: `make check-statistics`."""

from __future__ import annotations

from tools.statistics import gates, tuning

WRONG = [*tuning.main(), *gates.main()]
raise SystemExit(f"not held: {WRONG}" if WRONG else 0)
