"""Test filter behind_gateway."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.behind_gateway import behind_gateway

BIG, SMALL = "openai/gpt-oss-120b", "openai/gpt-oss-20b"


def instance(model: str = BIG, up: bool = True, drained: bool = False) -> dict[str, Any]:
    return {"model": model, "up": up, "drained": drained}


def release(served: str = "gpt-oss-120b", model: str = BIG, gpus: int = 4) -> dict[str, Any]:
    """Return a release with two instances."""
    numbers = [[*range(gpus)], [*range(gpus, 2 * gpus)]]
    instances = [{"name": f"serve-{number}", "gpus": each} for number, each in enumerate(numbers)]
    return {"model": model, "served_model": served, "weights": f"/models/{served}", "instances": instances}


def host(*instances: dict[str, Any]) -> dict[str, Any]:
    return {f"serve-{number}": one for number, one in enumerate(instances)}


HOSTS = {"gpu1": release(), "gpu2": release(), "gpu3": release()}


def test_gpus_of_instances_in_service_count() -> None:
    gateway = {
        "gpu1": host(instance(), instance()),
        "gpu2": host(instance(), instance(up=False)),
        "gpu3": host(instance(drained=True), instance(drained=True)),
    }
    assert behind_gateway(gateway, HOSTS) == {
        "hosts": ["gpu1", "gpu2"],
        "gpus": 12,
        "model": "gpt-oss-120b",
        "weights": "/models/gpt-oss-120b",
        "problems": [],
    }


def test_a_host_in_service_that_is_not_in_the_run() -> None:
    gateway = {name: host(instance(), instance()) for name in HOSTS}
    (problem,) = behind_gateway(gateway, {"gpu2": release()})["problems"]
    assert "to gpu1, gpu3, too, which are not in this run" in problem


@pytest.mark.parametrize(("model", "gpus"), [(BIG, 4), (SMALL, 4)])
def test_one_of_several_models(model: str, gpus: int) -> None:
    gateway = {"gpu1": host(instance(BIG), instance(SMALL))}
    parts = [
        {"model": BIG, "served_model": "gpt-oss-120b", "weights": "/models/120b"},
        {"model": SMALL, "served_model": "gpt-oss-20b", "weights": "/models/20b"},
    ]
    found = behind_gateway(gateway, {"gpu1": {**release(), "parts": parts}}, model)
    assert (found["gpus"], found["problems"]) == (gpus, [])
    assert (found["model"], found["weights"]) == next(
        (part["served_model"], part["weights"]) for part in parts if part["model"] == model
    )


@pytest.mark.parametrize(
    ("gateway", "model", "words"),
    [
        (
            {"gpu1": host(instance(BIG), instance(SMALL))},
            "",
            f"serves {BIG} and {SMALL}, and benchmark_model is not set",
        ),
        ({"gpu1": host(instance(BIG))}, "a/b", f"serves {BIG}, and benchmark_model is a/b"),
        ({"gpu1": host(instance(up=False))}, "", "no instance in service"),
        ({}, "", "no instance in service"),
    ],
)
def test_what_cannot_be_measured(gateway: dict[str, Any], model: str, words: str) -> None:
    (problem,) = behind_gateway(gateway, HOSTS, model)["problems"]
    assert words in problem
