# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the documentation site from the Markdown pages and from the documentation of plugins and roles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from tools import project
from tools.docs import COLLECTION, repeats_main, role_specs
from tools.environment import ROOT, prepared
from tools.markdown import table

SITE = ROOT / ".cache/docs-site"
SOURCE = SITE / "source"
DOCSITE = Path("docs/docsite")
# Places of the pages that are not in docs/, and of the pages for directories.
PLACES = {
    "README.md": "index.md",
    "CHANGELOG.rst": "changelog.rst",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "MAINTAINERS.md": "maintainers.md",
    "SECURITY.md": "security.md",
    "lab/README.md": "lab.md",
    "docs/decisions": "decisions/index.md",
    "docs/design": "design/index.md",
    "docs/test-results": "test-results/index.md",
    "roles": "reference/roles.md",
    "plugins/modules": "reference/modules.md",
    "plugins/filter": "reference/plugins.md",
    "plugins/lookup": "reference/plugins.md",
}
# Pages of the reference: title, and the endings of what they list.
REFERENCE = {
    "reference/roles.md": ("Roles", ["role"]),
    "reference/modules.md": ("Modules", ["module"]),
    "reference/plugins.md": ("Filters and lookups", ["filter", "lookup"]),
}
# Pages that list a directory: title, text, and the pages in their order.
DIRECTORIES = {
    "decisions/index.md": ("Decisions", "Each page has the reasons of one decision, with its date.", ["*"]),
    "design/index.md": ("Design", "How parts of the collection work, and the figures behind them.", ["*"]),
    "test-results/index.md": ("Test results", "What was tested, when, and with which result.", ["../tested-on", "*"]),
}
LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[)#])")
# The same on each page: where to install the collection from. The theme has a table of contents.
REPEATED = re.compile(
    r"^(?:\.\. Collection note\n\n\.\. note|\.\. contents)::\n(?:   .*\n|\n)+|^:orphan:\n", re.MULTILINE
)


def place(path: str) -> str | None:
    """Return the place of a path of the repository in the source of the site, or None if it is not a part of it."""
    role = re.fullmatch(r"roles/(\w+)/README\.md", path)
    plugin = re.fullmatch(r"plugins/(module|filter|lookup)s?/(\w+)\.py", path)
    if role:
        return f"reference/collection/{role[1]}_role.rst"
    if plugin:
        return f"reference/collection/{plugin[2]}_{plugin[1]}.rst"
    if path in PLACES:
        return PLACES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and not path.startswith(str(DOCSITE)) else None


def with_links(text: str, page: str, repository: str) -> str:
    """Return the text of a page of the repository with links for the site.

    A link to a file that the site lacks leads to the repository.
    """
    here = os.path.dirname(place(page) or "")

    def link(match: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join(os.path.dirname(page), match[0]))
        found = place(path)
        return os.path.relpath(found, here) if found else f"{repository}/blob/main/{path}"

    return LINK.sub(link, text)


def role_page(page: str, role: str) -> str:
    """Return the page of a role in the order of its README, with shared parameters in entry point main only."""
    specs = role_specs(ROOT / "roles" / role)
    label = f"ansible_collections.{COLLECTION}.{role}_role__entrypoint-"
    body, mark, links = page.partition(".. Extra links\n")
    head, *sections = re.split(rf"^\.\. _{re.escape(label)}(\w+):\n", body, flags=re.MULTILINE)
    texts = dict(zip(sections[::2], sections[1::2], strict=True))
    for entry in specs:
        if repeats_main(specs, entry):
            shared = f"It has the parameters of :ref:`entry point main <{label}main>`."
            texts[entry] = re.sub(
                r"(?<=\.\. Options\n)(?:.*\n)*?(?=\.\. Attributes\n)", f"\n{shared}\n\n", texts[entry]
            )
            texts[entry] = texts[entry].replace(f"#role:{entry}:".replace("_", r"\_"), "#role:main:")
    return "".join([head, *(f".. _{label}{entry}:\n{texts[entry]}" for entry in specs), mark, links])


def toctree(pages: list[str], *options: str) -> str:
    return "\n".join(["```{toctree}", *(f":{option}:" for option in options), "", *pages, "```"]) + "\n"


def reference_page(title: str, kinds: list[str]) -> str:
    """Return a page that lists the generated pages of some kinds by name and short description."""
    rows, pages = [], []
    for kind in kinds:
        for path in sorted((SOURCE / "reference/collection").glob(f"*_{kind}.rst")):
            name = path.stem.removesuffix(f"_{kind}")
            text = path.read_text(encoding="utf-8")
            described = re.search(rf"^{COLLECTION}\.{name} {kind} -- (.+)$", text, re.MULTILINE)
            # A role without entry point main has no description.
            points = ", ".join(f"`{point}`" for point in re.findall(r"^Entry point ``(\w+)``", text, re.MULTILINE))
            purpose = described[1].replace("\\", "") if described else f"Entry points {points}"
            rows.append([f"[`{name}`](collection/{path.name})", purpose])
            pages.append(f"{name} <collection/{path.stem}>")
    return f"# {title}\n\n{table(['Name', 'Purpose'], rows)}\n{toctree(pages, 'hidden')}"


def sources() -> Iterator[tuple[str, str]]:
    """Return each file of the repository that is a part of the site, and its place."""
    for path in project.names():
        found = place(path)
        if found and not found.startswith("reference/collection/"):
            yield path, found


def write_source() -> None:
    """Write the source of the site: the pages with links for the site, the reference, and pages that list others."""
    shutil.rmtree(SITE, ignore_errors=True)
    repository = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["repository"]
    for path, name in sources():
        target = SOURCE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            target.write_text(with_links((ROOT / path).read_text(encoding="utf-8"), path, repository), encoding="utf-8")
        else:
            shutil.copy(ROOT / path, target)
    for name, (title, text, pages) in DIRECTORIES.items():
        (SOURCE / name).write_text(f"# {title}\n\n{text}\n\n{toctree(pages, 'glob')}", encoding="utf-8")
    with (SOURCE / "index.md").open("a", encoding="utf-8") as start:
        start.write("\n" + (ROOT / DOCSITE / "navigation.md").read_text(encoding="utf-8"))
    with (SOURCE / "reference/recipes.md").open("a", encoding="utf-8") as recipes:
        recipes.write("\n" + toctree(["recipes/*"], "glob", "hidden"))


def write_reference(programs: Path) -> None:
    """Write the pages of roles, modules, filters and lookups with antsibull-docs."""
    folder = SOURCE / "reference/collection"
    folder.mkdir(mode=0o755)
    build: list[str | Path] = [programs / "antsibull-docs", "collection-plugins", "--use-current", "--fail-on-error"]
    subprocess.run([*build, "--no-add-antsibull-docs-version", "--dest-dir", folder, COLLECTION], cwd=ROOT, check=True)
    (folder / "environment_variables.rst").unlink()
    for page in folder.glob("*.rst"):
        text = REPEATED.sub("", page.read_text(encoding="utf-8"))
        role = page.stem.removesuffix("_role")
        page.write_text(text if role == page.stem else role_page(text, role), encoding="utf-8")
    for name, (title, kinds) in REFERENCE.items():
        (SOURCE / name).write_text(reference_page(title, kinds), encoding="utf-8")


def main() -> None:
    pins = (ROOT / DOCSITE / "requirements.txt").read_text(encoding="utf-8")
    programs = prepared("sphinx", re.findall(r"^\S+==\S+$", pins, re.MULTILINE)) / "bin"
    write_source()
    write_reference(programs)
    build: list[str | Path] = [
        programs / "sphinx-build",
        "--fail-on-warning",
        "--keep-going",
        "--quiet",
        "--jobs",
        "auto",
    ]
    build += ["-c", ROOT / DOCSITE, "--doctree-dir", SITE / "doctrees", SOURCE, SITE / "html"]
    if status := subprocess.run(build).returncode:
        sys.exit(status)
    print(f"wrote {(SITE / 'html/index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
