"""Predictions of a plan, with a stand-in for AIConfigurator."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction import predictor
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.plan import Settings, lines, predict
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import (
    Layout,
    PredictorError,
    Question,
    Shape,
    ask,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_prediction, serving_recipe

ERRORS = {"openai/gpt-oss-120b": {"h200": [0.41, 0.01]}}


def recipe(**asked: Any) -> dict[str, Any]:
    defaults = {"model": "openai/gpt-oss-120b", "use_case": "max_throughput", "gpu_count": 8, "port": 8000}
    return serving_recipe({**defaults, **asked})


def answers(questions: Sequence[Question]) -> Mapping[Question, dict[str, Any]]:
    """Answer with tokens/s of a GPU that grow with the batch, of which each user gets the fewer."""
    return {
        question: {
            "ttft_ms": 10.0 * question.batch,
            "tokens_per_second_per_user": 10240 / (question.batch + 1),
            "tokens_per_second_per_gpu": 100.0 * question.batch,
        }
        for question in questions
    }


def settings(**more: Any) -> Settings:
    return Settings(load_prediction(), ERRORS, **more)


def test_the_best_number_of_requests_for_the_use_case() -> None:
    (found,) = predict([recipe(gpu_type="h200")], settings(gpu_hour_price=3.6), answers)
    # 10,240 / 513 is 19.96 tokens/s of a user, below the 20 of the objective.
    assert found == {
        "prompt": 1024,
        "cached": 0,
        "answer": 1024,
        "requests": 384,
        "ttft_ms": 3840.0,
        "per_user": 26.6,
        "per_gpu": 38400.0,
        "price": 0.026,
        "published": [0.41, 0.01],
        "measured": [],
    }
    assert list(lines(found)) == [
        "1,024 tokens answered by 1,024, 384 requests at a time: first token after 3,840 ms, 27 tokens/s a user, "
        "38,400 tokens/s a GPU, 0.03 for a million of them",
        "such predictions are +1% to +41% off NVIDIA's figures for this GPU (2)",
    ]


def test_requests_of_attention_dp_are_those_of_all_gpus() -> None:
    (found,) = predict([recipe(gpu_type="b200")], settings(), answers)
    assert (found["requests"], "price" in found) == (2 * 384, False)


def test_the_load_is_the_operators() -> None:
    asked = {"gpu_type": "h200", "use_case": "agentic"}
    (found,) = predict([recipe(**asked)], settings(prompt=10000, answer=100), answers)
    assert (found["prompt"], found["cached"], found["answer"]) == (10000, 9000, 100)
    assert "10,000 tokens (9,000 of them cached) answered by 100" in next(lines(found))


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"gpu_type": "rtx_pro_6000"}, "AIConfigurator has no figures of rtx_pro_6000"),
        ({"gpu_type": "h200", "model": "Qwen/Qwen3-8B"}, "predictions are for gpt-oss, not for Qwen/Qwen3-8B"),
        ({"gpu_type": "b200", "worker": "decode"}, "for complete servers only"),
        (
            {"gpu_type": "b200", "use_case": "low_latency", "draft_model": "nvidia/gpt-oss-120b-Eagle3-v3"},
            "AIConfigurator does not know how many tokens of a draft model are accepted",
        ),
    ],
)
def test_what_cannot_be_predicted(asked: dict[str, Any], problem: str) -> None:
    (found,) = predict([recipe(**asked)], settings(), answers)
    assert found == {"problem": problem}
    assert list(lines(found)) == [f"none: {problem}"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"problem": "no kernel"}, "no kernel"),
        (
            {"ttft_ms": 1.0, "tokens_per_second_per_user": 19.0, "tokens_per_second_per_gpu": 1.0},
            "no number of requests gives each user 20 tokens/s",
        ),
    ],
)
def test_nothing_is_good_enough(answer: dict[str, Any], problem: str) -> None:
    (found,) = predict([recipe(gpu_type="h200")], settings(), lambda asked: dict.fromkeys(asked, answer))
    assert found == {"problem": problem}


def measured(**subject: Any) -> dict[str, Any]:
    """Return a benchmark of eight instances: 1,000 tokens/s of a GPU with 64 users."""
    options = {"tensor_parallel_size": 1, "moe_expert_parallel_size": 1, "enable_attention_dp": False}
    host = {"model": "openai/gpt-oss-120b", "gpu_type": "h200", "engine_options": options, "gpus": {"count": 8}}
    rate = {"output_tokens_per_second_per_gpu": 1000.0}
    return {
        "ran_on": {"gpu1": {**host, **subject}},
        "scenarios": [{"name": "chat", "input_tokens": 2000, "output_tokens": 100}],
        "points": [{"scenario": "chat", "concurrency": 64, "problems": [], "throughput": rate}],
    }


@pytest.mark.parametrize(
    ("subject", "errors"),
    [
        # Eight requests for each instance; the stand-in predicts 800.
        ({}, [-0.2]),
        ({"gpu_type": "h100"}, []),
        ({"model": "openai/gpt-oss-20b"}, []),
        ({"engine_options": {"moe_expert_parallel_size": 1, "speculative_config": {"decoding_type": "Eagle"}}}, []),
        ({"engine_options": {"tensor_parallel_size": 2, "moe_expert_parallel_size": 2}}, []),
    ],
)
def test_own_benchmarks_of_the_layout_are_compared(subject: dict[str, Any], errors: list[float]) -> None:
    (found,) = predict([recipe(gpu_type="h200")], settings(results=[measured(**subject)]), answers)
    assert found["measured"] == errors
    assert any("off yours (1)" in line for line in lines(found)) is bool(errors)


def test_layouts_have_the_names_of_nvidias_tables() -> None:
    assert [str(Layout.published(name)) for name in ("TP1", "DEP2", "DEP4")] == ["TP1", "DEP2", "DEP4"]
    assert Layout.published("DEP4") == Layout(4, True, 4)


QUESTION = Question("openai/gpt-oss-120b", "h200", Shape(1024, 1024), Layout(1, False, 1), 8)


def program(tmp_path: Path, code: str) -> str:
    """Return an interpreter that runs other code than the worker."""
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(0o755)
    return str(path)


def test_each_model_and_gpu_type_is_one_process(tmp_path: Path) -> None:
    code = "import json, os, sys\nprint(json.dumps([{'pid': os.getpid(), **one} for one in json.load(sys.stdin)]))"
    other = Question("openai/gpt-oss-20b", "h200", QUESTION.shape, QUESTION.layout, 8)
    more = Question(QUESTION.model, "h200", QUESTION.shape, QUESTION.layout, 32)
    found = ask([QUESTION, other, more, QUESTION], program(tmp_path, code))
    assert found[QUESTION]["pid"] == found[more]["pid"] != found[other]["pid"]
    assert (found[more]["batch_size"], found[other]["model_path"]) == (32, "openai/gpt-oss-20b")


def test_a_predictor_that_ends_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PredictorError, match="No module named 'aiconfigurator'"):
        ask([QUESTION], program(tmp_path, "raise ModuleNotFoundError(\"No module named 'aiconfigurator'\")"))
    with pytest.raises(FileNotFoundError):
        ask([QUESTION], str(tmp_path / "nothing"))


def test_the_worker_answers_each_question(tmp_path: Path) -> None:
    """With a stand-in of AIConfigurator's package."""
    package = tmp_path / "aiconfigurator/cli"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "api.py").write_text(
        "from types import SimpleNamespace\n"
        "def cli_estimate(batch_size, **more):\n"
        "    print('progress')\n"
        "    if batch_size == 3:\n"
        "        raise KeyError('no kernel')\n"
        "    speed = {'tokens_per_second_per_gpu': 3.0, 'tokens_per_second_per_user': 4.0}\n"
        "    many = 'too many' if batch_size == 2 else None\n"
        "    return SimpleNamespace(ttft=1.0, tpot=2.0, kv_cache_warning=many, **speed)\n"
    )
    code = f"import runpy, sys\nsys.path.insert(0, {str(tmp_path)!r})\nrunpy.run_path(sys.argv[1], run_name='__main__')"
    questions = [Question(QUESTION.model, "h200", QUESTION.shape, QUESTION.layout, batch) for batch in (1, 2, 3)]
    found = ask(questions, program(tmp_path, code))
    good = {"ttft_ms": 1.0, "tpot_ms": 2.0, "tokens_per_second_per_gpu": 3.0, "tokens_per_second_per_user": 4.0}
    assert list(found.values()) == [good, {"problem": "too many"}, {"problem": "'no kernel'"}]


def test_the_worker_is_beside_the_module() -> None:
    assert json.dumps(QUESTION.arguments())
    assert Path(predictor.__file__).with_name("worker.py").is_file()
