"""Names and attributes of all modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

MODULES = sorted(path for path in (ROOT / "plugins/modules").glob("*.py") if path.stem != "__init__")


def fragments(module: Path) -> set[str]:
    """Return the documentation fragments of attributes."""
    return set(re.findall(r"^  - trtllm\.fleet\.attributes\.(\w+)$", module.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_ending_says_what_a_module_without_changes_does(module: Path) -> None:
    """docs/decisions/module-names.md."""
    ending = re.search(r"_(info|check|plan|recipe|candidates)$", module.stem)
    assert ("info_module" in fragments(module)) is bool(ending)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_action_plugin_is_documented(module: Path) -> None:
    assert ("action" in fragments(module)) is (ROOT / "plugins/action" / module.name).exists()
