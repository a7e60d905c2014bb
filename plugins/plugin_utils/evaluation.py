# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan an evaluation, check its scores, and write its result file, on the control node."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.evaluation import EvaluationError
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
# TensorRT-LLM's test of an accuracy: one-sided at 5 %, with a standard deviation of 50 % for each answer of the
# reference and of the measurement.
Z_ALPHA = -1.6448536269514722
SIGMA = 0.5

# Increases when a reader of older files would misread newer ones.
SCHEMA = 1
RESULT = "result.json"


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


def drift(served: Mapping[str, Any], resolved: Mapping[str, Any]) -> list[str]:
    """Return the parts that change answers and differ between the running release and the inventory."""
    names = ("model", "draft_model", "image", "engine_options", "flags", "environment")
    found = [name for name in names if (served.get(name) or {}) != (resolved.get(name) or {})]
    gpus = [[instance["gpus"] for instance in one.get("instances") or []] for one in (served, resolved)]
    return found if gpus[0] == gpus[1] else [*found, "instances"]


def plan(
    names: Sequence[str],
    efforts: Sequence[str],
    min_score: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    resolved: Mapping[str, Any] | None = None,
    table: Sequence[Mapping[str, Any]] = (),
    own: Mapping[str, Any] | None = None,
    datasets: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the ``steps`` and the ``problems``, as filter evaluation_plan describes."""
    found = list(problems(names, efforts, min_score or {}))
    planned: list[dict[str, Any]] = [{"efforts": list(efforts), "settings": {}}]
    if found:
        return {"steps": planned, "problems": found}
    if datasets is not None and (
        lacking := [file for name in names for file in DATA_SETS[name] if file not in datasets]
    ):
        found.append(
            f"evaluation_datasets_dir lacks {', '.join(lacking)}. Copy them as docs/how-to/evaluate.md describes."
        )
    if recipe:
        if changed := drift(recipe, resolved or recipe):
            found.append(
                f"The running release has another {', '.join(changed)} than the inventory. Run site.yml or rollout.yml,"
                " or set evaluation_apply_settings to false to evaluate the running release."
            )
        try:
            planned = steps(efforts, recipe, table, own or {})
        except EvaluationError as error:
            found.append(str(error))
    return {"steps": planned, "problems": found}


def line(progress: Mapping[str, Any], seconds: float) -> str:
    """Return a line of progress."""
    if not progress:
        return f"starting, {seconds:.0f} s"
    told = f"{progress['name']}, {progress['effort']}: {progress['done']} of {progress['total']} after {seconds:.0f} s"
    return f"{told}; trying again after {progress['trouble']}" if progress["trouble"] else told


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


def now() -> datetime:
    return datetime.now(UTC)


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
