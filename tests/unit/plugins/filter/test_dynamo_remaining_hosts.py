"""Hosts with workers that a deployment would have without some hosts."""

from __future__ import annotations

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.dynamo_remaining_hosts import dynamo_remaining_hosts
from ansible_collections.trtllm.fleet.tests.unit.plugins.filter.test_dynamo_missing_workers import answer, worker

WORKERS = answer(
    worker("prefill", "10.0.0.1:9150"),
    worker("backend", "10.0.0.2:9250"),
    worker("backend", "10.0.0.2:9251"),
    worker("backend", "10.0.0.3:9250"),
    worker("backend", "10.0.0.4:9250"),
)


@pytest.mark.parametrize(
    ("addresses", "left"),
    [
        (["10.0.0.2"], {"decode": 2}),
        (["127.0.0.1", "10.0.0.2", "10.0.0.3"], {"decode": 1}),
        (["10.0.0.1"], {"prefill": 0}),
        (["10.0.0.9"], {}),
    ],
)
def test_the_hosts_that_are_left(addresses: list[str], left: dict[str, int]) -> None:
    assert dynamo_remaining_hosts([answer(), WORKERS], addresses) == left


def test_without_an_answer_no_host_is_lost() -> None:
    assert dynamo_remaining_hosts([], ["10.0.0.2"]) == {}
