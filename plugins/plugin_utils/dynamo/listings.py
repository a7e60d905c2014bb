# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The workers that frontends of NVIDIA Dynamo list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.dynamo_health import Instance, listed


def most_workers(answers: Iterable[Mapping[str, Any]]) -> list[Instance]:
    """Return the workers of the answer to ``/health`` that has most; a frontend that has just started knows none."""
    return max(map(_workers, answers), key=len, default=[])


def _workers(answer: Mapping[str, Any]) -> list[Instance]:
    try:
        return [one for one in listed(answer) if one.takes_requests]
    except (LookupError, TypeError, AttributeError):
        return []
