"""Evaluations on a lab host with OpenAI's tool: the temporary release is removed in all cases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import UNIT, Fleet, begin, finish, lab, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import until

# The tool needs Python 3.12 or newer, which Debian 13 has.
PLAIN = {"ANSIBLE_FORCE_COLOR": "false", "ANSIBLE_NOCOLOR": "true"}
ENVIRONMENT = {**os.environ, **PLAIN, "LAB_PREFIX": "eval-", "LAB_HOSTS": "1", "LAB_OS": "trixie", "LAB_GPU": "h200x8"}
PLAYBOOK = "playbooks/evaluate.yml"
# One question many times in sequence: longer than any test.
LONG = {
    "evaluation_names": ["aime25"],
    "evaluation_efforts": ["low"],
    "evaluation_repeats": 3000,
    "evaluation_threads": 1,
}
PATIENCE = 240  # seconds


@pytest.fixture(scope="module")
def host() -> Iterator[Fleet]:
    lab("up", "--extra-vars", '{"lab_programs": ["gpt-oss-0.0.9"]}', environment=ENVIRONMENT)
    host = Fleet("eval-1", ENVIRONMENT)
    run = host.playbook("site.yml")
    assert run.status == 0, run.output
    yield host
    lab("down", environment=ENVIRONMENT)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return tiny data sets in the format of the real ones."""
    folder = tmp_path / "data"
    folder.mkdir()
    heads = ["Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
    rows = [["What is 1+1?", "2", "3", "4", "5"], ["What is 2+2?", "4", "3", "2", "5"]]
    (folder / "gpqa_diamond.csv").write_text("\n".join(",".join(row) for row in [heads, *rows]) + "\n")
    for part in ("I", "II"):
        (folder / f"aime2025-{part}.jsonl").write_text(json.dumps({"question": f"{part}?", "answer": "7"}))
    rows_of_gsm8k = [json.dumps({"question": f"q{number}", "answer": f"#### {number}"}) for number in range(40)]
    for split in ("test", "train"):
        (folder / f"gsm8k_{split}.jsonl").write_text("\n".join(rows_of_gsm8k))
    return folder


@pytest.fixture
def options(tmp_path: Path, data: Path) -> dict[str, Any]:
    # The mocker generates as many tokens as allowed.
    return {
        "evaluation_results_dir": str(tmp_path / "results"),
        "evaluation_datasets_dir": str(data),
        "evaluation_max_tokens": 50,
        "evaluation_max_incomplete": 1,
    }


def kept(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the only run, and its result."""
    (folder,) = (tmp_path / "results").iterdir()
    return folder, json.loads((folder / "result.json").read_text())


def state(host: Fleet) -> str:
    """Return all state that a temporary release may change: releases, links, history, units, and enablement."""
    return host.shell(
        f"cd /etc/trtllm-fleet; ls . releases; readlink verified /etc/systemd/system/{UNIT}; sha256sum history.json;"
        " ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants | grep trtllm"
    )


def batch_size(host: Fleet) -> str:
    """Return the batch size of the unit's release; empty without a unit."""
    return host.shell(
        f"sed -n 's/^max_batch_size: //p' $(dirname $(readlink /etc/systemd/system/{UNIT}))/engine.yaml", False
    ).strip()


def tool_runs(host: Fleet) -> bool:
    return bool(host.shell("pgrep -f '[e]valuate.py'", check=False))


@pytest.fixture
def untouched(host: Fleet) -> Iterator[str]:
    """Check that the host has the same state and a healthy endpoint after each test."""
    before = state(host)
    yield before
    assert wait_for(lambda: host.chat() == 200, PATIENCE)
    assert state(host) == before


def test_evaluations_complete(host: Fleet, untouched: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Run each effort with the document's settings for TP8."""
    seen, over = [], threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            if (size := batch_size(host)) and size not in seen:
                seen.append(size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    options |= {"evaluation_names": ["basic", "gpqa", "aime25"], "evaluation_efforts": ["low", "high", "medium"]}
    run = host.playbook(PLAYBOOK, **options)
    over.set()
    watcher.join()
    assert run.status == 0, run.output
    assert seen == ["64", "1024", "720", "64"][:3]
    assert batch_size(host) == "64"
    folder, result = kept(tmp_path)
    assert result["state"] == "complete"
    answers = {(one["name"], one["effort"]): one["answers"] for one in result["results"]}
    of_each = {"basic": 1, "gpqa": 2 * 8, "aime25": 2 * 8}
    assert answers == {(name, effort): n for name, n in of_each.items() for effort in ("low", "medium", "high")}
    questions = {one["name"]: one["questions"] for one in result["results"]}
    assert questions == {"basic": 1, "gpqa": 2, "aime25": 2}
    # The lab's engine generates as many tokens as it may.
    assert all(one["truncated"] == one["answers"] for one in result["results"] if one["name"] != "basic")
    # The tool's greeting is arbitrary text.
    assert {one["score"] for one in result["results"] if one["name"] == "basic"} == {1.0}
    assert all((folder / name).stat().st_size for one in result["results"] for name in one["files"])
    assert result["ran_on"]["gpus"]["product_name"] == "NVIDIA H200"
    assert "eval-1: gpqa, low: score" in run.output


def test_low_score_fails_after_the_release_is_restored(
    host: Fleet, untouched: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """The score of random words is below TensorRT-LLM's reference."""
    run = host.playbook(PLAYBOOK, evaluation_names=["gsm8k"], evaluation_efforts=["medium"], **options)
    assert run.status != 0
    assert "gsm8k, medium: score 0." in run.output
    assert "is below 0.9030 (TensorRT-LLM's reference from 1319 answers)" in " ".join(run.output.split())
    _folder, result = kept(tmp_path)
    assert (result["state"], result["gates"][0]["reached"], result["results"][0]["answers"]) == ("complete", False, 40)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"evaluation_names": ["gqpa"]}, "Did you mean 'gpqa'?"),
        ({"evaluation_datasets_dir": ""}, "Copy the files to a directory of the control node"),
        ({"evaluation_load_host": "localhost"}, "which localhost cannot reach"),
        ({"evaluation_timeout": 60001}, "allowed are at most 60000 s"),
        ({"evaluation_python": "/usr/bin/python2"}, "/usr/bin/python2"),
        ({"serving_recipe_engine_options": {"max_batch_size": 64}}, "The command line (-e) sets"),
        ({"serving_recipe_engine_options": {"max_batch_size": 8}}, "another engine_options than the inventory"),
    ],
)
def test_impossible_evaluation_is_rejected_at_once(
    host: Fleet, untouched: str, options: dict[str, Any], wrong: dict[str, Any], words: str
) -> None:
    run = host.playbook(PLAYBOOK, **{**options, **wrong})
    assert run.status != 0
    assert words in " ".join(run.output.split())
    assert "changed=0" in run.output


def test_check_mode_reports_the_plan(host: Fleet, untouched: str, options: dict[str, Any], tmp_path: Path) -> None:
    run = host.playbook(PLAYBOOK, "--check", **options)
    assert run.status == 0, run.output
    assert "gpqa, aime25 with low and medium reasoning effort" in run.output
    assert not (tmp_path / "results").exists()


def begun(host: Fleet, options: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a long run, and return it in progress."""
    command = ["ansible-playbook", PLAYBOOK, "-i", "inventory/local", "--extra-vars", json.dumps({**options, **LONG})]
    # Without the table of long tasks, as the polls of a short temporary release are shorter than its interval.
    process = begin(command, {**host.environment, "TRTLLM_FLEET_PROGRESS_SECONDS": "0"}, own_session=True)
    until(process, "eval-1: aime25, low: ")
    assert batch_size(host) == "1024"
    assert tool_runs(host)
    return process


def test_server_failure_ends_the_run(host: Fleet, untouched: str, options: dict[str, Any], tmp_path: Path) -> None:
    process = begun(host, {**options, "evaluation_unhealthy_timeout": 15})
    host.shell(f"systemctl stop {UNIT}")
    began = time.monotonic()
    run = finish(process, PATIENCE)
    assert time.monotonic() - began < 120
    assert run.status != 0
    assert "was unhealthy for 15 s (evaluation_unhealthy_timeout)" in " ".join(run.output.split())
    assert not tool_runs(host)
    _folder, result = kept(tmp_path)
    assert result["state"] == "failed"
    assert "was unhealthy" in result["problems"][0]


@pytest.mark.parametrize("reboot", [False, True], ids=["no renewal", "reboot"])
def test_host_restores_its_release_without_its_control_node(
    host: Fleet, untouched: str, options: dict[str, Any], reboot: bool
) -> None:
    process = begun(host, {**options, "trtllm_server_temporary_seconds": 1800 if reboot else 60})
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout
    process.stdout.close()
    assert batch_size(host) == "1024"
    if reboot:
        host.shell("reboot", check=False)
    assert wait_for(lambda: batch_size(host) == "64", PATIENCE)
    # The tool ends two minutes after the last poll.
    assert wait_for(lambda: not tool_runs(host), PATIENCE)
    assert wait_for(lambda: host.chat() == 200 and "trtllm-restore" not in state(host), PATIENCE)


def test_site_ends_what_a_killed_evaluation_left(host: Fleet, untouched: str, options: dict[str, Any]) -> None:
    """Else its timer starts the verified release at a time when a playbook starts another one."""
    process = begun(host, options)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout
    process.stdout.close()
    assert (batch_size(host), "trtllm-restore" in state(host)) == ("1024", True)
    run = host.playbook("site.yml")
    assert run.status == 0, run.output
    assert (batch_size(host), "trtllm-restore" in state(host), host.chat()) == ("64", False, 200)
