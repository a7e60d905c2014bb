"""The ready-made inventories: complete, and with a recipe for each host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.filter.core import extract
from ansible.vars.manager import VariableManager
from jinja2 import Environment, StrictUndefined

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import serving_recipe
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

# The lab's gets its hosts from Docker, the dynamic ones from clouds; Dynamo's has other groups.
READY = sorted(path for path in (ROOT / "inventory").iterdir() if path.name not in ("local", "dynamic", "dynamo"))
DEFAULTS = yaml.safe_load((ROOT / "roles/serving_recipe/defaults/main.yml").read_text())


def hosts(folder: Path, group: str = "gpu_hosts") -> dict[str, dict[str, Any]]:
    """Return the variables of each host of a group as merged by Ansible, with templates unrendered."""
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(folder)])
    manager = VariableManager(loader=loader, inventory=inventory)
    return {host.name: manager.get_vars(host=host) for host in inventory.get_hosts(group)}


HOSTS = [
    pytest.param(variables, id=f"{folder.name}-{name}") for folder in READY for name, variables in hosts(folder).items()
]


def test_each_gpu_type_has_an_inventory() -> None:
    assert {folder.name for folder in READY} >= {"b200", "gb200", "h200", "h100", "rtx"}
    for folder in READY:
        assert hosts(folder), folder.name


@pytest.mark.parametrize("variables", HOSTS)
def test_host_has_the_variables_of_a_first_run(variables: dict[str, Any]) -> None:
    assert variables["ansible_host"].startswith("192.0.2."), "an address for documentation"
    assert variables["ansible_user"]
    assert "HF_TOKEN" in variables["model_weights_token"]
    assert variables["nvidia_driver_reboot_allowed"] is False
    assert variables["trtllm_server_listen_address"] == "127.0.0.1"


@pytest.mark.parametrize("variables", HOSTS)
def test_host_has_a_recipe_without_detection(variables: dict[str, Any]) -> None:
    request = {name.removeprefix("serving_recipe_"): variables.get(name, default) for name, default in DEFAULTS.items()}
    recipe = serving_recipe(request)
    assert recipe["gpu_type"] == variables["serving_recipe_gpu_type"]
    assert recipe["gpu_count"] == variables["serving_recipe_gpu_count"]
    assert recipe["warnings"] == []


def test_suggested_lines_of_the_h100_inventory_work() -> None:
    text = (ROOT / "inventory/h100/group_vars/all.yml").read_text()
    suggested = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# serving_recipe_")]
    # With the suggested count.
    request = {
        **DEFAULTS,
        **yaml.safe_load(text),
        **yaml.safe_load("\n".join(suggested)),
        "serving_recipe_gpu_count": 2,
    }
    recipe = serving_recipe({name.removeprefix("serving_recipe_"): request[name] for name in DEFAULTS})
    assert (recipe["document"], recipe["gpu_count"]) == ("h100_template", 2)


def test_dynamo_inventory_has_hosts_and_variables_for_all_components() -> None:
    folder = ROOT / "inventory/dynamo"
    parts = {part: hosts(folder, f"dynamo_{part}") for part in ("control", "frontend", "prefill", "decode")}
    assert {part: len(found) for part, found in parts.items()} == {
        "control": 3,
        "frontend": 2,
        "prefill": 2,
        "decode": 2,
    }
    members = hosts(folder, "dynamo")
    assert members.keys() == set().union(*parts.values())
    for variables in members.values():
        assert variables["ansible_host"].startswith("192.0.2."), "an address for documentation"
        assert variables["ansible_user"]
        assert "HF_TOKEN" in variables["model_weights_token"]
        assert variables["nvidia_driver_reboot_allowed"] is False
        assert variables["dynamo_listen_address"] == "127.0.0.1"
    # No other playbook deploys instances to them.
    assert hosts(folder, "gpu_hosts") == {}


@pytest.mark.parametrize("worker", ["prefill", "decode"])
def test_dynamo_workers_have_recipes_without_detection(worker: str) -> None:
    for variables in hosts(ROOT / "inventory/dynamo", f"dynamo_{worker}").values():
        request = {
            name.removeprefix("serving_recipe_"): variables.get(name, default) for name, default in DEFAULTS.items()
        }
        recipe = serving_recipe({**request, "worker": worker})
        assert (recipe["gpu_type"], recipe["gpu_count"], recipe["worker"]) == ("b200", 8, worker)
        assert recipe["warnings"] == []


@pytest.mark.parametrize(("gpu", "engine"), [("b200x8", "Simulated GPUs"), ("real", "PyTorch with transformers")])
def test_benchmarks_of_the_lab_say_what_their_engine_is(gpu: str, engine: str) -> None:
    environment = Environment(undefined=StrictUndefined)
    environment.filters["extract"] = extract
    template = yaml.safe_load((ROOT / "inventory/local/group_vars/all/measured.yml").read_text())["benchmark_note"]
    names = {"groups": {"gpu_hosts": ["a"]}, "hostvars": {"a": {"lab_gpu": gpu}}}
    assert engine in environment.from_string(template).render(names)
