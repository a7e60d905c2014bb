# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accuracy of what serves: which evaluations with which server settings, what they gave, and whether that is enough."""

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

# The evaluations, and the files of their data sets.
DATA_SETS: dict[str, tuple[str, ...]] = {
    "basic": (),
    "gpqa": ("gpqa_diamond.csv",),
    "aime25": ("aime2025-I.jsonl", "aime2025-II.jsonl"),
    "gsm8k": ("gsm8k_test.jsonl", "gsm8k_train.jsonl"),
}
EFFORTS = ("low", "medium", "high")
# What program evaluate.py writes, the first of them last.
FILES = (".json", ".html", "_allresults.json")
# A line of the tool's progress, with the name that the program gives it: ``gpqa, low:  12%|#2  | 24/198 [00:31<``.
PROGRESS = re.compile(r"^(\w+), (\w+): +\d+%\|[^|]*\| (\d+)/(\d+) \[", re.MULTILINE)
FAILURE = re.compile(r"^Rate limit exception so wait and retry \d+ after \d+ sec *(.*)$", re.MULTILINE)

# TensorRT-LLM's own test of an accuracy: it is too low where chance makes it so low once in twenty times, with a
# standard deviation of 50 percent for each answer, of the reference and of what is measured.
Z_ALPHA = -1.6448536269514722
SIGMA = 0.5

# Counts up when a reader of older files would misunderstand newer ones.
SCHEMA = 1
RESULT = "result.json"


class EvaluationError(Exception):
    """It cannot be evaluated, or there is no result; the message says why."""


# --- what is to be done -----------------------------------------------------------------------------------------------


def problems(names: Sequence[str], efforts: Sequence[str], min_score: Mapping[str, Any]) -> Iterator[str]:
    """Why these are no evaluations, efforts or gates, with the variable to change."""
    for variable, given, known in (
        ("evaluation_names", names, tuple(DATA_SETS)),
        ("evaluation_efforts", efforts, EFFORTS),
        ("evaluation_min_score", tuple(min_score), tuple(DATA_SETS)),
    ):
        if not given and variable != "evaluation_min_score":
            yield f"{variable} is empty. Choose from {', '.join(known)}."
        for name in given:
            if name not in known:
                yield f"{variable} has {name!r}.{did_you_mean(name, known)} Known are {', '.join(known)}."
    for name, score in min_score.items():
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:
            yield f"evaluation_min_score.{name} is {score!r}; it must be a number from 0 to 1."


def layout(recipe: Mapping[str, Any]) -> str:
    """How an instance of a recipe shares its GPUs, in the documents' words: ``DEP8``, ``TP4``."""
    kind = "DEP" if recipe["engine_options"].get("enable_attention_dp") else "TP"
    return f"{kind}{len(recipe['instances'][0]['gpus'])}"


def steps(
    efforts: Sequence[str], recipe: Mapping[str, Any], table: Sequence[Mapping[str, Any]], own: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Which efforts run with which engine options, those with the same ones together.

    ``table`` has rows of ``efforts``, ``layouts`` and ``settings``; ``own`` settings by effort go before it.
    Raises EvaluationError for an effort that has none.
    """
    here = layout(recipe)
    found: list[dict[str, Any]] = []
    for effort in efforts:
        rows = [row["settings"] for row in table if effort in row["efforts"] and here in row["layouts"]]
        settings = own.get(effort) or next(iter(rows), None)
        if settings is None:
            known = ", ".join(dict.fromkeys(name for row in table for name in row["layouts"]))
            raise EvaluationError(
                f"The documents have no server settings for {here}, which the host serves with, only for {known}. Set"
                f" evaluation_settings.{effort} to engine options of your own, or evaluation_apply_settings to false,"
                " which evaluates what serves as it is."
            )
        step = next((step for step in found if step["settings"] == settings), None)
        if step:
            step["efforts"].append(effort)
        else:
            found.append({"efforts": [effort], "settings": dict(settings)})
    return found


def missing(names: Sequence[str], there: Sequence[str]) -> list[str]:
    """Files of data sets that are not there."""
    return [file for name in names for file in DATA_SETS[name] if file not in there]


def drift(served: Mapping[str, Any], resolved: Mapping[str, Any]) -> list[str]:
    """In what the inventory asks for something else than serves, but for what does not change an answer."""
    names = ("model", "image", "engine_options", "flags", "environment")
    found = [name for name in names if (served.get(name) or {}) != (resolved.get(name) or {})]
    gpus = [[instance["gpus"] for instance in one.get("instances") or []] for one in (served, resolved)]
    return found if gpus[0] == gpus[1] else [*found, "instances"]


# --- while it runs ----------------------------------------------------------------------------------------------------


def progress(log: str) -> dict[str, Any]:
    """The last that its output says of how far it is, and of what keeps it; empty before the first request."""
    bars = list(PROGRESS.finditer(log))
    if not bars:
        return {}
    name, effort, done, total = bars[-1].groups()
    failures = [match for match in FAILURE.finditer(log) if match.start() > bars[-1].start()]
    trouble = failures[-1][1].strip() if failures else ""
    return {"name": name, "effort": effort, "done": int(done), "total": int(total), "trouble": trouble}


def line(progress: Mapping[str, Any], seconds: float) -> str:
    """How far it is, for people."""
    if not progress:
        return f"starting, {seconds:.0f} s"
    told = f"{progress['name']}, {progress['effort']}: {progress['done']} of {progress['total']} after {seconds:.0f} s"
    return f"{told}; trying again after {progress['trouble']}" if progress["trouble"] else told


def end(folder: Path) -> None:
    """End a command that was begun in a folder, and see it end."""
    with suppress(OSError):
        os.utime(folder / background_command.LEASE, (0, 0))  # nobody asks for it any longer
    deadline = time.monotonic() + background_command.GRACE_SECONDS * 2
    while not (folder / background_command.END).exists() and time.monotonic() < deadline:
        time.sleep(background_command.LOOK_SECONDS)


# --- what it gave -----------------------------------------------------------------------------------------------------


def read_score(path: Path) -> dict[str, Any]:
    """The score of one evaluation from the file that the program wrote. Raises EvaluationError."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvaluationError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise EvaluationError(f"{path} is no JSON: {error}") from None
    numbers = {name: said.get(name) if isinstance(said, dict) else None for name in ("score", "answers", "seconds")}
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise EvaluationError(f"{path}: {name} is {number!r}, and no number")
    score, answers = float(numbers["score"] or 0), int(numbers["answers"] or 0)
    if answers < 1 or not 0 <= score <= 1:
        raise EvaluationError(f"{path}: a score of {score:g} from {answers} answers is none")
    return {
        "score": score,
        "standard_error": standard_error(score, answers),
        "answers": answers,
        "refused": int(said.get("refused") or 0),
        "cut_off": int(said.get("cut_off") or 0),
        "seconds": float(numbers["seconds"] or 0),
    }


def standard_error(score: float, answers: int) -> float | None:
    """Of a share of right answers, each counted as independent of the others; None where one answer cannot tell."""
    return math.sqrt(score * (1 - score) / (answers - 1)) if answers > 1 else None


def scores(folder: Path, names: Sequence[str], efforts: Sequence[str]) -> list[dict[str, Any]]:
    """What is there so far, in the order of the run. Raises EvaluationError for a damaged file."""
    found = []
    for effort in efforts:
        for name in names:
            path = folder / f"{name}-{effort}.json"
            if path.exists():
                files = [f"{name}-{effort}{suffix}" for suffix in FILES]
                found.append({"name": name, "effort": effort, **read_score(path), "files": files})
    return found


def reference_threshold(reference: float, answers: int) -> float:
    """The lowest accuracy that TensorRT-LLM's own tests take for the reference, all from 0 to 1."""
    return reference + Z_ALPHA * math.sqrt(2 * SIGMA**2 / answers)


def gates(
    results: Sequence[Mapping[str, Any]], min_score: Mapping[str, float], references: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The lowest score of each result that has one, where it comes from, and whether it is reached.

    ``references`` are TensorRT-LLM's by evaluation, for the model that was asked; what an operator set goes before.
    """
    found = []
    for result in results:
        name = result["name"]
        if name in min_score:
            lowest, source = float(min_score[name]), "evaluation_min_score"
        elif name in references:
            reference, answers = references[name], result["answers"]
            lowest = reference_threshold(reference, answers)
            source = f"TensorRT-LLM's reference {reference:g}, less what chance takes from {answers} answers"
        else:
            continue
        gate = {"name": name, "effort": result["effort"], "score": result["score"], "lowest": lowest, "source": source}
        found.append({**gate, "reached": result["score"] >= lowest})
    return found


def failed_gates(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those that were not reached, for people."""
    return [
        f"{gate['name']}, {gate['effort']}: {gate['score']:.4f} is below {gate['lowest']:.4f} ({gate['source']})"
        for gate in found
        if not gate["reached"]
    ]


# --- what is kept -----------------------------------------------------------------------------------------------------


def now() -> datetime:
    return datetime.now(timezone.utc)


class Kept:
    """The result of a run, a file from its begin on. Every change is in the file before anything else happens."""

    def __init__(self, folder: Path, about: Mapping[str, Any], clock: Callable[[], datetime] = now) -> None:
        """Go on with what is in the folder, or begin it. Raises OSError, and EvaluationError for a damaged file."""
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
            raise EvaluationError(f"{self._path} is no result of an evaluation: {error!r}") from None

    def add(self, results: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Keep results, each with the engine options that were applied for it. The answer is those that are new."""
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
        """Its last state: ``failed`` with a problem, now or before, else ``complete``."""
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
