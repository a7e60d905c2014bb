# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks whose inventory or --limit leaves them without a host fail and name the group."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.errors import AnsibleLookupError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import lookup_loader

from ansible_collections.trtllm.fleet.plugins.lookup import required_hosts
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

# What each playbook needs. update_hosts.yml is the end of two others.
GROUPS = {
    "decommission": "gpu_hosts, dynamo",
    "doctor": "gpu_hosts, gateway, dynamo, registry_mirror",
    "drain": "gpu_hosts, dynamo",
    "dynamo": "dynamo",
    "rollout_dynamo": "dynamo",
    "rollback_dynamo": "dynamo",
    "gateway": "gateway",
    "repair_dynamo": "dynamo_prefill, dynamo_decode",
    "monitoring": "monitoring",
    "status": "gpu_hosts, dynamo",
    "registry_mirror": "registry_mirror",
    "bundle": "builder1",
    "usage": "gateway",
}
IMPORTED = {"update_hosts", "undrain_gpu_hosts", "undrain_dynamo", "return_dynamo"}
PLAYBOOKS = sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml") if path.stem not in IMPORTED)


def play(playbook: str, inventory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "ansible-playbook"
    command: list[str | Path] = [program, "--check", "-i", inventory, ROOT / playbook, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(name="other", scope="session")
def fixture_other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An inventory whose only host is in a group that no playbook knows."""
    path = tmp_path_factory.mktemp("other") / "hosts.json"
    path.write_text(json.dumps({"strangers": {"hosts": {"stranger1": {"ansible_connection": "local"}}}}))
    return path


@pytest.mark.parametrize("name", [*PLAYBOOKS, "site.yml"])
def test_an_inventory_without_the_group_fails_and_names_it(name: str, other: Path) -> None:
    playbook = name if name == "site.yml" else f"playbooks/{name}.yml"
    ended = play(playbook, other, "-e", "bundle_host=builder1")
    assert ended.returncode != 0, ended.stdout
    group = GROUPS.get(name, "gpu_hosts")
    assert f"The inventory has no host in {group}; this playbook needs one." in ended.stdout + ended.stderr
    assert "PLAY [" not in ended.stdout


def test_an_inventory_plugin_that_fails_leaves_no_host(tmp_path: Path) -> None:
    source = tmp_path / "nothing.docker.yml"
    source.write_text(
        "plugin: community.docker.docker_containers\ndocker_host: unix:///nonexistent/docker.sock\nstrict: true\n"
    )
    ended = play("site.yml", source)
    assert ended.returncode != 0
    assert "The inventory has no host in gpu_hosts; this playbook needs one." in ended.stdout + ended.stderr


@pytest.fixture(name="fleet", scope="session")
def fixture_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host of each kind, none of which is connected to."""
    path = tmp_path_factory.mktemp("fleet") / "hosts.json"
    hosts = {"gpu_hosts": "gpu1", "gateway": "gateway1"}
    path.write_text(json.dumps({group: {"hosts": {name: {}}} for group, name in hosts.items()}))
    return path


@pytest.mark.parametrize("name", ["plan", "drain", "verify", "rollout", "status"])
def test_a_limit_that_leaves_no_host_fails_and_names_the_group(name: str, fleet: Path) -> None:
    ended = play(f"playbooks/{name}.yml", fleet, "--limit", "gateway1")
    assert ended.returncode != 0, ended.stdout
    group = GROUPS.get(name, "gpu_hosts")
    assert f"--limit gateway1 leaves no host of {group}; this playbook needs one." in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("arguments", "listed"),
    [([], "gpu1"), (["--limit", "gpu*"], "gpu1"), (["--limit", "all:!gateway"], "gpu1")],
)
def test_an_inventory_with_the_group_is_taken(fleet: Path, arguments: list[str], listed: str) -> None:
    ended = play("playbooks/plan.yml", fleet, "--list-hosts", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert f"      {listed}\n" in ended.stdout


@pytest.mark.parametrize("arguments", [["--list-hosts"], ["--list-hosts", "--limit", "gateway1"]])
def test_a_site_without_mirror_and_with_a_gateway_alone_named_is_taken(fleet: Path, arguments: list[str]) -> None:
    ended = play("site.yml", fleet, *arguments)
    assert ended.returncode == 0, ended.stderr
    assert "      gateway1\n" in ended.stdout


def test_a_syntax_check_needs_no_inventory() -> None:
    program = Path(sys.executable).parent / "ansible-playbook"
    command: list[str | Path] = [
        program,
        "--syntax-check",
        "-i",
        "localhost,",
        *sorted((ROOT / "playbooks").glob("*.yml")),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def required(monkeypatch: pytest.MonkeyPatch, version: str, native: bool) -> list[str]:
    """Run the lookup as a release of ansible-core does, with native Jinja on or off."""
    monkeypatch.setattr(required_hosts, "__version__", version)
    monkeypatch.setattr(required_hosts.constants, "DEFAULT_JINJA2_NATIVE", native)
    lookup = lookup_loader.get("trtllm.fleet.required_hosts", loader=DataLoader())
    return lookup.run(["gpu_hosts"], {"groups": {"gpu_hosts": ["gpu1"]}})


@pytest.mark.parametrize("version", ["2.17.0", "2.18.19"])
def test_an_old_core_without_native_jinja_fails(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    with pytest.raises(AnsibleLookupError) as failed:
        required(monkeypatch, version, native=False)
    assert str(failed.value) == (
        f"ansible-core {version} runs without native Jinja; before 2.19 this collection needs it. Set "
        "ANSIBLE_JINJA2_NATIVE=True in the environment, or jinja2_native = True in section [defaults] of ansible.cfg."
    )


@pytest.mark.parametrize(
    ("version", "native"), [("2.17.0", True), ("2.18.19", True), ("2.19.0b1", False), ("2.21.5", False)]
)
def test_native_jinja_is_accepted(monkeypatch: pytest.MonkeyPatch, version: str, native: bool) -> None:
    assert required(monkeypatch, version, native) == ["gpu_hosts"]
