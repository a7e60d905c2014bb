# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An unknown variable with the prefix of a role stops a run before it changes a host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.filter.variable_problems import variable_problems
from ansible_collections.trtllm.fleet.plugins.plugin_utils import variables
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

MISSPELT = "serving_recipe_modle; no role knows it. Set serving_recipe_model."


def play(playbook: str, inventory: Path, *arguments: str) -> str:
    """Run a playbook that has to fail, and return its output without line breaks."""
    program = Path(sys.executable).parent / "ansible-playbook"
    command: list[str | Path] = [program, "-i", inventory, ROOT / playbook, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode != 0, ended.stdout
    return " ".join((ended.stdout + ended.stderr).split())


def fleet(path: Path, group: str, **hosts: dict[str, Any]) -> Path:
    path.write_text(json.dumps({group: {"hosts": hosts}}))
    return path


@pytest.mark.parametrize(
    ("playbook", "group"),
    [
        ("site.yml", "gpu_hosts"),
        ("playbooks/rollout.yml", "gpu_hosts"),
        ("playbooks/plan.yml", "gpu_hosts"),
        ("playbooks/dynamo.yml", "dynamo"),
    ],
)
def test_a_misspelt_variable_stops_the_run_before_a_host_is_reached(playbook: str, group: str, tmp_path: Path) -> None:
    inventory = fleet(tmp_path / "hosts.json", group, gpu1={}, gpu2={"serving_recipe_modle": "openai/gpt-oss-20b"})
    output = play(playbook, inventory)
    assert f"gpu2 sets {MISSPELT}" in output
    assert "UNREACHABLE" not in output
    assert output.count("Assert that the inventory sets no unknown variable] *") == 1
    assert "Check the recipe" not in output


def test_a_misspelt_extra_variable_stops_the_run(tmp_path: Path) -> None:
    inventory = fleet(tmp_path / "hosts.json", "gpu_hosts", gpu1={}, gpu2={}, gpu3={})
    output = play("playbooks/plan.yml", inventory, "--extra-vars", "serving_recipe_modle=openai/gpt-oss-20b")
    assert f"gpu1 and 2 other hosts set {MISSPELT}" in output


def test_a_gateway_is_checked_and_an_unrelated_or_excluded_host_is_not(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.json"
    misspelt = {"hosts": {"gateway1": {"gateway_port_": 1}}}
    groups = {"gpu_hosts": {"hosts": {"gpu1": {}, "gpu2": {"tune_x": 1}}}, "gateway": misspelt}
    inventory.write_text(json.dumps({**groups, "web": {"hosts": {"web1": {"gateway_ip": "192.0.2.1"}}}}))
    output = play("playbooks/plan.yml", inventory, "--limit", "gpu1")
    assert "gateway1 sets gateway_port_; no role knows it. Set gateway_port." in output
    assert "gateway_ip" not in output
    assert "tune_x" not in output


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("serving_recipe_model", id="variable of a role"),
        pytest.param("container_image_name", id="variable of a role without default"),
        pytest.param("benchmark_target", id="variable of a playbook"),
        pytest.param("bundle_host", id="host of a playbook"),
        pytest.param("serving_recipe_result", id="fact of a role"),
        pytest.param("docker_engine_compared", id="registered by a role"),
        pytest.param("__serving_recipe_modle", id="internal"),
        pytest.param("ansible_user", id="variable of Ansible"),
        pytest.param("plan_file", id="without the prefix of a role"),
        pytest.param("gateways", id="name of a role and more letters"),
        pytest.param("gateway_ip", id="common name outside the collection"),
    ],
)
def test_a_known_or_foreign_variable_passes(name: str) -> None:
    assert variable_problems(["gpu1"], {"gpu1": {name: ""}, "gpu2": {"tune_x": ""}}) == []


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nvidia_driver_reboot_alowed", "Set nvidia_driver_reboot_allowed."),
        ("nvidia_container_toolkit_versoin", "Set nvidia_container_toolkit_version."),
        ("benchmark_taget", "Set benchmark_target."),
        (
            "docker_engine_ip",
            "Remove it. Run ansible-doc --type role trtllm.fleet.docker_engine for the variables of the role.",
        ),
    ],
)
def test_the_message_names_the_nearest_variable_of_the_role(name: str, advice: str) -> None:
    hosts = {"gpu1": {name: ""}, "gpu2": {name: ""}}
    assert variable_problems(list(hosts), hosts) == [f"gpu1 and 1 other host set {name}; no role knows it. {advice}"]


def names(node: Any) -> set[str]:
    """The keys of an inventory file at any depth. Those of groups and hosts do not matter."""
    if isinstance(node, dict):
        return set(node).union(*map(names, node.values()))
    return set()


@pytest.mark.parametrize("folder", sorted(path.name for path in (ROOT / "inventory").iterdir()))
def test_the_ready_made_inventories_pass(folder: str) -> None:
    files = sorted((ROOT / "inventory" / folder).rglob("*.yml"))
    groups = {"dynamo_control", "dynamo_frontend", "dynamo_prefill", "dynamo_decode", "registry_mirror"}
    found = set().union(*(names(yaml.safe_load(file.read_text())) for file in files)) - groups
    assert list(variables.unknown(found)) == []
    assert len(found) > 1
