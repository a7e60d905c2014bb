"""Roles convert boolean variables: `-e NAME=false` and a survey give the string "false", which is true in Jinja."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment, TemplateSyntaxError, nodes

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

CONDITIONS = ("when", "that", "failed_when", "changed_when", "until")
ENVIRONMENT = Environment(extensions=["jinja2.ext.do"])


def booleans() -> set[str]:
    """Return the public variables of roles that are booleans."""
    found = set()
    for path in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values():
            found |= {name for name, option in (spec.get("options") or {}).items() if option.get("type") == "bool"}
    return found


def expressions(value: Any, key: str = "") -> Iterator[str]:
    """Yield the templates of a value; conditions have no braces."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from expressions(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from expressions(item, key)
    elif isinstance(value, str):
        condition = key in CONDITIONS and "{{" not in value
        # Not alone in its template, as a condition is evaluated and not passed on.
        yield "{{ (" + value + ") or false }}" if condition else value


def unconverted(template: str, names: set[str]) -> Iterator[str]:
    """Yield the variables that a template uses without filter bool, unless it passes only their value on."""

    def walk(node: nodes.Node, alone: bool, converted: bool) -> Iterator[str]:
        if isinstance(node, nodes.Name) and node.name in names and not alone and not converted:
            yield node.name
        for child in node.iter_child_nodes():
            # default() keeps what is around it. A keyword argument of a filter passes the value on, too.
            keeps = isinstance(node, nodes.Filter) and node.name == "default" and child is node.node
            yield from walk(
                child,
                (isinstance(node, nodes.Template | nodes.Output) and alone) or (keeps and alone),
                (isinstance(node, nodes.Filter) and node.name == "bool") or (keeps and converted),
            )

    tree = ENVIRONMENT.parse(template)
    outputs = [part for node in tree.body if isinstance(node, nodes.Output) for part in node.nodes]
    yield from walk(tree, len(tree.body) == 1 and len(outputs) == 1, False)


def uses(path: Path) -> Iterator[str]:
    text = path.read_text()
    if path.suffix == ".yml":
        for document in yaml.load_all(text, Loader=yaml.BaseLoader):
            yield from expressions(document)
    else:
        yield text


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ flag }}", []),
        ("{{ flag | default(false) }}", []),
        ("{{ flag | default(false) | bool }}", []),
        ("{{ 1 if flag | bool else 2 }}", []),
        ("{{ 1 if flag else 2 }}", ["flag"]),
        ("{{ not flag | default(false) }}", ["flag"]),
        ("{% if flag %}yes{% endif %}", ["flag"]),
        ("{{ (flag) or false }}", ["flag"]),
    ],
)
def test_unconverted_uses_are_found(template: str, found: list[str]) -> None:
    assert list(unconverted(template, {"flag"})) == found


def test_booleans_are_converted() -> None:
    names = booleans()
    assert "nvidia_driver_reboot_allowed" in names
    found = []
    files = [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("playbooks/vars/**/*.yml")]
    for part in ("defaults", "tasks", "handlers", "vars", "templates"):
        files += [path for path in ROOT.glob(f"roles/*/{part}/**/*") if path.suffix in (".yml", ".j2")]
    for path in files:
        for template in uses(path):
            try:
                found += [f"{path.relative_to(ROOT)}: {name}" for name in unconverted(template, names)]
            except TemplateSyntaxError:
                # Text with braces that is not a template, such as Prometheus's.
                continue
    assert found == []
