"""Role serving_recipe in ansible-playbook, on hosts that it need not connect to."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

GPUS = {"serving_recipe_gpu_type": "b200", "serving_recipe_gpu_count": 8}
HOSTS = {
    "plain": GPUS,
    "template": {**GPUS, "first_port": 9000, "serving_recipe_port": "{{ first_port + 1 }}"},
    "newer": {**GPUS, "serving_recipe_image": "registry/release:1.2.9"},
    "named": {**GPUS, "serving_recipe_image": "registry/server@sha256:00", "serving_recipe_trtllm_version": "1.1"},
    "wrong": {**GPUS, "serving_recipe_model": "gpt-oss", "serving_recipe_engine_options": {"max_batchsize": 1}},
    "misspelt": {**GPUS, "serving_recipe_prot": 1},
}
PLAYBOOK = """
- name: Resolve
  hosts: all
  gather_facts: false
  tasks:
    - tags: [always]
      block:
        - ansible.builtin.import_role:
            name: trtllm.fleet.serving_recipe
      rescue:
        - name: Show the result
          ansible.builtin.debug:
            msg: "{{ ansible_failed_result.msg.splitlines() }}"

- name: Later play
  hosts: all
  gather_facts: false
  tasks:
    - name: Show the result
      ansible.builtin.debug:
        msg: "{{ serving_recipe_result | default('none') }}"
      tags: [always]
"""


@pytest.mark.parametrize(
    ("arguments", "strategy"),
    [([], "linear"), (["--check", "--tags=other"], "free")],
    ids=["plain", "check_tags_free"],
)
def test_later_plays_have_the_recipe_and_a_failure_has_all_problems(
    tmp_path: Path, arguments: list[str], strategy: str
) -> None:
    inventory, playbook = tmp_path / "hosts.json", tmp_path / "play.yml"
    inventory.write_text(json.dumps({"all": {"hosts": HOSTS}}))
    playbook.write_text(PLAYBOOK)
    settings = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_STRATEGY": strategy}
    ran = subprocess.run(
        ["ansible-playbook", "-i", str(inventory), str(playbook), *arguments],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    messages: dict[str, dict[str, Any]] = {"Resolve": {}, "Later play": {}}
    warnings: dict[str, list[str]] = {}
    # Output of other callbacks follows.
    results, _end = json.JSONDecoder().raw_decode(ran.stdout)
    for play in results["plays"]:
        for task in play["tasks"]:
            if task["task"]["name"] == "Show the result":
                messages[play["play"]["name"]].update({host: result["msg"] for host, result in task["hosts"].items()})
            for host, result in task["hosts"].items():
                warnings.setdefault(host, []).extend(result.get("warnings", []))

    assert set(messages["Resolve"]) == {"wrong", "misspelt"}
    model, option = messages["Resolve"]["wrong"]
    assert model.startswith("serving_recipe_model: 'gpt-oss' has no recipe.")
    assert option.startswith("serving_recipe_engine_options: ")
    assert "'max_batchsize' is not an option. Did you mean 'max_batch_size'?" in option
    (variable,) = messages["Resolve"]["misspelt"]
    assert variable.startswith("serving_recipe_prot: is not a variable of the recipe.")

    recipes = messages["Later play"]
    assert recipes.pop("wrong") == recipes.pop("misspelt") == "none"
    assert {host: recipe["instances"][0]["port"] for host, recipe in recipes.items()} == {
        "plain": 8000,
        "template": 9001,
        "newer": 8000,
        "named": 8000,
    }
    assert recipes["named"]["release"] == "1.1"
    assert not {"changed", "failed"} & set(recipes["plain"])
    assert warnings["plain"] == []
    assert warnings["newer"] == recipes["newer"]["warnings"]
    assert recipes["newer"]["warnings"][0].startswith("serving_recipe_image: tag '1.2.9'")
