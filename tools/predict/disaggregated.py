# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare disaggregated with aggregated serving, as NVIDIA's AIConfigurator predicts both for the same GPUs.

Writes docs/reference/disaggregated-sizing.md, of the cases in tools/data/disaggregated.yml. The last line is one JSON
object. Each case takes half a minute of one core.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import SYSTEMS, Layout, Shape
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_prediction
from tools.markdown import table
from tools.predict.environment import python

ROOT = Path(__file__).resolve().parents[2]
DATA: dict[str, Any] = yaml.safe_load((ROOT / "tools/data/disaggregated.yml").read_text())
PAGE = ROOT / "docs/reference/disaggregated-sizing.md"
RATE = "tokens/s/gpu"
HEADER = [
    "GPUs",
    "Prompt/answer",
    "Tokens/s a user",
    "Aggregated",
    "Tokens/s a GPU",
    "First token",
    "Prefill",
    "Decode",
    "Tokens/s a GPU",
    "First token",
    "Disaggregated / aggregated",
]
Row = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """A question: the GPUs of a host, the tokens of a request, and what a user gets at least.

    ``user``: output tokens/s of a user; ``first_token``: milliseconds to the first token.
    """

    gpu_type: str
    gpus: int
    shape: Shape
    user: float
    first_token: float

    def command(self, folder: str) -> list[str]:
        given = {
            "model-path": DATA["model"],
            "system": SYSTEMS[self.gpu_type],
            "total-gpus": self.gpus,
            "isl": self.shape.prompt,
            "osl": self.shape.answer,
            "ttft": self.first_token,
            "tpot": 1000 / self.user,
            "backend": "trtllm",
            "save-dir": folder,
        }
        program = str(Path(python()).with_name("aiconfigurator"))
        return [program, "cli", "default", *(f"--{name}={value}" for name, value in given.items()), "--no-color"]


def cases() -> list[Case]:
    return [
        Case(gpu_type, gpus, Shape(*shape), user, DATA["first_token"])
        for gpu_type, gpus in DATA["hosts"].items()
        for shape in DATA["shapes"]
        for user in DATA["users"]
    ]


def best(folder: Path, way: str, case: Case) -> Row | None:
    """Return the layout with the most tokens/s a GPU within both limits; ``way`` is agg or disagg."""
    found = [row for path in folder.rglob(f"{way}/pareto.csv") for row in csv.DictReader(path.open(encoding="utf-8"))]
    within = [
        row
        for row in found
        if float(row["ttft"]) <= case.first_token
        and float(row["tokens/s/user"]) >= case.user * 0.999
        # Whole hosts only.
        and case.gpus % int(float(row["num_total_gpus"])) == 0
    ]
    return max(within, key=lambda row: float(row[RATE]), default=None)


def predict(case: Case) -> tuple[Row | None, Row | None]:
    """Ask AIConfigurator. Raises CalledProcessError with its output."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(case.command(folder), check=True, capture_output=True, text=True, timeout=600)
        return best(Path(folder), "agg", case), best(Path(folder), "disagg", case)


def layout(row: Row, side: str = "") -> Layout:
    """Return the parallelism of a worker; ``side`` is the prefix of its columns."""
    split, ranks, experts = (int(float(row[f"{side}{name}"])) for name in ("tp", "dp", "moe_ep"))
    return Layout(split * ranks, ranks > 1, experts)


def cells(case: Case, both: tuple[Row | None, Row | None]) -> list[str]:
    aggregated, disaggregated = both

    def rate(row: Row) -> list[str]:
        return [f"{float(row[RATE]):,.0f}", f"{float(row['ttft']):,.0f} ms"]

    one = [str(layout(aggregated)), *rate(aggregated)] if aggregated else ["none", "", ""]
    other = ["none", "", "", ""]
    if disaggregated:
        workers = [
            f"{int(float(disaggregated[f'({kind})workers']))} x {layout(disaggregated, f'({kind})')}" for kind in "pd"
        ]
        other = [*workers, *rate(disaggregated)]
    ratio = f"{float(disaggregated[RATE]) / float(aggregated[RATE]):.2f}" if aggregated and disaggregated else ""
    return [f"{case.gpus} x {case.gpu_type}", str(case.shape), f"{case.user:g}", *one, *other, ratio]


def page(rows: Sequence[Sequence[str]]) -> str:
    ratios = [float(row[-1]) for row in rows if row[-1]]
    better = sum(ratio > 1 for ratio in ratios)
    return "\n".join(
        [
            "# Disaggregated beside aggregated serving\n",
            "<!-- Written by `make disaggregated-sizing`. -->\n",
            f"AIConfigurator {load_prediction()['version']} predicts both for {DATA['model']} on the same GPUs: the "
            "layout with the most output tokens/s a GPU that gives each user at least the tokens/s of the row, the "
            f"first token within {DATA['first_token']:,} ms. It knows neither queues nor bursts, and assumes a fast "
            "transfer of the KV cache. [Predictions](predictions.md) has how far it is from published figures: on "
            "H100 up to half above them, so a ratio within a tenth of 1 says nothing. A layout smaller than the host "
            "repeats.\n",
            f"In {better} of {len(ratios)} cases disaggregated serving gives more. DEP is attention DP with whole "
            "experts on each GPU.\n",
            table(HEADER, rows),
        ]
    )


def main() -> None:
    rows = []
    for case in cases():
        try:
            rows.append(cells(case, predict(case)))
        except subprocess.CalledProcessError as error:
            sys.exit(f"{case}: {error.stderr[-2000:]}")
        print(" | ".join(rows[-1]), flush=True)
    PAGE.write_text(page(rows), encoding="utf-8")
    print(json.dumps({"cases": len(rows), "page": str(PAGE.relative_to(ROOT))}))


if __name__ == "__main__":
    main()
