# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run hands to the convergence record: inputs, owned names and the checksum of the collection."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.collected import Collected
from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.collection import collection_checksum
from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.inputs import ROLES, input_checksums
from ansible_collections.trtllm.fleet.plugins.plugin_utils.record.owned import OWNED, owned
from ansible_collections.trtllm.fleet.plugins.plugin_utils.variables import entry_point, roles
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

GROUPS = {"gateway": ["gw1"], "gpu_hosts": ["gpu1"]}


def actions(node: Any) -> Iterator[str]:
    """Yield the actions of all tasks in a document."""
    if isinstance(node, list):
        for entry in node:
            yield from actions(entry)
    elif isinstance(node, dict):
        yield from (key for key in node if isinstance(key, str) and key.count(".") == 2)
        for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"):
            yield from actions(node.get(key) or [])


def site_files() -> list[Path]:
    """Return the task files of all roles, and the playbooks that write a record."""
    playbooks = [ROOT / f"playbooks/{name}.yml" for name in ("site", "rollout", "rollback", "update_hosts")]
    return [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("roles/*/handlers/*.yml"), *playbooks]


def test_what_each_action_of_the_roles_owns_is_known() -> None:
    used = {action for path in site_files() for action in actions(yaml.safe_load(path.read_text()))}
    # These run on the control node, or in playbooks that write no record.
    apart = {"trtllm.fleet.evaluation_run", "trtllm.fleet.managed_packages", "trtllm.fleet.tune_candidates"}
    apart |= {"ansible.builtin.pip"}
    apart |= {"ansible.builtin.group", "ansible.builtin.import_playbook", "ansible.builtin.import_tasks"}
    assert len(used) > 30
    assert used - set(OWNED) <= apart


@pytest.mark.parametrize(
    ("action", "result", "expected"),
    [
        ("ansible.builtin.copy", {"dest": "/etc/a"}, [("files", "/etc/a")]),
        ("ansible.builtin.file", {"path": "/etc/d/", "state": "absent"}, [("files", "/etc/d")]),
        (
            "ansible.builtin.template",
            {"results": [{"dest": "/etc/a"}, {"skipped": True}, {"dest": "/etc/b"}]},
            [("files", "/etc/a"), ("files", "/etc/b")],
        ),
        ("ansible.builtin.template", {"results": []}, []),
        (
            "ansible.builtin.systemd_service",
            {"invocation": {"module_args": {"name": "docker"}}},
            [("units", "docker.service")],
        ),
        ("ansible.builtin.systemd_service", {"invocation": {"module_args": {"daemon_reload": True}}}, []),
        (
            "ansible.builtin.apt",
            {"invocation": {"module_args": {"name": ["docker.io", "nvidia-driver-cuda=590.48.01-1"]}}},
            [("packages", "docker.io"), ("packages", "nvidia-driver-cuda")],
        ),
        (
            "ansible.builtin.command",
            {"invocation": {"module_args": {"creates": "/etc/x", "removes": None}}},
            [("files", "/etc/x")],
        ),
        (
            "trtllm.fleet.host_files",
            {"invocation": {"module_args": {"directories": [{"path": "/etc/d"}], "files": [{"path": "/etc/d/f"}]}}},
            [("files", "/etc/d"), ("files", "/etc/d/f")],
        ),
        ("trtllm.fleet.apt_configuration", {"owned": ["/etc/apt/x"]}, [("files", "/etc/apt/x")]),
        ("trtllm.fleet.python_program", {"path": "/opt/hf"}, [("trees", "/opt/hf")]),
        # A task with no_log has no result.
        ("ansible.builtin.copy", {"censored": "the output has been hidden"}, []),
    ],
)
def test_owned_names_are_in_the_result(action: str, result: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert list(owned(action, result)) == expected


def test_results_are_collected_by_host() -> None:
    run = Collected()
    run.add("gpu1", "ansible.builtin.copy", {"dest": "/etc/b"})
    run.add("gpu1", "ansible.builtin.copy", {"dest": "/etc/a"})
    run.add("gpu2", "ansible.builtin.uri", {})
    assert run.owned("gpu1") == {"files": ["/etc/a", "/etc/b"]}
    assert run.owned("gpu2") == {}
    assert run.problem() == ""
    run.add("gpu1", "community.general.new", {})
    assert run.problem() == "it is not known what tasks of community.general.new own"


def inputs(
    variables: dict[str, Any],
    groups: dict[str, list[str]] | None = None,
    address: str = "10.0.0.1",
    memberships: Sequence[str] = ("gpu_hosts",),
) -> dict[str, str]:
    def template(value: Any) -> Any:
        if value == "{{ ansible_facts.fqdn }}":
            raise ValueError("undefined")
        return {"a": 1} if value == "{{ a }}" else value

    return input_checksums(variables, memberships, groups or GROUPS, lambda _host: address, template)


ALWAYS = ("ansible_host", "group gateway", "group monitoring", "group registry_mirror")


@pytest.mark.parametrize(
    ("memberships", "expected"),
    [
        (["gpu_hosts"], ["gateway_host_address", "serving_recipe_use_case"]),
        (["gateway"], ["gateway_api_keys"]),
        (["registry_mirror"], ["registry_mirror_port"]),
        (["monitoring"], ["group dynamo", "group gpu_hosts", "monitoring_retention"]),
        (["gpu_hosts", "registry_mirror"], ["gateway_host_address", "registry_mirror_port", "serving_recipe_use_case"]),
        (["dynamo"], []),
    ],
)
def test_inputs_are_the_variables_of_the_roles_that_run_on_a_host(memberships: list[str], expected: list[str]) -> None:
    ours = {"serving_recipe_use_case", "gateway_api_keys", "gateway_host_address", "registry_mirror_port"}
    # The exporter of other hosts has no other variables than the host of Prometheus; GPU hosts have those of DCGM.
    ours |= {"monitoring_retention"} if "monitoring" in memberships else set()
    apart = {"other", "benchmark_note", "model_weights_token", "trtllm_server_answers"}
    found = inputs(dict.fromkeys(ours | apart, "x"), memberships=memberships)
    assert sorted(found) == sorted([*ALWAYS, *expected])


def test_registration_of_a_host_at_gateways_is_an_input() -> None:
    variables = {"gateway_host_max_requests": 4, "ansible_host": "192.0.2.1"}
    before = inputs(variables)
    assert inputs({**variables, "gateway_host_max_requests": 5}) != before
    assert inputs({**variables, "ansible_host": "192.0.2.2"}) != before


@pytest.mark.parametrize(
    ("group", "number"), [("gpu_hosts", 100), ("gateway", 30), ("registry_mirror", 10), ("monitoring", 20)]
)
def test_every_public_variable_of_these_roles_is_an_input(group: str, number: int) -> None:
    public = {name for role, names in roles().items() if role in ROLES[group] for name in names}
    exporters = entry_point("monitoring", "exporter")
    exporters |= entry_point("monitoring", "dcgm") if group == "gpu_hosts" else frozenset()
    only_of_prometheus = roles()["monitoring"] - exporters
    known = set(inputs(dict.fromkeys(public, "x"), memberships=[group]))
    assert len(public) > number
    assert public - known == {
        "gpu_hosts": {"model_weights_token"},
        "gateway": {name for name in public if name.startswith("gateway_host_")},
    }.get(group, set()) | (only_of_prometheus & public if group != "monitoring" else set())


@pytest.mark.parametrize(
    ("group", "playbook", "apart"),
    [
        # They hand nothing of their own to the host: the gateways' part, and what a rollout compares.
        ("gpu_hosts", "site", {"gateway", "rollout"}),
        # Role bundle runs on GPU hosts only; the others depend on its variable. So does the DCGM exporter.
        ("gateway", "gateway", {"model_weights", "serving_recipe", "container_image", "nvidia_container_toolkit"}),
        ("registry_mirror", "registry_mirror", {"model_weights", "serving_recipe"}),
        (
            "monitoring",
            "monitoring",
            {"model_weights", "serving_recipe", "container_image", "nvidia_container_toolkit"},
        ),
    ],
)
def test_the_roles_are_those_of_site(group: str, playbook: str, apart: set[str]) -> None:
    named = re.compile(r"name: trtllm\.fleet\.(\w+)$", re.MULTILINE)
    used = set(named.findall((ROOT / f"playbooks/{playbook}.yml").read_text()))
    for path in (path for role in ROLES[group] for path in (ROOT / "roles" / role / "tasks").glob("*.yml")):
        used |= set(named.findall(path.read_text()))
    assert used - ROLES[group] == apart


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"docker_engine_options": {"a": 1, "b": 2}}, {"docker_engine_options": {"b": 2, "a": 1}}, True),
        ({"docker_engine_options": "{{ a }}"}, {"docker_engine_options": {"a": 1}}, True),
        ({"docker_engine_options": {"a": 1}}, {"docker_engine_options": {"a": "1"}}, False),
        (
            {"docker_engine_options": "{{ ansible_facts.fqdn }}"},
            {"docker_engine_options": "{{ ansible_facts.fqdn }}"},
            True,
        ),
        ({"docker_engine_options": "{{ ansible_facts.fqdn }}"}, {"docker_engine_options": "gw"}, False),
        ({"docker_engine_options": {1: "a", "b": 2}}, {"docker_engine_options": {"b": 2, 1: "a"}}, True),
        ({}, {"serving_recipe_use_case": None}, False),
    ],
)
def test_inputs_differ_as_their_values_do(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    assert (inputs(one) == inputs(other)) is same


def test_gateways_and_their_addresses_are_inputs() -> None:
    before = inputs({})
    assert inputs({}, {**GROUPS, "gateway": ["gw1", "gw2"]}) != before
    assert inputs({}, address="10.0.0.2") != before
    assert inputs({}, {**GROUPS, "gpu_hosts": ["gpu1", "gpu2"]}) == before


def test_every_target_is_an_input_of_prometheus() -> None:
    before = inputs({}, memberships=["monitoring"])
    assert inputs({}, {**GROUPS, "gpu_hosts": ["gpu1", "gpu2"]}, memberships=["monitoring"]) != before
    assert inputs({}, {**GROUPS, "dynamo": ["dyn1"]}, memberships=["monitoring"]) != before


def test_checksum_of_the_collection_covers_roles_plugins_and_playbooks(tmp_path: Path) -> None:
    for folder in ("roles/a/tasks", "plugins/modules", "playbooks", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    task = tmp_path / "roles/a/tasks/main.yml"
    task.write_text("one")
    seen = [collection_checksum(tmp_path)]
    (tmp_path / "docs/page.md").write_text("text")
    (tmp_path / "plugins/modules/__pycache__").mkdir()
    (tmp_path / "plugins/modules/__pycache__/m.pyc").write_text("cache")
    assert collection_checksum(tmp_path) == seen[0]
    task.write_text("two")
    seen.append(collection_checksum(tmp_path))
    task.rename(task.with_name("other.yml"))
    seen.append(collection_checksum(tmp_path))
    (tmp_path / "playbooks/site.yml").write_text("play")
    seen.append(collection_checksum(tmp_path))
    assert len(set(seen)) == 4
