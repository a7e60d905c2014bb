"""trtllm_server, tune: the timer that restores the verified release outlasts what it waits for."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook
from ansible_collections.trtllm.fleet.tests.unit.roles.test_rollout_role import collection

INSTANCE = {"name": "serve-0", "unit": "trtllm-serve-0.service", "gpus": [0], "base_url": "http://127.0.0.1:8000"}
HOST: dict[str, Any] = {
    "serving_recipe_gpu_type": "h200",
    "serving_recipe_gpu_count": 1,
    "benchmark_host": {"serves": {"instances": [INSTANCE], "weights": "/models/m", "vocabulary": "/encodings"}},
    "__tune_gpus": {},
    "__tune_search": {"next": {"variables": {}}},
}


def seconds(folder: Path, role: str, entry: str, **given: int) -> int:
    """Return the seconds of the timer that an entry point starts."""
    runs = {"verified": "release-1", "description": {"instances": [INSTANCE]}, "units": [], "temporary": False}
    collection(folder, {"host_release_info": runs})
    # Nothing is written to this machine, and the timer's start ends the run.
    stops: dict[str, list[dict[str, Any]]] = {
        "arm_restore_timer": [
            {"template": {"src": "trtllm-restore.timer.j2", "dest": f"{folder}/timer"}},
            {"fail": {"msg": "The timer is started"}},
        ],
        "end_temporary_release": [],
        "wait_for_image": [],
    }
    roles = folder / "ansible_collections/trtllm/fleet/roles"
    roles.unlink()
    roles.mkdir()
    for path in (ROOT / "roles").iterdir():
        (roles / path.name).symlink_to(path)
    (roles / "trtllm_server").unlink()
    shutil.copytree(ROOT / "roles/trtllm_server", roles / "trtllm_server")
    for name, tasks in stops.items():
        (roles / f"trtllm_server/tasks/{name}.yml").write_text(json.dumps(tasks))
    docker = folder / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    task = {"include_role": {"name": f"trtllm.fleet.{role}", "tasks_from": entry}}
    (folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    done = run_playbook(folder, folder / "play.json", "gpu1", collections=folder, **HOST, **given)
    assert "The timer is started" in done.stdout, done.stdout
    return int(re.findall(r"^OnActiveSec=(\d+)$", (folder / "timer").read_text(), re.MULTILINE)[0])


@pytest.mark.parametrize("given", [{}, {"trtllm_server_start_timeout": 7200}], ids=["default", "slow start"])
@pytest.mark.parametrize(
    ("role", "entry"),
    [("trtllm_server", "start_temporary_release"), ("trtllm_server", "llm_api"), ("tune", "measure")],
)
def test_the_timer_outlasts_the_start(tmp_path: Path, role: str, entry: str, given: dict[str, int]) -> None:
    assert seconds(tmp_path, role, entry, **given) > given.get("trtllm_server_start_timeout", 3600)


@pytest.mark.parametrize("given", [{}, {"tune_seconds": 36000}], ids=["default", "long search"])
def test_the_timer_outlasts_a_measurement(tmp_path: Path, given: dict[str, int]) -> None:
    """The longest takes all the time of the search."""
    assert seconds(tmp_path, "tune", "measure", **given) >= 3600 + given.get("tune_seconds", 14400)
