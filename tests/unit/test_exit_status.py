"""Exit status of playbooks that automation runs, on hosts that need no lab: docs/reference/interfaces.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ansible_collections.trtllm.fleet.tests.schemas import valid
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

GPUS = {"serving_recipe_gpu_type": "b200", "serving_recipe_gpu_count": 8}
LOST = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_retries": 0, **GPUS}
HERE = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable, **GPUS}
MISSPELT = {**HERE, "serving_recipe_modl": "openai/gpt-oss-20b"}


def played(
    folder: Path, playbook: str, host: dict[str, Any] | None, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a playbook in a folder, for one GPU host; None leaves the group empty."""
    hosts = {"gpu_hosts": {"hosts": {"gpu1": host} if host else {}}}
    (folder / "hosts.json").write_text(json.dumps(hosts))
    return subprocess.run(
        ["ansible-playbook", "-i", "hosts.json", f"trtllm.fleet.{playbook}", *options],
        cwd=folder,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("playbook", "host", "options", "status", "document"),
    [
        ("plan", LOST, [], 0, "fleet-plan.json"),
        ("plan", {**HERE, "serving_recipe_gpu_type": "b2000"}, [], 2, "fleet-plan.json"),
        ("plan", MISSPELT, [], 2, None),
        ("plan", None, [], 4, None),
        ("preflight", LOST, [], 4, None),
        ("preflight", MISSPELT, [], 2, None),
        ("status", LOST, [], 0, "fleet-status.json"),
        ("status", LOST, ["-estatus_fail_on=unreachable"], 2, "fleet-status.json"),
        ("status", LOST, ["-estatus_fail_on=sick"], 2, None),
        ("doctor", HERE, [], 0, "fleet-faults.json"),
        ("doctor", LOST, [], 2, "fleet-faults.json"),
        ("doctor", LOST, ["-edoctor_fail_on=never"], 0, "fleet-faults.json"),
        ("rollout", LOST, [], 4, "fleet-rollout.json"),
        ("rollback", LOST, [], 2, "fleet-rollout.json"),
        ("rollout", LOST, ["--check"], 4, None),
        ("verify", LOST, [], 4, None),
        ("site", LOST, [], 4, None),
        ("benchmark", LOST, [], 4, None),
        ("accept", LOST, [], 4, None),
    ],
)
def test_exit_status_and_document(
    tmp_path: Path, playbook: str, host: dict[str, Any] | None, options: list[str], status: int, document: str | None
) -> None:
    ended = played(tmp_path, playbook, host, *options)
    assert ended.returncode == status, ended.stdout + ended.stderr
    written = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("fleet-*.json")}
    assert list(written) == ([document] if document else [])
    for found in written.values():
        valid(found)


def test_a_rollout_that_ends_before_its_plan_leaves_its_problems(tmp_path: Path) -> None:
    played(tmp_path, "rollout", MISSPELT)
    result = json.loads((tmp_path / "fleet-rollout.json").read_text())
    assert (result["playbook"], result["state"], result["hosts"]) == ("rollout", "failed", [])
    (problem,) = result["problems"]
    assert problem["message"] == "gpu1 sets serving_recipe_modl; no role knows it. Set serving_recipe_model."


def test_a_report_for_ci_systems_has_the_failure_and_no_arguments(tmp_path: Path) -> None:
    settings = {"ANSIBLE_CALLBACKS_ENABLED": "ansible.builtin.junit", "JUNIT_OUTPUT_DIR": str(tmp_path / "junit")}
    host = {**MISSPELT, "model_weights_token": "hf_canary"}
    played(tmp_path, "rollout", host, JUNIT_HIDE_TASK_ARGUMENTS="true", **settings)
    (report,) = (tmp_path / "junit").glob("*.xml")
    text = report.read_text()
    # ansible-core decides which of the two a failed task is.
    (failure,) = (one for one in ElementTree.fromstring(text).iter() if one.tag in ("failure", "error"))
    assert "gpu1 sets serving_recipe_modl; no role knows it." in (failure.get("message") or "")
    assert "hf_canary" not in text
