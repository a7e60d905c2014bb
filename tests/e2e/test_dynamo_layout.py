"""Changes to the number of workers: new ones replace old ones, which return after a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import lab, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import PREFIX, Dynamo, changed, said
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_load import complete

CONTROL, WORKERS = f"{PREFIX}1", f"{PREFIX}2"
BOTH = ["decode-0", "decode-1"]


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    """Return a bare host for all other components, and one for a prefill and a decode worker of two GPUs each."""
    places = {"control": [CONTROL], "frontend": [CONTROL], "prefill": [WORKERS], "decode": [WORKERS]}
    variables = {"dynamo_prefill_gpus_per_instance": 2, "dynamo_decode_gpus_per_instance": 2}
    dynamo = Dynamo(2, tmp_path_factory.mktemp("layout"), places, gpu="b200x4", variables=variables)
    lab("up", "--extra-vars", f"lab_recreate={CONTROL},{WORKERS}", environment=dynamo.environment)
    yield dynamo
    lab("down", environment=dynamo.environment)


def decode_workers(dynamo: Dynamo) -> int:
    """Return the number of decode workers that the frontend lists."""
    return len(dynamo.instances(dynamo.apis()[0])["backend"])


def test_failed_etcd_ends_the_run_at_once(dynamo: Dynamo) -> None:
    run = dynamo.play(dynamo_etcd_image="registry.origin.test/library/nats:2.11.4")
    assert run.status != 0
    assert f"etcd or NATS failed on {CONTROL}; no component starts without them" in said(run)


def test_next_run_recovers(dynamo: Dynamo) -> None:
    dynamo.deploy()
    assert dynamo.complete()


def test_one_worker_becomes_two(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    dynamo.variables["dynamo_decode_gpus_per_instance"] = 1
    dynamo.deploy()
    assert decode_workers(dynamo) == 2
    after = dynamo.runs()
    assert {part for part in after if after[part] != before.get(part)} == {f"{WORKERS} {part}" for part in BOTH}


def test_failed_change_to_one_worker_restores_two(dynamo: Dynamo) -> None:
    releases = [dynamo.release(WORKERS, part) for part in BOTH]
    run = dynamo.play(dynamo_decode_gpus_per_instance=2, dynamo_decode_environment={"LAB_ENGINE_FAULT": "die"})
    assert run.status != 0
    assert "insufficient GPU memory" in said(run)
    for part in BOTH:
        assert f"The previous release runs again: /etc/trtllm-fleet/dynamo/{part}/releases/" in said(run)
    assert [dynamo.release(WORKERS, part) for part in BOTH] == releases
    assert wait_for(lambda: decode_workers(dynamo) == 2, 60)
    assert complete(dynamo.apis()[0])


def test_two_become_one(dynamo: Dynamo) -> None:
    dynamo.variables["dynamo_decode_gpus_per_instance"] = 2
    dynamo.deploy()
    assert decode_workers(dynamo) == 1
    assert dynamo.shell(WORKERS, "ls /etc/trtllm-fleet/dynamo") == "decode-0\nprefill-0\n"
    assert f"{WORKERS} decode-1" not in dynamo.runs()


@pytest.mark.parametrize(
    "arguments", [[], ["--check"], ["--tags", "dynamo_verify"]], ids=["run", "check mode", "verify"]
)
def test_second_run_changes_nothing(dynamo: Dynamo, arguments: list[str]) -> None:
    before = dynamo.runs()
    run = dynamo.deploy(*arguments)
    assert set(changed(run).values()) == {0}
    assert dynamo.runs() == before
