"""The program that runs OpenAI's evaluations: data sets, GSM8K, and requests that fail."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.evaluation import scores
from ansible_collections.trtllm.fleet.plugins.plugin_utils.evaluation import DATA_SETS
from ansible_collections.trtllm.fleet.tests.unit.fake_openai import FakeOpenAI, chat, reply
from roles.evaluation.files import evaluate

CHAT = "/v1/chat/completions"
# A Python that has gpt-oss[eval]. That takes 3.12 or newer and 285 MB, so it is not among the tools of this repo.
TOOL = os.environ.get("EVALUATION_TOOL", "")
tool = pytest.mark.skipif(not TOOL, reason="EVALUATION_TOOL names no Python with gpt-oss[eval]")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Tiny data sets in the form of the real ones."""
    folder = tmp_path / "data"
    folder.mkdir()
    heads = ["Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
    rows = [["What is 1+1?", "2", "3", "4", "5"], ["What is 2+2?", "4", "3", "2", "5"]]
    (folder / "gpqa_diamond.csv").write_text("\n".join(",".join(row) for row in [heads, *rows]) + "\n")
    (folder / "aime2025-I.jsonl").write_text(json.dumps({"question": "1+2?", "answer": "3"}))
    (folder / "aime2025-II.jsonl").write_text(json.dumps({"question": "300+18?", "answer": "318^\\circ"}))
    answers = ["so\n#### 1,234", "so\n#### 318"]
    lines = [json.dumps({"question": f"q{number}", "answer": answer}) for number, answer in enumerate(answers)]
    (folder / "gsm8k_test.jsonl").write_text("\n".join(lines))
    shots = [json.dumps({"question": f"t{number}", "answer": f"{number}\n#### {number}"}) for number in range(9)]
    (folder / "gsm8k_train.jsonl").write_text("\n".join(shots) + "\n\n")
    assert {path.name for path in folder.iterdir()} == {name for names in DATA_SETS.values() for name in names}
    return folder


# --- data sets --------------------------------------------------------------------------------------------------------


def test_local_copies_are_read_instead_of_downloads(data: Path) -> None:
    asked = []

    def reader(url: str, *arguments: Any, **options: Any) -> str:
        asked.append((url, arguments, options))
        return "read"

    url = "https://example.com/some/where/gpqa_diamond.csv"
    assert evaluate.reading(reader, str(data))(url, 1, lines=True) == "read"
    assert evaluate.reading(reader, "")(url) == "read"
    assert asked == [(str(data / "gpqa_diamond.csv"), (1,), {"lines": True}), (url, (), {})]


def test_without_its_copy_nothing_is_downloaded(data: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gpqa_main\.csv, the copy of"):
        evaluate.reading(lambda url: url, str(data))("https://example.com/gpqa_main.csv")


@pytest.mark.parametrize("line", ['{"question": "q", "answer": "7"}', '{"question": "q"}', '["q", "#### 7"]', "q,7"])
def test_invalid_gsm8k_files_are_rejected(data: Path, line: str) -> None:
    (data / "gsm8k_test.jsonl").write_text(line)
    with pytest.raises(ValueError, match=r"is not GSM8K|Expecting value"):
        evaluate.Gsm8k(str(data), 0, 1)


# --- GSM8K ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She makes 9 * 2 = $18 a day.\n#### 18", "18"),
        ("The answer is **$1,234.**", "1234"),
        ("It is 5 dollars, not 7", "7"),
        ("-12 degrees", "-12"),
        ("costs $0.50.", "0.50"),
        ("no number", ""),
    ],
)
def test_the_last_number(text: str, number: str) -> None:
    assert evaluate.last_number(text) == number


def test_the_right_answer_follows_the_mark() -> None:
    assert evaluate.plain("9 * 2 = <<9*2=18>>18\n#### 1,018") == "1018"


def test_examples_are_turns_before_the_question(data: Path) -> None:
    quiz = evaluate.Gsm8k(str(data), 0, 1)
    asked = evaluate.gsm8k_messages(quiz.shots, "How many?", lambda role, content: (role, content))
    assert [role for role, _text in asked] == ["user", "assistant"] * 5 + ["user"]
    assert asked[-1] == ("user", "Question: How many?\nAnswer:")
    for (_user, question), (_assistant, answer) in zip(asked[:-1:2], asked[1::2], strict=True):
        number = question.removeprefix("Question: t").removesuffix("\nAnswer:")
        assert answer == f"{number}\n#### {number}"
    assert evaluate.Gsm8k(str(data), 0, 1).shots == quiz.shots
    assert len(evaluate.Gsm8k(str(data), 1, 1).rows) == 1


# --- requests that fail -----------------------------------------------------------------------------------------------


class Refusal(Exception):
    pass


class Clock:
    """What the tool's sampler does around its sleep, in time that passes as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        monkeypatch.setattr(evaluate.time, "sleep", self.slept.append)
        self.patience = evaluate.Patience(seconds, Refusal, lambda: self.now)

    def fails(self, after: float, error: type[Exception] = Refusal, pause: float = 1) -> None:
        self.now += after
        try:
            raise error("no")
        except Exception:
            self.patience.sleep(pause)


def test_a_rejected_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 120)
    for _second in range(5):
        clock.fails(30)
    with pytest.raises(evaluate.GivenUpError, match="no request has been answered for 120 s: no"):
        clock.fails(1)


def test_a_request_that_was_long_in_the_works_may_fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 120)
    clock.fails(3600)
    clock.fails(100)
    assert len(clock.slept) == 2


def test_while_others_are_answered_it_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 120)
    for _second in range(9):
        other = threading.Thread(target=clock.patience.answered)
        other.start()
        other.join()
        clock.fails(100)
    assert len(clock.slept) == 9


def test_answers_without_text_are_retried_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 120)
    for _question in range(2):
        for _time in range(evaluate.CUT_OFF_TRIES - 1):
            clock.fails(600, ValueError)
        with pytest.raises(evaluate.CutOffError):
            clock.fails(600, ValueError)
        clock.patience.answered()
    assert len(clock.slept) == 2 * (evaluate.CUT_OFF_TRIES - 1)


def test_tries_of_an_answer_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 120)
    clock.fails(1, ValueError)
    clock.fails(1)
    clock.fails(1)
    answers = evaluate.Answers()
    answers.ended(clock.patience.answered(), truncated=True)
    answers.ended(clock.patience.answered(), truncated=False)
    assert (answers.asked_again, answers.rejected, answers.truncated, answers.incomplete) == (1, 2, 1, 1)


def test_scores_are_recorded_by_question() -> None:
    """The tool asks its list of questions several times, and returns the answers as they come."""

    def mapped(ask: Callable[[Any], Any], rows: list[Any], num_threads: int) -> list[Any]:
        assert num_threads == 4
        return [ask(row) for row in reversed(rows)]

    answers = evaluate.Answers()
    mapping = answers.by_question(mapped, 3)
    found = mapping(
        lambda row: SimpleNamespace(score=float(row == "right"), row=row), ["right", "wrong"] * 3, num_threads=4
    )
    assert [one.row for one in found] == ["wrong", "right"] * 3
    assert answers.questions == {0: [3, 3.0], 1: [3, 0.0]}


def test_pauses_do_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 120)
    for trial in (1, 4, 64, 2**20):
        clock.fails(0, pause=trial)
    assert clock.slept == [1, 4, 30, 30]


# --- with the tool itself ---------------------------------------------------------------------------------------------


def run(folder: Path, url: str, data: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    request = {
        "base_url": url,
        "model": "a-model",
        "names": ["basic", "gpqa", "aime25", "gsm8k"],
        "efforts": ["low"],
        "examples": 0,
        "repeats": 3,
        "threads": 4,
        "max_tokens": 9000,
        "patience": 60,
        "data": str(data),
        **more,
    }
    (folder / "request.json").write_text(json.dumps(request))
    command = [TOOL, evaluate.__file__, str(folder / "request.json")]
    environment = {**os.environ, "OPENAI_API_KEY": "a-key"}
    return subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, timeout=120, check=False
    )


@tool
def test_scores_with_local_copies(tmp_path: Path, data: Path) -> None:
    """Of four evaluations, each with an answer of which one knows beforehand what it is worth."""
    with FakeOpenAI({CHAT: [reply(200, chat("So it is \\boxed{318}."))]}) as fake:
        done = run(tmp_path, fake.url, data, efforts=["low", "high"])
        assert done.returncode == 0, done.stderr
        bodies = fake.bodies(CHAT)
        assert {request.headers["authorization"] for request in fake.requests} == {"Bearer a-key"}
    found = scores(tmp_path, ["basic", "gpqa", "aime25", "gsm8k"], ["low", "high"])
    told = {(one["name"], one["effort"]): (one["score"], one["answers"], one["refused"]) for one in found}
    for effort in ("low", "high"):
        assert told[("basic", effort)] == (1, 1, 0)
        assert told[("gpqa", effort)] == (0, 6, 0)
        assert told[("aime25", effort)] == (0.5, 6, 0)
        assert told[("gsm8k", effort)] == (0.5, 2, 0)
        assert sum(body["reasoning_effort"] == effort for body in bodies) == 1 + 6 + 6 + 2
    assert all((tmp_path / name).stat().st_size for one in found for name in one["files"])
    assert [one["questions"] for one in found[:4]] == [1, 2, 2, 2]
    limits = {(len(body["messages"]), body["max_tokens"], body["temperature"]) for body in bodies}
    assert limits == {(1, 9000, 1.0), (11, 8192, 0.0)}


@tool
def test_a_few_examples(tmp_path: Path, data: Path) -> None:
    with FakeOpenAI({CHAT: [reply(200, chat("318"))]}) as fake:
        assert run(tmp_path, fake.url, data, examples=1).returncode == 0
    found = scores(tmp_path, ["basic", "gpqa", "aime25", "gsm8k"], ["low"])
    assert [one["answers"] for one in found] == [1, 1, 1, 1]


@tool
def test_refused_requests_are_counted(tmp_path: Path, data: Path) -> None:
    with FakeOpenAI({CHAT: [reply(400, {"error": {"message": "too long"}}), reply(200, chat("318"))]}) as fake:
        assert run(tmp_path, fake.url, data, names=["aime25"], threads=1).returncode == 0
    (found,) = scores(tmp_path, ["aime25"], ["low"])
    assert (found["answers"], found["refused"]) == (6, 1)


@tool
def test_a_question_without_an_answer_counts_as_wrong(tmp_path: Path, data: Path) -> None:
    with FakeOpenAI({CHAT: [*[reply(200, chat(""))] * evaluate.CUT_OFF_TRIES, reply(200, chat("318"))]}) as fake:
        assert run(tmp_path, fake.url, data, names=["aime25"], threads=1, patience=4).returncode == 0
    (found,) = scores(tmp_path, ["aime25"], ["low"])
    assert (found["answers"], found["cut_off"], found["refused"], found["asked_again"]) == (6, 1, 0, 1)


@tool
def test_a_wrong_key_ends_it(tmp_path: Path, data: Path) -> None:
    with FakeOpenAI({CHAT: [reply(401, {"error": {"message": "no such key"}})]}) as fake:
        done = run(tmp_path, fake.url, data, names=["gpqa"], patience=3)
    assert done.returncode == 1
    assert "no request has been answered for 3 s: Error code: 401" in done.stderr


@tool
def test_data_sets_are_read_before_the_first_request(tmp_path: Path, data: Path) -> None:
    (data / "aime2025-II.jsonl").unlink()
    with FakeOpenAI({CHAT: [reply(200, chat("318"))]}) as fake:
        done = run(tmp_path, fake.url, data)
        assert fake.requests == []
    assert done.returncode == 1
    assert "aime2025-II.jsonl is not there" in done.stderr
