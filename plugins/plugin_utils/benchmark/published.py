# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select the published figures of a result's model, GPU and lengths, and compare the result with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import loads, median
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import comparable_lengths

FIGURE = "output_tokens_per_second_per_gpu"
Row = Mapping[str, Any]


def matching(rows: Sequence[Row], document: Mapping[str, Any], scenario: str) -> list[Row]:
    """Return the published figures with the model, GPU type and lengths of a result's scenario.

    They are the most that GPUs reach, so a scenario with random arrivals has none.
    """
    target = document["target"]
    subjects = list(document["ran_on"].values())
    gpu_types = {target.get("gpu_type"), *(subject.get("gpu_type") for subject in subjects)} - {None, ""}
    models = {short(model) for model in (target.get("model"), *(subject.get("model") for subject in subjects)) if model}
    lengths = comparable_lengths(document["scenarios"]).get(scenario)
    return [
        row
        for row in rows
        if gpu_types == {row["gpu_type"]}
        and short(row["model"]) in models
        and (row["input_tokens"], row["output_tokens"]) == lengths
    ]


def short(model: str) -> str:
    """Return a model's name without its owner."""
    return model.rpartition("/")[2]


def missed(rows: Sequence[Row], document: Mapping[str, Any], share: float) -> Iterator[str]:
    """Yield the scenarios that do not reach a share of the published figure."""
    for scenario in (one["name"] for one in document["scenarios"]):
        found = matching(rows, document, scenario)
        if not found:
            yield f"{scenario}: no figure is published for this model, GPU type and these lengths"
            continue
        rates = [
            median(points, f"throughput.{FIGURE}") or 0.0
            for name, _users, points in loads(document)
            if name == scenario
        ]
        best, most = max(rates, default=0.0), max(row[FIGURE] for row in found)
        if best < share * most:
            yield f"{scenario}: {best:g} tokens/s per GPU, less than {share:g} of the published {most:g}"
