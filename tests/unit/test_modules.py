"""Names and attributes of all modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

MODULES = sorted(path for path in (ROOT / "plugins/modules").glob("*.py") if path.stem != "__init__")


# A template's `result.items` is the method, and Ansible takes these others as its own.
RESERVED = {*dir(dict), "ansible_facts", "exception", "failed", "invocation", "skipped", "unreachable"}


def returned(document: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of a RETURN block."""
    for key, value in document.items():
        yield key
        yield from returned(value.get("contains", {}))


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


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_returned_keys_are_not_reserved(module: Path) -> None:
    values = {
        statement.targets[0].id: statement.value
        for statement in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    document = yaml.safe_load(ast.literal_eval(values["RETURN"]))
    assert not RESERVED.intersection(returned(document))
