"""tune: the variables that a search writes for the inventory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook

TEMPLATE = ROOT / "roles/tune/templates/override.yml.j2"
INVENTORY = {
    "serving_recipe_engine_options": {"max_batch_size": 4, "kv_cache_config": {"dtype": "fp8"}},
    "serving_recipe_environment": {"A": "1"},
}


def override(folder: Path, variables: dict[str, Any], **inventory: Any) -> dict[str, Any]:
    """Return the content of the file for a search whose best variation has these variables."""
    result = {"trials": [], "done": "", "verdict": ["It is better."], "variables": variables}
    write = {"ansible.builtin.template": {"src": str(TEMPLATE), "dest": str(folder / "override.yml")}}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"name": "Write the file", **write}]}
    (folder / "playbook.yml").write_text(json.dumps([play]))
    given = {"tune_result": result, "tune_objective": "x", "__tune_name": "now", **inventory}
    run = run_playbook(folder, folder / "playbook.yml", "gpu1", **given)
    assert run.returncode == 0, run.stdout
    found: dict[str, Any] = yaml.safe_load((folder / "override.yml").read_text())
    return found


@pytest.mark.parametrize("inventory", [{}, INVENTORY], ids=["no options", "options"])
def test_options_of_the_inventory_are_kept(tmp_path: Path, inventory: dict[str, Any]) -> None:
    """Ansible replaces a dictionary of the inventory by that of the file."""
    variation = {"engine_options": {"max_batch_size": 8, "kv_cache_config": {"free_gpu_memory_fraction": 0.8}}}
    found = override(tmp_path, {**variation, "gpus_per_instance": 2}, **inventory)
    cache = {"free_gpu_memory_fraction": 0.8, **({"dtype": "fp8"} if inventory else {})}
    assert found == {
        "serving_recipe_engine_options": {"max_batch_size": 8, "kv_cache_config": cache},
        "serving_recipe_gpus_per_instance": 2,
    }


def test_without_a_better_variation_there_is_no_variable(tmp_path: Path) -> None:
    assert override(tmp_path, {}, **INVENTORY) == {}
