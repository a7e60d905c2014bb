"""The proxy of a gateway by itself, in both releases of HAProxy: the instances are programs of the test."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.rollout_fleet import KEY, MODEL, Fleet
from tests.integration.test_23_gateway import access, ask, journal, now
from tools.bench.gateway import INSTANCE, running
from tools.bench.token_times import VERSIONS, figures, token_times

FLEET = Fleet("alone-", gpus=0, gateways=2)
PORT = 8000
TOKENS, TOKEN_SECONDS = 40, 0.05
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Are you there?"}], "stream": True}
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two gateways, each with an instance on its own host that gives a token every 50 ms."""
    FLEET.up()
    run = FLEET.play("gateway")
    assert run.status == 0, run.output
    with ExitStack() as stack:
        for name in FLEET.gateway_names:
            program = INSTANCE.read_text()
            stack.enter_context(running(name, "python3", "-c", program, str(PORT), str(TOKEN_SECONDS)))
        server = {"name": "serve-0", "address": "127.0.0.1", "port": PORT, "max_requests": 100}
        register(FLEET, hosts=[{"name": "gpu1", "model": MODEL, "servers": [server]}], timeout=60)
        yield FLEET
    FLEET.down()


@pytest.fixture(params=[0, 1], ids=["gateway 1", "gateway 2"])
def gateway(fleet: Fleet, request: pytest.FixtureRequest) -> str:
    """Their hosts have different releases of HAProxy."""
    return fleet.gateway_names[request.param]


def register(fleet: Fleet, **options: Any) -> None:
    """Run module gateway_host on all gateways."""
    command = ["ansible", "-i", "inventory/local", "gateway", "-m", "trtllm.fleet.gateway_host", "-a"]
    subprocess.run([*command, json.dumps(options)], env=fleet.environment, check=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_tokens_arrive_one_by_one(fleet: Fleet, gateway: str, version: str) -> None:
    """Without option http-no-delay the first takes 200 ms more, and five arrive at a time."""
    url = f"https://{fleet.address(gateway)}/v1/chat/completions"
    found = figures([token_times(url, version, {**CHAT, "max_tokens": TOKENS}, HEADERS) for _turn in range(3)])
    assert found["first_token_ms_p50"] < 100
    assert 40 < found["gap_ms_p50"] < 60
    assert found["gap_ms_p95"] < 100


def test_long_requests_without_a_key_leave_the_log_readable(fleet: Fleet, gateway: str) -> None:
    """A line that HAProxy cuts is no JSON, and a log of which most is no JSON ends a rollout."""
    address, began = fleet.address(gateway), now(fleet, gateway)
    body = json.dumps({**CHAT, "max_tokens": 1, "stream": False}).encode()
    assert ask(address, "POST", "/v1/chat/completions", body).status == 200
    for target in ("/" + 9000 * "a", "/" + 4500 * "\xc3\xa4", "/" + 9000 * '"', "/" + 9000 * "\\"):
        for _turn in range(5):
            assert ask(address, "GET", target, headers={}).status in (400, 401)
    assert ask(address, 9000 * "A", "/", headers={}).status in (400, 401)
    lines = [line for line in journal(fleet, gateway, began) if line.startswith("{")]
    assert len(access(lines)) == len(lines) > 10
    assert max(map(len, lines)) < 2500
    command = ["ansible", "-i", "inventory/local", gateway, "-m", "trtllm.fleet.gateway_info", "-a", "seconds=60"]
    told = subprocess.run(command, env=fleet.environment, text=True, stdout=subprocess.PIPE, check=False)
    assert told.returncode == 0, told.stdout
