"""Playbook plan on hosts that it need not connect to."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.schemas import valid
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

GPUS = {"serving_recipe_gpu_type": "b200", "serving_recipe_gpu_count": 8}
HOSTS = {
    "plain": GPUS,
    "template": {**GPUS, "first_port": 9000, "serving_recipe_port": "{{ first_port + 1 }}"},
    "undefined": {**GPUS, "serving_recipe_port": "{{ no_such_variable }}"},
    "same": GPUS,
}


def run_plan(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the playbook for HOSTS. Return its end, and the file of the plan."""
    inventory, plan = folder / "hosts.json", folder / "plan.json"
    addresses = {"ansible_host": "127.0.0.1", "ansible_port": 1}
    hosts = {name: {**addresses, **variables} for name, variables in HOSTS.items()}
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}))
    ran = subprocess.run(
        ["ansible-playbook", "-i", str(inventory), "playbooks/plan.yml", "-e", f"plan_file={plan}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran, plan


def test_check_mode_of_a_prediction_installs_nothing(tmp_path: Path) -> None:
    ran, plan = run_plan(tmp_path, "--check", "--skip-tags=plan_compare", "-e", "plan_predict=true")
    assert "1 host without a recipe: undefined. The plan says why." in ran.stdout, ran.stdout
    assert not plan.exists()


@pytest.mark.parametrize(
    ("arguments", "state"),
    [(["--skip-tags=plan_compare"], "not asked"), ([], "not reachable")],
    ids=["variables", "unreachable"],
)
def test_the_plan_has_every_host(tmp_path: Path, arguments: list[str], state: str) -> None:
    ran, plan = run_plan(tmp_path, *arguments)
    assert "1 host without a recipe: undefined. The plan says why." in ran.stdout
    written = valid(json.loads(plan.read_text()))
    groups = {tuple(group["hosts"]): group for group in written["groups"]}
    assert set(groups) == {("plain", "same"), ("template",)}
    assert groups["template",]["recipe"]["instances"][0]["port"] == 9001
    assert [now["state"] for group in groups.values() for now in group["now"]] == [state] * 2
    assert [group["hosts"] for group in written["without_recipe"]] == [["undefined"]]
    (problem,) = written["without_recipe"][0]["problems"]
    assert "no_such_variable" in problem
