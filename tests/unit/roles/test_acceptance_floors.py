"""Role acceptance: the floors of a burn-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook
from ansible_collections.trtllm.fleet.tests.unit.roles.test_rollout_role import collection

RELEASE = {
    "gpu_type": "h200",
    "image": "registry.example.com/release:1",
    "digest": f"sha256:{'5' * 64}",
    "limits": {},
    "instances": [],
}
# Writes its arguments to a file.
BURN_IN = """#!/usr/bin/python
# WANT_JSON
import json, pathlib, sys
pathlib.Path({path!r}).write_text(pathlib.Path(sys.argv[1]).read_text())
print(json.dumps({{"verdict": "pass"}}))
"""
# Lines of the output of programs.
PROGRAMS = {"systemctl": "LoadState=loaded ActiveState=active", "docker": "28.0.0"}


@pytest.mark.parametrize(
    ("variables", "lowest"), [({}, 3.7), ({"acceptance_gpu_type": "h100"}, 2.6)], ids=["running release", "variable"]
)
def test_floors_need_no_recipe(tmp_path: Path, variables: dict[str, Any], lowest: float) -> None:
    """A host that lost a GPU may have none."""
    fakes: dict[str, dict[str, Any]] = {
        "host_files": {"changed": True},
        "host_release_info": {"verified": "release-1", "temporary": False, "description": RELEASE},
        "host_release": {"changed": True, "description": RELEASE},
        "gpu_acceptance": {},
    }
    collection(tmp_path, fakes)
    arguments = tmp_path / "arguments.json"
    module = tmp_path / "ansible_collections/trtllm/fleet/plugins/modules/gpu_acceptance.py"
    module.write_text(BURN_IN.format(path=str(arguments)))
    for name, lines in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%s\\n' {lines}\n")
        (tmp_path / name).chmod(0o755)
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"include_role": {"name": "trtllm.fleet.acceptance"}}]}
    (tmp_path / "play.json").write_text(json.dumps([play]))
    given = {"__acceptance_program": str(tmp_path / "burn_in.py"), **variables}
    done = run_playbook(tmp_path, tmp_path / "play.json", "gpu1", collections=tmp_path, **given)
    assert done.returncode == 0, done.stdout
    assert json.loads(arguments.read_text())["floors"]["device_tb_s"] == lowest
