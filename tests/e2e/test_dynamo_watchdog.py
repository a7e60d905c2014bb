"""The watchdog of Dynamo's workers on one host: it restarts a worker whose requests wait while its GPUs do nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import lab, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import Dynamo, all_on
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_load import MODEL, complete

HOST = "dyn-1"
TIMEOUT = 30  # seconds
# Checks are 20 s apart, and three without progress are needed.
PATIENCE = TIMEOUT + 4 * 20
WORKERS = ("prefill-0", "decode-0")
# Fewer tokens than a prompt below; it then waits in the prefill worker until its client leaves.
BUFFER = {"cache_transceiver_config": {"max_tokens_in_buffer": 2048}}


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    variables = {
        "dynamo_watch_timeout": TIMEOUT,
        "dynamo_prefill_engine_options": BUFFER,
        "dynamo_decode_engine_options": BUFFER,
    }
    dynamo = Dynamo(1, tmp_path_factory.mktemp("dynamo"), all_on(HOST), "b200x2", variables)
    lab("up", environment=dynamo.environment)
    dynamo.deploy()
    yield dynamo
    lab("down", environment=dynamo.environment)


def show(dynamo: Dynamo, worker: str) -> str:
    """Return the ID of a worker's current start."""
    return dynamo.shell(HOST, f"systemctl show --property=InvocationID --value trtllm-dynamo-{worker}.service").strip()


def test_each_worker_has_a_watchdog(dynamo: Dynamo) -> None:
    for worker in WORKERS:
        assert dynamo.shell(HOST, f"systemctl is-active trtllm-watch-dynamo-{worker}.service").strip() == "active"


def test_idle_and_busy_workers_are_not_restarted(dynamo: Dynamo) -> None:
    before = [show(dynamo, worker) for worker in WORKERS]
    time.sleep(PATIENCE)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        complete(dynamo.apis()[0], max_tokens=2000, timeout=120)
    assert [show(dynamo, worker) for worker in WORKERS] == before


def test_worker_with_requests_and_idle_gpus_is_restarted(dynamo: Dynamo) -> None:
    prefill, decode = (show(dynamo, worker) for worker in WORKERS)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 5000}], "max_tokens": 8}
    dynamo.shell(HOST, f"echo '{json.dumps(body)}' > /tmp/long.json")
    url = f"{dynamo.apis()[0]}/v1/chat/completions"
    client = f"curl -so /dev/null --max-time 600 -H 'Content-Type: application/json' -d @/tmp/long.json {url}"
    dynamo.shell(HOST, f"systemd-run --quiet --unit=long-prompt {client}")
    try:
        assert wait_for(lambda: show(dynamo, "prefill-0") != prefill, PATIENCE + 60)
        journal = dynamo.shell(HOST, "journalctl --output cat --unit trtllm-watch-dynamo-prefill-0")
        assert "requests waited, while the GPUs did nothing for" in journal
    finally:
        dynamo.shell(HOST, "systemctl stop long-prompt", check=False)
    healed = json.loads(dynamo.shell(HOST, "cat /run/trtllm-fleet/healed/trtllm-dynamo-prefill-0.service.json"))
    assert healed["times"] == 1
    assert wait_for(dynamo.complete, 120)
    assert show(dynamo, "decode-0") == decode
