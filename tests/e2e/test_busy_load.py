"""Two instances under twice their capacity, then one that hangs: a busy instance is neither down nor killed.

BUSY_LOAD_MINUTES sets the duration of the load (3). Prints the figures and writes gateway-load.md to the folder
ROLLOUT_DOCUMENTS if set.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY, MODEL, Fleet, publish

MINUTES = float(os.environ.get("BUSY_LOAD_MINUTES", "3"))
# Tokens of each KV cache: one context and a quarter, so that a response without max_tokens leaves little for others.
KV_TOKENS = 163840
EXPECTED_TOKENS = 8192
INSTANCES = 2
CAPACITY = INSTANCES * KV_TOKENS // EXPECTED_TOKENS  # requests in flight
QUEUE = CAPACITY // 2
CLIENTS = 2 * CAPACITY
UNLIMITED = 0.1  # share of requests without max_tokens
ANSWER_TOKENS = 600  # of such a response
SPEEDUP = "0.05"
# The gateway's default. The watchdog has less than its 600 s, which is harder to meet under load.
PROGRESS_TIMEOUT, WATCH_TIMEOUT = 120, 120
# Two checks of 5 s, five seconds until bytes are counted, and the interval of the gateway's program.
DOWN_WITHIN = PROGRESS_TIMEOUT + 20
# The watchdog checks every 20 s; then the container is killed, started after 15 s, and loads.
RESTARTED_WITHIN = WATCH_TIMEOUT + 90
FAULT = "/srv/trtllm-fleet/encodings/fault"
SETTINGS = {
    "gateway_host_expected_tokens": EXPECTED_TOKENS,
    "gateway_queue_limit": QUEUE,
    "gateway_queue_timeout": 30,
    "gateway_progress_timeout": PROGRESS_TIMEOUT,
    "trtllm_server_watch_timeout": WATCH_TIMEOUT,
    "serving_recipe_engine_options": {"kv_cache_config": {"max_tokens": KV_TOKENS}},
    "serving_recipe_use_case": "max_throughput",
    "serving_recipe_environment": {
        "LAB_ENGINE_SPEEDUP": SPEEDUP,
        "LAB_ENGINE_ANSWER_TOKENS": str(ANSWER_TOKENS),
        "LAB_ENGINE_FAULT_FILE": "/encodings/fault",
    },
}
PROMPT = "Tell a long story about a gateway. "


@dataclass(frozen=True)
class Small(Fleet):
    """GPU hosts of one GPU each."""

    @property
    def environment(self) -> dict[str, str]:
        kinds = ",".join(["h200x1"] * self.gpus + ["none"] * self.gateways)
        return {**super().environment, "LAB_GPU": kinds}


FLEET = Small("load-", gpus=INSTANCES, gateways=1)


@dataclass
class Answered:
    """Results of clients: seconds of each response by kind, and the number of each status or error."""

    statuses: Counter[str]
    seconds: dict[str, list[float]]


async def one(client: httpx2.AsyncClient, answered: Answered) -> float:
    """Request a completion; return the seconds to wait before the next."""
    limited, stream = random.random() >= UNLIMITED, random.random() < 0.5
    body: dict[str, Any] = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": PROMPT * 8}]}
    if limited:
        body["max_tokens"] = random.randint(16, 128)
    began, text = time.monotonic(), ""
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for part in answer.aiter_text():
                text = (text + part)[-1000:]
    except httpx2.HTTPError as error:
        answered.statuses[type(error).__name__] += 1
        return 5
    whole = "[DONE]" in text if stream else '"finish_reason"' in text or '"usage"' in text
    answered.statuses[str(answer.status_code) if whole or answer.status_code != 200 else "cut"] += 1
    if answer.status_code != 200:
        return float(answer.headers.get("retry-after", 5)) * random.uniform(0.5, 1.5)
    kind = f"{'streamed' if stream else 'not streamed'}, {'with' if limited else 'without'} max_tokens"
    answered.seconds.setdefault(kind, []).append(time.monotonic() - began)
    return 0


async def user(client: httpx2.AsyncClient, end: float, answered: Answered) -> None:
    await asyncio.sleep(random.uniform(0, 10))
    while time.monotonic() < end:
        await asyncio.sleep(await one(client, answered))


async def load(url: str, seconds: float) -> Answered:
    """Run twice as many clients as the instances have capacity for."""
    answered, end = Answered(Counter(), {}), time.monotonic() + seconds
    limits, headers = httpx2.Limits(max_connections=None), {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(base_url=url, verify=False, timeout=1200, limits=limits, headers=headers) as client:
        await asyncio.gather(*(user(client, end, answered) for _client in range(CLIENTS)))
    return answered


def times_down(fleet: Fleet) -> int:
    """Return how often the gateway took an instance out of service, from its journal."""
    (gateway,) = fleet.gateway_names
    return int(
        fleet.shell(gateway, "journalctl -t trtllm-gateway -o cat | grep -c 'Server instances.* is DOWN' || true")
    )


def kills(fleet: Fleet) -> int:
    """Return how often a watchdog killed a container."""
    found = [fleet.shell(name, "cat /run/trtllm-fleet/healed/*.json 2>/dev/null || true") for name in fleet.gpu_names]
    return sum(json.loads(text)["times"] for text in found if text)


def limits(fleet: Fleet) -> list[int]:
    (gateway,) = fleet.gateway_names
    text = fleet.shell(
        gateway, "sed -n 's/^  server .* maxconn \\([0-9]*\\).*/\\1/p' /etc/trtllm-fleet/gateway/haproxy.cfg"
    )
    return [int(line) for line in text.split()]


def hang(fleet: Fleet) -> tuple[float, float, float]:
    """Hang one instance; return the seconds until it is down, until it is killed, and until it is in service again."""
    host = fleet.gpu_names[0]
    before, killed = times_down(fleet), kills(fleet)
    fleet.shell(host, f"printf hang > {FAULT}")
    began, at = time.monotonic(), dict.fromkeys(("down", "killed", "back"), 0.0)
    while not at["back"] and time.monotonic() < began + DOWN_WITHIN + RESTARTED_WITHIN + 300:
        time.sleep(2)
        now = time.monotonic() - began
        if not at["down"] and times_down(fleet) > before:
            at["down"] = now
        if not at["killed"] and kills(fleet) > killed:
            at["killed"] = now
            fleet.shell(host, f"rm {FAULT}")
        if at["down"] and at["killed"]:
            (gateway,) = fleet.gateway_names
            words = f"Server model:[^ ]*/{host}.* is UP"
            ups = fleet.shell(
                gateway, f"journalctl -t trtllm-gateway -o cat --since -{int(now)}s | grep -c '{words}' || true"
            )
            at["back"] = now if int(ups) else 0.0
    return at["down"], at["killed"], at["back"]


def page(answered: Answered, down: int, killed: int, hung: tuple[float, float, float]) -> str:
    """Return the figures as Markdown."""
    rows = "\n".join(
        f"| {kind} | {len(found)} | {statistics.median(found):.1f} s | {max(found):.1f} s |"
        for kind, found in sorted(answered.seconds.items())
    )
    outcome = ", ".join(f"{count} x {status}" for status, count in answered.statuses.most_common())
    return f"""\
# A gateway under twice the load

Run on {datetime.now(UTC):%Y-%m-%d} with `make load-busy`, in the lab: {INSTANCES} simulated H200 behind one gateway,
on {os.cpu_count()} cores that other jobs used as well. The KV cache of each holds {KV_TOKENS} tokens.

{CLIENTS} clients request completions for {MINUTES:g} minutes, one after another.
The gateway sends the instances {CAPACITY} requests at a time (`gateway_host_expected_tokens: {EXPECTED_TOKENS}`),
and {QUEUE} wait in its queue. {100 * UNLIMITED:.0f} % of the requests have no `max_tokens`. Each of these
reserves the context of 131,072 tokens, so an engine works on one of them at a time.

**{outcome}. Instances were marked down {down} times. The watchdog killed {killed} containers**
(`trtllm_server_watch_timeout: {WATCH_TIMEOUT}`).

| Responses | number | p50 | longest |
|---|---|---|---|
{rows}

Then one engine hung: it kept its port and `/health` returned 200.

| Event | after | documented |
|---|---|---|
| out of service | {hung[0]:.0f} s | {DOWN_WITHIN} s |
| killed by the watchdog | {hung[1]:.0f} s | {RESTARTED_WITHIN} s |
| in service again | {hung[2]:.0f} s | |

Response times are those of the lab engine's model of a GPU, slowed down {1 / float(SPEEDUP):.0f} times.
"""


def measure(fleet: Fleet, minutes: float) -> None:
    """Load the fleet, hang one instance, publish the figures and check them."""
    assert limits(fleet) == [CAPACITY // INSTANCES] * INSTANCES
    down, killed = times_down(fleet), kills(fleet)
    (gateway,) = fleet.gateway_names
    answered = asyncio.run(load(f"https://{fleet.address(gateway)}", 60 * minutes))
    down, killed = times_down(fleet) - down, kills(fleet) - killed
    hung = hang(fleet)
    publish("gateway-load.md", page(answered, down, killed, hung))
    assert set(answered.statuses) == {"200", "429"}, answered.statuses
    assert (down, killed) == (0, 0)
    assert 0 < hung[0] <= DOWN_WITHIN
    assert 0 < hung[1] <= RESTARTED_WITHIN
    assert hung[2]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    FLEET.up()
    run = FLEET.play("site", **SETTINGS)
    assert run.status == 0, run.output
    yield FLEET
    FLEET.down()


def test_busy_fleet_stays_in_service(fleet: Fleet) -> None:
    measure(fleet, MINUTES)
