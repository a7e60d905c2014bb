# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the control node's CPU time for a fleet's recipes: the action, a template that merges layers, and Ansible.

docs/test-results/benchmarks.md explains the figures.
The last line is one JSON object; the exit status is 1 above the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import applies
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import OVERRIDES, USE_CASES, backends
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe_request import PREFIX, read_request
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import (
    load_defaults,
    load_tables,
    serving_recipe,
)

ROOT = Path(__file__).resolve().parents[2]
# CPU milliseconds per host: 1,000 hosts in 5 seconds.
LIMIT = 5.0

Variables = dict[str, Any]
Fleet = dict[str, Variables]


def fleet(count: int) -> Fleet:
    """Return inventory variables by host, with models, GPU types, use cases and documents in turn, no two equal."""
    tables = load_tables()
    wanted: list[Variables] = [
        {"model": model["id"], "gpu_type": gpu_type, "gpu_count": max(sizes), "use_case": use_case}
        for model in tables.models.values()
        for gpu_type, sizes in model["supported"].items()
        for use_case in USE_CASES
    ]
    for name, document in tables.documents.items():
        gpu_type, sizes = next(iter(document["supported"].items()))
        wanted.append({"name": name, "gpu_type": gpu_type, "gpu_count": max(sizes)})
    return {
        f"host{number:04}": {
            f"{PREFIX}{name}": value
            for name, value in {
                **asked,
                "port": 8000 + number,
                "engine_options": {"kv_cache_config": {"host_cache_size": number}},
                "environment": {"HOST_NUMBER": str(number)},
            }.items()
        }
        for number, asked in enumerate(islice(cycle(wanted), count))
    }


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process and its ended children during ``work``."""
    before = os.times()
    work()
    after = os.times()
    return round(sum(after[:4]) - sum(before[:4]), 2)


def in_python(hosts: Fleet) -> dict[str, float]:
    """Return the CPU seconds of the resolver as the action calls it, and of merging the same layers in templates."""
    loader = DataLoader()

    def asked(variables: Variables) -> Variables:
        request: Variables = Templar(loader=loader, variables=variables).template(
            read_request(variables, load_defaults(), None)
        )
        return request

    requests = [asked(variables) for variables in hosts.values()]
    recipes = [serving_recipe(request) for request in requests]

    merged = trust_as_template("{{ layers | combine(recursive=True) }}")
    mergers = [
        Templar(loader=loader, variables={"layers": layers_of(recipe, request)})
        for recipe, request in zip(recipes, requests, strict=True)
    ]
    for merger, recipe in zip(mergers, recipes, strict=True):
        if merger.template(merged)["engine_options"] != recipe["engine_options"]:
            raise AssertionError(f"the template's engine options of {recipe['name']} differ from the resolver's")

    return {
        "resolver": cpu_seconds(lambda: [serving_recipe(asked(variables)) for variables in hosts.values()]),
        "combine_in_templates": cpu_seconds(lambda: [merger.template(merged) for merger in mergers]),
    }


def layers_of(recipe: dict[str, Any], request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the selected layers of a recipe, with the host's on top."""
    tables = load_tables()
    document = tables.documents.get(recipe["document"])
    layers = document["layers"] if document else [*tables.base, *tables.models[recipe["model"]]["layers"]]
    facts = {**recipe, "gpus": recipe["gpus_per_instance"], **backends(recipe["release"], tables)}
    return [{part: layer.get(part, {}) for part in OVERRIDES} for layer in [*layers, request] if applies(layer, facts)]


NO_TASK = """
- hosts: gpu_hosts
  gather_facts: false
"""
ONE_TASK = """
- hosts: gpu_hosts
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        number: "{{ serving_recipe_port }}"
"""
ROLE_ONLY = """
- hosts: gpu_hosts
  gather_facts: false
  roles: [trtllm.fleet.serving_recipe]
"""


def in_ansible(hosts: Fleet) -> dict[str, float]:
    """Run ansible-playbook without connections to hosts: the inventory sets GPU type and count."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "hosts.json").write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}))
        playbooks = {"ansible_no_task": NO_TASK, "ansible_one_task": ONE_TASK, "ansible_role": ROLE_ONLY}
        for name, text in playbooks.items():
            (folder / f"{name}.yml").write_text(text)
        commands = {
            **{name: [f"{folder}/{name}.yml"] for name in playbooks},
            "ansible_plan": ["playbooks/plan.yml", "--skip-tags=plan_compare", "-e", f"plan_file={folder}/plan"],
        }
        return {name: cpu_seconds(partial(_run, folder, *command)) for name, command in commands.items()}


def _run(folder: Path, *arguments: str) -> None:
    command = ["ansible-playbook", "-i", f"{folder}/hosts.json", *arguments]
    with (folder / "log").open("w+") as log:
        if subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{log.read()[-4000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000, help="number of hosts (default: 1000)")
    hosts = fleet(parser.parse_args().hosts)
    figures = {**in_python(hosts), **in_ansible(hosts)}
    for name, seconds in figures.items():
        print(f"{name:24} {seconds:8.2f} CPU seconds, {1000 * seconds / len(hosts):8.2f} ms per host")
    per_host = 1000 * figures["resolver"] / len(hosts)
    print(json.dumps({"benchmark": "recipes", "hosts": len(hosts), "cpu_seconds": figures, "limit_ms_per_host": LIMIT}))
    sys.exit(per_host > LIMIT)
