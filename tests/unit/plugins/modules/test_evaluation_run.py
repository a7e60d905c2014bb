"""Test module evaluation_run, and how it reads the tool's progress and scores."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import evaluation
from ansible_collections.trtllm.fleet.plugins.module_utils.evaluation import EvaluationError
from ansible_collections.trtllm.fleet.tests.unit.fake_openai import FakeOpenAI, reply
from ansible_collections.trtllm.fleet.tests.unit.paths import PYTHONPATH

# --- progress ---------------------------------------------------------------------------------------------------------

BARS = """
gpqa, low:   0%|          | 0/1584 [00:00<?, ?it/s]
gpqa, low: 100%|##########| 1584/1584 [10:31<00:00,  2.51it/s]
aime25, low:  12%|█▏        | 29/240 [01:00<07:20,  2.09s/it]"""
TROUBLE = "\nRate limit exception so wait and retry 3 after 8 sec Connection error.\n"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("Traceback", {}),
        (
            BARS,
            {"name": "aime25", "effort": "low", "done": 29, "total": 240, "trouble": ""},
        ),
        (
            BARS + TROUBLE,
            {"name": "aime25", "effort": "low", "done": 29, "total": 240, "trouble": "Connection error."},
        ),
        # Since then a request was answered.
        (
            BARS + TROUBLE + "aime25, low:  12%|█▎        | 30/240 [01:09<07:20,  2.09s/it]",
            {"name": "aime25", "effort": "low", "done": 30, "total": 240, "trouble": ""},
        ),
    ],
)
def test_progress(log: str, told: dict[str, Any]) -> None:
    assert evaluation.progress(log) == told


# --- scores -----------------------------------------------------------------------------------------------------------

ONCE = [[1, 1.0]] * 75 + [[1, 0.0]] * 25
GOOD = {"score": 0.75, "score:std": 0.433, "answers": 100, "questions": ONCE, "seconds": 3.5, "truncated": 2}


def test_a_score_and_its_error(tmp_path: Path) -> None:
    (tmp_path / "gpqa-low.json").write_text(json.dumps(GOOD))
    (found,) = evaluation.scores(tmp_path, ["aime25", "gpqa"], ["low", "high"])
    assert found["files"] == ["gpqa-low.json", "gpqa-low.html", "gpqa-low_allresults.json"]
    assert (found["name"], found["effort"], found["score"], found["answers"]) == ("gpqa", "low", 0.75, 100)
    # As statistics.stdev of 75 ones and 25 zeros has it, over the root of 100.
    assert found["standard_error"] == pytest.approx(0.0435194, abs=1e-6)
    # statsmodels.stats.proportion.proportion_confint(74.25, 99, method="wilson")
    assert found["interval"] == pytest.approx([0.6561, 0.8248], abs=5e-4)
    assert (found["questions"], found["truncated"], found["asked_again"]) == (100, 2, 0)
    assert found["score"] < found["upper"] < found["interval"][1]


def test_answers_to_one_question_count_as_they_depend_on_each_other() -> None:
    """Ten questions that are always answered in the same way say no more than ten answers."""
    ten = [(1, 1.0)] * 7 + [(1, 0.0)] * 3
    same = [(8, 8.0)] * 7 + [(8, 0.0)] * 3
    assert evaluation.standard_error(same) == pytest.approx(evaluation.standard_error(ten))
    bounds = [evaluation.interval(0.7, questions, evaluation.TWO_SIDED) for questions in (ten, same)]
    assert bounds[0] == pytest.approx(bounds[1])
    # Questions of equal difficulty: as 80 independent answers, at most.
    equal = [(8, 6.0)] * 10
    assert evaluation.standard_error(equal) == 0
    assert evaluation.interval(0.75, equal, evaluation.TWO_SIDED)[0] > 0.4


@pytest.mark.parametrize("within", [0.0, 0.5, 1.0])
def test_an_interval_holds_the_true_score(within: float) -> None:
    """Simulated, with questions that differ in difficulty (0), less so (0.5) or not at all (1): 90 percent or more."""
    chance = random.Random(7)
    hits, runs, truth = 0, 400, 0.7
    for _run in range(runs):
        questions = []
        for _question in range(60):
            rate = truth if chance.random() < within else float(chance.random() < truth)
            questions.append((4, float(sum(chance.random() < rate for _answer in range(4)))))
        score = sum(right for _number, right in questions) / 240
        low, high = evaluation.interval(score, questions, evaluation.TWO_SIDED)
        hits += low <= truth <= high
    assert hits / runs > 0.9


def test_scores_of_all_kinds_have_an_interval() -> None:
    for right in (0.0, 1.0):
        low, high = evaluation.interval(right, [(1, right)] * 30, evaluation.TWO_SIDED)
        assert 0 <= low <= right + 1e-9
        assert right - 1e-9 <= high <= 1
        assert 0.05 < high - low < 0.2
    assert evaluation.interval(1.0, [(1, 1.0)], evaluation.TWO_SIDED)[0] < 0.3


def test_of_one_answer_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "basic-low.json").write_text(json.dumps({**GOOD, "score": 1.0, "answers": 1, "questions": [[1, 1]]}))
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
        (json.dumps({**GOOD, "questions": [[99, 75]]}), "the questions do not have 100 answers"),
        (json.dumps({"score": 0.5, "seconds": 1}), "answers is None; it must be a number"),
    ],
)
def test_damaged_results_are_no_scores(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "gpqa-low.json"
    path.write_text(text)
    with pytest.raises(EvaluationError, match=words):
        evaluation.scores(tmp_path, ["gpqa"], ["low"])


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
        text = json.dumps({"score": 1.0, "answers": 1, "questions": [[1, 1.0]], "seconds": 0.1})
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
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
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
