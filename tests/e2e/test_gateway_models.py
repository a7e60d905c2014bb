"""Several models behind two gateways: names, keys, bodies of all kinds, rollouts, and a host that changes its model.

Two hosts serve gpt-oss-120b, one gpt-oss-20b, and a fourth both, under a steady load on both models, and requests of
the clients that tests/e2e/clients has. ``GATEWAY_FUZZ_SECONDS`` is the time for random bodies.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY, ONE, TWO, Fleet

FLEET = Fleet("mod-", gpus=4, gateways=2)
BIG, SMALL = "openai/gpt-oss-120b", "openai/gpt-oss-20b"
ALIASES = {"gpt-4o": BIG, "fast": SMALL}
KEYS = {"all": KEY, "small": "small-key-0123456789", "default": "default-key-0123456789"}
SETTINGS: dict[str, Any] = {
    "gateway_api_keys": [
        {
            "name": name,
            "sha256": hashlib.sha256(key.encode()).hexdigest(),
            **({"models": [SMALL]} if name == "small" else {}),
        }
        for name, key in KEYS.items()
    ],
    "gateway_model_aliases": ALIASES,
}
# An instance for each GPU: eight that load at once take longer on the lab's cores than their leases last.
ONLY_SMALL = {"serving_recipe_model": SMALL, "serving_recipe_gpus": [0, 1]}
RATE = 2.0
CHAT = "/v1/chat/completions"
CLIENTS = REPO / "tests/e2e/clients"
INSTALLED = REPO / ".cache/clients"
FUZZ = float(os.environ.get("GATEWAY_FUZZ_SECONDS", "60"))
BOM = "\ufeff"


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    FLEET.up()
    path = tmp_path_factory.mktemp("models") / "hosts.yml"
    both = [{"model": BIG, "gpus": [0, 1, 2, 3]}, {"model": SMALL, "gpus": [4]}]
    hosts: dict[str, Any] = {
        FLEET.gpu_names[2]: ONLY_SMALL,
        FLEET.gpu_names[3]: {"serving_recipe_models": both},
    }
    path.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": hosts}}))
    run = FLEET.play("site", "-i", str(path), **SETTINGS, **ONE)
    assert run.status == 0, run.output
    yield path
    FLEET.down()


@pytest.fixture(scope="module")
def loads(inventory: Path) -> Iterator[dict[str, Load]]:
    urls = [f"https://{FLEET.address(name)}/v1" for name in FLEET.gateway_names]
    with Load(urls, KEY, BIG, RATE, long_every=0) as big, Load(urls, KEY, SMALL, RATE, long_every=0) as small:
        big.wait(3)
        yield {BIG: big, SMALL: small}


@pytest.fixture(scope="module", autouse=True)
def clients(loads: dict[str, Load]) -> Iterator[None]:
    """Check that no client program has an error until the last test ends."""
    subprocess.run([REPO / "tools/clients.sh"], check=True)
    shutil.copy(CLIENTS / "openai_client.mjs", INSTALLED)
    python = str(INSTALLED / "python/bin/python")
    commands = [(python, path) for path in sorted(CLIENTS.glob("*_client.py"))]
    commands.append(("node", INSTALLED / "openai_client.mjs"))
    environment = {**os.environ, "NODE_TLS_REJECT_UNAUTHORIZED": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    running = {}
    for number, command in enumerate(commands):
        url = f"https://{FLEET.address(FLEET.gateway_names[number % 2])}/v1"
        running[command[1].name] = subprocess.Popen(
            [*command, url, KEY, BIG, SMALL, *ALIASES],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    yield
    found = {name: process.communicate()[0] for name, process in running.items()}
    print(found)
    for name, output in found.items():
        result = json.loads(output.splitlines()[-1])
        assert result["errors"] == [], name
        assert result["requests"] > 100, name


@pytest.fixture(autouse=True)
def others(loads: dict[str, Load]) -> Iterator[None]:
    """Check that no client of either model has an error during a test."""
    began = time.monotonic()
    yield
    for model, load in loads.items():
        load.wait(0.5)
        assert load.errors(began) == {}, model


@pytest.fixture(params=[0, 1], ids=["gateway 1", "gateway 2"])
def gateway(request: pytest.FixtureRequest) -> str:
    return FLEET.address(FLEET.gateway_names[request.param])


def post(gateway: str, body: Any, key: str = "all") -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {KEYS[key]}", "Content-Type": "application/json"}
    return httpx2.post(f"https://{gateway}{CHAT}", content=content, headers=headers, verify=False, timeout=60)


def curl(gateway: str, content: Any, *options: str) -> httpx2.Response:
    """Send a request with curl, which speaks HTTP/2, and chunks."""
    command = ["curl", "--silent", "--insecure", "--include", "--max-time", "60", f"https://{gateway}{CHAT}", *options]
    command += ["--header", f"Authorization: Bearer {KEY}", "--header", "Content-Type: application/json"]
    command += ["--data-binary", "@-"]
    done = subprocess.run(command, input=json.dumps(content).encode(), stdout=subprocess.PIPE, check=True)
    head, _separator, text = done.stdout.rpartition(b"\r\n\r\n")
    start, *lines = head.rpartition(b"HTTP/")[2].decode().split("\r\n")
    headers = [(name, value) for name, separator, value in (line.partition(": ") for line in lines) if separator]
    return httpx2.Response(int(start.split()[1]), headers=dict(headers), content=text)


def body(model: Any, prompt: str = "Hello", **more: Any) -> dict[str, Any]:
    """Return a request with the model behind the prompt."""
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4, **more, "model": model}


def names(gateway: str, key: str = "all") -> set[str]:
    answer = httpx2.get(
        f"https://{gateway}/v1/models", headers={"Authorization": f"Bearer {KEYS[key]}"}, verify=False, timeout=10
    )
    return {one["id"] for one in answer.json()["data"]}


def instance_of(answer: httpx2.Response) -> str:
    """Return the host whose instance answered, from the access log."""
    identity = answer.headers["x-request-id"]
    for name in FLEET.gateway_names:
        line = FLEET.shell(name, f"journalctl -t trtllm-gateway -o cat --since=-60s | grep -F {identity} || true")
        if line:
            return str(json.loads(line)["instance"]).partition(".")[0]
    return ""


WAYS = {
    "HTTP/1.1": ["--http1.1"],
    "HTTP/2": ["--http2"],
    "chunked": ["--http1.1", "--header", "Transfer-Encoding: chunked"],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "hosts"),
    [
        (BIG, {0, 1, 3}),
        (SMALL, {2, 3}),
        ("gpt-oss-120b", {0, 1, 3}),
        ("gpt-oss-20b", {2, 3}),
        ("gpt-4o", {0, 1, 3}),
        ("fast", {2, 3}),
    ],
)
def test_each_name_selects_its_model(gateway: str, name: str, hosts: set[int], way: str) -> None:
    answer = curl(gateway, body(name), *WAYS[way])
    assert answer.status_code == 200, answer.text
    assert instance_of(answer) in {FLEET.gpu_names[number] for number in hosts}


@pytest.mark.parametrize("size", [30_000, 300_000, 3_000_000])
def test_model_behind_a_long_prompt(gateway: str, size: int) -> None:
    """The engine rejects a prompt beyond its context, so only the instance counts."""
    answer = post(gateway, body(SMALL, "x " * (size // 2)))
    assert instance_of(answer) in FLEET.gpu_names[2:]


def test_the_list_has_what_the_key_may_use(gateway: str) -> None:
    assert names(gateway) == {BIG, SMALL, *ALIASES}
    assert names(gateway, "small") == {SMALL, "fast"}


def test_another_model_is_as_unknown_to_a_key_as_none(gateway: str) -> None:
    for model in (BIG, "gpt-4o", "no-such-model"):
        answer = post(gateway, body(model), "small")
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error["code"] == "model_not_found"
        assert SMALL in error["message"]
        assert BIG not in error["message"].replace(f'"{BIG}"', "")
    assert post(gateway, body("fast"), "small").status_code == 200


def test_the_openai_client_sees_errors_as_from_openai(gateway: str) -> None:
    client = openai.OpenAI(
        base_url=f"https://{gateway}/v1", api_key=KEY, http_client=httpx2.Client(verify=False), max_retries=0
    )
    messages: Any = [{"role": "user", "content": "Hello"}]
    with pytest.raises(openai.NotFoundError) as failed:
        client.chat.completions.create(model="gpt-5", messages=messages)
    assert failed.value.code == "model_not_found"
    chunks = list(client.chat.completions.create(model="fast", messages=messages, max_tokens=4, stream=True))
    assert chunks[-1].choices
    assert client.models.retrieve("gpt-oss-20b").id == "gpt-oss-20b"


NESTED: Any = {"a": 1}
for _level in range(30):
    NESTED = {"b": NESTED}
CASES: dict[str, tuple[bytes, set[int]]] = {
    "number": (json.dumps(body(5)).encode(), {404}),
    "object": (json.dumps(body({"a": 1})).encode(), {400, 404}),
    "list": (json.dumps(body([BIG])).encode(), {400, 404}),
    "null": (json.dumps(body(None)).encode(), {400}),
    "true": (json.dumps(body(True)).encode(), {404}),
    "empty": (json.dumps(body("")).encode(), {404}),
    "10 kB": (json.dumps(body("m" * 10_000)).encode(), {404}),
    "quotes": (json.dumps(body('a"b\\c\n\u0000é')).encode(), {404}),
    # HAProxy decodes escapes of the first 256 characters only.
    "escaped surrogates": (json.dumps(body("\U0001f600")).encode(), {400}),
    "absent": (json.dumps({"messages": []}).encode(), {400}),
    "twice": (
        f'{{"model":"{SMALL}","messages":[{{"role":"user","content":"Hi"}}],"max_tokens":2,"model":"x"}}'.encode(),
        {200},
    ),
    "escaped": (json.dumps(body("PLACE")).replace("PLACE", "\\u006fpenai/gpt\\u002Doss-20b").encode(), {200}),
    "escaped slash": (json.dumps(body(SMALL)).replace("/", "\\/").encode(), {200}),
    "in an object before": (json.dumps({"metadata": {"model": "x"}, **body(SMALL)}).encode(), {200}),
    "in a text before": (json.dumps({"user": '"model":"x"', **body(SMALL)}).encode(), {200}),
    "behind 30 levels": (json.dumps({"metadata": NESTED, **body(SMALL)}).encode(), {400}),
    "not JSON": (b"model=openai/gpt-oss-20b", {400}),
    "a list of requests": (json.dumps([body(SMALL)]).encode(), {400}),
    "byte order mark": ((BOM + json.dumps(body(SMALL))).encode(), {200, 400}),
    "UTF-16": (json.dumps(body(SMALL)).encode("utf-16"), {400}),
    "cut": (json.dumps(body(SMALL)).encode()[:-20], {400, 404}),
    "text behind": (json.dumps(body(SMALL)).encode() + b" and more", {200, 400}),
    "text behind a stream": (json.dumps(body(SMALL, stream=True)).encode() + b" x", {200, 400}),
}


def message(answer: httpx2.Response) -> str:
    """Return what an error says: in OpenAI's form, or in one of the engine's own."""
    found = answer.json()
    error = found.get("error", found)
    return str(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("case", CASES)
def test_bodies_of_all_kinds_get_an_answer(gateway: str, case: str) -> None:
    content, statuses = CASES[case]
    answer = post(gateway, content)
    assert answer.status_code in statuses, answer.text
    if answer.status_code != 200:
        assert message(answer)


def spoiled(chance: random.Random, content: bytes) -> bytes:
    """Return a request with some bytes changed, left out, repeated or added."""
    data = bytearray(content)
    for _change in range(chance.randint(1, 6)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[place : place + chance.randint(1, 20)]
            case 2:
                data[place:place] = data[place : place + chance.randint(1, 40)]
            case 3:
                data[place:place] = chance.choice(
                    [b'"model":', b"{", b"}", b"[", b'"', b"\\", b"\\u0000", b"\x00", b"1e999"]
                )
            case _:
                data[place:place] = chance.randbytes(chance.randint(1, 30))
    return bytes(data)


def test_random_bodies_harm_nothing(inventory: Path) -> None:
    chance, end = random.Random(11), time.monotonic() + FUZZ
    statuses: Counter[int] = Counter()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with httpx2.Client(verify=False, timeout=60, headers=headers) as client:
        while time.monotonic() < end:
            gateway = FLEET.address(chance.choice(FLEET.gateway_names))
            content = spoiled(chance, chance.choice(list(CASES.values()))[0][:5000])
            answer = client.post(f"https://{gateway}{CHAT}", content=content)
            statuses[answer.status_code] += 1
            assert answer.status_code in {200, 400, 404, 422, 500}, (content, answer.text)
            assert answer.status_code == 200 or message(answer)
    print(f"{sum(statuses.values())} random bodies: {dict(statuses)}")
    for name in FLEET.gateway_names:
        assert FLEET.shell(name, "systemctl show -P NRestarts trtllm-gateway") == "0"


def options() -> dict[str, Any]:
    """Return the engine options that the last rollout set."""
    return ONE if FLEET.release(FLEET.gpu_names[0])["engine_options"]["max_num_tokens"] == 8192 else TWO


@pytest.mark.parametrize("numbers", [(0, 1), (2,), (3,)], ids=["gpt-oss-120b", "gpt-oss-20b", "both"])
def test_rollout_of_one_model_touches_no_other(inventory: Path, numbers: tuple[int, ...]) -> None:
    before = FLEET.releases()
    limit = ",".join(FLEET.gpu_names[number] for number in numbers)
    run = FLEET.play("rollout", "-i", str(inventory), "--limit", limit, **TWO)
    assert run.status == 0, run.output
    changed = {number for number, (one, other) in enumerate(zip(before, FLEET.releases(), strict=True)) if one != other}
    assert changed == set(numbers)


def test_rollout_of_one_model_of_a_host_leaves_the_other_running(inventory: Path) -> None:
    host = FLEET.gpu_names[3]

    def runs() -> list[str]:
        return [FLEET.shell(host, f"systemctl show -P InvocationID trtllm-serve-{number}") for number in range(2)]

    known = inventory.read_text()
    variables = yaml.safe_load(known)
    variables["gpu_hosts"]["hosts"][host]["serving_recipe_models"][1]["engine_options"] = {"max_batch_size": 64}
    inventory.write_text(yaml.safe_dump(variables))
    before = runs()
    run = FLEET.play("rollout", "-i", str(inventory), "--limit", host, **options())
    assert run.status == 0, run.output
    assert f"{host}: no change of serve-0" in run.output
    after = runs()
    assert (after[0], after[1] != before[1]) == (before[0], True)
    assert "max_batch_size: 64" in FLEET.shell(host, "cat /etc/trtllm-fleet/verified/engine*.yaml")
    run = FLEET.play("rollback", "-i", str(inventory), "--limit", host, **options())
    assert run.status == 0, run.output
    assert (runs()[0], runs()[1] != after[1]) == (before[0], True)
    inventory.write_text(known)


def test_host_changes_its_model(inventory: Path) -> None:
    gateway = FLEET.address(FLEET.gateway_names[0])
    variables = yaml.safe_load(inventory.read_text())
    variables["gpu_hosts"]["hosts"][FLEET.gpu_names[1]] = ONLY_SMALL
    inventory.write_text(yaml.safe_dump(variables))
    run = FLEET.play("rollout", "-i", str(inventory), "--limit", FLEET.gpu_names[1], **options())
    assert run.status == 0, run.output
    new = FLEET.gpu_names[1:]
    assert wait_for(lambda: FLEET.gpu_names[1] in {instance_of(post(gateway, body(SMALL))) for _turn in range(6)}, 60)
    assert {instance_of(post(gateway, body(SMALL))) for _turn in range(12)} <= set(new)
    assert instance_of(post(gateway, body(BIG))) in {FLEET.gpu_names[0], FLEET.gpu_names[3]}


def test_instances_of_one_host_serve_what_they_are_registered_for(inventory: Path) -> None:
    host = FLEET.gpu_names[3]
    for gateway in FLEET.gateway_names:
        known = json.loads(FLEET.shell(gateway, f"cat /etc/trtllm-fleet/gateway/hosts/{host}.json"))["servers"]
        assert {name: server["model"] for name, server in known.items()} == {"serve-0": BIG, "serve-1": SMALL}
    listed = FLEET.shell(host, "curl -s http://$(hostname -I | cut -d' ' -f1):8001/v1/models")
    assert "gpt-oss-20b" in listed
    run = FLEET.play("site", "-i", str(inventory), **SETTINGS, **options())
    assert run.status == 0, run.output
    assert re.findall(r"^changed: .*|changed=[1-9].*", run.output, re.MULTILINE) == [], run.output


def test_a_new_gateway_knows_what_is_drained(inventory: Path) -> None:
    host, (old, new) = FLEET.gpu_names[0], FLEET.gateway_names
    run = FLEET.play("drain", "-i", str(inventory), "--limit", host)
    assert run.status == 0, run.output
    note = f"/etc/trtllm-fleet/gateway/hosts/{host}.json"
    FLEET.shell(new, f"rm {note}")
    run = FLEET.play("site", "-i", str(inventory), **SETTINGS, **options())
    assert run.status == 0, run.output
    assert FLEET.shell(new, f"cat {note}") == FLEET.shell(old, f"cat {note}")
    assert '"drained_by": "operator"' in FLEET.shell(new, f"cat {note}")
    # The other gateway misses the return.
    left = FLEET.shell(new, f"cat {note}")
    run = FLEET.play("undrain", "-i", str(inventory), "--limit", host)
    assert run.status == 0, run.output
    FLEET.shell(new, f"cat > {note} << 'END'\n{left}\nEND")
    run = FLEET.play("site", "-i", str(inventory), **SETTINGS, **options())
    assert run.status == 0, run.output
    for gateway in (old, new):
        assert '"drained_by": ""' in FLEET.shell(gateway, f"cat {note}")
