"""A control host of three is lost for good, and another takes its place under load, behind two gateways."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import docker, lab
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import PREFIX, Dynamo, changed, said, unbroken_load
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load

CONTROL = [f"{PREFIX}{number}" for number in (1, 2, 3)]
LOST, NEW = CONTROL[2], f"{PREFIX}6"
SERVING = [f"{PREFIX}4", f"{PREFIX}5"]


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    """Return two hosts that have a frontend, a prefill and a decode worker each, and three control hosts."""
    places = {"control": [*CONTROL], "frontend": SERVING, "prefill": SERVING, "decode": SERVING}
    dynamo = Dynamo(6, tmp_path_factory.mktemp("control"), places, gpu="b200x2", gateways=SERVING)
    lab("up", "--extra-vars", f"lab_recreate={','.join(dynamo.names)}", environment=dynamo.environment)
    dynamo.deploy()
    yield dynamo
    lab("down", environment=dynamo.environment)


@pytest.fixture(scope="module")
def load(dynamo: Dynamo) -> Iterator[Load]:
    with unbroken_load(dynamo) as load:
        yield load


@pytest.fixture(autouse=True)
def no_error(load: Load) -> Iterator[None]:
    began = time.monotonic()
    yield
    load.wait(2)
    assert load.errors(began) == {}


def members(dynamo: Dynamo, host: str) -> set[str]:
    """Return the names of the members that have started."""
    endpoint = f"http://{dynamo.address(host)}:2379"
    text = dynamo.shell(host, f"docker exec trtllm-dynamo-etcd etcdctl --endpoints={endpoint} member list")
    return {line.split(", ")[2] for line in text.splitlines() if line.split(", ")[1] == "started"}


def replace(dynamo: Dynamo, **more: Any) -> Any:
    return dynamo.play(dynamo_replaced_control_host=LOST, **more)


def test_it_is_lost(dynamo: Dynamo) -> None:
    assert members(dynamo, CONTROL[0]) == set(CONTROL)
    docker("rm", "--force", "--volumes", LOST)
    time.sleep(20)


def test_another_host_alone_is_refused(dynamo: Dynamo) -> None:
    dynamo.places["control"] = [*CONTROL[:2], NEW]
    run = dynamo.play()
    assert run.status != 0
    assert "set dynamo_replaced_control_host to its name" in said(run)
    run = replace(dynamo, only=[NEW])
    assert run.status != 0
    assert "etcd changes its members only while the others run" in said(run)
    run = dynamo.play(dynamo_replaced_control_host="dyn-9")
    assert run.status != 0
    assert f"dynamo_replaced_control_host is dyn-9; etcd has the members {CONTROL[0]}=" in said(run)


def test_check_mode_shows_the_new_member(dynamo: Dynamo) -> None:
    run = dynamo.deploy("--check", "--diff", dynamo_replaced_control_host=LOST)
    assert f"-{LOST} (http://" in run.output
    assert f"+not started (http://{dynamo.address(NEW)}:" in run.output
    assert members(dynamo, CONTROL[0]) == set(CONTROL)


def test_a_host_whose_etcd_fails_changes_no_other(dynamo: Dynamo) -> None:
    """Its member has been added, and its data is removed with it, so that it can be tried again."""
    before = dynamo.runs()
    address = dynamo.address(NEW)
    # The other members drop its packets: it has no iptables before the run.
    rules = [
        f"{way} {address} --protocol tcp --destination-port 2380 --jump DROP"
        for way in ("INPUT --source", "OUTPUT --destination")
    ]
    for host, rule in product(CONTROL[:2], rules):
        dynamo.shell(host, f"iptables --insert {rule}")
    run = replace(dynamo)
    for host, rule in product(CONTROL[:2], rules):
        dynamo.shell(host, f"iptables --delete {rule}")
    assert run.status != 0
    assert f"{NEW} failed, which replaces {LOST}; no other component is changed" in said(run)
    assert members(dynamo, CONTROL[0]) == set(CONTROL[:2])
    assert dynamo.shell(NEW, "ls /var/lib/trtllm-fleet/dynamo/etcd", check=False) == ""
    after = dynamo.runs()
    assert {part: after.get(part) for part in before} == before


def test_it_takes_its_place(dynamo: Dynamo) -> None:
    run = replace(dynamo)
    assert run.status == 0, run.output
    assert members(dynamo, NEW) == {*CONTROL[:2], NEW}
    for host in SERVING:
        environment = dynamo.shell(host, "cat /etc/trtllm-fleet/dynamo/decode-0/releases/*/environment | tail -40")
        assert dynamo.address(NEW) in environment


@pytest.mark.parametrize("again", [{}, {"dynamo_replaced_control_host": LOST}], ids=["plain", "with the variable"])
def test_second_run_changes_nothing(dynamo: Dynamo, again: dict[str, str]) -> None:
    before = dynamo.runs()
    assert set(changed(dynamo.deploy(**again)).values()) == {0}
    assert dynamo.runs() == before


def test_another_may_fail_now(dynamo: Dynamo) -> None:
    """The new member counts: with it the cluster has most of its members."""
    docker("stop", CONTROL[0])
    time.sleep(45)
    docker("start", CONTROL[0])
    time.sleep(10)
    assert members(dynamo, NEW) == {*CONTROL[:2], NEW}
