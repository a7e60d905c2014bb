"""Kinds of workers that a deployment would lack without some hosts."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.dynamo_missing_workers import dynamo_missing_workers

BOTH = ["prefill", "decode"]


def worker(component: str, tcp: str = "", endpoint: str = "generate", namespace: str = "fleet-1") -> dict[str, Any]:
    transport = {"tcp": f"{tcp}/1/generate"} if tcp else {"nats_tcp": "dynamo"}
    return {
        "namespace": namespace,
        "component": component,
        "endpoint": endpoint,
        "instance_id": 1,
        "transport": transport,
    }


def answer(*workers: dict[str, Any]) -> dict[str, Any]:
    return {"instances": list(workers)}


ALL = answer(
    worker("prefill", "10.0.0.1:9150"),
    worker("backend", "10.0.0.2:9250"),
    worker("prefill", "10.0.0.3:9150"),
    worker("backend", "[2001:db8::4]:9250"),
)


TWO = answer(
    *ALL["instances"],
    worker("prefill", "10.0.0.5:9150", namespace="fleet-2"),
    worker("backend", "10.0.0.6:9250", namespace="fleet-2"),
)


@pytest.mark.parametrize(
    ("answers", "addresses", "missing"),
    [
        ([ALL], [], []),
        ([ALL], ["10.0.0.1"], []),
        ([ALL], ["10.0.0.1", "10.0.0.3"], ["prefill"]),
        ([ALL], ["10.0.0.2"], []),
        ([ALL], ["10.0.0.2", "2001:db8::4"], ["decode"]),
        ([ALL], ["10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::4"], BOTH),
        # A frontend that has just started.
        ([answer(), ALL], [], []),
        ([answer()], [], BOTH),
        ([], [], BOTH),
        ([{"status": "starting"}, {"instances": [{"endpoint": "generate"}]}, {"instances": None}], [], BOTH),
        # Two namespaces.
        ([TWO], [], []),
        ([TWO], ["10.0.0.1"], []),
        ([TWO], ["10.0.0.1", "10.0.0.3"], ["prefill"]),
        ([TWO], ["10.0.0.1", "10.0.0.3", "10.0.0.6"], BOTH),
        ([TWO], ["10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::4"], BOTH),
        # Other endpoints of a worker, and workers without an address.
        ([answer(worker("prefill", "10.0.0.1:9150", "kv_metrics"), worker("backend"))], [], BOTH),
    ],
)
def test_missing_workers(answers: list[dict[str, Any]], addresses: list[str], missing: list[str]) -> None:
    assert dynamo_missing_workers(answers, BOTH, addresses) == missing


def test_all_workers_of_a_namespace_may_leave_with_their_frontends() -> None:
    side = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::4"]
    assert dynamo_missing_workers([TWO], BOTH, side, whole=True) == []
    assert dynamo_missing_workers([TWO], BOTH, side[:3], whole=True) == ["prefill"]
    assert dynamo_missing_workers([ALL], BOTH, side, whole=True) == BOTH


def test_only_the_kinds_of_the_hosts_count() -> None:
    assert dynamo_missing_workers([answer()], ["decode"], []) == ["decode"]
    assert dynamo_missing_workers([answer()], [], []) == []


def test_worker_that_no_frontend_lists_is_no_loss() -> None:
    prefill = answer(worker("prefill", "10.0.0.1:9150"))
    assert dynamo_missing_workers([prefill], [], ["10.0.0.2"]) == []
    assert dynamo_missing_workers([prefill], ["decode"], ["10.0.0.2"]) == ["decode"]
    assert dynamo_missing_workers([prefill], [], ["10.0.0.1"]) == ["prefill"]
