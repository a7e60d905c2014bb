# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write and read the result of a benchmark: one JSON document that grows with each load."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import Scenario
from ansible_collections.trtllm.fleet.plugins.plugin_utils.documents import VERSIONS, identified

KIND = "benchmark"
RESULT = "result.json"
# The tool's own result of each load.
RAW = "raw"

# An interrupted run stays "running".
State = Literal["running", "complete", "failed"]
Point = Mapping[str, Any]
Clock = Callable[[], datetime]


class RunError(ValueError):
    """An invalid result file; the message has its path and the cause."""


def now() -> datetime:
    return datetime.now(UTC)


class Run:
    """A benchmark in progress. Every change is written at once."""

    def __init__(
        self,
        folder: Path,
        target: Mapping[str, Any],
        scenarios: Sequence[Scenario],
        repeat: int,
        ran_on: Mapping[str, Any],
        slo: Mapping[str, float],
        clock: Clock = now,
    ) -> None:
        self._clock = clock
        began = clock()
        self.name = f"{began:%Y%m%dT%H%M%SZ}-{re.sub('[^A-Za-z0-9.-]+', '-', target['name'])}"
        # New prompts for each run; tools take 31 bits.
        self.seed = int(began.timestamp()) % 2**31
        self.folder = folder / self.name
        self.folder.mkdir(parents=True)
        content = {
            "name": self.name,
            "state": "running",
            "started": _written(began),
            "ended": None,
            "target": dict(target),
            "ran_on": dict(ran_on),
            "scenarios": [asdict(scenario) for scenario in scenarios],
            "repeat": repeat,
            "slo": dict(slo),
            "points": [],
            "problems": [],
        }
        self.document = identified(KIND, content)
        self._write()

    def add(self, point: Point, result: Mapping[str, Any]) -> dict[str, Any]:
        """Add the result of a load, as module benchmark_load returns it."""
        kept = {
            **{name: point[name] for name in ("scenario", "tool", "concurrency", "round", "seed")},
            "version": result["version"],
            "ended": _written(self._clock()),
            **result["measured"],
            "problems": result["problems"],
        }
        raw = self.folder / RAW / f"{point['scenario']}-{point['concurrency']}-{point['round']}.json"
        write_file(raw, _json(result["raw"]))
        self.document["points"].append(kept)
        where = f"{point['scenario']}, {point['concurrency']} at once, round {point['round']}"
        self.document["problems"] += [f"{where}: {problem}" for problem in result["problems"]]
        self._write()
        return kept

    def note(self, **more: Any) -> None:
        """Add other values to the document."""
        self.document.update(more)
        self._write()

    def problem(self, text: str) -> None:
        self.document["problems"].append(text)
        self._write()

    def end(self, state: State) -> None:
        self.document.update(state=state, ended=_written(self._clock()))
        self._write()

    def _write(self) -> None:
        write_file(self.folder / RESULT, _json(self.document))


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def read_run(path: Path) -> dict[str, Any]:
    """Read a result by its file or its directory. Raises RunError."""
    file = path / RESULT if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{file} is not JSON: {error}") from None
    about = document if isinstance(document, dict) else {}
    # The first results have no kind, and are of version 1.
    if (about.get("kind", KIND), about.get("schema")) != (KIND, VERSIONS[KIND]):
        found = f"kind {about.get('kind')}, schema {about.get('schema')}"
        supported = f"kind {KIND}, schema {VERSIONS[KIND]}"
        raise RunError(f"{file} is not a readable benchmark result: {found}; supported is {supported}")
    return about


def value(point: Point, path: str) -> float | None:
    """Return the value at a path such as ``ttft_ms.p99``, None if the tool did not measure it."""
    group, _dot, name = path.partition(".")
    found = (point.get(group) or {}).get(name)
    return None if found is None else float(found)


def loads(document: Mapping[str, Any]) -> Iterator[tuple[str, int, list[Point]]]:
    """Yield scenario, concurrency and the successful rounds of each load, in order."""
    found: dict[tuple[str, int], list[Point]] = {}
    for point in document["points"]:
        if not point["problems"]:
            found.setdefault((point["scenario"], point["concurrency"]), []).append(point)
    for (scenario, users), points in found.items():
        yield scenario, users, points


def at_once(document: Mapping[str, Any], scenario: str, users: int, points: Sequence[Point]) -> int:
    """Return how many requests a load had at a time; of random arrivals the most that all rounds had, 0 if unknown."""
    rates = {one["name"]: one.get("request_rate", 0) for one in document["scenarios"]}
    if not rates.get(scenario):
        return users
    return min((point["requests"].get("most_at_once") or 0 for point in points), default=0)


def median(points: Sequence[Point], path: str) -> float | None:
    """Return the median of the rounds, None if a round does not have the value."""
    values = [found for point in points if (found := value(point, path)) is not None]
    return statistics.median(values) if values and len(values) == len(points) else None
