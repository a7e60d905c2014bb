"""Test the plan of an evaluation, its gates and its result file."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.trtllm.fleet.plugins.module_utils.evaluation import (
    COUNTS,
    ONE_SIDED,
    TWO_SIDED,
    EvaluationError,
    interval,
    standard_error,
    worth_of,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils import evaluation as control
from ansible_collections.trtllm.fleet.plugins.plugin_utils.evaluation import Kept
from ansible_collections.trtllm.fleet.plugins.plugin_utils.evaluation import plan as evaluation_plan
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


@pytest.mark.parametrize(
    ("trouble", "line"),
    [
        ("", "aime25, low: 29 of 240 after 12 s"),
        ("Connection error.", "aime25, low: 29 of 240 after 12 s; trying again after Connection error."),
    ],
)
def test_progress_line(trouble: str, line: str) -> None:
    told = {"name": "aime25", "effort": "low", "done": 29, "total": 240, "trouble": trouble}
    assert control.line(told, 12.3) == line


def test_progress_line_before_the_first_request() -> None:
    assert control.line({}, 12.3) == "starting, 12 s"


# --- gates ------------------------------------------------------------------------------------------------------------


def result(name: str, score: float, answers: int, effort: str = "medium", repeats: int = 1) -> dict[str, Any]:
    """A result whose questions are all answered right or all wrong."""
    number = answers // repeats
    right = round(score * number)
    questions = [(repeats, float(repeats))] * right + [(repeats, 0.0)] * (number - right)
    score = right / number
    return {
        "name": name,
        "effort": effort,
        "score": score,
        "standard_error": standard_error(questions),
        "interval": interval(score, questions, TWO_SIDED),
        "upper": interval(score, questions, ONE_SIDED)[1],
        "worth": worth_of(score, questions),
        "answers": answers,
        "questions": number,
        "seconds": 812.4,
        **dict.fromkeys(COUNTS, 0),
    }


@pytest.mark.parametrize(
    ("model", "score", "own", "failed"),
    [
        ("openai/gpt-oss-120b", 0.890, {}, False),
        ("openai/gpt-oss-120b", 0.880, {}, True),
        ("openai/gpt-oss-20b", 0.830, {}, False),
        ("openai/gpt-oss-20b", 0.820, {}, True),
        ("openai/gpt-oss-120b", 0.892, {"gsm8k": 0.903}, False),
        ("openai/gpt-oss-120b", 0.886, {"gsm8k": 0.903}, True),
        ("openai/gpt-oss-120b", 0.886, {"gsm8k": {"medium": 0.903}}, True),
        ("openai/gpt-oss-120b", 0.0, {"gsm8k": 0}, False),
    ],
)
def test_gates(model: str, score: float, own: dict[str, float], failed: bool) -> None:
    found = control.gates([result("gsm8k", score, 1319)], own, REFERENCES[model])
    assert [gate["reached"] for gate in found] == [not failed]
    assert bool(control.failed_gates(found)) is failed


@pytest.mark.parametrize("effort", ["low", "high"])
def test_a_reference_is_for_the_effort_at_which_it_was_measured(effort: str) -> None:
    poor = result("gsm8k", 0.1, 1319, effort)
    assert control.gates([poor], {}, REFERENCES["openai/gpt-oss-120b"]) == []
    assert control.gates([poor], {"gsm8k": {"medium": 0.9}}, REFERENCES["openai/gpt-oss-120b"]) == []
    assert [gate["reached"] for gate in control.gates([poor], {"gsm8k": {effort: 0.9}}, {})] == [False]


def test_answers_to_the_same_questions_decide_less() -> None:
    """With 30 questions, each answered eight times in the same way, chance gives such a score."""
    few, many = result("aime25", 0.7, 240, repeats=8), result("aime25", 0.7, 240)
    assert [gate["reached"] for gate in control.gates([few, many], {"aime25": 0.8}, {})] == [True, False]


def test_gates_say_what_they_find() -> None:
    missed, reached = control.gates([result("gpqa", 0.5, 200), result("gpqa", 0.62, 200)], {"gpqa": 0.65}, {})
    assert missed["text"] == (
        "gpqa, medium: 0.5000 (95 % interval 0.4312 to 0.5688) is below 0.6500 (evaluation_min_score); of a true score"
        " of 0.566 four of five runs with other questions fail"
    )
    assert " is not certainly below 0.6500 " in reached["text"]
    assert control.failed_gates([missed, reached]) == [missed["text"]]


def test_a_gate_fails_once_in_twenty_times_at_the_lowest_score_and_in_four_of_five_where_it_says() -> None:
    """Simulated with independent answers."""
    chance = random.Random(3)

    def missed(truth: float, runs: int = 400) -> float:
        scores = [sum(chance.random() < truth for _answer in range(400)) / 400 for _run in range(runs)]
        found = control.gates([result("gsm8k", score, 400) for score in scores], {"gsm8k": 0.9}, {})
        return sum(not gate["reached"] for gate in found) / runs

    (gate,) = control.gates([result("gsm8k", 0.86, 400)], {"gsm8k": 0.9}, {})
    assert missed(0.9) < 0.09
    assert missed(gate["detects"]) > 0.7


def test_a_score_with_what_is_known_of_its_answers() -> None:
    known = {**result("gpqa", 0.5, 200), "truncated": 3, "asked_again": 2, "rejected": 1}
    assert control.score_text(known) == (
        "score 0.5000 (95 % interval 0.4312 to 0.5688) from 200 answers to 200 questions in 812 s; 3 answers ended at"
        " the limit of tokens; 2 came after an answer without text; 1 requests were sent again after an error"
    )


# --- result file ------------------------------------------------------------------------------------------------------


def clock() -> datetime:
    return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_run_is_written_from_its_start_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "a-run"
    Kept(folder, {"names": ["gpqa"]}, clock)
    read = json.loads((folder / "result.json").read_text())
    assert (read["state"], read["name"], read["names"], read["ended"]) == ("running", "a-run", ["gpqa"], None)
    one = result("gpqa", 0.5, 10)
    later = Kept(folder, {"names": ["other"]}, clock)
    assert [new["name"] for new in later.add([one], {"max_batch_size": 2}, 0.05)] == ["gpqa"]
    assert later.add([one], {"max_batch_size": 2}, 0.05) == []
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
    kept.add([{**result("gpqa", 0.5, 10), "refused": 3}], {}, 0.05)
    kept.end()
    assert kept.document["state"] == "failed"
    assert "refused 3 of 10 requests" in kept.document["problems"][0]


@pytest.mark.parametrize(("number", "failed"), [(5, False), (6, True)])
def test_a_score_of_incomplete_answers_fails(tmp_path: Path, number: int, failed: bool) -> None:
    kept = Kept(tmp_path, {})
    kept.add([{**result("gpqa", 0.5, 100), "truncated": number, "asked_again": 2, "incomplete": number}], {}, 0.05)
    kept.end()
    assert (kept.document["state"] == "failed") is failed
    assert "evaluation_max_incomplete allows 5%" in "".join(kept.document["problems"]) or not failed


def test_what_a_gate_finds_where_all_answers_are_right() -> None:
    """The error at the observed score is 0, and that at the lowest one counts."""
    (gate,) = control.gates([result("gsm8k", 1.0, 10)], {"gsm8k": 0.9}, {})
    assert gate["detects"] == pytest.approx(0.9 - 2.4865 * (0.09 / 10) ** 0.5, abs=1e-3)


def test_a_damaged_result_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"schema": 1')
    with pytest.raises(EvaluationError, match="not a result of an evaluation"):
        Kept(tmp_path, {})
