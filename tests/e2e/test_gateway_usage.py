"""The usage of API keys at two gateways, compared request by request with what the engines counted themselves.

Two hosts serve different models. Clients stream, disconnect, and use both gateways, of which one is killed and the
other is reloaded; the usage services are killed, too. ``USAGE_REQUESTS`` is their number.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Run, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import Fleet

FLEET = Fleet("use-", gpus=2, gateways=2)
REQUESTS = int(os.environ.get("USAGE_REQUESTS", "2000"))
BIG, SMALL = "openai/gpt-oss-120b", "openai/gpt-oss-20b"
KEYS = {name: f"{name}-key-0123456789" for name in ("alice", "bob", "limited")}
AT_A_TIME = 24
USAGE = "trtllm-gateway-usage"
RECORDS = "/var/lib/trtllm-fleet/usage"
CHAT = "/v1/chat/completions"
PER_MINUTE = 400
SETTINGS: dict[str, Any] = {
    "gateway_api_keys": [
        {
            "name": name,
            "sha256": hashlib.sha256(key.encode()).hexdigest(),
            **({"tokens_per_minute": PER_MINUTE} if name == "limited" else {}),
        }
        for name, key in KEYS.items()
    ],
    "serving_recipe_environment": {"LAB_ENGINE_REQUEST_LOG": "1"},
}


@dataclass
class Sent:
    """What clients saw: ids of whole answers with their usage, of interrupted ones, and of rejected ones."""

    whole: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    interrupted: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    # Events with only the usage, which a client did not request.
    surprises: int = 0


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    FLEET.up()
    path = tmp_path_factory.mktemp("usage") / "hosts.yml"
    small = {FLEET.gpu_names[1]: {"serving_recipe_model": SMALL}}
    path.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": small}}))
    run = FLEET.play("site", "-i", str(path), **SETTINGS)
    assert run.status == 0, run.output
    yield path
    FLEET.down()


def client(gateway: str, key: str) -> httpx2.AsyncClient:
    base = f"https://{FLEET.address(gateway)}"
    headers = {"Authorization": f"Bearer {KEYS[key]}"}
    return httpx2.AsyncClient(base_url=base, headers=headers, verify=False, timeout=60)


async def send(http: httpx2.AsyncClient, model: str, sent: Sent, choice: random.Random) -> None:
    """Send one request: whole or streamed, with or without usage, and maybe interrupted."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "word " * choice.randint(1, 60)}],
        "max_tokens": choice.randint(1, 24),
    }
    kind = choice.choice(["whole", "whole", "whole", "stream", "with usage", "interrupted"])
    identity = ""
    try:
        if kind == "whole":
            answer = await http.post(CHAT, json=body)
            identity = answer.headers.get("x-request-id", "")
            sent.statuses[answer.status_code] += 1
            if answer.status_code == 200:
                sent.whole[identity] = answer.json()["usage"]
            return
        body["stream"] = True
        if kind == "with usage":
            body["stream_options"] = {"include_usage": True}
        if kind == "interrupted":
            body["max_tokens"] = 400
        usage = None
        async with http.stream("POST", CHAT, json=body) as answer:
            identity = answer.headers.get("x-request-id", "")
            sent.statuses[answer.status_code] += 1
            events = 0
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    events += 1
                    usage = chunk.get("usage") or usage
                    sent.surprises += kind == "stream" and not chunk["choices"]
                    if kind == "interrupted" and events > 5:
                        sent.interrupted.add(identity)
                        return
                if line == "data: [DONE]":
                    sent.whole[identity] = usage if kind == "with usage" else None
                    return
            if answer.status_code == 200:
                sent.interrupted.add(identity)
    except httpx2.HTTPError:
        if identity:
            sent.interrupted.add(identity)


async def load(number: int, sent: Sent) -> None:
    choice = random.Random(7)
    clients = [client(gateway, key) for gateway in FLEET.gateway_names for key in ("alice", "bob")]
    limit = asyncio.Semaphore(AT_A_TIME)

    async def one(turn: int) -> None:
        async with limit:
            await send(clients[turn % len(clients)], BIG if turn % 3 else SMALL, sent, choice)

    await asyncio.gather(*(one(turn) for turn in range(number)))
    for each in clients:
        await each.aclose()


async def disturb(done: asyncio.Event) -> None:
    """Reload one gateway, kill the other and both usage services, again and again."""
    first, second = FLEET.gateway_names
    while not done.is_set():
        for host, command in (
            (first, "systemctl reload trtllm-gateway"),
            (second, f"systemctl kill --signal=KILL {USAGE}"),
            (second, "systemctl kill --kill-whom=all --signal=KILL trtllm-gateway"),
            (first, f"systemctl kill --signal=KILL {USAGE}"),
        ):
            await asyncio.sleep(4)
            if not done.is_set():
                await asyncio.to_thread(FLEET.shell, host, command)


def records(gateway: str) -> list[dict[str, Any]]:
    lines = FLEET.shell(gateway, f"cat {RECORDS}/*.jsonl").splitlines()
    return [one for one in map(json.loads, lines) if "id" in one]


def engine_lines() -> dict[str, dict[str, Any]]:
    """Return what the engines counted of each request."""
    found = {}
    for host in FLEET.gpu_names:
        inside = "cat /tmp/trtllm-serve-*/admission.log | grep -a '^LAB_REQUEST'"
        log = FLEET.shell(host, f'docker exec trtllm-serve-0 sh -c "{inside}"')
        for line in log.splitlines():
            one = json.loads(line.partition(" ")[2])
            found[one["id"]] = one
    return found


@pytest.fixture(scope="module")
def sent(inventory: Path) -> Sent:
    """Clients of both gateways during reloads and kills, and then a pause until all is accounted for."""

    async def run() -> Sent:
        seen, done = Sent(), asyncio.Event()
        trouble = asyncio.create_task(disturb(done))
        await load(REQUESTS, seen)
        done.set()
        await trouble
        return seen

    seen = asyncio.run(run())
    time.sleep(15)
    return seen


def test_clients_see_only_what_they_requested(sent: Sent) -> None:
    assert sent.surprises == 0
    assert set(sent.statuses) <= {200, 502, 503}, sent.statuses
    assert len(sent.whole) > REQUESTS / 2


def test_each_answer_has_one_record(sent: Sent) -> None:
    numbers = Counter(one["id"] for host in FLEET.gateway_names for one in records(host))
    assert [identity for identity, number in numbers.items() if number > 1] == []
    missing = sent.whole.keys() - numbers.keys()
    # Answers that ended in the second before HAProxy was killed have no line in its log.
    assert len(missing) <= 0.01 * len(sent.whole), missing


def test_tokens_are_those_of_the_engines(sent: Sent) -> None:
    bill = {one["id"]: one for host in FLEET.gateway_names for one in records(host)}
    engines = engine_lines()
    wrong = {}
    for identity, one in bill.items():
        if one["status"] != 200 or identity not in engines:
            continue
        own, usage = engines[identity], engines[identity]["usage"]
        counted = (one["prompt_tokens"], one["completion_tokens"])
        if not one["estimated"] and counted != (usage["prompt_tokens"], usage["completion_tokens"]):
            wrong[identity] = (one, own)
        # The engine may have sent more than the client took.
        if one["estimated"] and own["usage"] is None and one["completion_tokens"] > own["events"]:
            wrong[identity] = (one, own)
    assert wrong == {}
    for identity, usage in sent.whole.items():
        if usage and identity in bill:
            assert bill[identity]["completion_tokens"] == usage["completion_tokens"], identity
    # A stream that HAProxy had sent whole when it was killed has no line in its log.
    estimated = {identity for identity, one in bill.items() if one["estimated"] and one["end"] != "killed"}
    assert estimated & sent.whole.keys() == set()


def test_usage_of_both_gateways_is_the_sum_of_their_records(inventory: Path, sent: Sent, tmp_path: Path) -> None:
    written = tmp_path / "usage.json"
    run = FLEET.play("usage", "-i", str(inventory), usage_file=str(written))
    assert run.status == 0, run.output
    rows = json.loads(written.read_text())["usage"]
    bill = [one for host in FLEET.gateway_names for one in records(host)]
    for row in rows:
        own = [one for one in bill if (one["key"], one["model"]) == (row["key"], row["model"])]
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            assert row[name] == sum(one[name] for one in own), (row, name)
        assert row["requests"] == len(own)
    assert {(row["key"], row["model"]) for row in rows} == {(one["key"], one["model"]) for one in bill}


def test_no_prompt_or_answer_is_stored(sent: Sent) -> None:
    for host in FLEET.gateway_names:
        found = FLEET.shell(host, "grep -rl 'word word' /var/lib/trtllm-fleet /run/trtllm-gateway /var/log || true")
        assert found == ""


def ask(gateway: str, tokens: int) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {KEYS['limited']}"}
    body = {"model": BIG, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": tokens}
    return httpx2.post(f"https://{FLEET.address(gateway)}{CHAT}", headers=headers, json=body, verify=False, timeout=60)


def is_rejected(gateway: str) -> bool:
    return ask(gateway, 1).status_code == 429


def test_quota_is_for_both_gateways(inventory: Path) -> None:
    first, second = FLEET.gateway_names
    answer = ask(first, 200)
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-limit-tokens"] == str(PER_MINUTE)
    assert wait_for(lambda: int(ask(second, 1).headers["x-ratelimit-remaining-tokens"]) < PER_MINUTE - 150, 10)
    assert ask(second, 200).status_code == 200
    for gateway in (first, second):
        assert wait_for(partial(is_rejected, gateway), 10)
    rejected = ask(first, 1)
    assert rejected.json()["error"]["type"] == "rate_limit_exceeded"
    assert 1 <= int(rejected.headers["retry-after"]) <= 60
    assert rejected.headers["x-ratelimit-remaining-tokens"] == "0"
    # A reload keeps it, and the key is free again after the time that it was given.
    FLEET.shell(first, "systemctl reload trtllm-gateway")
    time.sleep(2)
    assert ask(first, 1).status_code == 429
    time.sleep(int(ask(first, 1).headers["retry-after"]) + 2)
    assert ask(first, 1).status_code == 200


def test_second_run_changes_nothing(inventory: Path) -> None:
    run: Run = FLEET.play("gateway", "-i", str(inventory), **SETTINGS)
    assert run.status == 0, run.output
    changes: Sequence[str] = [
        line for line in run.output.splitlines() if "changed=" in line and "changed=0" not in line
    ]
    assert changes == []
