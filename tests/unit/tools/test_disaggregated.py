"""The comparison of disaggregated with aggregated serving, from tables as AIConfigurator saves them."""

from __future__ import annotations

import csv
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import Shape
from tools.predict.disaggregated import DATA, HEADER, Case, best, cases, cells, page

CASE = Case("h200", 8, Shape(8192, 1024), 20, 2000)
AGG = {"ttft": "1923.447", "tokens/s/user": "20.421", "tokens/s/gpu": "1909.178", "num_total_gpus": "1"}
AGG |= {"tp": "1", "dp": "1", "moe_ep": "1"}
DISAGG = {"ttft": "521.568", "tokens/s/user": "21.545", "tokens/s/gpu": "1607.071", "num_total_gpus": "8"}
DISAGG |= {"(p)workers": "5", "(p)tp": "1", "(p)dp": "1", "(p)moe_ep": "1"}
DISAGG |= {"(d)workers": "3", "(d)tp": "1", "(d)dp": "2", "(d)moe_ep": "2"}


def save(folder: Path, way: str, *rows: dict[str, str]) -> None:
    (folder / "run" / way).mkdir(parents=True)
    with (folder / "run" / way / "pareto.csv").open("w") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)


def test_the_best_layout_keeps_both_limits_and_fills_hosts(tmp_path: Path) -> None:
    late = {**AGG, "ttft": "2001", "tokens/s/gpu": "9000"}
    slow = {**AGG, "tokens/s/user": "19", "tokens/s/gpu": "9000"}
    odd = {**AGG, "num_total_gpus": "3", "tokens/s/gpu": "9000"}
    less = {**AGG, "tokens/s/gpu": "1000"}
    save(tmp_path, "agg", late, slow, less, AGG, odd)
    assert best(tmp_path, "agg", CASE) == AGG
    assert best(tmp_path, "disagg", CASE) is None


def test_a_row() -> None:
    row = cells(CASE, (AGG, DISAGG))
    assert row == [
        "8 x h200",
        "8,192/1,024",
        "20",
        "TP1",
        "1,909",
        "1,923 ms",
        "5 x TP1",
        "3 x DEP2",
        "1,607",
        "522 ms",
        "0.84",
    ]
    assert len(row) == len(HEADER)
    assert cells(CASE, (AGG, None))[-5:] == ["none", "", "", "", ""]
    assert "In 0 of 1 cases" in page([row, cells(CASE, (None, DISAGG))])


def test_every_case_of_the_data_is_asked() -> None:
    assert len(cases()) == len(DATA["hosts"]) * len(DATA["shapes"]) * len(DATA["users"])
