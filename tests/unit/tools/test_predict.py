"""The check of default recipes against predictions: which layouts it compares, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import (
    BATCHES,
    SYSTEMS,
    Layout,
    Question,
    Shape,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_published
from tools.predict import check
from tools.predict.check import Cell, judge
from tools.recipe_pages import HARDWARE

ONE, TEP2, DEP2 = Layout(1, False, 1), Layout(2, False, 2), Layout(2, True, 2)
CELL = Cell("openai/gpt-oss-120b", "h200", 2, "max_throughput", Shape(1024, 1024), ONE, 640)


def answers(cell: Cell, speed: Callable[[Question], float | None]) -> dict[Question, dict[str, Any]]:
    """Answer each question with tokens/s of a GPU; a user gets 100 at batch 1, less at larger ones."""
    found: dict[Question, dict[str, Any]] = {}
    for question in cell.questions():
        value = speed(question)
        found[question] = (
            {"problem": "no data"}
            if value is None
            else {
                "tokens_per_second_per_gpu": value * question.batch,
                "tokens_per_second_per_user": 2000 / (question.batch + 19),
            }
        )
    return found


def test_all_layouts_of_the_gpus_are_compared() -> None:
    assert CELL.candidates() == [ONE, TEP2, DEP2]
    assert [str(layout) for layout in CELL.candidates()] == ["TP1", "TP2 EP2", "DEP2"]


def test_the_default_is_compared_up_to_its_own_batch_size() -> None:
    assert max(CELL.batches(ONE)) == 640
    assert max(CELL.batches(DEP2)) == max(BATCHES)


def test_a_batch_with_too_little_for_each_user_does_not_count() -> None:
    result = judge(CELL, answers(CELL, lambda question: {ONE: 1.0, TEP2: 0.5, DEP2: 0.9}[question.layout]))
    # 2000 / (64 + 19) is 24 tokens/s of a user, at 96 it is 17.
    assert [(layout, value, batch) for layout, value, batch in result.values] == [
        (ONE, 64.0, 64),
        (DEP2, pytest.approx(57.6), 64),
        (TEP2, 32.0, 64),
    ]
    assert (result.share, result.verdict) == (1.0, "passed")


@pytest.mark.parametrize(("own", "verdict"), [(0.98, "passed"), (0.96, "failed")])
def test_a_default_has_nearly_the_best(own: float, verdict: str) -> None:
    result = judge(CELL, answers(CELL, lambda question: own if question.layout == ONE else 1.0))
    assert result.share == pytest.approx(own)
    assert result.verdict == verdict


def test_a_reason_explains_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"for": {"gpu_type": ["h200"], "gpus": 2, "predicted": True}, "because": "Because"}]
    monkeypatch.setitem(check.DATA, "explained", rows)
    result = judge(CELL, answers(CELL, lambda question: 0.5 if question.layout == ONE else 1.0))
    assert (result.verdict, result.explanation) == ("explained", 1)
    assert check.row(result)[-1] == "reason 1"
    answered = {one: {"problem": "none"} for row in load_published() for one in check.published_questions(row)}
    assert "## Reasons\n\n1. Because.\n" in check.page([result], answered)


def test_a_default_without_a_prediction_needs_a_reason() -> None:
    result = judge(CELL, answers(CELL, lambda question: None if question.layout == ONE else 1.0))
    assert (result.share, result.verdict, result.unknown) == (None, "failed", [ONE])


def test_nothing_predicted_is_no_failure() -> None:
    assert judge(CELL, answers(CELL, lambda _question: None)).verdict == "no prediction"


def test_a_page_has_each_cell_below_its_goal() -> None:
    found = answers(CELL, lambda question: 0.5 if question.layout == ONE else 1.0)
    unknown = {one: {"problem": "none"} for row in load_published() for one in check.published_questions(row)}
    text = check.page([judge(CELL, found)], {**unknown, **found})
    headings = [part.partition("\n")[0] for part in text.split("## ")[1:]]
    figures = "Predictions and NVIDIA's published figures"
    assert headings == ["Low latency", "Max throughput", "Agentic", "Reasons", figures]
    _before, low_latency, max_throughput, *_after = text.split("## ")
    assert "with one request at a time" in low_latency
    assert "2 x h200" not in low_latency
    assert "with at least 20 tokens/s for each user" in max_throughput
    assert [line for line in max_throughput.splitlines() if "2 x h200" in line and "50%" in line and "failed" in line]


def test_low_latency_is_one_request() -> None:
    cell = Cell("openai/gpt-oss-120b", "h200", 2, "low_latency", Shape(1024, 1024), TEP2, 64)
    assert cell.batches(ONE) == [1]


def test_cells_have_the_default_layouts() -> None:
    found = list(check.cells())
    assert {cell.gpu_type for cell in found} == set(SYSTEMS) & set(HARDWARE)
    assert {cell.model for cell in found} == {"openai/gpt-oss-120b", "openai/gpt-oss-20b"}
    (b200,) = {
        cell.layout
        for cell in found
        if (cell.gpu_type, cell.count) == ("b200", 8) and "120b" in cell.model and cell.use_case == "max_throughput"
    }
    assert b200 == DEP2
    assert {cell.shape.cached for cell in found if cell.use_case == "agentic" and cell.shape.prompt == 32000} == {28800}
    assert all(cell.layout in cell.candidates() for cell in found)


@pytest.mark.parametrize(
    ("gpu_type", "experts", "cache"), [("b200", "w4a8_mxfp4_mxfp8", "fp8"), ("h100", "w4a16_mxfp4", "bfloat16")]
)
def test_a_question_says_how_the_weights_are_quantized(gpu_type: str, experts: str, cache: str) -> None:
    """AIConfigurator's own default is that of Hopper."""
    given = Question("openai/gpt-oss-120b", gpu_type, Shape(1024, 512, 128), DEP2, 64).arguments()
    assert (given["moe_quant_mode"], given["kvcache_quant_mode"]) == (experts, cache)
    assert given["tp_size"] * given["attention_dp_size"] == given["moe_tp_size"] * given["moe_ep_size"] == 2
    assert (given["isl"], given["osl"], given["prefix"], given["batch_size"]) == (1024, 512, 128, 64)
