"""Playbook monitoring: what monitoring_remove removes on the host of an existing Prometheus."""

from __future__ import annotations

import grp
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook

# Of the operator, in the same directory.
OTHERS = {"prometheus.yml": "global: {}\n", "targets/other.json": "[]\n"}


class Host:
    """The host of an existing Prometheus, with the directory ``place`` for the role."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place, self.units = folder, folder / "prometheus/fleet", folder / "units"
        self.units.mkdir()

    def play(self, *options: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run the playbook for a group with this host alone."""
        inventory = self.folder / "hosts.json"
        inventory.write_text(json.dumps({"monitoring": {"hosts": {"monitor1": None}}}))
        given = {
            "ansible_become": False,
            "monitoring_prometheus": "existing",
            "monitoring_directory": str(self.place),
            "monitoring_group": grp.getgrgid(os.getgid()).gr_name,
            "monitoring_password": "secret",
            "__monitoring_unit_dir": str(self.units),
            **variables,
        }
        playbook, options = ROOT / "playbooks/monitoring.yml", (f"--inventory={inventory}", *options)
        done = run_playbook(self.folder, playbook, "monitor1", *options, **given)
        assert done.returncode == 0, done.stdout
        return done

    def remove(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.play(*options, monitoring_remove=True)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.place)) for path in self.place.rglob("*") if path.is_file()}


@pytest.fixture(name="host")
def fixture_host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.play()
    assert {"password", "rules.yml", "scrape_configs.yml", "targets/node.json"} <= host.files()
    return host


def test_nothing_stays_of_the_role(host: Host) -> None:
    before = host.files()
    assert "changed=1" in host.remove("--check").stdout
    assert host.files() == before
    host.remove()
    assert host.place.parent.exists()
    assert not host.place.exists()
    assert "changed=0" in host.remove().stdout


def test_files_of_others_stay(host: Host) -> None:
    for name, content in OTHERS.items():
        (host.place / name).write_text(content)
    host.remove()
    assert host.files() == set(OTHERS)


def test_files_of_a_host_without_the_role_stay(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.place.mkdir(parents=True)
    (host.place / "rules.yml").touch()
    host.remove()
    assert host.files() == {"rules.yml"}
