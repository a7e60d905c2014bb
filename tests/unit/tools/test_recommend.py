"""Which hosts serve a load, with a stand-in for AIConfigurator."""

from __future__ import annotations

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import Answer, Question, Shape
from tools.predict import recommend
from tools.predict.recommend import Load, arguments, hosts

LOAD = Load(Shape(8192, 1024), 30, 100000)
MODEL = "openai/gpt-oss-120b"


def answers(load: Load, gpu_type: str = "h200") -> dict[Question, Answer]:
    """Answer with 10 tokens/s of an instance for each request; a user has 40 up to 64 requests."""
    return {
        question: {
            "ttft_ms": 10.0 * question.batch,
            "tokens_per_second_per_gpu": 10.0 * question.batch / question.layout.gpus,
            "tokens_per_second_per_user": 40.0 if question.batch <= 64 else 20.0,
        }
        for host in hosts([MODEL], [gpu_type])
        for question in host.questions(load)
    }


def rows(load: Load, gpu_type: str = "h200") -> list[list[str]]:
    return recommend.recommend(load, list(hosts([MODEL], [gpu_type])), answers(load, gpu_type))


def test_the_fewest_hosts_with_enough_for_each_user() -> None:
    # 64 requests on each of eight instances: 5,120 tokens/s.
    expected = ["gpt-oss-120b", "8 x h200", "8 x TP1", "max_throughput", "512", "640 ms", "40", "5,120", "20"]
    assert rows(LOAD) == [expected]


def test_a_limit_of_the_first_token() -> None:
    (row,) = rows(Load(LOAD.shape, 30, 100000, first_token=320))
    assert (row[4], row[5], row[-1]) == ("256", "320 ms", "40")
    assert "the first token within 320 ms" in str(Load(LOAD.shape, 30, 1, 320))


def test_a_load_that_no_host_reaches() -> None:
    assert rows(Load(LOAD.shape, 50, 100000)) == []


def test_hosts_have_each_layout_once() -> None:
    found = list(hosts([MODEL], ["h200", "b200"]))
    assert {host.gpu_type for host in found} == {"h200", "b200"}
    assert len({(host.gpu_type, host.layout, host.max_batch_size) for host in found}) == len(found)
    assert {host.gpus for host in found} == {8}
    assert not [host for host in hosts() if "Qwen" in host.model]


def test_models_are_apart_and_each_gpu_type_is_sorted_by_its_speed() -> None:
    both = list(hosts([MODEL], ["h200", "b200"]))
    given = {**answers(LOAD), **answers(LOAD, "b200")}
    # Two GPUs of B200 make an instance for twice as many requests.
    assert [row[1] for row in recommend.recommend(LOAD, both, given)] == ["8 x b200", "8 x h200"]


def test_the_page_has_each_load() -> None:
    text = recommend.page([LOAD], list(hosts([MODEL], ["h200"])), answers(LOAD))
    assert "## 8,192/1,024, 30 tokens/s a user" in text
    assert "at least 30 tokens/s for each user, 100,000 output tokens/s in all." in text
    assert "| 8 x TP1 |" in text


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    given = arguments(["--prompt", "8", "--answer", "2", "--user", "30", "--tokens", "10", "--gpu", "h200"])
    assert (given.prompt, given.cached, given.first_token, given.gpu, given.model) == (8, 0, None, ["h200"], [])
    with pytest.raises(SystemExit):
        arguments(["--prompt", "8", "--answer", "2", "--user", "30", "--tokens", "10", "--gpu", "v100"])
    assert "'v100'" in capsys.readouterr().err
