"""Health and metrics of Dynamo's frontend and workers, in the form of versions 1.0.0 and 1.6.1."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.dynamo_health import Instance, listed, prefill_requests

HEALTH_1_0 = {
    "status": "healthy",
    "endpoints": [
        "dyn://dynamo.prefill.generate",
        "dyn://dynamo.prefill.worker_kv_indexer_query_dp0",
        "dyn://dynamo.tensorrt_llm.generate",
    ],
    "instances": [
        {
            "component": "prefill",
            "endpoint": "generate",
            "namespace": "dynamo",
            "instance_id": 17313970026644739524,
            "transport": {"tcp": "127.0.0.1:34063/f047940181eb95c4/generate"},
        },
        {
            "component": "prefill",
            "endpoint": "worker_kv_indexer_query_dp0",
            "namespace": "dynamo",
            "instance_id": 17313970026644739524,
            "transport": {"tcp": "127.0.0.1:34063/f047940181eb95c4/worker_kv_indexer_query_dp0"},
        },
        {
            "component": "tensorrt_llm",
            "endpoint": "generate",
            "namespace": "dynamo",
            "instance_id": 4980768162781634344,
            "transport": {"tcp": "127.0.0.1:46685/451f3e413b2c9f28/generate"},
        },
    ],
}
HEALTH_1_6 = {
    "status": "healthy",
    "endpoints": ["dyn://dynamo.backend.generate", "dyn://dynamo.prefill.worker_kv_query_source_61d5196aa29f3"],
    "instances": [
        {
            "component": "backend",
            "endpoint": "generate",
            "namespace": "dynamo",
            "instance_id": 18373073959520298684,
            "transport": {"tcp": "127.0.0.1:45375/fefa456be52fe6bc/dynamo/backend/generate"},
            "device_type": "cuda",
            "request_plane_codec": "msgpack",
        },
        {
            "component": "prefill",
            "endpoint": "worker_kv_query_source_61d5196aa29f3",
            "namespace": "dynamo",
            "instance_id": 1092030670533823947,
            "transport": {"tcp": "127.0.0.1:34347/f27ac1be9000dcb/dynamo/prefill/worker_kv_query_source_61d5196aa29f3"},
            "device_type": "cuda",
            "request_plane_codec": "msgpack",
        },
    ],
}


@pytest.mark.parametrize(
    ("health", "instances"),
    [
        (
            HEALTH_1_0,
            [
                ("dynamo.prefill.generate", "34063", "17313970026644739524"),
                ("dynamo.prefill.worker_kv_indexer_query_dp0", "34063", "17313970026644739524"),
                ("dynamo.tensorrt_llm.generate", "46685", "4980768162781634344"),
            ],
        ),
        (
            HEALTH_1_6,
            [
                ("dynamo.backend.generate", "45375", "18373073959520298684"),
                ("dynamo.prefill.worker_kv_query_source_61d5196aa29f3", "34347", "1092030670533823947"),
            ],
        ),
        ({"status": "healthy", "endpoints": [], "instances": []}, []),
    ],
)
def test_listed(health: dict[str, Any], instances: list[tuple[str, str, str]]) -> None:
    assert listed(health) == [Instance(f"dyn://{name}", "127.0.0.1", port, id) for name, port, id in instances]


@pytest.mark.parametrize(
    ("transport", "address", "port"),
    [
        ({"tcp": "[fd00::0:5]:34063/f047940181eb95c4/generate"}, "fd00::5", "34063"),
        ({"tcp": "gpu1.example:34063/f047940181eb95c4/generate"}, "gpu1.example", "34063"),
        ({"nats_tcp": "dynamo_prefill.generate-f047940181eb95c4"}, "", ""),
    ],
)
def test_address(transport: dict[str, str], address: str, port: str) -> None:
    (instance,) = listed({"instances": [{**HEALTH_1_0["instances"][0], "transport": transport}]})  # type: ignore[dict-item]
    assert (instance.address, instance.port) == (address, port)


METRICS = """\
# HELP dynamo_component_requests_total Total number of requests processed by work handler
# TYPE dynamo_component_requests_total counter
dynamo_component_requests_total{dynamo_component="prefill",dynamo_endpoint="generate",dynamo_namespace="dynamo"} 7
dynamo_component_requests_total{dynamo_component="prefill",dynamo_endpoint="worker_kv_indexer_query_dp0"} 5
dynamo_component_requests_total{worker_id="f2",dynamo_endpoint="generate",dynamo_component="prefill"} 20
dynamo_component_requests_total{dynamo_component="backend",dynamo_endpoint="generate",worker_id="fefa456be52fe6bc"} 300
dynamo_component_request_bytes_total{dynamo_component="prefill",dynamo_endpoint="generate"} 4000
"""


@pytest.mark.parametrize(("metrics", "requests"), [(METRICS, 27), ("", 0), ("# HELP python_info\n", 0)])
def test_prefill_requests(metrics: str, requests: int) -> None:
    assert prefill_requests(metrics) == requests
