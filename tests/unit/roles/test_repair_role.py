"""Role repair: what a rung of the ladder records, and a repair of a host whose recipe cannot be resolved."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.health.remedies import HISTORY
from ansible_collections.trtllm.fleet.tests.unit.health_sample import SampleHost
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.role_run import run_playbook
from ansible_collections.trtllm.fleet.tests.unit.roles.test_rollout_role import collection

LOCKED: dict[str, Any] = {"failed": True, "msg": "Another run holds the lock"}
SILENT: dict[str, Any] = {"failed": True, "msg": "The host does not answer"}
# The newest kernel has a module, or only the headers for one.
KERNEL = {"next": "6.8.0-45-generic", "next_module": True, "next_headers": True}
HEADERS = {**KERNEL, "next_module": False}


def run_rung(folder: Path, rung: str, past: dict[str, str], **results: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Run a rung for a host whose last remedies had these results. Return what is left, and then the results.

    ``results``: of modules that are not run. The host has no GPU that could be reset.
    """
    fakes: dict[str, dict[str, Any]] = {"rollout_lock": {"rollout": "now"}, "gpu_info": {"kernel": KERNEL}}
    collection(folder, {**fakes, "host_signals_info": SILENT, **results})
    utils = folder / "ansible_collections/trtllm/fleet/plugins/module_utils"
    utils.unlink()
    shutil.copytree(ROOT / "plugins/module_utils", utils)
    history, source = folder / "remedies.json", utils / "health/remedies.py"
    source.write_text(source.read_text().replace(str(HISTORY), str(history)))
    rows = [
        {"action": action, "target": "host", "fault": "gpu_lost", "at": time.time() - 7200, "result": result}
        for action, result in past.items()
    ]
    history.write_text(json.dumps(rows))
    variables = {
        "rollout_lock_host": "gpu1",
        "repair_fault": "gpu_lost",
        "__repair_runs": {"description": None},
        "__repair_cured": False,
        "__repair_rung": rung,
    }
    tasks = [
        {"include_role": {"name": "trtllm.fleet.repair", "tasks_from": "rung"}},
        {"copy": {"dest": f"{folder}/left", "content": "{{ __repair_left | join }}"}},
    ]
    (folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = run_playbook(folder, folder / "play.json", "gpu1", collections=folder, **variables)
    assert done.returncode == 0, done.stdout
    return (folder / "left").read_text(), {one["action"]: one["result"] for one in json.loads(history.read_text())}


@pytest.mark.parametrize("before", ["verified", "applied"])
@pytest.mark.parametrize(
    ("results", "reason"),
    [({}, "gpus is empty"), ({"rollout_lock": LOCKED}, LOCKED["msg"])],
    ids=["no GPU to reset", "lock of another run"],
)
def test_a_remedy_that_did_not_run_has_not_failed(
    tmp_path: Path, before: str, results: dict[str, dict[str, Any]], reason: str
) -> None:
    """The one before it still cures what the kernel log reported."""
    left, recorded = run_rung(tmp_path, "reset_gpu", {"reset_gpu": before}, **results)
    assert reason in left
    assert recorded == {"reset_gpu": before}


def test_a_remedy_after_which_the_host_is_silent_has_failed(tmp_path: Path) -> None:
    left, recorded = run_rung(tmp_path, "restart_engine", {"reset_gpu": "verified"})
    assert SILENT["msg"] in left
    assert recorded == {"reset_gpu": "verified", "restart_engine": "failed"}


def test_no_reboot_into_a_kernel_without_a_driver(tmp_path: Path) -> None:
    """The driver of the host may be from its image, and headers build no module without DKMS."""
    left, recorded = run_rung(tmp_path, "reboot", {}, gpu_info={"kernel": HEADERS})
    assert "boots kernel 6.8.0-45-generic next, which has no NVIDIA module" in left
    assert recorded == {}, "the reboot of the day is not spent"


@pytest.mark.parametrize("kernel", [KERNEL, {**KERNEL, "next": None, "next_module": False}], ids=["module", "none"])
def test_a_reboot_into_a_kernel_with_a_driver(tmp_path: Path, kernel: dict[str, Any]) -> None:
    """Ansible does not reboot its own machine."""
    left, recorded = run_rung(tmp_path, "reboot", {}, gpu_info={"kernel": kernel})
    assert "would reboot the control node" in left
    assert recorded == {"reboot": "failed"}


def test_a_host_with_a_lost_gpu_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no valid recipe: seven GPUs are not a multiple of eight. The burn-in has the type of the release."""
    host = SampleHost(tmp_path / "gpu1")
    host.prepare()
    host.xid(79)
    gpus = [{"index": index, "product_name": "NVIDIA H200"} for index in range(1, 8)]
    release = {"instances": [], "gpu_type": "h200"}
    fakes: dict[str, dict[str, Any]] = {
        "rollout_lock": {"rollout": "now"},
        "host_signals_info": host.result(monkeypatch),
        "gpu_info": {"gpus": gpus, "missing": ["0000:00:06.0"], "kernel": KERNEL},
        "host_release_info": {"verified": "release-1", "temporary": False, "description": release},
        "host_release": {"changed": False, "description": release},
        "host_remedy": {"changed": True},
    }
    collection(tmp_path, fakes)
    inventory = tmp_path / "hosts.json"
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {"gpu1": None}}}))
    playbook = ROOT / "playbooks/repair.yml"
    variables = {"repair_mode": "reboot", "serving_recipe_gpus_per_instance": 8, "ansible_become": False}
    options = ("--check", f"--inventory={inventory}")
    done = run_playbook(tmp_path, playbook, "gpu1", *options, collections=tmp_path, **variables)
    assert done.returncode == 0, done.stdout
    assert "gpu1: gpu_lost: reboot" in done.stdout
    assert "trtllm.fleet.repair : Run the remedy on the host" in done.stdout
    assert "trtllm.fleet.acceptance : Set acceptance_verdict" in done.stdout
