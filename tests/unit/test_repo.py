"""Rules of the repository: specs, documents, pins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from tools import counts, docs

ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
PAGES = [*ROOT.glob("*.md"), *(page for name in ("docs", "lab", "roles") for page in (ROOT / name).rglob("*.md"))]
role = pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def names(pattern: re.Pattern[str], path: Path) -> list[str]:
    """Return what the pattern's group has in a file."""
    return pattern.findall(path.read_text())


def specs_of(role: Path) -> dict[str, Any]:
    path = role / "meta/argument_specs.yml"
    assert path.exists(), f"{path.relative_to(ROOT)} is missing"
    return read(path)["argument_specs"]


@role
def test_specs_and_defaults_agree(role: Path) -> None:
    options = {name: spec for entry in specs_of(role).values() for name, spec in (entry.get("options") or {}).items()}
    specified = {name: spec.get("default") for name, spec in options.items() if not spec.get("required")}
    defaults = read(role / "defaults/main.yml") or {}
    # antsibull-docs rejects a template as the default of a number or of a dictionary; the description has it.
    described = {
        name
        for name, option in options.items()
        if "default" not in option
        and str(defaults.get(name)).startswith("{{")
        and "by default" in str(option["description"]).lower()
    }
    assert specified.keys() == defaults.keys()
    assert {name: value for name, value in specified.items() if name not in described} == {
        name: value for name, value in defaults.items() if name not in described
    }


@role
def test_variables_are_named_after_their_role(role: Path) -> None:
    for entry, spec in specs_of(role).items():
        strangers = [name for name in spec.get("options") or {} if not name.startswith(f"{role.name}_")]
        assert not strangers, f"entry point {entry}"
    for path in role.glob("vars/**/*.yml"):
        public = [name for name in read(path) or {} if not name.startswith(f"__{role.name}_")]
        assert not public, path.relative_to(ROOT)


@role
def test_entry_points_have_tasks_and_descriptions(role: Path) -> None:
    for entry, spec in specs_of(role).items():
        assert (role / f"tasks/{entry}.yml").exists(), entry
        assert spec["short_description"]
        for name, option in (spec.get("options") or {}).items():
            assert option.get("type"), f"{name} has no type"
            assert option.get("description"), f"{name} has no description"


def test_task_names_start_with_a_verb_of_the_list() -> None:
    files = [str(path) for pattern in ("roles/*/tasks/*.yml", "playbooks/*.yml") for path in ROOT.glob(pattern)]
    assert [name for path in files for name in counts.tasks(path) if not counts.starts_with_verb(name)] == []


def test_tasks_have_no_environment_with_secrets() -> None:
    # Ansible writes it on the command line of the host and into verbose output.
    tasks = [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml")]
    found = {str(path.relative_to(ROOT)) for path in tasks if re.search(r"^ *environment:", path.read_text(), re.M)}
    # The place of apt's configuration, and package names.
    assert found == {"roles/apt_packages/tasks/install.yml"}


def test_generated_documents_are_up_to_date() -> None:
    generated = docs.generated()
    stale = [str(path) for path, text in generated.items() if not path.exists() or path.read_text() != text]
    assert not stale, "run `make docs`"
    # The page of a removed model.
    assert set((ROOT / "docs/reference/recipes").iterdir()) <= set(generated)


def test_link_makes_the_checkout_a_collection() -> None:
    link = ROOT / "collections/ansible_collections/trtllm/fleet"
    assert link.is_symlink()
    assert link.resolve() == ROOT


def test_pins_are_exact() -> None:
    files = (ROOT / "requirements.txt", ROOT / "docs/docsite/requirements.txt")
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert [line for line in lines if line and not re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line)] == []


def test_galaxy_names_the_collections_that_roles_and_playbooks_use() -> None:
    files = [path for folder in ("roles", "playbooks") for path in sorted((ROOT / folder).rglob("*.yml"))]
    modules = re.compile(r"^\s*(?:- )?([a-z]\w*\.[a-z]\w*)\.[a-z]\w*:", re.MULTILINE)
    # An entry point for operators who have Grafana: docs/decisions/stock-modules.md.
    files.remove(ROOT / "roles/monitoring/tasks/grafana.yml")
    used = {name for path in files for name in modules.findall(path.read_text())}
    assert used - {"ansible.builtin", "trtllm.fleet"} == set(read(ROOT / "galaxy.yml")["dependencies"])


def test_links_between_pages_lead_to_files() -> None:
    link = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
    links = [(page, place) for page in PAGES for place in link.findall(page.read_text())]
    assert len(links) > 100
    assert [f"{page.relative_to(ROOT)}: {place}" for page, place in links if not (page.parent / place).exists()] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_to_one() -> None:
    link = re.compile(r"\]\(([^)#:\s]*)#([^)]+)\)")
    links = [
        (page, page.parent / place if place else page, name)
        for page in PAGES
        for place, name in link.findall(page.read_text())
    ]
    assert len(links) > 100
    assert [
        f"{page.relative_to(ROOT)}: {target.name}#{name}"
        for page, target, name in links
        if target.suffix == ".md" and name not in anchors(target)
    ] == []


def test_rows_of_tables_are_lines() -> None:
    broken = re.compile(r"^ *\|.*[^|\n]$", re.MULTILINE)
    assert [(str(page.relative_to(ROOT)), row) for page in PAGES for row in names(broken, page)] == []


def test_version_has_a_changelog() -> None:
    released = read(ROOT / "changelogs/changelog.yaml")["releases"]
    assert read(ROOT / "galaxy.yml")["version"] in released or list(ROOT.glob("changelogs/fragments/*.y*ml"))


def test_fragments_have_no_markup_of_ansible_doc() -> None:
    """antsibull-changelog copies them into CHANGELOG.rst as they are."""
    markup = re.compile(r"\b[BCILMOPRV]\([^)]*\)")
    found = {path.name: names(markup, path) for path in ROOT.glob("changelogs/fragments/*.y*ml")}
    assert {name: each for name, each in found.items() if each} == {}


def test_plugins_are_of_the_first_release_before_it() -> None:
    """Release notes list the plugins whose version_added is the version."""
    if not read(ROOT / "changelogs/changelog.yaml")["releases"]:
        added = re.compile(r"^version_added: (\S+)$", re.MULTILINE)
        versions = {version for path in ROOT.glob("plugins/*/*.py") for version in names(added, path)}
        assert versions == {read(ROOT / "galaxy.yml")["version"]}


def test_tasks_that_end_to_end_tests_wait_for_exist() -> None:
    """A test that waits for a task under an old name fails after hours, and one that expects no such task passes."""
    name = re.compile(r"- name: (.+)$", re.MULTILINE)
    tasks = {
        f"{role.name} : {task}" for role in ROLES for path in role.glob("tasks/*.yml") for task in names(name, path)
    }
    plays = {f"PLAY [{play}" for path in ROOT.glob("playbooks/**/*.yml") for play in names(name, path)}
    waited = re.compile(r'"([a-z_]+ : [A-Z][^"\]]+|PLAY \[[^"\]]+)\]?"')
    found = {(path.name, task) for path in ROOT.glob("tests/e2e/*.py") for task in names(waited, path)}
    assert len(found) > 10
    assert [each for each in sorted(found) if each[1] not in tasks | plays] == []


def test_paths_in_documents_exist() -> None:
    path = re.compile(r"`((?:roles|plugins|playbooks|tests|lab|tools|molecule|inventory)/[\w./-]+)`")
    # Decisions describe what was before, too; a name in capitals stands for any.
    pages = [page for page in PAGES if "decisions" not in page.parts]
    found = {(str(page.relative_to(ROOT)), place) for page in pages for place in names(path, page)}
    assert len(found) > 50
    assert [
        each for each in sorted(found) if not (ROOT / each[1]).exists() and not re.search(r"/[A-Z]+\.", each[1])
    ] == []
