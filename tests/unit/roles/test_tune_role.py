"""tune: searches that are rejected, and the variables that a search writes for the inventory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook
from ansible_collections.trtllm.fleet.tests.unit.roles.test_rollout_role import collection

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


INSTANCE = {"name": "serve-0", "gpus": [0], "port": 8000, "base_url": "http://127.0.0.1:8000"}
SERVING = {"serve-0": {"model": "m", "up": True, "drained": False, "drained_by": "", "drain_changed": ""}}
DRAINS = "[trtllm.fleet.rollout : "  # of a task


@pytest.mark.parametrize(
    ("extra", "inventory", "problem"),
    [
        ({}, {}, "has at most 2 requests at a time"),
        ({"serving_recipe_use_case": "low_latency"}, {}, "The command line (-e) sets"),
        ({}, {"tune_space": {}}, "tune_space is {}"),
        ({}, {"benchmark_scenarios": ["smok"]}, "smok"),
    ],
    ids=["small load", "command line", "space", "scenario"],
)
def test_a_rejected_search_drains_no_host(
    tmp_path: Path, extra: dict[str, Any], inventory: dict[str, Any], problem: str
) -> None:
    done = tune(tmp_path, extra, inventory)
    assert done.returncode == 2, done.stdout
    assert problem in " ".join(done.stdout.split())
    assert DRAINS not in done.stdout


def test_a_valid_search_drains_the_host(tmp_path: Path) -> None:
    """The lock of another run ends it there."""
    done = tune(tmp_path, {}, {"tune_objective": "output_tokens_per_second_per_user"})
    assert done.returncode == 2, done.stdout
    assert DRAINS in done.stdout
    assert "Another run holds the lock" in done.stdout


def tune(folder: Path, extra: dict[str, Any], inventory: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run playbook tune for a host that is in service, with variables of the command line and of the inventory."""
    served = {"name": "a-recipe", "instances": [INSTANCE], "weights": "/models/m"}
    fakes: dict[str, dict[str, Any]] = {
        "host_release_info": {"verified": "release-1", "description": served, "units": []},
        "gpu_info": {"count": 1, "gpus": []},
        "gateway_info": {"running": True, "hosts": {"gpu1": SERVING}},
        "rollout_lock": {"failed": True, "msg": "Another run holds the lock"},
    }
    collection(folder, fakes)
    groups = {"gpu_hosts": {"hosts": {"gpu1": inventory}}, "gateway": {"hosts": {"gateway1": {}}}}
    (folder / "hosts.json").write_text(json.dumps({"all": {"children": groups}}))
    options = [f"--inventory={folder}/hosts.json", "--limit=gpu1"]
    given = {"ansible_become": False, "tune_results_dir": str(folder), **extra}
    return run_playbook(folder, ROOT / "playbooks/tune.yml", "gpu1", *options, collections=folder, **given)
