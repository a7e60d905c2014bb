"""The verdict on a canary from its answers to copies of live requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.shadow import shadow_problems, tail, verdict

RATIO = 1.15
Change = Callable[[random.Random, dict[str, Any]], None]


def fact(chance: random.Random) -> dict[str, Any]:
    """Return an answer of a good release. Lengths vary by a factor of 2.2, times to the first byte by 1.6."""
    return {
        "defects": ["tool_call"] if chance.random() < 0.02 else [],
        "finish": "stop" if chance.random() < 0.9 else "length",
        "tokens": max(1, int(chance.lognormvariate(5, 0.8))),
        "cached_tokens": 0,
        "first_ms": chance.lognormvariate(5.5, 0.5),
        "token_ms": chance.lognormvariate(2, 0.2),
    }


def pairs(seed: int, number: int, change: Change | None = None) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    found = []
    for _turn in range(number):
        canary = fact(chance)
        if change:
            change(chance, canary)
        found.append({"canary": canary, "serving": fact(chance)})
    return found


def with_defect(name: str, share: float) -> Change:
    def change(chance: random.Random, canary: dict[str, Any]) -> None:
        if chance.random() < share:
            canary["defects"] = [name]

    return change


def slower(name: str, factor: float) -> Change:
    return lambda _chance, canary: canary.update({name: canary[name] * factor})


def cut(_chance: random.Random, canary: dict[str, Any]) -> None:
    canary.update(tokens=max(1, canary["tokens"] // 2), finish="length")


def test_good_releases_pass() -> None:
    assert [seed for seed in range(100) if shadow_problems(pairs(seed, 600), RATIO)] == []


@pytest.mark.parametrize(
    ("change", "number", "words"),
    [
        pytest.param(with_defect("harmony", 0.5), 60, "harmony tokens", id="raw harmony"),
        pytest.param(with_defect("tool_call", 0.5), 60, "malformed tool call", id="tool calls"),
        pytest.param(with_defect("model", 1.0), 40, "another model id", id="model id"),
        pytest.param(with_defect("garbage", 0.02), 1500, "are garbage", id="one of fifty"),
        pytest.param(with_defect("broken", 1.0), 40, "are not whole", id="hangs"),
        pytest.param(cut, 150, "the finish reason length", id="cut short"),
        pytest.param(slower("token_ms", 1.3), 600, "a further token of its answers takes 1.", id="30 percent slower"),
        pytest.param(slower("first_ms", 3.0), 150, "the first byte of its answers takes", id="first byte"),
    ],
)
def test_defects_are_found(change: Change, number: int, words: str) -> None:
    for seed in range(10):
        problems = shadow_problems(pairs(seed, number, change), RATIO)
        assert any(words in one for one in problems), (seed, problems)


def test_defects_of_the_instances_in_service_are_no_problem() -> None:
    turned = [
        {"canary": one["serving"], "serving": one["canary"]} for one in pairs(1, 400, with_defect("harmony", 0.5))
    ]
    assert not [one for one in shadow_problems(turned, RATIO) if "harmony" in one]


def test_a_faster_canary_is_no_problem() -> None:
    assert shadow_problems(pairs(1, 600, slower("token_ms", 0.5)), RATIO) == []


def test_the_first_byte_counts_only_with_an_equal_cache() -> None:
    """The instance in service has seen the earlier turns of a conversation."""
    compared = pairs(1, 400, slower("first_ms", 3.0))
    for pair in compared:
        pair["serving"]["cached_tokens"] = 500
    assert shadow_problems(compared, RATIO) == []


def test_a_canary_that_is_too_slow_for_the_copies_is_worse() -> None:
    found = verdict([{"pairs": pairs(1, 20), "dropped": 90}], 100, RATIO)
    assert found["problems"] == ["it was too slow for most of them; with a smaller rollout_shadow_share it gets fewer"]


def test_a_few_good_answers_have_no_verdict() -> None:
    found = verdict([{"pairs": pairs(1, 20), "dropped": 3}], 100, RATIO)
    assert found["problems"] == []
    assert found["text"] == (
        "The canary answered 20 copies of live requests (3 more were dropped); rollout_shadow_min_requests asks for "
        "100, so there is no verdict."
    )


def test_a_few_answers_convict_a_canary_whose_answers_are_all_bad() -> None:
    found = verdict([{"pairs": pairs(1, 20, with_defect("harmony", 1.0)), "dropped": 3}], 100, RATIO)
    assert found["problems"][0].startswith("20 of 20 of its answers have harmony tokens in their text")
    # Fewer may be chance, by the test.
    assert verdict([{"pairs": pairs(1, 9, with_defect("harmony", 1.0)), "dropped": 0}], 100, RATIO)["problems"] == []


def test_answers_of_all_gateways_count() -> None:
    results = [{"pairs": pairs(seed, 60, with_defect("empty", 1.0)), "dropped": 0} for seed in (1, 2)]
    found = verdict(results, 100, RATIO)
    assert found["pairs"] == 120
    assert found["text"].startswith("The canary does worse than the others on 120 copies of live requests: 1")


@pytest.mark.parametrize(("hits", "trials", "expected"), [(0, 0, 1.0), (0, 5, 1.0), (5, 5, 1 / 32), (10, 10, 2**-10)])
def test_tail(hits: int, trials: int, expected: float) -> None:
    assert tail(hits, trials) == pytest.approx(expected)
