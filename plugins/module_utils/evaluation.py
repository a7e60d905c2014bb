# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress and scores of evaluations on the load host."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import background_command

# The files of evaluate.py; the first is written last.
FILES = (".json", ".html", "_allresults.json")
# Of the program's file: requests refused with 400; answers without text, at the limit of tokens, after one without
# text, and of either kind; and requests that were sent again after an error.
COUNTS = ("refused", "cut_off", "truncated", "asked_again", "incomplete", "rejected")
# Quantiles of the normal distribution: 95 percent between two bounds, and below one.
TWO_SIDED, ONE_SIDED = 1.959963984540054, 1.6448536269514722
# The tool's progress with the name from the program: ``gpqa, low:  12%|#2  | 24/198 [00:31<``.
PROGRESS = re.compile(r"^(\w+), (\w+): +\d+%\|[^|]*\| (\d+)/(\d+) \[", re.MULTILINE)
FAILURE = re.compile(r"^Rate limit exception so wait and retry \d+ after \d+ sec *(.*)$", re.MULTILINE)


class EvaluationError(Exception):
    """The evaluation is not possible or has no result."""


def progress(log: str) -> dict[str, Any]:
    """Return the last progress and failure in the output; empty before the first request."""
    bars = list(PROGRESS.finditer(log))
    if not bars:
        return {}
    name, effort, done, total = bars[-1].groups()
    failures = [match for match in FAILURE.finditer(log) if match.start() > bars[-1].start()]
    trouble = failures[-1][1].strip() if failures else ""
    return {"name": name, "effort": effort, "done": int(done), "total": int(total), "trouble": trouble}


def end(folder: Path) -> None:
    """End the command of a folder and wait for its end."""
    with suppress(OSError):
        os.utime(folder / background_command.LEASE, (0, 0))  # an expired lease ends the command
    deadline = time.monotonic() + background_command.GRACE_SECONDS * 2
    while not (folder / background_command.END).exists() and time.monotonic() < deadline:
        time.sleep(background_command.LOOK_SECONDS)


def read_score(path: Path) -> dict[str, Any]:
    """Read the score of an evaluation from the program's file. Raises EvaluationError."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvaluationError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise EvaluationError(f"{path} is not JSON: {error}") from None
    numbers = {name: said.get(name) if isinstance(said, dict) else None for name in ("score", "answers", "seconds")}
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise EvaluationError(f"{path}: {name} is {number!r}; it must be a number")
    score, answers = float(numbers["score"] or 0), int(numbers["answers"] or 0)
    if answers < 1 or not 0 <= score <= 1:
        raise EvaluationError(
            f"{path}: score is {score:g} from {answers} answers; it must be from 0 to 1, with 1 answer or more"
        )
    questions = [(int(number), float(right)) for number, right in said.get("questions") or []]
    if sum(number for number, _right in questions) != answers:
        raise EvaluationError(f"{path}: the questions do not have {answers} answers")
    return {
        "score": score,
        "standard_error": standard_error(questions),
        "interval": list(interval(score, questions, TWO_SIDED)),
        "upper": interval(score, questions, ONE_SIDED)[1],
        "worth": worth_of(score, questions),
        "answers": answers,
        "questions": len(questions),
        **{name: int(said.get(name) or 0) for name in COUNTS},
        "seconds": float(numbers["seconds"] or 0),
    }


def standard_error(questions: Sequence[tuple[int, float]]) -> float | None:
    """Return the standard error of the mean score; None for one question.

    ``questions``: number of answers and sum of their scores. Answers to one question depend on each other, so questions
    are the units: the error of a ratio of two sums (W. G. Cochran, Sampling Techniques, 3rd edition, 2.11).
    """
    if len(questions) < 2:
        return None
    answers = sum(number for number, _right in questions)
    score = sum(right for _number, right in questions) / answers
    squares = sum((right - score * number) ** 2 for number, right in questions)
    return math.sqrt(squares * len(questions) / (len(questions) - 1)) / answers


def worth_of(score: float, questions: Sequence[tuple[int, float]]) -> float:
    """Return the number of independent answers that would have the same error.

    Without an error, as if all scores are equal, each question counts once.
    """
    error = standard_error(questions)
    answers = sum(number for number, _right in questions)
    return min(answers, score * (1 - score) / error**2) if error else len(questions)


def interval(score: float, questions: Sequence[tuple[int, float]], z: float) -> tuple[float, float]:
    """Return the confidence interval of a score (E. B. Wilson, 1927), with as many answers as its error is worth."""
    worth = worth_of(score, questions)
    center = (score + z * z / (2 * worth)) / (1 + z * z / worth)
    half = z / (1 + z * z / worth) * math.sqrt(score * (1 - score) / worth + z * z / (4 * worth * worth))
    return max(0.0, center - half), min(1.0, center + half)


def scores(folder: Path, names: Sequence[str], efforts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores so far in the order of the run. Raises EvaluationError for a damaged file."""
    found = []
    for effort in efforts:
        for name in names:
            path = folder / f"{name}-{effort}.json"
            if path.exists():
                files = [f"{name}-{effort}{suffix}" for suffix in FILES]
                found.append({"name": name, "effort": effort, **read_score(path), "files": files})
    return found
