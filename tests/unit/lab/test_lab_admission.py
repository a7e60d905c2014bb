"""Admission in the lab's engine: requests wait and are rejected as in TensorRT-LLM."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from lab.engine import admission, metrics, trtllm_serve

RELEASES = load_tables().releases
FACTS = [model["facts"] for model in load_tables().models.values()]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BLOCK = 32
SETTINGS = admission.Settings(
    port=0,
    frontend=0,
    model="gpt-oss-120b",
    tokenizer="",
    blocks=131072 // BLOCK,
    tokens_per_block=BLOCK,
    slots=64,
    ranks=1,
    max_seq_len=131072,
    max_num_tokens=16384,
    answer_tokens=256,
    harmony=True,
    too_long="{prompt} of {limit}",
    invalid_request="object",
    iteration_statistics=True,
    metrics=None,
)


def of_release(name: str, **changes: Any) -> admission.Settings:
    row = RELEASES[name]
    told: dict[str, Any] = {key: row[key] for key in ("harmony", "too_long", "invalid_request")}
    return dataclasses.replace(SETTINGS, **told, **changes)


def proxy(settings: admission.Settings = SETTINGS) -> admission.Proxy:
    return admission.Proxy(settings, admission.counter(""))


def rejection(settings: admission.Settings, path: str, body: Any) -> dict[str, Any]:
    with pytest.raises(admission.Rejected) as rejected:
        proxy(settings).prepare(path, json.dumps(body).encode())
    return dict(rejected.value.body)


def chat(words: int = 1, **given: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": "word " * words}], **given}


# --- rejected requests, by release ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_long_prompt_without_chunked_prefill_is_rejected(name: str, path: str) -> None:
    body = chat(120000) if path == CHAT else {"model": "any", "prompt": [1] * 120000}
    refused = rejection(of_release(name), path, body)
    assert refused["message"] == (
        "The sum of prompt length (120000.0), query length (0) should not exceed max_num_tokens (16384)"
    )
    harmony = RELEASES[name]["harmony"] and path == CHAT
    assert (refused["code"], refused["type"]) == (400, "internal_error" if harmony else "BadRequestError")
    assert proxy(of_release(name, max_num_tokens=None)).prepare(path, json.dumps(body).encode()).reserved == 131072


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("1.2", "`prompt_token_ids` length (140000) is greater than `max_seq_len` (131072)"),
        (
            "1.4",
            "`default_max_tokens` (-8928) must be greater than 0, `default_max_tokens` (-8928) = max_seq_len (131072)"
            " - `splited_prompt_len` (140000)",
        ),
    ],
)
def test_prompt_longer_than_the_context_is_rejected(name: str, message: str) -> None:
    assert rejection(of_release(name, max_num_tokens=None), CHAT, chat(140000))["message"] == message


@pytest.mark.parametrize("name", RELEASES)
def test_request_without_a_model_is_rejected(name: str) -> None:
    refused = rejection(of_release(name), CHAT, {"messages": []})
    text = refused["error"] if name in ("1.3", "1.4") else refused["message"]
    assert "'loc': ('body', 'model'), 'msg': 'Field required'" in text


@pytest.mark.parametrize("name", RELEASES)
def test_any_model_id_is_accepted(name: str) -> None:
    prepared = proxy(of_release(name)).prepare(CHAT, json.dumps(chat()).encode())
    assert json.loads(prepared.content)["model"] == "gpt-oss-120b"


@pytest.mark.parametrize("content", [b"{", b"[]"])
def test_malformed_request_is_rejected(content: bytes) -> None:
    with pytest.raises(admission.Rejected, match="Input should be a valid dictionary"):
        proxy().prepare(CHAT, content)


# --- reservations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "reserved", "written"),
    [
        ({}, 131072, 256),
        ({"max_tokens": 100}, 110, 100),
        ({"max_completion_tokens": 100}, 110, 100),
        ({"max_tokens": None}, 131072, 256),
        ({"max_tokens": 10**6}, 131072, 131062),
    ],
)
def test_request_reserves_its_prompt_and_its_limit(given: dict[str, Any], reserved: int, written: int) -> None:
    prepared = proxy().prepare(CHAT, json.dumps(chat(10, **given)).encode())
    assert (prepared.reserved, json.loads(prepared.content)["max_tokens"]) == (reserved, written)
    assert (prepared.prompt, prepared.answer, prepared.streamed) == (10, written, False)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "one two"}, 2),
        ({"prompt": ["one two", "three"]}, 3),
        ({"prompt": [5, 6, 7]}, 3),
        ({"messages": [{"content": "one"}, {"content": [{"type": "text", "text": "two three"}]}]}, 3),
        ({"instructions": "one", "input": "two three"}, 3),
        ({}, 0),
    ],
)
def test_prompt_tokens_are_counted(body: dict[str, Any], tokens: int) -> None:
    assert admission.prompt_tokens(body, admission.counter("")) == tokens


async def settle() -> None:
    for _round in range(10):
        await asyncio.sleep(0)


def test_no_request_passes_one_that_does_not_fit() -> None:
    async def scenario() -> None:
        scheduler = admission.Scheduler(blocks=10, slots=3)
        assert await scheduler.reserve(6) == 0
        whole = asyncio.create_task(scheduler.reserve(10))
        probe = asyncio.create_task(scheduler.reserve(1))
        await settle()
        assert not whole.done()
        assert not probe.done(), "four blocks are free, and a request waits in front"
        scheduler.release(0, 6)
        await settle()
        assert (whole.done(), probe.done()) == (True, False)
        scheduler.release(0, 10)
        await settle()
        assert probe.done()

    asyncio.run(scenario())


def test_cancelled_request_leaves_the_queue() -> None:
    async def scenario() -> None:
        scheduler = admission.Scheduler(blocks=10, slots=1)
        await scheduler.reserve(1)
        first, second = (asyncio.create_task(scheduler.reserve(1)) for _round in range(2))
        await settle()
        first.cancel()
        await settle()
        assert len(scheduler.waiting) == 1
        scheduler.release(0, 1)
        second.cancel()  # It is admitted, and not resumed yet.
        await settle()
        assert (scheduler.free, scheduler.slots, len(scheduler.waiting)) == ([10], [1], 0)

    asyncio.run(scenario())


def test_batch_slots_are_limited_on_each_rank() -> None:
    async def scenario() -> None:
        scheduler = admission.Scheduler(blocks=10, slots=1, ranks=2)
        assert {await scheduler.reserve(9), await scheduler.reserve(9)} == {0, 1}
        third = asyncio.create_task(scheduler.reserve(1))
        await settle()
        assert not third.done()
        scheduler.release(1, 9)
        assert await third == 1

    asyncio.run(scenario())


# --- the capacity of a recipe -----------------------------------------------------------------------------------------


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.json").write_text(json.dumps(FACTS))
    monkeypatch.setattr(trtllm_serve, "HERE", tmp_path)


CONFIG = {"num_hidden_layers": 36, "hidden_size": 2880, "max_position_embeddings": 131072}
THROUGHPUT = {"max_num_tokens": 16384, "max_batch_size": 640, "kv_cache_config": {"free_gpu_memory_fraction": 0.85}}


@pytest.mark.parametrize(
    ("memory_mib", "options", "contexts"),
    [(143771, {}, 6.7), (81559, {}, 1.0), (143771, {"tensor_parallel_size": 2, "enable_attention_dp": True}, 18.7)],
)
def test_cache_equals_the_estimate(models: None, memory_mib: int, options: dict[str, Any], contexts: float) -> None:
    held = trtllm_serve.capacity({**THROUGHPUT, **options}, CONFIG, RELEASES["1.2"], memory_mib)
    assert held["max_seq_len"] <= 131072
    assert held["ranks"] * held["blocks"] * held["tokens_per_block"] / 131072 == pytest.approx(contexts, abs=0.5)


def test_environment_sets_the_cache_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_ENGINE_KV_TOKENS", "1000")
    held = trtllm_serve.capacity({}, CONFIG, RELEASES["1.2"], 81559)
    assert held == {"blocks": 31, "tokens_per_block": 32, "ranks": 1, "max_seq_len": 992}


def test_model_that_does_not_fit_fails(models: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="insufficient GPU memory"):
        trtllm_serve.capacity(THROUGHPUT, CONFIG, RELEASES["1.2"], 32768)


# --- the proxy --------------------------------------------------------------------------------------------------------


class Engine:
    """Proxy in front of a scripted frontend that sends a token on each step of the test, or at once."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.token = asyncio.Semaphore(0)
        self.tokens = 0
        self.bodies: list[Any] = []
        self.status = "200 OK"

    async def frontend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /metrics "):
            sample = f'dynamo_frontend_inter_token_latency_seconds_count{{model="m"}} {self.tokens}\n'
            writer.write(f"HTTP/1.1 200 OK\r\n\r\n{sample}".encode())
        else:
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            self.bodies.append(body)
            writer.write(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
            await writer.drain()
            for _round in range(body["max_tokens"]):
                if "at_once" not in body:
                    await self.token.acquire()
                self.tokens += 1
                writer.write(b"token ")
                await writer.drain()
        writer.close()

    def write(self, tokens: int) -> None:
        for _round in range(tokens):
            self.token.release()

    async def __aenter__(self) -> Engine:
        self.servers = [await asyncio.start_server(self.frontend, "127.0.0.1", 0)]
        behind = self.servers[0].sockets[0].getsockname()[1]
        self.proxy = proxy(dataclasses.replace(SETTINGS, frontend=behind, **self.changes))
        self.servers.append(await asyncio.start_server(self.proxy.serve, "127.0.0.1", 0))
        self.port = self.servers[1].sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()

    async def send(self, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        content = json.dumps(body).encode()
        writer.write(f"POST {path} HTTP/1.1\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
        return reader, writer

    async def get(self, path: str) -> str:
        return (await admission.fetch(self.port, path)).decode().partition("\r\n\r\n")[2]


def lived(scenario: Callable[[Engine], Awaitable[None]], **changes: Any) -> None:
    async def run() -> None:
        async with Engine(**changes) as engine:
            await asyncio.wait_for(scenario(engine), 20)

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def test_probe_waits_behind_a_request_without_a_limit() -> None:
    async def scenario(engine: Engine) -> None:
        user, _open = await engine.send(CHAT, chat())
        await until(lambda: engine.proxy.running == 1)
        probe, _open2 = await engine.send(CHAT, chat(max_tokens=1))
        await until(lambda: len(engine.proxy.scheduler.waiting) == 1)
        engine.write(255)
        await user.readuntil(b"token ")
        assert len(engine.bodies) == 1, "the probe has not reached the engine"
        engine.write(2)
        await user.read()
        assert (await probe.read()).endswith(b"\r\n\r\ntoken ")

    lived(scenario)


def test_tokens_are_forwarded_at_once() -> None:
    async def scenario(engine: Engine) -> None:
        reader, _open = await engine.send(COMPLETIONS, {"model": "m", "prompt": "a", "max_tokens": 3})
        await reader.readuntil(b"\r\n\r\n")
        for _round in range(3):
            engine.write(1)
            assert await reader.readexactly(6) == b"token "

    lived(scenario)


def test_disconnect_releases_the_reservation() -> None:
    async def scenario(engine: Engine) -> None:
        _reader, writer = await engine.send(CHAT, chat())
        await until(lambda: engine.proxy.running == 1)
        writer.close()
        await until(lambda: engine.proxy.running == 0)
        assert engine.proxy.scheduler.free == [SETTINGS.blocks]

    lived(scenario)


def test_iterations_are_reported_once_and_only_if_enabled() -> None:
    async def scenario(engine: Engine) -> None:
        _reader, _open = await engine.send(CHAT, chat())
        engine.write(5)
        await until(lambda: engine.tokens == 5)
        (told,) = json.loads(await engine.get("/metrics"))
        assert (told["iter"], told["numActiveRequests"], told["kvCacheStats"]["freeNumBlocks"]) == (5, 1, 0)
        assert json.loads(await engine.get("/metrics")) == []
        engine.write(1)
        await until(lambda: engine.tokens == 6)
        assert [each["iter"] for each in json.loads(await engine.get("/metrics"))] == [6]

    lived(scenario)

    async def silent(engine: Engine) -> None:
        engine.tokens = 5
        assert json.loads(await engine.get("/metrics")) == []

    lived(silent, iteration_statistics=False)


def test_hung_engine_keeps_connections_and_sends_nothing() -> None:
    async def scenario(engine: Engine) -> None:
        asked = ["hang"]
        heeding = asyncio.create_task(engine.proxy.heed(lambda: asked[-1]))
        await until(lambda: not engine.proxy.moves.is_set())
        engine.write(2)
        reader, _open = await engine.send(COMPLETIONS, {"model": "m", "prompt": "a", "max_tokens": 2})
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.3)
        assert json.loads(await engine.get("/metrics")) == []
        asked.append("")
        assert (await reader.read()).endswith(b"token token ")
        heeding.cancel()

    lived(scenario)


def test_other_paths() -> None:
    async def scenario(engine: Engine) -> None:
        assert "Not Found" in await engine.get("/v1/embeddings")
        assert json.loads(await engine.get("/v1/models"))["data"][0]["id"] == "gpt-oss-120b"
        assert "404 Not Found" in (await admission.fetch(engine.port, "/prometheus/metrics")).decode()

    lived(scenario)


# --- metrics for Prometheus -------------------------------------------------------------------------------------------


def measured(name: str, **changes: Any) -> dict[str, Any]:
    """Return the settings of a release that has metrics; its model has no harmony format."""
    given = trtllm_serve.collector(RELEASES[name], "/models/m", "m", {"return_perf_metrics": True})
    return {"metrics": given, "harmony": False, **changes}


async def value(engine: Engine, name: str) -> float | None:
    """Return the value of a metric's first sample without its labels; None if it has none."""
    lines = (await engine.get("/prometheus/metrics")).splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{")), None)


def streamed(tokens: int, **given: Any) -> dict[str, Any]:
    return chat(max_tokens=tokens, stream=True, **given)


def test_streamed_response_is_measured() -> None:
    async def scenario(engine: Engine) -> None:
        reader, _open = await engine.send(CHAT, streamed(3))
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.2)
        engine.write(1)
        await reader.readuntil(b"token ")
        await asyncio.sleep(0.4)
        engine.write(2)
        await reader.read()
        assert await value(engine, "trtllm_request_success_total") == 1
        first, latency, each, decode = [
            await value(engine, f"trtllm_{name}_seconds_sum") or 0
            for name in ("time_to_first_token", "e2e_request_latency", "time_per_output_token", "request_decode_time")
        ]
        assert 0.2 <= first < 0.4 <= decode < latency
        assert decode == pytest.approx(2 * each)
        assert latency == pytest.approx(first + decode)
        assert await value(engine, "trtllm_generation_tokens_total") == 3

    lived(scenario, **measured("1.3"))


def test_first_token_of_a_response_that_is_not_streamed_is_estimated() -> None:
    async def scenario(engine: Engine) -> None:
        reader, _open = await engine.send(CHAT, chat(max_tokens=4))
        await asyncio.sleep(0.4)
        engine.write(4)
        await reader.read()
        latency = await value(engine, "e2e_request_latency_seconds_sum")
        queued = await value(engine, "request_queue_time_seconds_sum")
        assert latency is not None
        assert queued is not None
        assert await value(engine, "time_to_first_token_seconds_sum") == pytest.approx(queued + (latency - queued) / 4)

    lived(scenario, **measured("1.1"))


def test_queue_time_is_the_wait_for_a_slot() -> None:
    async def scenario(engine: Engine) -> None:
        first, _open = await engine.send(COMPLETIONS, {"model": "m", "prompt": "a", "max_tokens": 1, "stream": True})
        await until(lambda: engine.proxy.running == 1)
        second, _open2 = await engine.send(COMPLETIONS, {"model": "m", "prompt": "a", "max_tokens": 1, "stream": True})
        await until(lambda: len(engine.proxy.scheduler.waiting) == 1)
        await asyncio.sleep(0.35)
        engine.write(2)
        await asyncio.gather(first.read(), second.read())
        buckets = [
            line.rpartition(" ")[2]
            for line in (await engine.get("/prometheus/metrics")).splitlines()
            if line.startswith("request_queue_time_seconds_bucket")
        ]
        assert buckets[0] == "1.0", "only the first waited less than 0.3 s"
        assert buckets[-1] == "2.0"
        assert 0.35 <= (await value(engine, "request_queue_time_seconds_sum") or 0) < 5
        assert (await value(engine, "time_to_first_token_seconds_sum") or 0) >= 2 * 0.35, "it includes the queue"

    lived(scenario, slots=1, **measured("1.2"))


def test_failed_request_is_not_counted() -> None:
    async def scenario(engine: Engine) -> None:
        engine.status = "500 Internal Server Error"
        engine.write(1)
        reader, _open = await engine.send(CHAT, streamed(1))
        assert (await reader.read()).startswith(b"HTTP/1.1 500")
        too_long, _open2 = await engine.send(CHAT, chat(120000))
        assert b"400 Bad Request" in await too_long.read()
        assert await value(engine, "trtllm_request_success_total") is None
        assert await value(engine, "trtllm_request_error_total") is None, "its validation did not reject them"
        invalid, _open3 = await engine.send(CHAT, {"messages": []})
        assert b"400 Bad Request" in await invalid.read()
        assert await value(engine, "trtllm_request_error_total") == 1

    lived(scenario, **measured("1.4"))


def test_client_that_disconnects_is_not_counted() -> None:
    async def scenario(engine: Engine) -> None:
        reader, writer = await engine.send(CHAT, streamed(5))
        engine.write(1)
        await reader.readuntil(b"token ")
        writer.close()
        await until(lambda: engine.proxy.running == 0)
        assert await engine.get("/prometheus/metrics") == ""

    lived(scenario, **measured("1.1"))


def test_client_that_disconnects_after_the_last_chunk_is_counted() -> None:
    """Clients close the connection at the end of a response, some before the frontend does."""

    async def frontend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ntoken\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n")
        await asyncio.sleep(20)

    async def scenario(engine: Engine) -> None:
        server = await asyncio.start_server(frontend, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        engine.proxy.settings = dataclasses.replace(engine.proxy.settings, frontend=port)
        reader, writer = await engine.send(CHAT, streamed(1))
        await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()
        await until(lambda: engine.proxy.running == 0)
        assert await value(engine, "request_success_total") == 1
        server.close()

    lived(scenario, **measured("1.1"))


def test_streamed_chat_of_a_harmony_model_is_not_counted() -> None:
    async def scenario(engine: Engine) -> None:
        engine.write(2)
        for body in (streamed(1), chat(max_tokens=1)):
            reader, _open = await engine.send(CHAT, body)
            await reader.read()
        assert await value(engine, "trtllm_request_success_total") == 1

    lived(scenario, **{**measured("1.3"), "harmony": True})


def test_path_may_go_on_and_the_client_chooses_the_format() -> None:
    async def scenario(engine: Engine) -> None:
        async def response(path: str, headers: bytes = b"") -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
            writer.write(b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), headers))
            return await reader.read()

        for path in ("/prometheus/metrics", "/prometheus/metrics/", "/prometheus/metrics2"):
            assert (await response(path)).startswith(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            )
        answered = await response("/prometheus/metrics", b"Accept: application/openmetrics-text;version=1.0.0,*/*\r\n")
        assert b"Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n" in answered
        assert answered.endswith(b"# EOF\n")

    lived(scenario, **measured("1.3"))


RUNNING, QUEUED = "trtllm_num_requests_running", "trtllm_num_requests_waiting"


async def complete(engine: Engine) -> None:
    reader, _open = await engine.send(CHAT, chat(max_tokens=1, at_once=True))
    await reader.read()


def test_gauges_wait_for_a_request_that_counts() -> None:
    async def scenario(engine: Engine) -> None:
        reader, _open = await engine.send(CHAT, streamed(9))
        engine.write(1)
        await reader.readuntil(b"token ")
        assert await value(engine, RUNNING) is None
        await complete(engine)
        assert await value(engine, RUNNING) == 1, "that of the iterations since"
        engine.write(8)
        await reader.read()
        assert await value(engine, RUNNING) == 1, "that of the last iteration stays"

    lived(scenario, **measured("1.3"))


def test_gauges_follow_iterations_until_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PAUSE", 0.1)

    async def scenario(engine: Engine) -> None:
        assert (await value(engine, RUNNING), await value(engine, QUEUED)) == (0, 0)
        await complete(engine)
        assert await value(engine, RUNNING) == 1
        await asyncio.sleep(0.2)
        reader, _open = await engine.send(CHAT, streamed(9))
        waiting, _open2 = await engine.send(CHAT, streamed(1))
        engine.write(2)
        await until(lambda: len(engine.proxy.scheduler.waiting) == 1 and engine.tokens == 3)
        assert await value(engine, QUEUED) == 0, "the reader sleeps"
        engine.write(8)
        await asyncio.gather(reader.read(), waiting.read())
        reader, _open3 = await engine.send(CHAT, streamed(2))
        waiting, _open4 = await engine.send(CHAT, streamed(1))
        engine.write(1)
        await until(lambda: len(engine.proxy.scheduler.waiting) == 1 and engine.tokens == 12)
        assert await value(engine, QUEUED) == 1

    lived(scenario, slots=1, **measured("1.4"))


@pytest.mark.parametrize(("name", "listed"), [("1.2", True), ("1.3", True), ("1.4", False)])
def test_metrics_hide_iterations_of_a_long_response(monkeypatch: pytest.MonkeyPatch, name: str, listed: bool) -> None:
    """From 1.4 on /metrics has only what the gauges have had: nothing until a request that counts has ended."""
    monkeypatch.setattr(metrics, "PAUSE", 0.1)

    async def scenario(engine: Engine) -> None:
        await complete(engine)
        await engine.get("/metrics")
        await asyncio.sleep(0.2)
        reader, _open = await engine.send(CHAT, streamed(9))
        engine.write(8)
        await until(lambda: engine.tokens == 9)
        assert bool(json.loads(await engine.get("/metrics"))) == listed
        engine.write(1)
        await reader.read()
        if name == "1.4":
            assert [each["iter"] for each in json.loads(await engine.get("/metrics"))] == [12]

    lived(scenario, **measured(name))


def test_reader_takes_iterations_from_metrics() -> None:
    async def scenario(engine: Engine) -> None:
        reader, _open = await engine.send(CHAT, streamed(9))
        await complete(engine)
        engine.write(5)
        await until(lambda: engine.tokens == 6)
        assert json.loads(await engine.get("/metrics")) == []
        engine.write(4)
        await reader.read()

    lived(scenario, **measured("1.3"))


def test_gpus_are_busy_while_tokens_are_written(tmp_path: Path) -> None:
    async def scenario(engine: Engine) -> None:
        shown = asyncio.create_task(engine.proxy.show_work(tmp_path / "work", ["nvidia3"], 0.05))
        _reader, _open = await engine.send(CHAT, chat())
        await until(lambda: engine.proxy.running == 1)
        await asyncio.sleep(0.3)
        assert not (tmp_path / "work").exists(), "it has been admitted, and writes nothing"
        engine.write(1)
        await until((tmp_path / "work" / "nvidia3").exists)
        shown.cancel()

    lived(scenario)
