"""The ready-made inventories: complete as they stand, and a recipe for each of their hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import serving_recipe
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

# That of the lab has its hosts from Docker, and that of Dynamo has groups of its own.
READY = sorted(path for path in (ROOT / "inventory").iterdir() if path.name not in ("local", "dynamo"))
DEFAULTS = yaml.safe_load((ROOT / "roles/serving_recipe/defaults/main.yml").read_text())


def hosts(folder: Path, group: str = "gpu_hosts") -> dict[str, dict[str, Any]]:
    """The variables of each host of a group, as Ansible merges them; templates as they are written."""
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(folder)])
    manager = VariableManager(loader=loader, inventory=inventory)
    return {host.name: manager.get_vars(host=host) for host in inventory.get_hosts(group)}


HOSTS = [
    pytest.param(variables, id=f"{folder.name}-{name}") for folder in READY for name, variables in hosts(folder).items()
]


def test_there_is_an_inventory_for_each_kind() -> None:
    assert {folder.name for folder in READY} >= {"b200", "gb200", "h200", "h100", "rtx"}
    for folder in READY:
        assert hosts(folder), folder.name


@pytest.mark.parametrize("variables", HOSTS)
def test_a_host_has_all_that_a_first_run_needs(variables: dict[str, Any]) -> None:
    assert variables["ansible_host"].startswith("192.0.2."), "an address that is nobody's"
    assert variables["ansible_user"]
    assert "HF_TOKEN" in variables["model_weights_token"]
    assert variables["nvidia_driver_reboot_allowed"] is False
    assert variables["trtllm_server_listen_address"] == "127.0.0.1"


@pytest.mark.parametrize("variables", HOSTS)
def test_a_host_gets_a_recipe_without_being_asked(variables: dict[str, Any]) -> None:
    request = {name.removeprefix("serving_recipe_"): variables.get(name, default) for name, default in DEFAULTS.items()}
    recipe = serving_recipe(request)
    assert recipe["gpu_type"] == variables["serving_recipe_gpu_type"]
    assert recipe["gpu_count"] == variables["serving_recipe_gpu_count"]
    assert recipe["warnings"] == []


def test_what_the_h100_inventory_suggests_works() -> None:
    text = (ROOT / "inventory/h100/group_vars/all.yml").read_text()
    suggested = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# serving_recipe_")]
    # With the count that it names.
    request = {
        **DEFAULTS,
        **yaml.safe_load(text),
        **yaml.safe_load("\n".join(suggested)),
        "serving_recipe_gpu_count": 2,
    }
    recipe = serving_recipe({name.removeprefix("serving_recipe_"): request[name] for name in DEFAULTS})
    assert (recipe["document"], recipe["gpu_count"]) == ("h100_template", 2)


def test_dynamos_inventory_has_hosts_for_every_part_with_all_that_a_first_run_needs() -> None:
    folder = ROOT / "inventory/dynamo"
    parts = {part: hosts(folder, f"dynamo_{part}") for part in ("control", "frontend", "prefill", "decode")}
    assert {part: len(found) for part, found in parts.items()} == {
        "control": 3,
        "frontend": 2,
        "prefill": 2,
        "decode": 2,
    }
    everybody = hosts(folder, "dynamo")
    assert everybody.keys() == set().union(*parts.values())
    for variables in everybody.values():
        assert variables["ansible_host"].startswith("192.0.2."), "an address that is nobody's"
        assert variables["ansible_user"]
        assert "HF_TOKEN" in variables["model_weights_token"]
        assert variables["nvidia_driver_reboot_allowed"] is False
        assert variables["dynamo_listen_address"] == "127.0.0.1"
    # They serve models by themselves in no other playbook.
    assert hosts(folder, "gpu_hosts") == {}


@pytest.mark.parametrize("worker", ["prefill", "decode"])
def test_dynamos_workers_get_recipes_without_being_asked(worker: str) -> None:
    for variables in hosts(ROOT / "inventory/dynamo", f"dynamo_{worker}").values():
        request = {
            name.removeprefix("serving_recipe_"): variables.get(name, default) for name, default in DEFAULTS.items()
        }
        recipe = serving_recipe({**request, "worker": worker})
        assert (recipe["gpu_type"], recipe["gpu_count"], recipe["worker"]) == ("b200", 8, worker)
        assert recipe["warnings"] == []
