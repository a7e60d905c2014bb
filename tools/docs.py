# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the generated files: README.md of each role, pages of modules, faults, alerts and recipes, and the dashboards.

tests/unit/test_repo.py fails if a document differs from this output.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools import alert_page, dashboards, fault_page, recipe_pages
from tools.markdown import bullets, literal, table

ROOT = Path(__file__).resolve().parents[1]
COLLECTION = "trtllm.fleet"


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


# Ansible's markup and its Markdown: https://docs.ansible.com/ansible/latest/dev_guide/ansible_markup.html
MARKUP = [
    (
        re.compile(r"\b[CEMOPV]\(((?:[^)\\]|\\.)*)\)|\bRV\(((?:[^)\\]|\\.)*)\)"),
        lambda m: f"`{unescaped(m[1] or m[2])}`",
    ),
    (re.compile(r"\bB\(([^)]*)\)"), lambda m: f"**{m[1]}**"),
    (re.compile(r"\bI\(([^)]*)\)"), lambda m: f"*{m[1]}*"),
    (re.compile(r"\bL\(([^,)]*), *([^)]*)\)"), lambda m: f"[{m[1]}]({m[2]})"),
    (re.compile(r"\bU\(([^)]*)\)"), lambda m: f"<{m[1]}>"),
]


def sentences(text: str | list[str] | None) -> list[str]:
    """Return the description of a spec, one sentence or a list of them, as Markdown."""
    found = [text] if isinstance(text, str) else text or []
    for pattern, markdown in MARKUP:
        found = [pattern.sub(markdown, sentence) for sentence in found]
    return [" ".join(sentence.split()) for sentence in found]


def option_rows(options: dict[str, Any], parent: str = "") -> Iterator[list[str]]:
    """Return a row for each option and its suboptions: name, type, default, description."""
    for name, spec in options.items():
        kind = spec.get("type", "str")
        of = f" of {spec['elements']}" if "elements" in spec else ""
        default = "required" if spec.get("required") else literal(spec["default"]) if "default" in spec else ""
        text = sentences(spec.get("description"))
        if "choices" in spec:
            text.append("One of " + ", ".join(f"`{choice}`" for choice in spec["choices"]) + ".")
        yield [f"`{parent}{name}`", kind + of, default, " ".join(text)]
        yield from option_rows(
            spec.get("options") or spec.get("suboptions") or {}, f"{parent}{name}{'[]' if of else ''}."
        )


def options_table(name: str, options: dict[str, Any]) -> str:
    return table([name, "Type", "Default", "Description"], list(option_rows(options)))


def role_readme(role: Path) -> str:
    """Return README.md of a role from its meta/argument_specs.yml."""
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    parts = [f"# {COLLECTION}.{role.name}\n", "<!-- Written by `make docs` from meta/argument_specs.yml. -->\n"]
    for entry, spec in specs.items():
        if entry != "main":
            parts.append(f"## Entry point `{entry}`\n")
        parts.append(sentences(spec["short_description"])[0].rstrip(".") + ".\n")
        parts.append(bullets(sentences(spec.get("description"))))
        # An entry point with the role's variables reuses them by a YAML alias.
        if entry != "main" and spec.get("options") and spec["options"] is specs.get("main", {}).get("options"):
            parts.append("It has the variables of the role.\n")
        elif spec.get("options"):
            parts.append(options_table("Variable", spec["options"]))
    return "\n".join(part for part in parts if part)


def plugin_docs(plugin: Path) -> dict[str, Any]:
    """Return DOCUMENTATION, EXAMPLES and RETURN of a plugin."""
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(plugin.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
        if isinstance(node.value, ast.Constant)
    }
    docs: dict[str, Any] = {
        name: yaml.safe_load(constants[name]) for name in ("DOCUMENTATION", "RETURN") if name in constants
    }
    docs["EXAMPLES"] = constants.get("EXAMPLES", "")
    add_fragments(docs.get("DOCUMENTATION", {}))
    return docs


def add_fragments(about: dict[str, Any]) -> None:
    """Add the documentation fragments that a module extends. What the module itself says overrides them."""
    for fragment in about.pop("extends_documentation_fragment", []):
        name, _, part = fragment.removeprefix(f"{COLLECTION}.").partition(".")
        found = importlib.import_module(f"ansible_collections.{COLLECTION}.plugins.doc_fragments.{name}")
        text = getattr(found.ModuleDocFragment, part.upper() or "DOCUMENTATION")
        for section, entries in yaml.safe_load(text).items():
            own = about.setdefault(section, {})
            for key, value in entries.items():
                own[key] = {**value, **own.get(key, {})}


def plugin_section(docs: dict[str, Any]) -> str:
    about = docs["DOCUMENTATION"]
    name = about.get("module") or about["name"]
    parts = [
        f"## {COLLECTION}.{name}\n",
        sentences(about["short_description"])[0].rstrip(".") + ".\n",
        bullets(sentences(about["description"])),
    ]
    if about.get("attributes"):
        support = (f"{key}: {value['support']}" for key, value in about["attributes"].items())
        parts.append("Supports " + ", ".join(support).replace("_", " ") + ".\n")
    if about.get("options"):
        parts.append(options_table("Option", about["options"]))
    if docs.get("RETURN"):
        rows = [
            [f"`{key}`", value.get("type", ""), " ".join(sentences(value["description"]))]
            for key, value in docs["RETURN"].items()
        ]
        parts.append(table(["Returns", "Type", "Description"], rows))
    if docs.get("EXAMPLES"):
        parts.append(f"```yaml\n{docs['EXAMPLES'].strip()}\n```\n")
    return "\n".join(part for part in parts if part)


def modules_page() -> str:
    """Return docs/reference/modules.md from the documentation of the modules, filters and lookups."""
    found = [path for kind in ("modules", "filter", "lookup") for path in (ROOT / "plugins" / kind).glob("*.py")]
    documented = [docs for plugin in sorted(found) if "DOCUMENTATION" in (docs := plugin_docs(plugin))]
    head = f"# Modules, filters and lookups of {COLLECTION}\n\n<!-- Written by `make docs` from the plugins. -->\n"
    return "\n".join([head, *map(plugin_section, documented)])


def generated() -> dict[Path, str]:
    """Return the text of each generated document by its path."""
    roles = (specs.parents[1] for specs in sorted(ROOT.glob("roles/*/meta/argument_specs.yml")))
    return {
        ROOT / "docs/reference/modules.md": modules_page(),
        ROOT / "docs/reference/faults.md": fault_page.page(),
        ROOT / "docs/reference/alerts.md": alert_page.page(),
        **{ROOT / path: text for path, text in dashboards.files().items()},
        **{ROOT / "docs/reference" / name: text for name, text in recipe_pages.pages().items()},
        **{role / "README.md": role_readme(role) for role in roles},
    }


def main() -> None:
    for path, text in generated().items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
