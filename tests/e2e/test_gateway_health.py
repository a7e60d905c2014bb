"""Gateway: instances that role host_health of their host reports as unfit, with both HAProxy versions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import Fleet
from ansible_collections.trtllm.fleet.tests.e2e.test_gateway_progress import FLEET, SETTINGS, Gateway, engine
from tools.bench.gateway import running

HEALTH = Path(__file__).with_name("scripted_health.py")
PORT = 8407
ANSWERS = "/run/unfit"
PORTS = tuple(range(8010, 8020))
# Until the gateway has queried the host (1 s) and two checks have failed.
NOTICED = 8


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    FLEET.up()
    run = FLEET.play("gateway", **SETTINGS)
    assert run.status == 0, run.output
    with ExitStack() as stack:
        for name in FLEET.gateway_names:
            FLEET.shell(name, "systemctl stop trtllm-health")  # that of the gateway itself
            for port in PORTS:
                stack.enter_context(engine(name, port, 4))
        yield FLEET
    FLEET.down()


@pytest.fixture(params=[0, 1], ids=["gateway 1", "gateway 2"])
def gateway(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """Return each gateway with ten instances, all of them up, and a health program."""
    gateway = Gateway(fleet.gateway_names[request.param])
    with running(gateway.name, "python3", "-c", HEALTH.read_text(), str(PORT), ANSWERS):
        report(gateway)
        gateway.register(*PORTS)
        gateway.wait_for_down(set(), 30)
        yield gateway
        report(gateway)
        gateway.wait_for_down(set(), 30)
    gateway.clients.shutdown(wait=True)


def report(gateway: Gateway, *ports: int, reason: str = "gpu_lost of GPU 0000:91:00.0") -> None:
    """Have the health program report these instances as unfit, and the others as fit."""
    lines = "".join(f"gpu1.p{port} {reason}\\n" for port in ports)
    FLEET.shell(gateway.name, f"printf '{lines}' > {ANSWERS}.new && mv {ANSWERS}.new {ANSWERS}")


def test_an_unfit_instance_gets_no_request_and_loses_none(gateway: Gateway) -> None:
    long = gateway.start(10, 100)  # 10 s on the instances, some of them on the unfit one
    time.sleep(1)
    report(gateway, PORTS[0])
    found = gateway.wait_for_down({str(PORTS[0])}, NOTICED)
    assert found[str(PORTS[0])] == "unfit: gpu_lost of GPU 0000:91:00.0"
    before = int(gateway.servers()[f"gpu1.p{PORTS[0]}"]["stot"])
    assert all(one.result() == 200 for one in gateway.start(30, 1))
    assert int(gateway.servers()[f"gpu1.p{PORTS[0]}"]["stot"]) == before
    assert all(one.result() == 200 for one in long)
    report(gateway)
    gateway.wait_for_down(set(), NOTICED)


def test_no_answer_changes_nothing(gateway: Gateway) -> None:
    FLEET.shell(gateway.name, f"rm {ANSWERS}")
    time.sleep(NOTICED)
    assert gateway.down() == {}
    report(gateway, PORTS[0])
    gateway.wait_for_down({str(PORTS[0])}, NOTICED)
    FLEET.shell(gateway.name, f"rm {ANSWERS}")
    time.sleep(NOTICED)
    assert gateway.down().keys() == {str(PORTS[0])}


def test_half_of_the_instances_stay_in_service(gateway: Gateway) -> None:
    report(gateway, *PORTS)
    end = time.monotonic() + NOTICED
    most = 0
    while time.monotonic() < end:
        most = max(most, len(gateway.down()))
        time.sleep(0.2)
    assert most == len(gateway.down()) == len(PORTS) // 2
    assert all(one.result() == 200 for one in gateway.start(20, 1))


def test_a_reload_keeps_an_unfit_instance_out(gateway: Gateway) -> None:
    report(gateway, PORTS[0])
    gateway.wait_for_down({str(PORTS[0])}, NOTICED)
    FLEET.shell(gateway.name, "systemctl reload trtllm-gateway")
    end = time.monotonic() + NOTICED
    while time.monotonic() < end:
        assert gateway.down().keys() == {str(PORTS[0])}
        time.sleep(0.2)


def test_a_drain_of_an_operator_stays(gateway: Gateway) -> None:
    with gateway.drained(PORTS[0]):
        report(gateway, PORTS[0])
        gateway.wait_for_down({str(PORTS[0])}, NOTICED)
        report(gateway)
        gateway.wait_for_down(set(), NOTICED)
        assert gateway.servers()[f"gpu1.p{PORTS[0]}"]["weight"] == "0"
