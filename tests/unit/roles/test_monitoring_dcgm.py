# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role monitoring: the unit and the fields of the DCGM exporter, in check mode."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.description import dashboards, queries
from ansible_collections.trtllm.fleet.tests.unit.paths import FIXTURES, ROOT
from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook

DIGEST = f"sha256:{'5' * 64}"
REPOSITORY = "registry.example:5000/k8s/dcgm-exporter"
# Answers for Docker 26, which has the image. A container is never started.
DOCKER = f"""#!/bin/sh
case $1 in
  version) echo 26.1.5 ;;
  image) echo "{REPOSITORY}@{DIGEST} sha256:id" ;;
  *) exit 9 ;;
esac
"""
# A label of every sample, and those of an Xid alone.
LABELS = {"DCGM_FI_DRIVER_VERSION", "UUID", "device", "gpu", "modelName", "pci_bus_id"}
XID_LABELS = {"err_code", "err_msg"}


def deploy(folder: Path, *options: str, entry: str = "dcgm", **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run an entry point in check mode on this machine, on which nothing of it is deployed."""
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    role = {"import_role": {"name": "trtllm.fleet.monitoring", "tasks_from": entry}}
    shown = {"debug": {"msg": "note {{ __monitoring_registration | default({}) | to_json }}"}}
    (folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [role, shown]}]))
    given = {"monitoring_password": "secret", **variables}
    return run_playbook(folder, folder / "play.json", "192.0.2.7", "--check", "--diff", *options, **given)


def written(output: str, path: str) -> str:
    """Return a new file of the diff."""
    _before, _header, rest = output.partition(f"+++ after: {path}\n")
    lines = rest.partition("\n\n")[0].splitlines()
    return "\n".join(line[1:] for line in lines if line.startswith("+"))


def fields() -> list[list[str]]:
    text = (ROOT / "roles/monitoring/files/dcgm.csv").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [[cell.strip() for cell in row] for row in csv.reader(lines)]


def test_the_unit_runs_the_image_by_digest_with_one_capability(tmp_path: Path) -> None:
    image = f"{REPOSITORY}:4.5.3-4.8.2-distroless@{DIGEST}"
    run = deploy(tmp_path, monitoring_dcgm_enabled=True, monitoring_dcgm_image=image, monitoring_dcgm_port=9401)
    assert run.returncode == 0, run.stdout
    unit = written(run.stdout, "/etc/systemd/system/trtllm-dcgm-exporter.service").replace("\\\n", "")
    (start,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    options, given, arguments = start.partition(f" {REPOSITORY}@{DIGEST} ")
    assert given, unit
    for option in (
        *("--rm", "--read-only", "--cap-drop ALL", "--cap-add SYS_ADMIN", "--security-opt no-new-privileges"),
        *("--network host", "--device nvidia.com/gpu=all", "--volume /run/trtllm-dcgm-exporter:/web:ro"),
        "--volume /etc/trtllm-fleet/exporter/dcgm.csv:/counters.csv:ro",
    ):
        assert f" {option} " in f"{' '.join(options.split())} ", option
    assert options.count("--cap-add") == 1
    assert {"--collectors", "--web-config-file", "--disable-startup-validate"} <= set(arguments.split())
    assert "--address :9401 " in arguments
    secrets = re.findall(r"^ExecStartPre=/usr/bin/install --mode=0400 (\S+) (\S+)$", unit, re.MULTILINE)
    assert secrets == [
        (f"/etc/trtllm-fleet/exporter/{source}", f"/run/trtllm-dcgm-exporter/{name}")
        for source, name in (("192.0.2.7.crt", "certificate"), ("192.0.2.7.crt.key", "key"), ("web.yml", "web.yml"))
    ]
    assert '"dcgm_port": 9401' in run.stdout.replace("\\", "")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "monitoring_dcgm_image is empty; .* Run docker pull .* Set monitoring_dcgm_image to .*@sha256:DIGEST"),
        ({"monitoring_dcgm_image": "nvcr.io/a/b:4"}, "monitoring_dcgm_image is nvcr.io/a/b:4; .*@sha256:DIGEST"),
        (
            {"monitoring_dcgm_image": f"nvcr.io/a/b@{DIGEST}", "bundle_dir": "/srv/bundle"},
            "bundle_dir is /srv/bundle; a bundle does not have the image of the DCGM exporter. Copy it to a registry",
        ),
    ],
    ids=["empty", "tag", "bundle"],
)
def test_an_image_that_cannot_be_pulled_by_digest_is_rejected(
    tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    run = deploy(tmp_path, entry="validate", monitoring_dcgm_enabled=True, **variables)
    assert run.returncode == 2, run.stdout
    assert re.search(message, run.stdout), run.stdout


def test_a_host_with_a_bundle_pulls_from_a_registry_of_its_network(tmp_path: Path) -> None:
    image = f"{REPOSITORY}@{DIGEST}"
    for entry in ("validate", "dcgm"):
        run = deploy(
            tmp_path, entry=entry, monitoring_dcgm_enabled=True, monitoring_dcgm_image=image, bundle_dir="/srv/bundle"
        )
        assert run.returncode == 0, run.stdout


def test_a_disabled_exporter_is_removed(tmp_path: Path) -> None:
    units = tmp_path / "units"
    units.mkdir()
    (units / "trtllm-dcgm-exporter.service").touch()
    (tmp_path / "systemctl").write_text("#!/bin/sh\nprintf 'LoadState=loaded\\nActiveState=active\\n'\n")
    (tmp_path / "systemctl").chmod(0o755)
    run = deploy(tmp_path, __monitoring_unit_dir=str(units))
    assert run.returncode == 0, run.stdout
    assert "changed=2" in run.stdout, run.stdout


def test_nothing_is_deployed_by_default(tmp_path: Path) -> None:
    run = deploy(tmp_path)
    assert run.returncode == 0, run.stdout
    assert "changed=0" in run.stdout
    assert "note {}" in run.stdout


def test_the_fields_have_a_type_and_a_help_without_a_comma() -> None:
    assert all(len(row) == 3 and row[1] in ("counter", "gauge", "label") for row in fields())
    assert all(row[1] != "gauge" for row in fields() if row[0].endswith("_TOTAL"))
    names = [row[0] for row in fields()]
    assert len(names) == len(set(names))


def test_all_metrics_of_dcgm_in_dashboards_and_alerts_are_fields() -> None:
    exported = {row[0] for row in fields() if row[1] != "label"}
    rules = (ROOT / "roles/monitoring/templates/rules.yml.j2").read_text()
    used = set(re.findall(r"\bDCGM_\w+", " ".join([*(query.expr for query in queries(dashboards())), rules])))
    assert len(used) >= 3
    assert used <= exported
    known = yaml.safe_load((FIXTURES / "monitoring/metrics.yml").read_text())["dcgm"]["metrics"]
    assert {name: set(labels) for name, labels in known.items()} == {
        name: LABELS | (XID_LABELS if name == "DCGM_FI_DEV_XID_ERRORS" else set()) for name in exported
    }
