# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan an evaluation, check its scores, and write its result file, on the control node."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.evaluation import ONE_SIDED, EvaluationError
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
# Quantile of the normal distribution below which are 80 percent: the power that a gate's smallest difference has.
POWER = 0.8416212335729143

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
    for name, lowest in min_score.items():
        by_effort = lowest if isinstance(lowest, Mapping) else {"": lowest}
        for effort, score in by_effort.items():
            if effort and effort not in EFFORTS:
                yield f"evaluation_min_score.{name} has {effort!r}; allowed are {', '.join(EFFORTS)}."
            if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:
                at = f"{name}.{effort}" if effort else name
                yield f"evaluation_min_score.{at} is {score!r}; it must be a number from 0 to 1."


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


@dataclass(frozen=True)
class Lowest:
    """The lowest score of an evaluation with an effort. ``error``: its own standard error, of a measured reference."""

    score: float
    source: str
    error: float = 0.0


def lowest_score(
    name: str, effort: str, min_score: Mapping[str, Any], references: Mapping[str, Mapping[str, Any]]
) -> Lowest | None:
    """Return the lowest score; None without one.

    ``min_score``, a number or numbers by effort, overrides the ``references``: ``accuracy``, ``effort`` and ``answers``
    of each. A reference counts for the effort at which it was measured.
    """
    if name in min_score:
        own = min_score[name]
        score = own.get(effort) if isinstance(own, Mapping) else own
        return None if score is None else Lowest(float(score), "evaluation_min_score")
    reference = references.get(name)
    if not reference or reference["effort"] != effort:
        return None
    score, answers = float(reference["accuracy"]), int(reference["answers"])
    return Lowest(score, f"TensorRT-LLM's reference from {answers} answers", math.sqrt(score * (1 - score) / answers))


def gates(
    results: Sequence[Mapping[str, Any]], min_score: Mapping[str, Any], references: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return for each result with a lowest score that score, its source, and whether it is reached.

    It is missed if the score is lower by more than chance gives once in twenty times (95 percent, one-sided). With it,
    ``detects``: the highest true score that misses it in four of five runs of the same size, with other questions.
    """
    found = []
    for result in results:
        lowest = lowest_score(result["name"], result["effort"], min_score, references)
        if not lowest:
            continue
        score = result["score"]
        # The bound of a difference from the bounds of its parts (R. G. Newcombe, 1998).
        upper = score + math.hypot(result["upper"] - score, ONE_SIDED * lowest.error)
        spread = math.hypot(math.sqrt(lowest.score * (1 - lowest.score) / result["worth"]), lowest.error)
        gate = {
            **{name: result[name] for name in ("name", "effort", "score", "interval")},
            "lowest": lowest.score,
            "source": lowest.source,
            "detects": max(0.0, lowest.score - (ONE_SIDED + POWER) * spread),
            "reached": upper >= lowest.score,
        }
        found.append({**gate, "text": gate_text(gate)})
    return found


def gate_text(gate: Mapping[str, Any]) -> str:
    """Return what a gate compared, and which difference it finds."""
    power = f"; of a true score of {gate['detects']:.3f} four of five runs with other questions fail"
    return (
        f"{gate['name']}, {gate['effort']}: {gate['score']:.4f} ({_between(gate['interval'])}) is"
        f" {'not certainly below' if gate['reached'] else 'below'} {gate['lowest']:.4f} ({gate['source']}){power}"
    )


def failed_gates(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe the gates that were not reached."""
    return [str(gate["text"]) for gate in found if not gate["reached"]]


def _between(bounds: Sequence[float]) -> str:
    return f"95 % interval {bounds[0]:.4f} to {bounds[1]:.4f}"


def score_text(result: Mapping[str, Any]) -> str:
    """Return a score with its interval and what is known of its answers."""
    counts = {
        "answers ended at the limit of tokens": result["truncated"],
        "came after an answer without text": result["asked_again"],
        "had no text at all and count as wrong": result["cut_off"],
        "requests were sent again after an error": result["rejected"],
    }
    told = "".join(f"; {number} {what}" for what, number in counts.items() if number)
    return (
        f"score {result['score']:.4f} ({_between(result['interval'])}) from {result['answers']} answers to"
        f" {result['questions']} questions in {result['seconds']:.0f} s{told}"
    )


def incomplete(result: Mapping[str, Any], most: float) -> str:
    """Return why a score says little of the model: more answers than the share ``most`` are incomplete; else empty."""
    if result["incomplete"] <= most * result["answers"]:
        return ""
    return (
        f"{result['name']}, {result['effort']}: {result['truncated']} of {result['answers']} answers ended at the limit"
        f" of tokens, and {result['asked_again']} came after one without text; evaluation_max_incomplete allows"
        f" {most:.0%} of them. Set evaluation_max_tokens or the engine's max_seq_len higher"
    )


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

    def add(
        self, results: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], max_incomplete: float
    ) -> list[dict[str, Any]]:
        """Add results with the engine options in use. Return the new ones."""
        there = [(result["name"], result["effort"]) for result in self.document["results"]]
        new = [
            {**result, "settings": dict(settings), "text": score_text(result)}
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
            self.document["problems"] += filter(None, (incomplete(result, max_incomplete) for result in new))
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
