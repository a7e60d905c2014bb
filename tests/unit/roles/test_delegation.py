# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks that roles and playbooks run on another host, such as the control node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

FILES = [*ROOT.glob("roles/*/tasks/**/*.yml"), *ROOT.glob("playbooks/*.yml")]


def delegated(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the tasks, and the keywords of includes, that have delegate_to."""
    if isinstance(node, dict) and "delegate_to" in node:
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
        yield from delegated(child)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_delegated_task_sets_become_by_variable(path: Path) -> None:
    """ansible_become of an inventory overrides the keyword for the control node too, which may have no sudo."""
    tasks = list(delegated(yaml.safe_load(path.read_text(encoding="utf-8"))))
    assert [task for task in tasks if "become" in task] == []
    here = [task for task in tasks if task["delegate_to"] == "localhost"]
    assert [task for task in here if "ansible_become" not in task.get("vars", {})] == []
