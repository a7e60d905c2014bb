"""usage.lua in HAProxy: streams, and the tokens in the access log."""

from __future__ import annotations

import itertools
import json
import random
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.scripted_instance import (
    CHAT_STREAM,
    HAPROXY,
    OPTIONS,
    QUOTED,
    STREAM,
    STREAM_WITH_USAGE,
    USAGE,
    Gateway,
    Message,
    Step,
    Stream,
    Wait,
    chat,
    chat_stream,
    chunked,
    data,
    delta,
    event_stream,
    in_parallel,
    read_message,
    read_until,
    request_body,
    running_gateway,
    usage_event,
    with_options,
)
from ansible_collections.trtllm.fleet.tests.unit.usage_sample import MODEL

pytestmark = pytest.mark.skipif(not HAPROXY, reason="HAProxy is not installed")


@pytest.fixture(scope="module", params=[0, 10000], ids=["not copied", "copied"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Copies go another way through the filter."""
    with running_gateway(tmp_path_factory.mktemp("gateway"), request.param) as one:
        yield one


Split = Callable[[bytes], list[bytes]]


def at_once(text: bytes) -> list[bytes]:
    return [text]


def at_each_byte(text: bytes) -> list[bytes]:
    return [text[place : place + 1] for place in range(len(text))]


def at_events(text: bytes) -> list[bytes]:
    return re.split(rb"(?<=\n\n)", text)


def at_random(seed: int) -> Split:
    def split(text: bytes) -> list[bytes]:
        places = [0, *sorted(random.Random(seed).sample(range(1, len(text)), 12)), len(text)]
        return [text[begin:end] for begin, end in itertools.pairwise(places)]

    return split


# --- arrival ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [at_once, at_events, at_each_byte, *(at_random(seed) for seed in range(6))])
@pytest.mark.parametrize("own", [False, True], ids=["without usage", "with usage"])
def test_a_client_gets_the_requested_stream(gateway: Gateway, split: Split, own: bool) -> None:
    body = STREAM_WITH_USAGE if own else STREAM
    found = gateway.exchange(event_stream(split(CHAT_STREAM.whole)), body)
    assert found.answer.whole
    assert found.answer.body == (CHAT_STREAM.whole if own else CHAT_STREAM.short)
    assert found.request.body == (body if own else body[:-1] + OPTIONS + b"}")
    line = found.line
    assert (line["usage"], line["streamed"], line["end"]) == ("100 64 50 6", "yes", "----")
    assert (line["key"], line["model"], line["status"]) == ("alice", MODEL, 200)
    assert 0 <= int(line["first_token_ms"]) <= line["total_ms"]


@pytest.mark.parametrize(("split", "pause"), [(at_each_byte, 0.0005), *((at_random(seed), 0.005) for seed in range(4))])
def test_writes_need_not_be_chunks(gateway: Gateway, split: Split, pause: float) -> None:
    sent = b"".join(event_stream(at_random(9)(CHAT_STREAM.whole)))
    steps: list[Step] = [step for part in split(sent) for step in (part, pause)]
    found = gateway.exchange(steps, STREAM)
    assert (found.answer.body, found.line["usage"]) == (CHAT_STREAM.short, "100 64 50 6")


def test_an_event_arrives_before_the_next_one_is_there(gateway: Gateway) -> None:
    waits = [Wait() for _event in CHAT_STREAM.events]
    steps: list[Step] = [*event_stream([])[:1]]
    for event, wait in zip(CHAT_STREAM.events, waits, strict=True):
        steps += [chunked([event])[0], wait]
    name = gateway.script([*steps, *chunked([CHAT_STREAM.extra, *CHAT_STREAM.last])])
    with gateway.connect() as connection:
        connection.sendall(gateway.request(name, STREAM))
        for event, wait in zip(CHAT_STREAM.events, waits, strict=True):
            wait.reached.wait(20)
            read_until(connection, event)
            wait.over.set()
        read_until(connection, b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_time_of_the_first_token(gateway: Gateway) -> None:
    head, *chunks = event_stream([CHAT_STREAM.whole[:500], CHAT_STREAM.whole[500:]])
    line = gateway.exchange([head, 0.3, chunks[0], 0.3, *chunks[1:]], STREAM).line
    assert 300 <= int(line["first_token_ms"]) <= line["total_ms"] - 300


def test_streams_that_last_longer_than_a_call_of_the_filter_may(gateway: Gateway) -> None:
    """HAProxy ends a call after 4 s (tune.lua.session-timeout), and looks at the time each 10,000 instructions."""
    stream = chat_stream(["token "] * 1000)
    steps: list[Step] = [step for part in event_stream(at_events(stream.whole)) for step in (part, 0.005)]

    def run(_number: int) -> None:
        found = gateway.exchange(steps, STREAM)
        assert (found.answer.body, found.line["usage"]) == (stream.short, f"100 64 50 {len(stream.events)}")

    in_parallel(run, 4)


@pytest.mark.parametrize("split", [at_once, at_random(1)])
def test_http_2(gateway: Gateway, tmp_path: Path, split: Split) -> None:
    (tmp_path / "body").write_bytes(STREAM)
    name = gateway.script(event_stream(split(CHAT_STREAM.whole)))
    headers = [f"X-Script: {name}", "Authorization: Bearer alice", "Content-Type: application/json"]
    argv = ["curl", "--silent", "--show-error", "--http2-prior-knowledge", "--data-binary", f"@{tmp_path}/body"]
    argv += [part for header in headers for part in ("--header", header)]
    argv.append(f"http://127.0.0.1:{gateway.port}/v1/chat/completions")
    done = subprocess.run(argv, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (CHAT_STREAM.short, b"")
    assert gateway.instance.requests[name].body == with_options(STREAM)
    assert gateway.line(name)["usage"] == "100 64 50 6"


def test_clients_that_read_slowly(gateway: Gateway) -> None:
    """An answer fills HAProxy's buffer, and continues when the client reads."""
    streams = [chat_stream(["x" * size] * (14_000_000 // size)) for size in range(2000, 8000, 1000)]
    names = [gateway.script(event_stream(at_events(stream.whole))) for stream in streams]
    found: dict[int, Message] = {}

    def run(number: int) -> None:
        with gateway.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            connection.sendall(gateway.request(names[number], STREAM))
            time.sleep(1)
            found[number] = read_message(connection)

    in_parallel(run, len(streams))
    for number, stream in enumerate(streams):
        assert found[number].whole
        assert found[number].body == stream.short
        assert gateway.line(names[number])["usage"] == f"100 64 50 {len(stream.events)}"


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", ["\r\n\r\n", " \n\n", "\n\r\n", "\r\n\n"])
@pytest.mark.parametrize("split", [at_once, at_each_byte])
def test_separators_of_events(gateway: Gateway, separator: str, split: Split) -> None:
    stream = chat_stream(separator=separator)
    found = gateway.exchange(event_stream(split(stream.whole)), STREAM)
    assert (found.answer.body, found.line["usage"]) == (stream.short, "100 64 50 6")


def framed(how: str, text: bytes) -> list[bytes]:
    """Return a stream with chunks, with a length, or until the connection closes."""
    if how == "chunks":
        return event_stream([text])
    kind = f"Content-Length: {len(text)}" if how == "length" else "Connection: close"
    return [f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{kind}\r\n\r\n".encode(), text]


@pytest.mark.parametrize("own", [False, True], ids=["without usage", "with usage"])
@pytest.mark.parametrize("how", ["chunks", "length", "close"])
@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"data: [DONE]", b"data: [DO", b"\n", b": x"])
def test_ends_of_a_stream(gateway: Gateway, how: str, end: bytes, own: bool) -> None:
    parts = [*CHAT_STREAM.events, CHAT_STREAM.extra, end]
    found = gateway.exchange(framed(how, b"".join(parts)), STREAM_WITH_USAGE if own else STREAM)
    assert found.answer.whole
    assert found.answer.body == b"".join(parts if own else [*CHAT_STREAM.events, end])
    assert (found.line["usage"], found.line["end"]) == ("100 64 50 6", "----")


@pytest.mark.parametrize("cut", [0, 1, 2])
@pytest.mark.parametrize("writes", [1, 2, 3])
def test_the_usage_may_be_the_end(gateway: Gateway, cut: int, writes: int) -> None:
    """``cut``: bytes of the separator that are missing."""
    events, extra = b"".join(CHAT_STREAM.events), CHAT_STREAM.extra[: len(CHAT_STREAM.extra) - cut]
    head, first, second, end = event_stream([events, extra])
    steps: list[list[Step]] = [
        [head + first + second + end],
        [head + first, 0.05, second + end],
        [head + first, 0.05, second, 0.05, end],
    ]
    found = gateway.exchange(steps[writes - 1], STREAM)
    assert (found.answer.body, found.answer.whole) == (events, True)
    assert (found.line["usage"], found.line["end"]) == ("100 64 50 6", "----")


def test_the_usage_may_be_the_end_of_a_length(gateway: Gateway) -> None:
    events, extra = b"".join(CHAT_STREAM.events), CHAT_STREAM.extra
    head, text = framed("length", events + extra)
    found = gateway.exchange([head + text[: len(events)], 0.05, extra], STREAM)
    # Clients ignore an empty line.
    assert (found.answer.body, found.answer.whole) == (events + b"\n", True)
    assert (found.line["usage"], found.line["end"]) == ("100 64 50 6", "----")


# --- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "events"),
    [
        pytest.param(b": ping\n\n", 0, id="comment"),
        pytest.param(b"event: x\nid: 1\nretry: 5\ndata: {}\n\n", 0, id="other fields"),
        pytest.param(data(chat(choices=[], usage=None)), 0, id="no choices and no usage"),
        pytest.param(data({**delta(content="x"), "usage": USAGE}), 1, id="usage of each event"),
        pytest.param(data(delta(content=QUOTED)), 1, id="quoted"),
        pytest.param(data(json.dumps(delta(content="x"), indent=1).replace("\n", "\ndata: ")), 0, id="several lines"),
        pytest.param(data({"error": {"message": "The engine failed.", "usage": {}}}), 0, id="error"),
    ],
)
def test_other_events_are_kept(gateway: Gateway, event: bytes, events: int) -> None:
    known = CHAT_STREAM.events
    stream = Stream([*known[:2], event, *known[2:], event], CHAT_STREAM.extra, [event, *CHAT_STREAM.last])
    found = gateway.exchange(event_stream([stream.whole]), STREAM)
    assert (found.answer.body, found.line["usage"]) == (stream.short, f"100 64 50 {6 + 3 * events}")


def test_several_prompts_have_a_usage_each(gateway: Gateway) -> None:
    events = [data(chat(choices=[{"index": one % 2, "text": "x"}])) for one in range(8)]
    parts = [*events[:4], usage_event(7, 3), *events[4:], usage_event(8, 4), data("[DONE]")]
    body = json.dumps({"model": MODEL, "prompt": ["a", "b"], "stream": True}).encode()
    for split in (at_once, at_events):
        found = gateway.exchange(event_stream(split(b"".join(parts))), body, path="/v1/completions")
        assert found.answer.body == b"".join([*events, data("[DONE]")])
        assert found.request.body == with_options(body)
        assert found.line["usage"] == "15 0 7 8"


@pytest.mark.parametrize("size", [10, 60_000, 3_000_000])
def test_a_stream_of_responses(gateway: Gateway, size: int) -> None:
    details = {"input_tokens_details": {"cached_tokens": 64}, "output_tokens_details": {"reasoning_tokens": 20}}
    usage = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150, **details}
    tools = [{"type": "function", "name": "x", "parameters": {"usage": {"input_tokens": 1, "output_tokens": 1}}}]
    answer = {"id": "resp_1", "tools": tools, "output": [{"content": [{"text": QUOTED + "x" * size}]}]}
    rows: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**answer, "output": [], "usage": None}},
        {"type": "response.reasoning_text.delta", "delta": "Hm"},
        {"type": "response.output_text.delta", "delta": QUOTED},
        {"type": "response.output_text.done", "text": QUOTED},
        {"type": "response.completed", "response": {**answer, "usage": usage, "store": False}},
    ]
    stream = b"".join(f"event: {row['type']}\n".encode() + data(row) for row in rows)
    text = b"".join(event_stream([stream]))
    # So that a part ends within the usage.
    for cut in (10, 90, 2000, 4096):
        found = gateway.exchange([text[:-cut], 0.02, text[-cut:]], request_body(stream=True), path="/v1/responses")
        assert found.answer.body == stream
        assert found.request.body == STREAM
        assert found.line["usage"] == "100 64 50 2"


def test_many_events_in_one_write(gateway: Gateway) -> None:
    stream = chat_stream(["x"] * 20_000)
    found = gateway.exchange(event_stream([stream.whole]), STREAM)
    assert (found.answer.whole, found.answer.body) == (True, stream.short)
    assert found.line["usage"] == "100 64 50 20002"


@pytest.mark.parametrize("size", [65_000, 66_000, 3_000_000, 6_000_000])
@pytest.mark.parametrize("step", [50_000, 100_000_000], ids=["in parts", "at once"])
def test_a_large_event(gateway: Gateway, size: int, step: int) -> None:
    """The largest is larger than HAProxy's buffer."""
    stream = chat_stream(["x" * size, "y" * size])
    text = b"".join(event_stream([stream.whole]))
    writes = [text[place : place + step] for place in range(0, len(text), step)]
    found = gateway.exchange([each for write in writes for each in (write, 0.001)], STREAM)
    assert (found.answer.whole, found.answer.body) == (True, stream.short)
    assert found.line["usage"] == "100 64 50 4"


def test_a_large_event_with_the_usage_is_kept_whole(gateway: Gateway) -> None:
    event = data({"x": "x" * 70_000, **chat(choices=[], usage=USAGE)})
    head, text, end = event_stream([event])
    found = gateway.exchange([head + text[:-50], 0.05, text[-50:] + end], STREAM)
    assert (found.answer.body, found.line["usage"]) == (event, "100 64 50 0")


@pytest.mark.parametrize("size", [60_000, 4_000_000])
def test_a_large_event_without_an_end_occupies_no_thread(gateway: Gateway, size: int) -> None:
    rest = data("x" * size, "")
    found = gateway.exchange(event_stream([CHAT_STREAM.extra + rest]), STREAM)
    assert found.answer.body == rest
    assert found.line["total_ms"] < 1000
