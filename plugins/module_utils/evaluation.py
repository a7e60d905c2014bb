# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluations of the accuracy: validation, server settings, scores, gates and the result file."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import background_command
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.suggestion import did_you_mean

# The evaluations with the files of their data sets.
DATA_SETS: dict[str, tuple[str, ...]] = {
    "basic": (),
    "gpqa": ("gpqa_diamond.csv",),
    "aime25": ("aime2025-I.jsonl", "aime2025-II.jsonl"),
    "gsm8k": ("gsm8k_test.jsonl", "gsm8k_train.jsonl"),
}
EFFORTS = ("low", "medium", "high")
# The files of evaluate.py; the first is written last.
FILES = (".json", ".html", "_allresults.json")
# The tool's progress with the name from the program: ``gpqa, low:  12%|#2  | 24/198 [00:31<``.
PROGRESS = re.compile(r"^(\w+), (\w+): +\d+%\|[^|]*\| (\d+)/(\d+) \[", re.MULTILINE)
FAILURE = re.compile(r"^Rate limit exception so wait and retry \d+ after \d+ sec *(.*)$", re.MULTILINE)

# TensorRT-LLM's test of an accuracy: one-sided at 5 %, with a standard deviation of 50 % for each answer of the
# reference and of the measurement.
Z_ALPHA = -1.6448536269514722
SIGMA = 0.5

# Increases when a reader of older files would misread newer ones.
SCHEMA = 1
RESULT = "result.json"


class EvaluationError(Exception):
    """The evaluation is not possible or has no result."""


# --- plan -------------------------------------------------------------------------------------------------------------


def problems(names: Sequence[str], efforts: Sequence[str], min_score: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of names, efforts and lowest scores, with their variables."""
    for variable, given, known in (
        ("evaluation_names", names, tuple(DATA_SETS)),
        ("evaluation_efforts", efforts, EFFORTS),
        ("evaluation_min_score", tuple(min_score), tuple(DATA_SETS)),
    ):
        if not given and variable != "evaluation_min_score":
            yield f"{variable} is empty; allowed are {', '.join(known)}."
        for name in given:
            if name not in known:
                yield f"{variable} has {name!r}; allowed are {', '.join(known)}.{did_you_mean(name, known)}"
    for name, score in min_score.items():
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:
            yield f"evaluation_min_score.{name} is {score!r}; it must be a number from 0 to 1."


def layout(recipe: Mapping[str, Any]) -> str:
    """Return the parallelism of a recipe's instance by the documents' name: ``DEP8``, ``TP4``."""
    kind = "DEP" if recipe["engine_options"].get("enable_attention_dp") else "TP"
    return f"{kind}{len(recipe['instances'][0]['gpus'])}"


def steps(
    efforts: Sequence[str], recipe: Mapping[str, Any], table: Sequence[Mapping[str, Any]], own: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the steps of a run: engine options with the efforts that share them.

    ``own`` settings by effort override the ``table`` of ``efforts``, ``layouts`` and ``settings``. Raises
    EvaluationError for an effort without settings.
    """
    here = layout(recipe)
    found: list[dict[str, Any]] = []
    for effort in efforts:
        rows = [row["settings"] for row in table if effort in row["efforts"] and here in row["layouts"]]
        settings = own.get(effort) or next(iter(rows), None)
        if settings is None:
            known = ", ".join(dict.fromkeys(name for row in table for name in row["layouts"]))
            raise EvaluationError(
                f"The host serves with {here}; the documents have server settings only for {known}. Set"
                f" evaluation_settings.{effort} to engine options, or evaluation_apply_settings to false to evaluate"
                " the running release."
            )
        step = next((step for step in found if step["settings"] == settings), None)
        if step:
            step["efforts"].append(effort)
        else:
            found.append({"efforts": [effort], "settings": dict(settings)})
    return found


def missing(names: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the missing files of data sets."""
    return [file for name in names for file in DATA_SETS[name] if file not in there]


def drift(served: Mapping[str, Any], resolved: Mapping[str, Any]) -> list[str]:
    """Return the parts that change answers and differ between the running release and the inventory."""
    names = ("model", "image", "engine_options", "flags", "environment")
    found = [name for name in names if (served.get(name) or {}) != (resolved.get(name) or {})]
    gpus = [[instance["gpus"] for instance in one.get("instances") or []] for one in (served, resolved)]
    return found if gpus[0] == gpus[1] else [*found, "instances"]


# --- progress ---------------------------------------------------------------------------------------------------------


def progress(log: str) -> dict[str, Any]:
    """Return the last progress and failure in the output; empty before the first request."""
    bars = list(PROGRESS.finditer(log))
    if not bars:
        return {}
    name, effort, done, total = bars[-1].groups()
    failures = [match for match in FAILURE.finditer(log) if match.start() > bars[-1].start()]
    trouble = failures[-1][1].strip() if failures else ""
    return {"name": name, "effort": effort, "done": int(done), "total": int(total), "trouble": trouble}


def line(progress: Mapping[str, Any], seconds: float) -> str:
    """Return a line of progress."""
    if not progress:
        return f"starting, {seconds:.0f} s"
    told = f"{progress['name']}, {progress['effort']}: {progress['done']} of {progress['total']} after {seconds:.0f} s"
    return f"{told}; trying again after {progress['trouble']}" if progress["trouble"] else told


def end(folder: Path) -> None:
    """End the command of a folder and wait for its end."""
    with suppress(OSError):
        os.utime(folder / background_command.LEASE, (0, 0))  # an expired lease ends the command
    deadline = time.monotonic() + background_command.GRACE_SECONDS * 2
    while not (folder / background_command.END).exists() and time.monotonic() < deadline:
        time.sleep(background_command.LOOK_SECONDS)


# --- scores -----------------------------------------------------------------------------------------------------------


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
    return {
        "score": score,
        "standard_error": standard_error(score, answers),
        "answers": answers,
        "refused": int(said.get("refused") or 0),
        "cut_off": int(said.get("cut_off") or 0),
        "seconds": float(numbers["seconds"] or 0),
    }


def standard_error(score: float, answers: int) -> float | None:
    """Return the standard error of a score from independent answers, None for one answer."""
    return math.sqrt(score * (1 - score) / (answers - 1)) if answers > 1 else None


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


def reference_threshold(reference: float, answers: int) -> float:
    """Return the lowest accuracy that TensorRT-LLM's own tests accept for the reference."""
    return reference + Z_ALPHA * math.sqrt(2 * SIGMA**2 / answers)


def gates(
    results: Sequence[Mapping[str, Any]], min_score: Mapping[str, float], references: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return for each result with a lowest score that score, its source, and whether it is reached.

    ``references`` are TensorRT-LLM's by evaluation, for the evaluated model; ``min_score`` overrides them.
    """
    found = []
    for result in results:
        name = result["name"]
        if name in min_score:
            lowest, source = float(min_score[name]), "evaluation_min_score"
        elif name in references:
            reference, answers = references[name], result["answers"]
            lowest = reference_threshold(reference, answers)
            source = f"TensorRT-LLM's reference {reference:g} less the tolerance for {answers} answers"
        else:
            continue
        gate = {"name": name, "effort": result["effort"], "score": result["score"], "lowest": lowest, "source": source}
        found.append({**gate, "reached": result["score"] >= lowest})
    return found


def failed_gates(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe the gates that were not reached."""
    return [
        f"{gate['name']}, {gate['effort']}: {gate['score']:.4f} is below {gate['lowest']:.4f} ({gate['source']})"
        for gate in found
        if not gate["reached"]
    ]


# --- result file ------------------------------------------------------------------------------------------------------


def now() -> datetime:
    return datetime.now(timezone.utc)


class Kept:
    """The result file of a run. Every change is written at once."""

    def __init__(self, folder: Path, about: Mapping[str, Any], clock: Callable[[], datetime] = now) -> None:
        """Read the file of the folder, or create one. Raises OSError, and EvaluationError for a damaged file."""
        self._path, self._clock = folder / RESULT, clock
        if not self._path.exists():
            begun = {
                "schema": SCHEMA,
                "name": folder.name,
                "state": "running",
                "started": self._written(),
                "ended": None,
            }
            self.document: dict[str, Any] = {**begun, **about, "results": [], "gates": [], "problems": []}
            self._write()
            return
        try:
            self.document = json.loads(self._path.read_text(encoding="utf-8"))
            self.document["results"], self.document["problems"]
        except (ValueError, TypeError, KeyError) as error:
            raise EvaluationError(f"{self._path} is not a result of an evaluation: {error!r}") from None

    def add(self, results: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Add results with the engine options in use. Return the new ones."""
        there = [(result["name"], result["effort"]) for result in self.document["results"]]
        new = [
            {**result, "settings": dict(settings)}
            for result in results
            if (result["name"], result["effort"]) not in there
        ]
        if new:
            self.document["results"] += new
            self.document["problems"] += [
                f"{result['name']}, {result['effort']}: the endpoint refused {result['refused']} of {result['answers']}"
                " requests (status 400), which the tool counts as wrong answers"
                for result in new
                if result["refused"]
            ]
            self._write()
        return new

    def end(self, problem: str = "", gates: Sequence[Mapping[str, Any]] = ()) -> None:
        """Set the final state: ``failed`` with a problem, now or before, else ``complete``."""
        if problem and problem not in self.document["problems"]:
            self.document["problems"].append(problem)
        state = "failed" if self.document["problems"] else "complete"
        self.document.update(state=state, ended=self._written())
        if gates:
            self.document["gates"] = [dict(gate) for gate in gates]
        self._write()

    def _written(self) -> str:
        return self._clock().isoformat(timespec="seconds")

    def _write(self) -> None:
        write_file(self._path, json.dumps(self.document, indent=2, ensure_ascii=False) + "\n")
