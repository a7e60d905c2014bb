"""Which GPUs a worker of the lab shows as busy."""

from __future__ import annotations

import pytest

from ansible_collections.trtllm.fleet.tests.unit.fake_openai import FakeOpenAI, reply
from lab.engine import worker_metrics

NODES = ["nvidia10", "nvidia2", "nvidia1"]


@pytest.mark.parametrize(
    ("environment", "own"),
    [
        ({}, ["nvidia1", "nvidia2", "nvidia10"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["nvidia1", "nvidia2", "nvidia10"]),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, ["nvidia1", "nvidia10"]),
    ],
)
def test_cuda_numbers_the_gpus_of_a_container(environment: dict[str, str], own: list[str]) -> None:
    assert worker_metrics.own_gpus(NODES, environment) == own


def test_a_metric_of_all_endpoints() -> None:
    text = b"""# TYPE dynamo_component_response_bytes_total counter
dynamo_component_response_bytes_total{dynamo_endpoint="generate"} 120
dynamo_component_response_bytes_total{dynamo_endpoint="clear_kv_blocks"} 3.5
dynamo_component_requests_total{dynamo_endpoint="generate"} 2
"""
    with FakeOpenAI({"/metrics": [reply(200, text)]}) as fake:
        assert worker_metrics.values(f"{fake.url}/metrics", "response_bytes_total") == [120, 3.5]
    assert worker_metrics.values(f"{fake.url}/metrics", "response_bytes_total") == []
