# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load the fault catalogue for plugins on the control node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import Fault, load_catalogue

DATA = Path(__file__).parents[3] / "playbooks/vars/faults"


@cache
def fault_rows() -> tuple[dict[str, Any], ...]:
    """Return the rows of all files, in the order of their names."""
    rows: list[dict[str, Any]] = []
    for path in sorted(DATA.glob("*.yml")):
        (found,) = yaml_load(path.read_text(encoding="utf-8")).values()
        rows += found
    return tuple(rows)


def read_catalogue(overrides: Sequence[dict[str, Any]] = ()) -> dict[str, Fault]:
    """Return the catalogue with the operator's rows. Raises CatalogueError."""
    return load_catalogue(fault_rows(), overrides)
