"""trtllm_server: the rendered units, and recipes that it rejects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils.test_documents import ROOT, deployed, values

RECIPE: dict[str, Any] = {
    "name": "a-recipe",
    "model": "openai/gpt-oss-120b",
    "served_model": "gpt-oss-120b",
    "image": "example.com/release:1.2.1",
    "release": "1.2",
    "instances": [{"name": "serve-0", "gpus": [0], "port": 8000}],
    "engine_options": {},
    "environment": {},
    "flags": {},
    "draft_model": None,
    "vocabulary": True,
}


@pytest.mark.parametrize("limits", [{}, {"cap_add": None}, {"cap_add": []}, {"cap_add": ["SYS_NICE", "IPC_LOCK"]}])
def test_capabilities_are_added(limits: dict[str, Any]) -> None:
    (unit,) = deployed({**RECIPE, "limits": {"ipc": None, "shm_size": None, "ulimits": {}, **limits}})[1]
    assert values(unit.split(), "--cap-add") == (limits.get("cap_add") or [])


@pytest.mark.parametrize(
    ("memory", "kept"),
    [({"kv_tokens": 878473, "free_mib": 1200}, {"kv_tokens": 878473}), (None, None)],
    ids=["estimate", "no estimate"],
)
def test_the_release_has_the_size_of_its_kv_cache(memory: dict[str, int] | None, kept: dict[str, int] | None) -> None:
    """The gateway needs it after a rollout and after a rollback."""
    limits: dict[str, Any] = {"ipc": None, "shm_size": None, "ulimits": {}}
    files, _units = deployed({**RECIPE, "limits": limits, "memory": memory})
    assert json.loads(files["release.json"]).get("memory") == kept


def test_the_start_window_exceeds_the_longest_starts() -> None:
    (unit,) = deployed({**RECIPE, "limits": {"ipc": None, "shm_size": None, "ulimits": {}}})[1]
    settings = dict(line.split("=", 1) for line in whole_lines(unit) if "=" in line and line[0].isalpha())
    watch = settings["ExecStartPost"].split()
    a_start = sum(float(seconds) for seconds in (*watch[-2:], settings["RestartSec"]))
    assert float(settings["StartLimitIntervalSec"]) > int(settings["StartLimitBurst"]) * a_start


def whole_lines(unit: str) -> list[str]:
    return unit.replace("\\\n", "").splitlines()


def test_the_watchdog_has_its_own_unit() -> None:
    """needrestart restarts a unit if one of its processes maps an updated library."""
    (unit,) = deployed({**RECIPE, "limits": {"ipc": None, "shm_size": None, "ulimits": {}}})[1]
    (line,) = [line for line in whole_lines(unit) if "watchdog.py" in line]
    runner, program = line.split(" /usr/bin/python3 ")
    assert runner.startswith("ExecStartPost=-/usr/bin/systemd-run ")
    assert {"--no-block", "--unit=trtllm-watch-serve-0"} <= set(runner.split())
    assert {f"--property={name}=trtllm-serve-0.service" for name in ("BindsTo", "After")} <= set(runner.split())
    names = ["trtllm-serve-0.service", "trtllm-serve-0", "http://127.0.0.1:8000", "gpt-oss-120b", "0"]
    assert program.split() == ["@release@/watchdog.py", *names, "600", "3600"]


@pytest.mark.parametrize("draft", [None, "nvidia/a-draft"])
def test_a_draft_model_is_mounted(draft: str | None) -> None:
    limits: dict[str, Any] = {"ipc": None, "shm_size": None, "ulimits": {}}
    files, (unit,) = deployed({**RECIPE, "limits": limits, "draft_model": draft})
    mounted = [volume for volume in values(unit.split(), "--volume") if ":/draft:" in volume]
    assert mounted == (["/srv/draft:/draft:ro"] if draft else [])
    assert json.loads(files["release.json"]).get("draft_weights") == ("/srv/draft" if draft else None)
    # A draft model that is on the host for other reasons does not change the release.
    assert ("/srv/draft" in unit) is bool(draft)


def played(folder: Path, play: dict[str, Any]) -> tuple[int, str]:
    """Run a play on this machine. Returns the exit status and the output, with single spaces."""
    playbook = folder / "playbook.yml"
    playbook.write_text(json.dumps([play]))
    program = Path(sys.executable).parent / "ansible-playbook"
    command: list[str | Path] = [program, "--inventory=localhost,", "--connection=local", playbook]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # Ansible folds long lines.
    return run.returncode, " ".join((run.stdout + run.stderr).split())


def ran(folder: Path, role: str, entry: str, name: str) -> tuple[int, str]:
    """Run a role in a play on this machine. Returns the exit status and the output, with the preflight's problems."""
    weights = {"path": "/nowhere", "vocabulary_dir": "/nowhere"}
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {
            "serving_recipe_name": name,
            "serving_recipe_gpu_type": "b200",
            "serving_recipe_gpus": [4, 5, 6, 7],
            "model_weights_result": weights,
        },
        "tasks": [
            {"import_role": {"name": "trtllm.fleet.serving_recipe"}},
            {"import_role": {"name": f"trtllm.fleet.{role}", "tasks_from": entry}},
            {"debug": {"var": "__preflight_problems"}},
        ],
    }
    return played(folder, play)


@pytest.mark.parametrize(
    ("role", "entry", "stops"),
    [("trtllm_server", "main", True), ("trtllm_server", "pull", True), ("preflight", "recipe", False)],
)
def test_a_worker_recipe_is_rejected(tmp_path: Path, role: str, entry: str, stops: bool) -> None:
    status, output = ran(tmp_path, role, entry, "dynamo_guide_decode")
    assert "serving_recipe_name: dynamo_guide_decode is the decode worker of disaggregated serving" in output
    assert "Check for the image" not in output
    assert (status != 0) is stops
    assert "changed=0" in output


def test_a_recipe_without_a_worker_is_accepted(tmp_path: Path) -> None:
    status, output = ran(tmp_path, "preflight", "recipe", "blog9_low_latency")
    assert status == 0, output
    assert "__preflight_problems: []" in output


@pytest.mark.parametrize(
    ("file", "variable"),
    [
        ("trtllm_server/vars/main.yml", "__trtllm_server_failure"),
        ("dynamo/vars/main/checks.yml", "__dynamo_failure"),
    ],
)
@pytest.mark.parametrize(("loop", "cause"), [(["good", "bad", "late"], "bad fails"), (["bad"], "bad fails")])
def test_the_cause_is_the_instance_that_failed(
    tmp_path: Path, file: str, variable: str, loop: list[str], cause: str
) -> None:
    """The tasks that verify instances skip those after a failure, and a skipped result has no message."""
    task = {
        "ansible.builtin.assert": {"that": "item != 'bad'", "fail_msg": "{{ item }} fails"},
        "loop": loop,
        "loop_control": {"extended": True},
        "when": "ansible_loop.first or (reply is not failed and reply is not skipped)",
        "register": "reply",
    }
    show = {"ansible.builtin.debug": {"msg": f"cause: {{{{ {variable}.msg }}}}"}}
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROOT / "roles" / file)],
        "tasks": [{"block": [task], "rescue": [show]}],
    }
    status, output = played(tmp_path, play)
    assert status == 0, output
    assert f"cause: {cause}" in output
