# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was published for the same model, GPU and lengths, and how much of it a result reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import loads, median

FIGURE = "output_tokens_per_second_per_gpu"
Row = Mapping[str, Any]


def matching(rows: Sequence[Row], document: Mapping[str, Any], scenario: str) -> list[Row]:
    """The published figures of the same model, GPU type and lengths as a scenario of a result."""
    target = document["target"]
    subjects = list(document["ran_on"].values())
    gpu_types = {target.get("gpu_type"), *(subject.get("gpu_type") for subject in subjects)} - {None, ""}
    models = {short(model) for model in (target.get("model"), *(subject.get("model") for subject in subjects)) if model}
    lengths = [(one["input_tokens"], one["output_tokens"]) for one in document["scenarios"] if one["name"] == scenario]
    return [
        row
        for row in rows
        if gpu_types == {row["gpu_type"]}
        and short(row["model"]) in models
        and (row["input_tokens"], row["output_tokens"]) in lengths
    ]


def short(model: str) -> str:
    """A model's name without whose it is."""
    return model.rpartition("/")[2]


def missed(rows: Sequence[Row], document: Mapping[str, Any], share: float) -> Iterator[str]:
    """Why a result does not reach that share of what was published, scenario by scenario."""
    for scenario in (one["name"] for one in document["scenarios"]):
        found = matching(rows, document, scenario)
        if not found:
            yield f"{scenario}: nothing was published for this model, GPU type and these lengths"
            continue
        rates = [
            median(points, f"throughput.{FIGURE}") or 0.0
            for name, _users, points in loads(document)
            if name == scenario
        ]
        best, most = max(rates, default=0.0), max(row[FIGURE] for row in found)
        if best < share * most:
            yield f"{scenario}: {best:g} tokens/s and GPU, less than {share:g} of the {most:g} that were published"
