# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the generated files: README.md of each role, pages of faults, alerts and recipes, and the dashboards.

tests/unit/test_repo.py fails if a document differs from this output.
"""

from __future__ import annotations

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


def role_specs(role: Path) -> dict[str, Any]:
    """Return the argument specifications of a role by entry point."""
    specs: dict[str, Any] = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    return specs


def repeats_main(specs: dict[str, Any], entry: str) -> bool:
    """Return True if an entry point has the variables of the role. It reuses them by a YAML alias."""
    options = specs[entry].get("options")
    return bool(options) and entry != "main" and options is specs.get("main", {}).get("options")


def role_readme(role: Path) -> str:
    """Return README.md of a role from its meta/argument_specs.yml."""
    specs = role_specs(role)
    parts = [f"# {COLLECTION}.{role.name}\n", "<!-- Written by `make docs` from meta/argument_specs.yml. -->\n"]
    for entry, spec in specs.items():
        if entry != "main":
            parts.append(f"## Entry point `{entry}`\n")
        parts.append(sentences(spec["short_description"])[0].rstrip(".") + ".\n")
        parts.append(bullets(sentences(spec.get("description"))))
        if repeats_main(specs, entry):
            parts.append("It has the variables of the role.\n")
        elif spec.get("options"):
            parts.append(options_table("Variable", spec["options"]))
    return "\n".join(part for part in parts if part)


def generated() -> dict[Path, str]:
    """Return the text of each generated document by its path."""
    roles = (specs.parents[1] for specs in sorted(ROOT.glob("roles/*/meta/argument_specs.yml")))
    return {
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
