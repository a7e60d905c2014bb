"""Survey specifications for AWX are complete, and ask for variables that the collection has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

SURVEYS = sorted((ROOT / "docs/examples/awx").glob("*.json"))
# Rules of AWX: awx/api/templates/api/job_template_survey_spec.md at 047880b, read 2026-11-30.
TYPES = {"text": str, "textarea": str, "password": str, "integer": int, "float": float}
CHOICES = ("multiplechoice", "multiselect")


def variables() -> dict[str, dict[str, Any]]:
    """Return the options of all roles' entry points by name."""
    found: dict[str, dict[str, Any]] = {}
    for path in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values():
            found |= spec.get("options") or {}
    return found


def questions() -> list[tuple[str, dict[str, Any]]]:
    return [(path.stem, question) for path in SURVEYS for question in json.loads(path.read_text())["spec"]]


@pytest.mark.parametrize("path", SURVEYS, ids=lambda path: path.stem)
def test_survey_has_a_name_and_asks_each_variable_once(path: Path) -> None:
    survey = json.loads(path.read_text())
    assert sorted(survey) == ["description", "name", "spec"]
    names = [question["variable"] for question in survey["spec"]]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(("survey", "question"), questions(), ids=lambda value: str(value)[:0] or None)
def test_question_is_valid(survey: str, question: dict[str, Any]) -> None:
    assert question["question_name"]
    assert question["question_description"]
    assert isinstance(question["required"], bool)
    if question["type"] in CHOICES:
        assert set(question["default"].split("\n")) <= set(question["choices"])
    else:
        assert "choices" not in question
        assert isinstance(question["default"], TYPES[question["type"]])
        assert question["min"] < question["max"]


@pytest.mark.parametrize(("survey", "question"), questions(), ids=lambda value: str(value)[:0] or None)
def test_variable_exists_with_these_values(survey: str, question: dict[str, Any]) -> None:
    option = variables().get(question["variable"])
    if option is None:  # a variable of a playbook
        page = (ROOT / "docs/reference/playbooks.md").read_text()
        assert f"`{question['variable']}`" in page
    elif option.get("choices"):
        assert set(question["choices"]) <= set(option["choices"])
    elif option["type"] == "bool":
        assert question["choices"] == ["true", "false"]
    elif option["type"] == "list":
        assert question["type"] == "multiselect"


def test_jobs_that_a_rollout_lock_rejects_can_ignore_it() -> None:
    """In a container of its own a job cannot see that the run which holds the lock has ended."""
    asking = {survey for survey, question in questions() if question["variable"] == "rollout_take_over"}
    assert asking == {"rollout", "rollback", "drain", "undrain", "decommission"}
