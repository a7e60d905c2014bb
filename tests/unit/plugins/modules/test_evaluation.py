"""Test the plan of an evaluation, its progress, scores, gates and result file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils import evaluation
from ansible_collections.trtllm.fleet.plugins.module_utils.evaluation import EvaluationError
from ansible_collections.trtllm.fleet.plugins.plugin_utils import evaluation as control
from ansible_collections.trtllm.fleet.plugins.plugin_utils.evaluation import Kept
from ansible_collections.trtllm.fleet.plugins.plugin_utils.evaluation import plan as evaluation_plan
from ansible_collections.trtllm.fleet.tests.unit.fake_openai import FakeOpenAI, reply
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

VARS = yaml.safe_load((ROOT / "roles/evaluation/vars/main.yml").read_text())
TABLE = VARS["__evaluation_table"]
REFERENCES = VARS["__evaluation_references"]


def recipe(gpus: int, dep: bool = False, **more: Any) -> dict[str, Any]:
    instance = {"name": "serve-0", "gpus": list(range(gpus)), "port": 8000, "unit": "trtllm-serve-0.service"}
    return {
        "engine_options": {"enable_attention_dp": dep},
        "instances": [instance],
        "model": "openai/gpt-oss-120b",
        **more,
    }


# --- plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "dep", "low_and_medium", "high"),
    [
        (8, True, (128, 32768), (2, 133120)),
        (4, True, (128, 32768), (2, 133120)),
        (8, False, (1024, 32768), (720, 133120)),
        (4, False, (1024, 32768), (720, 133120)),
    ],
)
def test_the_document_s_table(gpus: int, dep: bool, low_and_medium: tuple[int, int], high: tuple[int, int]) -> None:
    found = control.steps(["low", "high", "medium"], recipe(gpus, dep), TABLE, {})
    assert [step["efforts"] for step in found] == [["low", "medium"], ["high"]]
    for step, (batch, tokens) in zip(found, (low_and_medium, high), strict=True):
        assert step["settings"] == {"max_batch_size": batch, "max_num_tokens": tokens}


def test_a_layout_outside_the_documents_needs_own_settings() -> None:
    (problem,) = evaluation_plan(["basic"], ["low"], recipe=recipe(2, True), table=TABLE)["problems"]
    assert "serves with DEP2" in problem
    assert "only for DEP8, DEP4, TP8, TP4" in problem
    assert "evaluation_settings.low" in problem
    own = {"low": {"max_batch_size": 16}}
    planned = evaluation_plan(["basic"], ["low"], recipe=recipe(2, True), table=TABLE, own=own)
    assert planned == {"steps": [{"efforts": ["low"], "settings": {"max_batch_size": 16}}], "problems": []}


def test_own_settings_override_the_documents_and_split_efforts() -> None:
    own = {"medium": {"max_batch_size": 7}}
    found = control.steps(["low", "medium"], recipe(8), TABLE, own)
    assert [(step["efforts"], step["settings"]["max_batch_size"]) for step in found] == [
        (["low"], 1024),
        (["medium"], 7),
    ]


def test_without_settings_it_is_one_step() -> None:
    planned = evaluation_plan(["basic"], ["high", "low"], table=TABLE)
    assert planned == {"steps": [{"efforts": ["high", "low"], "settings": {}}], "problems": []}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"names": ["gqpa"]},
            "evaluation_names has 'gqpa'; allowed are basic, gpqa, aime25, gsm8k. Did you mean 'gpqa'?",
        ),
        ({"names": []}, "evaluation_names is empty; allowed are basic, gpqa, aime25, gsm8k."),
        ({"efforts": ["hi"]}, "evaluation_efforts has 'hi';"),
        ({"min_score": {"gsm8k": 90.3}}, "evaluation_min_score.gsm8k is 90.3; it must be a number from 0 to 1."),
        ({"min_score": {"gsm8k": True}}, "evaluation_min_score.gsm8k is True"),
        ({"min_score": {"mmlu": 0.5}}, "evaluation_min_score has 'mmlu';"),
    ],
)
def test_invalid_evaluations_are_rejected(asked: dict[str, Any], words: str) -> None:
    given = {"names": ["basic"], "efforts": ["low"], **asked}
    (problem,) = evaluation_plan(given["names"], given["efforts"], min_score=given.get("min_score"))["problems"]
    assert problem.startswith(words)


def test_missing_local_copies_are_listed() -> None:
    (problem,) = evaluation_plan(["gpqa", "aime25", "basic"], ["low"], datasets=["aime2025-I.jsonl"])["problems"]
    assert "evaluation_datasets_dir lacks gpqa_diamond.csv, aime2025-II.jsonl." in problem
    assert evaluation_plan(["basic"], ["low"], datasets=[])["problems"] == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, []),
        ({"engine_options": {"enable_attention_dp": True}}, ["engine_options"]),
        ({"image": "example.com/release:2"}, ["image"]),
        ({"instances": [{"gpus": [0, 1]}]}, ["instances"]),
        # Names and notes of a recipe are ignored.
        ({"notes": ["new"], "name": "another"}, []),
    ],
)
def test_an_inventory_that_differs_from_the_running_release(change: dict[str, Any], named: list[str]) -> None:
    served = recipe(8, image="example.com/release:1")
    assert control.drift(served, {**served, **change}) == named
    problems = evaluation_plan(["basic"], ["low"], recipe=served, resolved={**served, **change}, table=TABLE)[
        "problems"
    ]
    assert len(problems) == len(named)
    assert all(name in problems[0] for name in named)


# --- progress ---------------------------------------------------------------------------------------------------------

BARS = """
gpqa, low:   0%|          | 0/1584 [00:00<?, ?it/s]
gpqa, low: 100%|##########| 1584/1584 [10:31<00:00,  2.51it/s]
aime25, low:  12%|█▏        | 29/240 [01:00<07:20,  2.09s/it]"""
TROUBLE = "\nRate limit exception so wait and retry 3 after 8 sec Connection error.\n"


@pytest.mark.parametrize(
    ("log", "told", "line"),
    [
        ("Traceback", {}, "starting, 12 s"),
        (
            BARS,
            {"name": "aime25", "effort": "low", "done": 29, "total": 240, "trouble": ""},
            "aime25, low: 29 of 240 after 12 s",
        ),
        (
            BARS + TROUBLE,
            {"name": "aime25", "effort": "low", "done": 29, "total": 240, "trouble": "Connection error."},
            "aime25, low: 29 of 240 after 12 s; trying again after Connection error.",
        ),
        # Since then a request was answered.
        (
            BARS + TROUBLE + "aime25, low:  12%|█▎        | 30/240 [01:09<07:20,  2.09s/it]",
            {"name": "aime25", "effort": "low", "done": 30, "total": 240, "trouble": ""},
            "aime25, low: 30 of 240 after 12 s",
        ),
    ],
)
def test_progress(log: str, told: dict[str, Any], line: str) -> None:
    assert evaluation.progress(log) == told
    assert control.line(told, 12.3) == line


# --- scores -----------------------------------------------------------------------------------------------------------

GOOD = {"score": 0.75, "score:std": 0.433, "answers": 100, "refused": 0, "seconds": 3.5, "chars": 12.0}


def test_a_score_and_its_error(tmp_path: Path) -> None:
    (tmp_path / "gpqa-low.json").write_text(json.dumps(GOOD))
    (found,) = evaluation.scores(tmp_path, ["aime25", "gpqa"], ["low", "high"])
    assert found["files"] == ["gpqa-low.json", "gpqa-low.html", "gpqa-low_allresults.json"]
    assert (found["name"], found["effort"], found["score"], found["answers"]) == ("gpqa", "low", 0.75, 100)
    # As statistics.stdev of 75 ones and 25 zeros has it, over the root of 100.
    assert found["standard_error"] == pytest.approx(0.0435194, abs=1e-6)


def test_of_one_answer_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "basic-low.json").write_text(json.dumps({**GOOD, "score": 1.0, "answers": 1}))
    assert evaluation.read_score(tmp_path / "basic-low.json")["standard_error"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(GOOD)[:-9], "is not JSON"),
        ("", "is not JSON"),
        ("[]", "score is None; it must be a number"),
        (json.dumps({**GOOD, "score": None}), "score is None; it must be a number"),
        (json.dumps({**GOOD, "score": "0.7"}), "score is '0.7'; it must be a number"),
        (json.dumps({**GOOD, "score": float("nan")}), "score is nan; it must be a number"),
        (json.dumps({**GOOD, "score": 75}), "score is 75 from 100 answers"),
        (json.dumps({**GOOD, "answers": 0}), "from 0 answers; it must"),
        (json.dumps({"score": 0.5, "seconds": 1}), "answers is None; it must be a number"),
    ],
)
def test_damaged_results_are_no_scores(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "gpqa-low.json"
    path.write_text(text)
    with pytest.raises(EvaluationError, match=words):
        evaluation.scores(tmp_path, ["gpqa"], ["low"])


def result(name: str, score: float, answers: int) -> dict[str, Any]:
    return {"name": name, "effort": "low", "score": score, "answers": answers}


def test_the_tolerance_of_the_reference() -> None:
    """As TensorRT-LLM's own hypothesis test has it, with alpha 0.05 and sigma 50: all 1319 questions, and a few."""
    for answers in (1319, 50):
        scale = (2 * 50.0**2 / answers) ** 0.5
        expected = 90.3 + NormalDist().inv_cdf(0.05) * scale
        assert control.reference_threshold(0.903, answers) == pytest.approx(expected / 100)


@pytest.mark.parametrize(
    ("model", "score", "own", "failed"),
    [
        ("gpt-oss-120b", 0.872, {}, False),
        ("gpt-oss-120b", 0.870, {}, True),
        ("gpt-oss-20b", 0.870, {}, False),
        ("gpt-oss-20b", 0.817, {}, True),
        ("gpt-oss-120b", 0.902, {"gsm8k": 0.903}, True),
        ("gpt-oss-120b", 0.903, {"gsm8k": 0.903}, False),
        ("gpt-oss-120b", 0.0, {"gsm8k": 0}, False),
    ],
)
def test_gates(model: str, score: float, own: dict[str, float], failed: bool) -> None:
    found = control.gates([result("gsm8k", score, 1319)], own, REFERENCES[model])
    assert [gate["reached"] for gate in found] == [not failed]
    assert bool(control.failed_gates(found)) is failed


def test_gates_of_lowest_scores() -> None:
    results = [result("gpqa", 0.1, 10), result("aime25", 0.4, 10), result("aime25", 0.6, 10)]
    found = control.gates(results, {"aime25": 0.5}, REFERENCES["gpt-oss-120b"])
    assert [(gate["name"], gate["reached"]) for gate in found] == [("aime25", False), ("aime25", True)]
    assert control.failed_gates(found) == ["aime25, low: 0.4000 is below 0.5000 (evaluation_min_score)"]


# --- result file ------------------------------------------------------------------------------------------------------


def clock() -> datetime:
    return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_run_is_written_from_its_start_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "a-run"
    Kept(folder, {"names": ["gpqa"]}, clock)
    read = json.loads((folder / "result.json").read_text())
    assert (read["state"], read["name"], read["names"], read["ended"]) == ("running", "a-run", ["gpqa"], None)
    one = {**result("gpqa", 0.5, 10), "refused": 0}
    later = Kept(folder, {"names": ["other"]}, clock)
    assert [new["name"] for new in later.add([one], {"max_batch_size": 2})] == ["gpqa"]
    assert later.add([one], {"max_batch_size": 2}) == []
    later.end()
    read = json.loads((folder / "result.json").read_text())
    assert (read["state"], read["names"], len(read["results"])) == ("complete", ["gpqa"], 1)
    assert read["results"][0]["settings"] == {"max_batch_size": 2}
    # Something came up afterwards.
    Kept(folder, {}, clock).end("it was not the trial")
    read = json.loads((folder / "result.json").read_text())
    assert (read["state"], read["problems"]) == ("failed", ["it was not the trial"])


def test_requests_that_were_refused_are_no_wrong_answers(tmp_path: Path) -> None:
    kept = Kept(tmp_path, {})
    kept.add([{**result("gpqa", 0.5, 10), "refused": 3}], {})
    kept.end()
    assert kept.document["state"] == "failed"
    assert "refused 3 of 10 requests" in kept.document["problems"][0]


def test_a_damaged_result_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"schema": 1')
    with pytest.raises(EvaluationError, match="not a result of an evaluation"):
        Kept(tmp_path, {})


# --- the module -------------------------------------------------------------------------------------------------------

# In the place of evaluate.py: shows that it lives, and does what the test says.
PROGRAM = """
import json, os, pathlib, sys, time
request = json.loads(pathlib.Path(sys.argv[1]).read_text())
pathlib.Path("seen.json").write_text(json.dumps([request, os.environ["OPENAI_API_KEY"], os.getpid()]))
print("basic, low:   0%|   | 0/1 [00:00<?, ?it/s]", flush=True)
{act}
"""
WRITES = """
for effort in request["efforts"]:
    for name in request["names"]:
        text = json.dumps({"score": 1.0, "answers": 1, "seconds": 0.1})
        pathlib.Path(f"{name}-{effort}.json").write_text(text)
"""
SLEEPS = "time.sleep(600)"


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI({"/health": [reply(200)]}) as fake:
        yield fake


def call(folder: Path, url: str, **more: Any) -> dict[str, Any]:
    """What the module answers, run as Ansible runs it."""
    options = {
        "directory": str(folder / "run"),
        "python": sys.executable,
        "program": str(folder / "program.py"),
        "base_url": url,
        "model": "a-model",
        "names": ["basic"],
        "efforts": ["low"],
        "turn": 30,
        "patience": 3,
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.trtllm.fleet.plugins.modules.evaluation_run"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": options}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def seen(folder: Path) -> Any:
    return json.loads((folder / "run/seen.json").read_text())


def test_scores_are_read(tmp_path: Path, server: FakeOpenAI) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("{act}", WRITES))
    answer = call(tmp_path, server.url, names=["basic", "gpqa"], efforts=["high"], api_key="a-secret", examples=3)
    assert answer["finished"] is True
    assert [(one["name"], one["effort"], one["score"]) for one in answer["results"]] == [
        ("basic", "high", 1),
        ("gpqa", "high", 1),
    ]
    request, key, _pid = seen(tmp_path)
    assert (request["model"], request["examples"], key) == ("a-model", 3, "a-secret")
    assert "a-secret" not in json.dumps(answer) + json.dumps(request)


def test_the_tool_runs_between_polls(tmp_path: Path, server: FakeOpenAI) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("{act}", "time.sleep(4)" + WRITES))
    first = call(tmp_path, server.url, turn=1)
    assert (first["finished"], first["results"], first.get("failed")) == (False, [], None)
    assert first["progress"]["total"] == 1
    assert call(tmp_path, server.url)["results"][0]["score"] == 1


def test_a_dead_server_ends_it_in_time(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("{act}", SLEEPS))
    with FakeOpenAI({"/health": [reply(200)]}) as fake:
        url = fake.url
        assert call(tmp_path, url, turn=3)["finished"] is False
    began = time.monotonic()
    answer = call(tmp_path, url)
    assert time.monotonic() - began < 25
    assert answer["failed"] is True
    assert "was unhealthy for 3 s (evaluation_unhealthy_timeout)" in answer["msg"]
    assert "/health: " in answer["msg"]
    assert gone(seen(tmp_path)[2])


def test_a_server_that_is_back_in_time_does_not(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("{act}", "time.sleep(8)" + WRITES))
    answers = [reply(200), reply(200), reply(503), reply(200)]
    with FakeOpenAI({"/health": answers}) as fake:
        assert call(tmp_path, fake.url, patience=5)["results"][0]["score"] == 1
        assert len(answers) == 1


def test_an_unhealthy_endpoint_is_not_evaluated(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("{act}", WRITES))
    with FakeOpenAI({"/health": [reply(503)]}) as fake:
        answer = call(tmp_path, fake.url)
    assert answer["failed"] is True
    assert answer["msg"].startswith("The endpoint is unhealthy; evaluation needs a healthy endpoint.")
    assert "503" in answer["msg"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("act", "options", "words"),
    [
        ("sys.exit('no key for you')", {}, "ended with 1. Last output:"),
        ("pass", {}, "ended with 0. Last output:"),
        (SLEEPS, {"timeout": 2}, "was ended after"),
        (f"os.kill(os.getpid(), {int(signal.SIGKILL)})", {}, "was killed by signal 9"),
        ('pathlib.Path("basic-low.json").write_text("{")', {}, "basic-low.json is not JSON"),
    ],
    ids=["fails", "gives nothing", "takes too long", "is killed", "gives nonsense"],
)
def test_a_run_without_score_fails(
    tmp_path: Path, server: FakeOpenAI, act: str, options: dict[str, Any], words: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("{act}", act))
    answer = call(tmp_path, server.url, **options)
    assert (answer["failed"], answer["finished"]) == (True, True)
    assert words in answer["msg"]


def test_the_tool_ends_without_polls(tmp_path: Path, server: FakeOpenAI) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("{act}", SLEEPS))
    assert call(tmp_path, server.url, turn=2, lease=3)["finished"] is False
    pid = seen(tmp_path)[2]
    assert not gone(pid)
    time.sleep(6)
    assert gone(pid)
