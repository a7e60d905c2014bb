"""Effects of Dynamo component failures on clients, and the recovery; and with the guide's commands for comparison.

Each fault occurs under a stream of requests. Results go to .cache/dynamo_failures.jsonl, one line per fault:
  requests, failed, errors  requests of clients since the fault, and the number of errors by kind
  seconds                   from the fault to the end of the last failed request; null: never
  whole                     from the fault until each frontend lists each worker once
  restarted                 components with a restart
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, docker, lab, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import GUIDE, Dynamo, all_on, record
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_guide import Guide
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_load import Load, complete

RESULTS = REPO / ".cache/dynamo_failures.jsonl"
ALONE = "dyn-6"
# Seconds. A machine of two cores runs six hosts here; the figures show what is slow.
PATIENCE = 240
QUIET = 12
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Stack:
    """Deployment method: its frontends, its restarts, and the commands to stop and start etcd on a host."""

    name: str
    apis: list[str]
    complete: Callable[[], bool]
    runs: Callable[[], dict[str, str]]
    stop_etcd: str
    start_etcd: str


@pytest.fixture(scope="module")
def rows() -> Iterator[Rows]:
    rows: Rows = []
    yield rows
    record(rows, RESULTS)


@pytest.fixture(scope="module")
def fleet_of_five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    """Return etcd and NATS on three hosts, two frontends, two prefill and two decode workers; and a sixth host."""
    places = {
        "control": ["dyn-1", "dyn-2", "dyn-3"],
        "frontend": ["dyn-1", "dyn-4"],
        "prefill": ["dyn-2", "dyn-3"],
        "decode": ["dyn-4", "dyn-5"],
    }
    dynamo = Dynamo(6, tmp_path_factory.mktemp("fleet"), places, gpu=",".join(["b200x1"] * 5 + ["b200x8"]))
    lab("up", environment=dynamo.environment)
    yield dynamo
    lab("down", environment=dynamo.environment)


@pytest.fixture(scope="module")
def alone(fleet_of_five: Dynamo, tmp_path_factory: pytest.TempPathFactory) -> Dynamo:
    """Deploy all components to the sixth host, with the guide's layout."""
    dynamo = Dynamo(6, tmp_path_factory.mktemp("alone"), all_on(ALONE), fleet_of_five.gpu, dict(GUIDE))
    dynamo.deploy()
    return dynamo


@pytest.fixture(scope="module")
def alone_stack(alone: Dynamo) -> Stack:
    return supervised("role", alone)


@pytest.fixture(scope="module")
def five_stack(fleet_of_five: Dynamo) -> Stack:
    fleet_of_five.deploy()
    return supervised("fleet", fleet_of_five)


@pytest.fixture(scope="module")
def vacated(alone: Dynamo) -> None:
    """Return the sixth host with Docker, model and images, without components."""
    alone.places = {}
    alone.deploy(withdrawn=[ALONE])


@pytest.fixture
def guide_stack(fleet_of_five: Dynamo, vacated: None) -> Iterator[Stack]:
    """Start the guide's stack on the sixth host, again for each fault."""
    api = f"http://{fleet_of_five.address(ALONE)}:8000"
    guide = Guide(fleet_of_five.hosts[ALONE], api)
    guide.start()

    def whole() -> bool:
        return all(len(found) == 1 for found in fleet_of_five.instances(api).values())

    yield Stack("guide", [api], whole, dict, "docker kill etcd", "docker start etcd")
    guide.stop()


def supervised(name: str, dynamo: Dynamo) -> Stack:
    unit = "trtllm-dynamo-etcd"
    # Kill it, and stop it before systemd restarts it: its last writes are lost.
    return Stack(
        name,
        dynamo.apis(),
        dynamo.complete,
        dynamo.runs,
        f"docker kill {unit}; systemctl stop {unit}",
        f"systemctl start {unit}",
    )


def suffer(
    rows: Rows, stack: Stack, fault: str, strike: Callable[[], None], patience: float = PATIENCE
) -> dict[str, Any]:
    """Cause a fault under a stream of requests, and record the effects."""
    assert wait_for(lambda: stack.complete() and all(complete(api) for api in stack.apis), PATIENCE)
    before = stack.runs()
    with Load(stack.apis) as load:
        assert wait_for(lambda: load.recovered(load.began, 4) is not None, 60), load.errors(load.began)
        moment, incomplete = time.monotonic(), [0.0]
        strike()

        def recovered() -> bool:
            """Return True if all is as before, and stays so for a while."""
            asked = time.monotonic()
            try:
                whole = stack.complete()
            except (OSError, ValueError, subprocess.CalledProcessError):
                whole = False
            if not whole:
                incomplete.append(time.monotonic() - moment)
            return asked - moment - incomplete[-1] > QUIET and load.recovered(moment, QUIET) is not None

        whole = wait_for(recovered, patience)
        seconds = load.recovered(moment, QUIET)
        errors, requests = load.errors(moment), len(load.since(moment))
    after = stack.runs()
    row = {
        "stack": stack.name,
        "fault": fault,
        "requests": requests,
        "failed": sum(errors.values()),
        "errors": errors,
        "seconds": None if seconds is None else round(seconds, 1),
        "whole": round(incomplete[-1], 1) if whole else None,
        "restarted": sorted(part for part, run in after.items() if before.get(part) != run),
    }
    rows.append(row)
    print(row)
    return row


def etcd_away(stack: Stack, dynamo: Dynamo, names: list[str], seconds: float) -> Callable[[], None]:
    """Stop all etcd members and start them after some seconds."""

    def strike() -> None:
        for name in names:
            dynamo.shell(name, stack.stop_etcd)
        time.sleep(seconds)
        for name in names:
            dynamo.shell(name, stack.start_etcd)

    return strike


def power_cut(name: str, seconds: float) -> Callable[[], None]:
    """Switch the host off, and on after some seconds."""

    def strike() -> None:
        docker("kill", name)
        time.sleep(seconds)
        docker("start", name)

    return strike


def cut_off(dynamo: Dynamo, name: str, others: list[str], seconds: float) -> Callable[[], None]:
    """Drop all packets between a host and others for some seconds."""
    addresses = [dynamo.address(other) for other in others]

    def rules(verb: str) -> str:
        return "; ".join(
            f"iptables {verb} {chain} {side} {address} --jump DROP"
            for address in addresses
            for chain, side in (("INPUT", "--source"), ("OUTPUT", "--destination"))
        )

    def strike() -> None:
        dynamo.shell(name, rules("--insert"))
        time.sleep(seconds)
        dynamo.shell(name, rules("--delete"))

    return strike


@pytest.mark.parametrize("part", ["prefill", "decode", "frontend", "nats", "etcd"])
def test_one_host_with_a_killed_component_recovers(rows: Rows, alone: Dynamo, alone_stack: Stack, part: str) -> None:
    row = suffer(rows, alone_stack, f"{part} killed", partial(alone.kill, ALONE, part))
    assert row["seconds"] is not None
    assert row["whole"] is not None
    assert any(part in restarted for restarted in row["restarted"])


@pytest.mark.parametrize("seconds", [5, 40])
def test_one_host_without_etcd_recovers(rows: Rows, alone: Dynamo, alone_stack: Stack, seconds: float) -> None:
    row = suffer(rows, alone_stack, f"etcd away for {seconds} s", etcd_away(alone_stack, alone, [ALONE], seconds))
    assert row["seconds"] is not None
    assert row["whole"] is not None


def test_one_host_recovers_after_a_power_loss(rows: Rows, alone: Dynamo, alone_stack: Stack) -> None:
    row = suffer(rows, alone_stack, "host off for 5 s", power_cut(ALONE, 5))
    assert row["seconds"] is not None
    assert row["whole"] is not None
    assert len(row["restarted"]) == 5


@pytest.mark.parametrize("part", ["prefill", "decode", "frontend", "nats", "etcd"])
def test_guide_with_a_killed_component(rows: Rows, fleet_of_five: Dynamo, guide_stack: Stack, part: str) -> None:
    """No service manager restarts it."""
    row = suffer(rows, guide_stack, f"{part} killed", partial(fleet_of_five.kill, ALONE, part), patience=60)
    assert row["failed"] or part in ("nats", "etcd")


@pytest.mark.parametrize("seconds", [5, 40])
def test_guide_without_etcd(rows: Rows, fleet_of_five: Dynamo, guide_stack: Stack, seconds: float) -> None:
    suffer(
        rows,
        guide_stack,
        f"etcd away for {seconds} s",
        etcd_away(guide_stack, fleet_of_five, [ALONE], seconds),
        patience=60,
    )


def test_guide_does_not_recover_after_a_power_loss(rows: Rows, fleet_of_five: Dynamo, guide_stack: Stack) -> None:
    row = suffer(rows, guide_stack, "host off for 5 s", power_cut(ALONE, 5), patience=60)
    assert row["seconds"] is None


@pytest.mark.parametrize(
    ("part", "name"),
    [("prefill", "dyn-3"), ("decode", "dyn-5"), ("frontend", "dyn-1"), ("nats", "dyn-1"), ("etcd", "dyn-1")],
)
def test_fleet_with_a_killed_component_recovers(
    rows: Rows, fleet_of_five: Dynamo, five_stack: Stack, part: str, name: str
) -> None:
    row = suffer(rows, five_stack, f"one {part} killed", partial(fleet_of_five.kill, name, part))
    assert row["seconds"] is not None
    assert row["whole"] is not None
    assert any(restarted.startswith(f"{name} {part}") for restarted in row["restarted"])


@pytest.mark.parametrize("seconds", [5, 40])
def test_fleet_without_etcd_recovers(rows: Rows, fleet_of_five: Dynamo, five_stack: Stack, seconds: float) -> None:
    strike = etcd_away(five_stack, fleet_of_five, fleet_of_five.places["control"], seconds)
    row = suffer(rows, five_stack, f"all three etcd away for {seconds} s", strike)
    assert row["seconds"] is not None
    assert row["whole"] is not None


def test_fleet_with_all_nats_killed_recovers(rows: Rows, fleet_of_five: Dynamo, five_stack: Stack) -> None:
    def strike() -> None:
        for name in fleet_of_five.places["control"]:
            fleet_of_five.kill(name, "nats")

    row = suffer(rows, five_stack, "all three nats killed", strike)
    assert row["seconds"] is not None
    assert row["whole"] is not None


@pytest.mark.parametrize(("name", "what"), [("dyn-5", "a decode worker"), ("dyn-1", "etcd, NATS and a frontend")])
def test_fleet_recovers_after_a_hosts_power_loss(
    rows: Rows, fleet_of_five: Dynamo, five_stack: Stack, name: str, what: str
) -> None:
    row = suffer(rows, five_stack, f"host with {what} off for 40 s", power_cut(name, 40))
    assert row["seconds"] is not None
    assert row["whole"] is not None
    assert any(restarted.startswith(name) for restarted in row["restarted"])


def test_fleet_recovers_after_a_cut_between_prefill_and_decode(
    rows: Rows, fleet_of_five: Dynamo, five_stack: Stack
) -> None:
    """The lab's workers transfer no KV cache, but the fault also cuts off etcd and NATS."""
    strike = cut_off(fleet_of_five, "dyn-5", ["dyn-2", "dyn-3"], 45)
    row = suffer(rows, five_stack, "a decode host cut off from the prefill hosts for 45 s", strike)
    assert row["seconds"] is not None
    assert row["whole"] is not None


def test_fleet_recovers_after_a_decode_hosts_network_loss(rows: Rows, fleet_of_five: Dynamo, five_stack: Stack) -> None:
    strike = cut_off(fleet_of_five, "dyn-5", ["dyn-1", "dyn-2", "dyn-3", "dyn-4"], 45)
    row = suffer(rows, five_stack, "a decode host cut off from all others for 45 s", strike)
    assert row["seconds"] is not None
    assert row["whole"] is not None
