"""The examples for CI systems: valid for their system, with playbooks, variables and settings that exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ansible
import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

FOLDER = ROOT / "docs/examples/ci"
GITHUB = sorted((FOLDER / "github").glob("*.yml"))
GITLAB = FOLDER / "gitlab/.gitlab-ci.yml"
EXAMPLES = pytest.mark.parametrize("path", [*GITHUB, GITLAB], ids=lambda path: path.name)


def scripts(document: Any) -> Iterator[str]:
    """Yield each command that a job runs."""
    if isinstance(document, list):
        for value in document:
            yield from scripts(value)
    elif isinstance(document, dict):
        for key, value in document.items():
            lines = value if isinstance(value, list) else [value]
            if key in ("run", "script", "before_script", "after_script"):
                yield from (line for line in lines if isinstance(line, str))
            else:
                yield from scripts(value)


def environments(document: Any) -> Iterator[str]:
    """Yield the name of each environment variable that a job sets."""
    if isinstance(document, list):
        for value in document:
            yield from environments(value)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key in ("env", "variables"):
                yield from value
            else:
                yield from environments(value)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@EXAMPLES
def test_the_example_is_valid_for_its_system(path: Path) -> None:
    schema = ["vendor.gitlab-ci", "--data-transform=gitlab-ci"] if path == GITLAB else ["vendor.github-workflows"]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", *schema, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@EXAMPLES
def test_playbooks_variables_and_tags_exist(path: Path) -> None:
    commands = [line for script in scripts(read(path)) for line in script.splitlines() if "ansible-playbook" in line]
    assert commands
    documented = (ROOT / "docs/reference/playbooks.md").read_text()
    specs = "\n".join(spec.read_text() for spec in ROOT.glob("roles/*/meta/argument_specs.yml"))
    for command in commands:
        (playbook,) = re.findall(r"ansible-playbook trtllm\.fleet\.(\w+)", command)
        text = (ROOT / f"playbooks/{playbook}.yml").read_text()
        # Ansible's own are variables of a connection.
        for name in re.findall(r"-e (?!ansible_)(\w+)=", command):
            own = f"`{name}`" in documented and f"{name} | default(" in text
            assert own or re.search(rf"^ +{name}:", specs, re.MULTILINE), command
        for tag in re.findall(r"--skip-tags (\w+)", command):
            assert f"tags: [{tag}]" in text, command


@EXAMPLES
def test_settings_of_ansible_exist(path: Path) -> None:
    library = Path(ansible.__file__).parent
    known = (library / "config/base.yml").read_text() + "".join(
        (library / f"plugins/{plugin}.py").read_text()
        for plugin in ("callback/junit", "connection/ssh", "doc_fragments/result_format_callback")
    )
    text = path.read_text()
    exported = re.findall(r"\b(ANSIBLE_\w+)=", text)
    names = {name for name in (*environments(read(path)), *exported) if name.startswith(("ANSIBLE_", "JUNIT_"))}
    assert "ANSIBLE_VAULT_PASSWORD_FILE" in names or path.name == "plan.yml"
    # The path of the settings is not one of them.
    assert [name for name in names - {"ANSIBLE_CONFIG"} if not re.search(rf"name: {name}\b", known)] == []


@EXAMPLES
def test_files_that_are_kept_are_written(path: Path) -> None:
    kept = set(re.findall(r"\bfleet-\w+\.\w+", path.read_text()))
    sources = [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("playbooks/callback_plugins/*.py")]
    written = "".join(source.read_text() for source in sources)
    assert kept or path.name == "plan.yml"
    assert [name for name in kept if name not in written] == []


def test_actions_are_pinned_by_commit() -> None:
    used = [line for path in GITHUB for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not re.search(r"uses: [\w/-]+@[0-9a-f]{40} # v[\d.]+$", line)] == []


def test_a_rollout_is_never_cancelled_by_the_next() -> None:
    assert read(FOLDER / "github/rollout.yml")["concurrency"] == {"group": "rollout", "cancel-in-progress": False}
    job = read(GITLAB)["rollout"]
    assert (job["resource_group"], job["interruptible"]) == ("rollout", False)


def test_jobs_with_secrets_run_on_the_main_branch_only() -> None:
    for name in ("rollout", "status"):
        text = (FOLDER / f"github/{name}.yml").read_text()
        for job in yaml.safe_load(text)["jobs"].values():
            assert job["if"] == "github.ref == 'refs/heads/main'", name


def test_secrets_are_not_where_pull_requests_run() -> None:
    assert "secrets." not in (FOLDER / "github/plan.yml").read_text()
    assert "extends" not in read(GITLAB)["plan"]


def test_versions_are_those_of_the_project() -> None:
    pinned = (FOLDER / "requirements.txt").read_text().splitlines()
    assert set(pinned) <= set((ROOT / "requirements.txt").read_text().splitlines())
    (collection,) = read(FOLDER / "requirements.yml")["collections"]
    assert collection == {"name": "trtllm.fleet", "version": read(ROOT / "galaxy.yml")["version"]}


def test_a_job_has_a_collection_of_its_own() -> None:
    """Jobs of other runners of the same user have other versions."""
    for path in GITHUB:
        for job in read(path)["jobs"].values():
            assert job["env"]["ANSIBLE_COLLECTIONS_PATH"] == "collections", path.name
    variables = read(GITLAB)["variables"]
    assert variables["ANSIBLE_COLLECTIONS_PATH"] == "$CI_PROJECT_DIR/collections"
    # ansible-galaxy installs nothing that another directory of the variable has, whatever --collections-path says.
    (install,) = (line for line in read(GITLAB)["plan"]["script"] if "base/requirements.yml" in line)
    assert install.startswith("ANSIBLE_COLLECTIONS_PATH=base/collections ")


def test_settings_are_read_from_a_directory_that_all_users_can_write() -> None:
    """GitLab's runner clones with umask 0000. Ansible ignores ansible.cfg there unless its path is set."""
    assert "ansible.cfg  " in (ROOT / "docs/how-to/automate.md").read_text()
    assert read(GITLAB)["variables"]["ANSIBLE_CONFIG"] == "$CI_PROJECT_DIR/ansible.cfg"


SECRETS = ("gateway_secret", "ansible_become_password", "ansible_password")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A pull request that changes an engine option and the collection. It has secrets, and no password is there."""
    for name in ("base", "."):
        shutil.copytree(ROOT / "inventory/h200", tmp_path / name / "inventory")
        with (tmp_path / name / "inventory/group_vars/all.yml").open("a") as file:
            file.writelines(f"{secret}: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  3631\n" for secret in SECRETS)
        installed = tmp_path / name / "collections/ansible_collections/trtllm/fleet"
        for part in ("meta", "playbooks", "plugins", "roles"):
            shutil.copytree(ROOT / part, installed / part, ignore=shutil.ignore_patterns("__pycache__"))
    # Of the pull request, as it comes last.
    recipes = installed / "roles/serving_recipe/vars/base.yml"
    recipes.write_text(re.sub(r"(stream_interval: \d+)", r"\g<1>7", recipes.read_text()))
    with (tmp_path / "inventory/group_vars/all.yml").open("a") as file:
        file.write("serving_recipe_engine_options: {max_batch_size: 77}\n")
    return tmp_path


def shell(command: str, checkout: Path, environment: dict[str, str]) -> None:
    ended = subprocess.run(
        ["bash", "-e", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def github_plan(checkout: Path) -> list[str]:
    """Run the commands of GitHub's example, except the installation. Return the difference."""
    job = read(FOLDER / "github/plan.yml")["jobs"]["plan"]
    summary = checkout / "summary.md"
    for step in job["steps"]:
        if step.get("name") in ("Plan the base", "Plan the pull request", "Show the difference"):
            settings = {**job.get("env", {}), **step.get("env", {}), "GITHUB_STEP_SUMMARY": str(summary)}
            shell(step["run"], checkout, os.environ | settings)
    lines = summary.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("```diff", "```")
    return lines


def gitlab_plan(checkout: Path) -> list[str]:
    """Run the commands of GitLab's example, except the installation and git. Return the difference."""
    variables = {key: value for key, value in read(GITLAB)["variables"].items() if isinstance(value, str)}
    settings = {key: value.replace("$CI_PROJECT_DIR", str(checkout)) for key, value in variables.items()}
    job = read(GITLAB)["plan"]
    for command in (*job["script"], *job["after_script"]):
        if "ansible-playbook" in command or "diff" in command:
            shell(command, checkout, os.environ | settings)
    return (checkout / "plan.diff").read_text().splitlines()


@pytest.mark.parametrize("plan", [github_plan, gitlab_plan])
def test_a_pull_request_shows_what_it_changes_in_the_plan(checkout: Path, plan: Callable[[Path], list[str]]) -> None:
    lines = plan(checkout)
    assert [line.split() for line in lines if re.match(r"\+ +\"max_batch_size\"", line)] == [
        ["+", '"max_batch_size":', "77,"]
    ]
    # The base is planned with its own version of the collection.
    (before, after) = (
        re.findall(rf'^\{sign} +"stream_interval": (\d+)', "\n".join(lines), re.MULTILINE) for sign in "-+"
    )
    assert before
    assert [f"{value}7" for value in before] == after
