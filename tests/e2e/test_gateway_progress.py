"""Gateway: busy and hung instances, with both HAProxy versions. The instances are test programs."""

from __future__ import annotations

import csv
import http.client
import io
import json
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY, MODEL, Fleet
from tools.bench.gateway import running

FLEET = Fleet("probe-", gpus=0, gateways=2)
ENGINE = Path(__file__).with_name("fifo_engine.py")
# A tenth of the default.
PROGRESS_TIMEOUT = 12
SETTINGS = {
    "gateway_progress_timeout": PROGRESS_TIMEOUT,
    "gateway_check_interval": 1,
    "gateway_slow_start": 1,
    "gateway_queue_limit": 2,
    "gateway_queue_timeout": 3,
}
# Until HAProxy has counted bytes (5 s) and two checks have failed.
NOTICED = PROGRESS_TIMEOUT + 8
TOKEN_SECONDS = 0.1
# Ports, and concurrent requests of each. The last is always full with one.
SLOTS = {8000: 6, 8001: 6, 8002: 1}
RESTARTED = 8003
UNVERIFIED = ssl._create_unverified_context()
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
# Ports that never accept a connection.
DEAD = (8004, 8005)
# A full queue of connections that are never accepted: the kernel drops more, as after a power loss.
SILENT = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=0)
clients = [socket.socket() for _ in range(4)]
for client in clients:
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""
STATISTICS = """
import socket
connection = socket.socket(socket.AF_UNIX)
connection.connect("/run/trtllm-gateway/admin.sock")
connection.sendall(b"show stat\\n")
print(b"".join(iter(lambda: connection.recv(65536), b"")).decode())
"""


class Gateway:
    """Gateway with test instances on its host."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = FLEET.address(name)
        self.clients = ThreadPoolExecutor(200)

    def register(self, *ports: int, max_requests: int = 100, timeout: int = 30) -> None:
        """Put exactly these instances in service."""
        servers = [
            {"name": f"p{port}", "address": "127.0.0.1", "port": port, "model": MODEL, "max_requests": max_requests}
            for port in ports
        ]
        self.module({"hosts": [{"name": "gpu1", "servers": servers}], "timeout": timeout})

    def module(self, options: dict[str, object]) -> None:
        command = ["ansible", "-i", "inventory/local", self.name, "--become", "-m", "trtllm.fleet.gateway_host", "-a"]
        subprocess.run([*command, json.dumps(options)], env=dict(FLEET.environment), check=True)

    @contextmanager
    def drained(self, port: int) -> Iterator[None]:
        options = {"hosts": [{"name": "gpu1"}], "instances": [f"p{port}"]}
        self.module({**options, "state": "drained"})
        yield
        self.module({**options, "state": "ready"})

    def fault(self, port: int, words: str | None) -> None:
        FLEET.shell(self.name, f"rm -f /run/{port}" if words is None else f"printf '{words}' > /run/{port}")

    def complete(self, tokens: int, stream: bool = False) -> int:
        """Return the status of a whole response."""
        connection = http.client.HTTPSConnection(self.address, context=UNVERIFIED, timeout=120)
        body = json.dumps({"model": MODEL, "messages": [], "max_tokens": tokens, "stream": stream})
        connection.request("POST", "/v1/chat/completions", body, HEADERS)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def start(self, number: int, tokens: int, stream: bool = False) -> list[Future[int]]:
        return [self.clients.submit(self.complete, tokens, stream) for _one in range(number)]

    def servers(self) -> dict[str, dict[str, str]]:
        rows = csv.DictReader(io.StringIO(FLEET.shell(self.name, f"python3 -c '{STATISTICS}'").lstrip("# ")))
        return {row["svname"]: row for row in rows if row["pxname"].startswith("model:") and row["svname"] != "BACKEND"}

    def down(self) -> dict[str, str]:
        """Return the down instances with their reasons."""
        return {
            name.removeprefix("gpu1.p"): row["last_chk"]
            for name, row in self.servers().items()
            if row["status"].startswith("DOWN")
        }

    def wait_for_down(self, expected: set[str], seconds: float) -> dict[str, str]:
        end = time.monotonic() + seconds
        while (found := self.down()).keys() != expected:
            assert time.monotonic() < end, f"{found} instead of {expected} after {seconds} s: {self.servers()}"
            time.sleep(0.5)
        return found


def engine(host: str, port: int, slots: int) -> AbstractContextManager[None]:
    """Run a scripted engine on a host."""
    arguments = (str(port), str(slots), str(TOKEN_SECONDS), f"/run/{port}")
    return running(host, "python3", "-c", ENGINE.read_text(), *arguments)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    FLEET.up()
    run = FLEET.play("gateway", **SETTINGS)
    assert run.status == 0, run.output
    with ExitStack() as stack:
        for name in FLEET.gateway_names:
            for port, slots in SLOTS.items():
                stack.enter_context(engine(name, port, slots))
        yield FLEET
    FLEET.down()


@pytest.fixture(params=[0, 1], ids=["gateway 1", "gateway 2"])
def gateway(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """Return each gateway; their hosts have different HAProxy versions."""
    gateway = Gateway(fleet.gateway_names[request.param])
    yield gateway
    for port in (*SLOTS, RESTARTED):
        gateway.fault(port, None)
    gateway.clients.shutdown(wait=True)


def statuses(answers: list[Future[int]]) -> Counter[int]:
    return Counter(answer.result() for answer in answers)


def chkdown(gateway: Gateway) -> dict[str, int]:
    """Return how often each instance was taken out of service."""
    return {name: int(row["chkdown"]) for name, row in gateway.servers().items()}


def test_busy_instances_stay_in_service(gateway: Gateway) -> None:
    """100 requests of 3 s on two engines of six slots: a completion as health check took both down after 14 s."""
    gateway.register(8000, 8001)
    before = chkdown(gateway)
    assert statuses(gateway.start(100, tokens=30)) == {200: 100}
    assert statuses(gateway.start(20, tokens=5)) == {200: 20}
    assert chkdown(gateway) == before


def test_long_waiting_requests_get_429(gateway: Gateway) -> None:
    """This includes requests that find the queue full. A 503 would mean that all instances are down."""
    gateway.register(8000, 8001, max_requests=1)
    served = gateway.start(2, tokens=80)
    time.sleep(1)
    waiting = gateway.start(2, tokens=1)
    time.sleep(1)
    assert gateway.complete(tokens=1) == 429
    assert not waiting[0].done()
    assert statuses(waiting) == {429: 2}
    assert statuses(served) == {200: 2}


def test_long_response_without_streaming_counts_as_progress(gateway: Gateway) -> None:
    """The response moves no byte for twice the timeout and fills its engine, so that the gateway's probe waits."""
    gateway.register(8001, 8002)
    before = chkdown(gateway)
    assert statuses(gateway.start(2, tokens=round(2 * PROGRESS_TIMEOUT / TOKEN_SECONDS))) == {200: 2}
    assert chkdown(gateway) == before


def test_hung_instance_is_down_until_it_sends_bytes(gateway: Gateway) -> None:
    gateway.register(8000, 8001)
    streams = gateway.start(4, tokens=150, stream=True)
    time.sleep(6)
    gateway.fault(8000, "hang")
    hung, later = time.monotonic(), list(streams)
    # A hung engine still sends the headers of new streams.
    while not gateway.down():
        assert time.monotonic() < hung + NOTICED
        later += gateway.start(1, tokens=1, stream=True)
        time.sleep(1)
    assert time.monotonic() > hung + PROGRESS_TIMEOUT - 5
    assert gateway.down()["8000"].startswith("no progress for ")
    assert statuses(gateway.start(4, tokens=5)) == {200: 4}
    gateway.fault(8000, None)
    gateway.wait_for_down(set(), seconds=10)
    assert set(statuses(later)) == {200}


def test_hung_idle_instance_is_detected(gateway: Gateway) -> None:
    gateway.register(8000, 8001)
    gateway.fault(8001, "hang")
    gateway.wait_for_down({"8001"}, NOTICED)
    gateway.fault(8001, None)
    gateway.wait_for_down(set(), seconds=10)


def test_half_of_the_instances_stay_in_service(gateway: Gateway) -> None:
    """The gateway may be at fault if most instances appear to fail."""
    gateway.register(8000, 8001, 8002)
    for port in SLOTS:
        gateway.fault(port, "hang")
    end = time.monotonic() + 2 * NOTICED
    seen: set[int] = set()
    while time.monotonic() < end:
        seen.add(len(gateway.down()))
        time.sleep(1)
    assert seen == {0, 1}


def test_drained_and_lost_instances_do_not_count_for_the_half_in_service(gateway: Gateway) -> None:
    """Of four, one is drained and one is gone: of the other two only one may be down."""
    gateway.register(8000, 8001, 8002, RESTARTED, timeout=0)
    with gateway.drained(8002):
        gateway.wait_for_down({str(RESTARTED)}, seconds=15)
        for port in (8000, 8001):
            gateway.fault(port, "hang")
        end = time.monotonic() + 2 * NOTICED
        seen: set[int] = set()
        while time.monotonic() < end:
            seen.add(len({"8000", "8001"} & gateway.down().keys()))
            time.sleep(1)
        assert seen == {0, 1}


def test_unreachable_hosts_do_not_hide_a_hung_one(gateway: Gateway) -> None:
    with ExitStack() as stack:
        for port in DEAD:
            stack.enter_context(running(gateway.name, "python3", "-c", SILENT, str(port)))
        time.sleep(1)
        gateway.register(8000, 8001, *DEAD, timeout=0)
        dead = {str(port) for port in DEAD}
        gateway.wait_for_down(dead, seconds=15)
        time.sleep(PROGRESS_TIMEOUT + 5)
        gateway.fault(8001, "hang")
        gateway.wait_for_down({*dead, "8001"}, NOTICED)


def test_errors_do_not_hide_a_healthy_stream(gateway: Gateway) -> None:
    """An error response has about 200 bytes; the gateway must not count it as 2,048."""
    gateway.register(8000, 8001)
    for port in (8000, 8001):
        gateway.fault(port, "unmetered")
    before = chkdown(gateway)
    streams = gateway.start(12, tokens=round(3 * PROGRESS_TIMEOUT / TOKEN_SECONDS), stream=True)
    time.sleep(1)
    assert statuses(gateway.start(600, tokens=0)) == {400: 600}
    assert statuses(streams) == {200: 12}
    assert chkdown(gateway) == before


def test_request_from_before_a_reload_does_not_reach_a_drained_instance(gateway: Gateway) -> None:
    """A replaced HAProxy process selects the instance when the body is complete."""
    gateway.register(8000, 8001)
    body = json.dumps({"model": MODEL, "messages": [], "max_tokens": 1}).encode()
    with ExitStack() as stack:
        connections = [
            stack.enter_context(closing(http.client.HTTPSConnection(gateway.address, context=UNVERIFIED, timeout=60)))
            for _one in range(10)
        ]
        for connection in connections:
            connection.putrequest("POST", "/v1/chat/completions")
            for name, value in {**HEADERS, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body[:10])
        gateway.register(8000, 8001, 8002)
        with gateway.drained(8000):
            gateway.fault(8000, "refuse")
            for connection in connections:
                connection.send(body[10:])
            answers = Counter(connection.getresponse().status for connection in connections)
            gateway.fault(8000, None)
    assert answers == {200: 10}


def test_instance_that_rejects_completions_is_down(gateway: Gateway) -> None:
    """The model lacks the harmony vocabulary, for example. That is not load, so all instances may be down for it."""
    gateway.register(8000, 8001)
    for port in (8000, 8001):
        gateway.fault(port, "refuse")
    assert set(gateway.wait_for_down({"8000", "8001"}, NOTICED).values()) == {"a completion: HTTP 400"}
    for port in (8000, 8001):
        gateway.fault(port, None)
    gateway.wait_for_down(set(), seconds=10)


def test_restarted_instance_needs_a_completion_first(gateway: Gateway) -> None:
    """Its /health is 200 at once."""
    gateway.register(8000, RESTARTED, timeout=0)
    assert gateway.wait_for_down({str(RESTARTED)}, seconds=10) == {str(RESTARTED): "Connection refused"}
    gateway.fault(RESTARTED, "hang")
    with engine(gateway.name, RESTARTED, slots=6):
        time.sleep(6)
        assert gateway.down() == {str(RESTARTED): "nothing answered yet"}
        gateway.fault(RESTARTED, None)
        gateway.wait_for_down(set(), seconds=10)
