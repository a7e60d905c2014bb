"""usage.lua in HAProxy: requests, answers that are not streamed, interruptions, copies for a canary."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.unit.scripted_instance import (
    CHAT,
    CHAT_STREAM,
    HAPROXY,
    OPTIONS,
    QUOTED,
    RESET,
    STREAM,
    STREAM_WITH_USAGE,
    USAGE,
    Gateway,
    Step,
    Wait,
    event_stream,
    in_parallel,
    read_message,
    read_until,
    request_body,
    running_gateway,
    unary,
    usage_event,
    wait_for,
    with_options,
)
from ansible_collections.trtllm.fleet.tests.unit.usage_sample import MODEL

pytestmark = pytest.mark.skipif(not HAPROXY, reason="HAProxy is not installed")


@pytest.fixture(scope="module", params=[0, 10000], ids=["not copied", "copied"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Copies go another way through the filter."""
    with running_gateway(tmp_path_factory.mktemp("gateway"), request.param) as one:
        yield one


# --- requests ---------------------------------------------------------------------------------------------------------


def replaced(options: str) -> bytes:
    """Return STREAM with options of the client that the filter replaced, with spaces for the length."""
    own, new = json.dumps({"stream_options": json.loads(options)})[1:-1], OPTIONS.decode()[1:]
    return request_body(stream=True)[:-1] + b", " + new.encode() + b" " * (len(own) + 1) + b"}"


def streamed(options: Any) -> bytes:
    return request_body(stream=True, stream_options=options)


# Quotation marks, backslashes and brackets in texts do not count.
NESTED = request_body(
    stream=True, prompt='say "{[\\" ', tools=[{"function": {"parameters": {"stream_options": {"x": "}"}}}}]
)


@pytest.mark.parametrize("parts", [0, 1, 7], ids=["length", "one chunk", "chunks"])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(STREAM, with_options(STREAM), id="stream"),
        pytest.param(streamed({"include_usage": False}), replaced('{"include_usage": false}'), id="no usage"),
        pytest.param(
            streamed({"continuous_usage_stats": True}), replaced('{"continuous_usage_stats": true}'), id="others"
        ),
        # Dynamo's frontend rejects a field that is there twice.
        pytest.param(streamed(None), replaced("null"), id="no options"),
        pytest.param(NESTED, with_options(NESTED), id="options of a tool"),
        pytest.param(
            NESTED[:-1] + b', "stream_options": {}}',
            NESTED[:-1] + b", " + OPTIONS[1:] + b" " * (len('"stream_options": {}') + 1) + b"}",
            id="options of a tool and of the client",
        ),
        pytest.param(STREAM_WITH_USAGE, STREAM_WITH_USAGE, id="usage"),
        pytest.param(request_body(), request_body(), id="not streamed"),
        pytest.param(request_body(stream=False), request_body(stream=False), id="explicitly not streamed"),
        *(
            pytest.param(body, with_options(body), id=name)
            for name, body in {
                "braces": request_body(stream=True, prompt="\u4e16}" * 9, tools=[{"function": {"name": "x{}"}}]),
                "indented": json.dumps(json.loads(STREAM), indent=4).encode() + b"\n",
                "spaces at the end": STREAM + b" \r\n\t ",
            }.items()
        ),
    ],
)
def test_the_instance_gets_the_option_of_a_stream(gateway: Gateway, body: bytes, expected: bytes, parts: int) -> None:
    found = gateway.exchange(event_stream([CHAT_STREAM.whole]), body, parts=parts)
    assert (found.request.whole, found.request.body) == (True, expected)
    if json.loads(body).get("stream"):
        assert json.loads(found.request.body)["stream_options"]["include_usage"] is True
    assert found.answer.body == (CHAT_STREAM.whole if expected == body else CHAT_STREAM.short)
    assert found.line["usage"].startswith("100 64 50 ")


@pytest.mark.parametrize("pretty", [None, 2])
def test_a_slash_may_be_escaped(gateway: Gateway, pretty: int | None) -> None:
    """PHP's json_encode does that, everywhere in a request."""
    content = json.loads(request_body(prompt="either/or " * 1000))
    model = content.pop("model")
    body = json.dumps({**content, "model": model}, indent=pretty).replace("/", "\\/").encode()
    found = gateway.exchange(unary(b"{}"), body)
    assert found.request.body == body
    assert found.line["model"] == MODEL


@pytest.mark.parametrize("filler", ["\\/", '"model":"\\/",', '"model":"a'])
def test_escaped_slashes_occupy_no_thread(gateway: Gateway, filler: str) -> None:
    body = b'{"x":"\\/' + filler.encode() * (3_000_000 // len(filler)) + b'"}'
    with gateway.connect() as connection:
        connection.sendall(gateway.request("slashes", body))
        answer = read_message(connection)
    assert " 400 " in answer.head
    line = wait_for(lambda: next((one for one in gateway.lines if one["id"] == answer.header("x-request-id")), None))
    assert line["total_ms"] < 1000, line


@pytest.mark.parametrize("parts", [0, 5], ids=["length", "chunks"])
@pytest.mark.parametrize("size", [17_000, 1_000_000, 4 * 2**20])
def test_a_large_request(gateway: Gateway, size: int, parts: int) -> None:
    """Body, headers and URL of the largest one are as long as the gateway accepts."""
    body = request_body(stream=True, prompt="")
    body = request_body(stream=True, prompt="x" * (size - len(body)))
    how = {"path": f"{CHAT}?{'x' * 8000}", "more": f"X-More: {'x' * 32000}\r\n"}
    found = gateway.exchange(event_stream([CHAT_STREAM.whole]), body, parts=parts, **how)
    assert (found.request.body, found.request.whole) == (with_options(body), True)
    assert found.answer.body == CHAT_STREAM.short


def listed(connection: socket.socket) -> list[str]:
    """Return the models that the gateway lists."""
    connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer alice\r\n\r\n")
    answer = read_message(connection)
    assert " 200 " in answer.head
    return [model["id"] for model in json.loads(answer.body)["data"]]


def test_a_process_that_ends_lists_the_models_on_open_connections(tmp_path: Path) -> None:
    """As the old process after a reload, which has no server in its backends before HAProxy 2.8."""
    with running_gateway(tmp_path) as gateway, gateway.connect() as connection:
        before = listed(connection)
        gateway.process.send_signal(signal.SIGUSR1)
        wait_for(lambda: not gateway.is_up())
        assert listed(connection) == before
    assert MODEL in before


def peak_memory(process: int) -> int:
    """Return the largest memory of a process so far in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, flags=re.MULTILINE)[0])


def test_requests_in_parts_take_a_fraction_of_their_buffers(tmp_path: Path) -> None:
    """With a header removed HAProxy would copy a whole buffer when the next part arrives."""
    number, buffer = 20, 4 * 2**20
    with running_gateway(tmp_path) as gateway, ExitStack() as clients:
        name = gateway.script(event_stream([CHAT_STREAM.whole]))
        more = "Connection: close\r\nAccept-Encoding: gzip\r\nX-Request-Id: one\r\n"
        request = gateway.request(name, STREAM, more=more)
        connections = [clients.enter_context(gateway.connect()) for _number in range(number)]
        memory = []
        for part in (request[:-9], request[-9:-6], request[-6:-3]):
            for connection in connections:
                connection.sendall(part)
            time.sleep(0.5)  # HAProxy answers nothing yet
            memory.append(peak_memory(gateway.process.pid))
        for connection in connections:
            connection.sendall(request[-3:])
            assert read_message(connection).body == CHAT_STREAM.short
    assert memory[-1] - memory[0] < number * buffer / 10


@pytest.mark.parametrize("parts", [0, 3], ids=["length", "chunks"])
@pytest.mark.parametrize("behind", [b"x", b"\x00", b" {", b"}x"])
def test_text_behind_the_object_stays_invalid(gateway: Gateway, behind: bytes, parts: int) -> None:
    """The instance rejects it, and gets as many bytes as the length says."""
    body = STREAM + behind
    found = gateway.exchange(unary(b"{}"), body, parts=parts)
    assert found.request.whole
    assert len(found.request.body) == len(body) + len(OPTIONS)
    with pytest.raises(ValueError, match=r"Extra data|control character"):
        json.loads(found.request.body)


def test_an_invalid_request_occupies_no_thread(gateway: Gateway) -> None:
    body = STREAM[:-1] + b',"stream_options":{"include_usage":false,"x":[' + b'{"stream_options":{' * 20_000
    found = gateway.exchange(unary(b"{}"), body)
    assert len(found.request.body) == len(body) + len(OPTIONS)
    assert found.line["total_ms"] < 1000


# --- answers that are not streamed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [True, False], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [10, 5000, 100_000, 3_000_000])
def test_an_answer_that_is_not_streamed(gateway: Gateway, size: int, length: bool) -> None:
    choices = [{"index": 0, "message": {"role": "assistant", "content": QUOTED * (size // len(QUOTED) + 1)}}]
    answer = json.dumps({"id": "chatcmpl-1", "choices": choices, "usage": USAGE, "prompt_token_ids": None}).encode()
    head, *parts = unary(answer, length)
    text = b"".join(parts)
    for cut in (1, 60, 100):  # a part ends within the usage
        found = gateway.exchange([head, text[:-cut], 0.02, text[-cut:]], request_body())
        assert found.answer.body == answer
        assert (found.line["usage"], found.line["streamed"]) == ("100 64 50 0", "-")
        assert 0 <= int(found.line["first_token_ms"]) <= found.line["total_ms"]


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        pytest.param(b"", "- - - 0", id="nothing"),
        pytest.param(b'{"a":"b"}\n', "- - - 0", id="no usage"),
        pytest.param(b'{"usage":null}', "- - - 0", id="null"),
        pytest.param(b'{"usage":{"prompt_tokens":7}}', "- - - 0", id="a part of the usage"),
        pytest.param(b'{"usage": {"completion_tokens" : 3 , "prompt_tokens" : 7 } }', "7 0 3 0", id="spaces"),
        pytest.param(
            b'{"x":{"usage":{"prompt_tokens":1,"completion_tokens":2}},'
            b'"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens":3},"y":{"z":1}}',
            "7 5 3 0",
            id="the last one",
        ),
    ],
)
def test_usage_of_an_answer(gateway: Gateway, answer: bytes, usage: str) -> None:
    for length in (True, False):
        found = gateway.exchange(unary(answer, length), request_body())
        assert (found.answer.body, found.answer.whole, found.line["usage"]) == (answer, True, usage)


def test_an_error_of_the_instance(gateway: Gateway) -> None:
    body = b'{"object":"error","message":"stream_options are only for streams","code":400}'
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    found = gateway.exchange([head, body], STREAM)
    assert found.answer.body == body
    assert (found.line["status"], found.line["usage"]) == (400, "- - - 0")


def test_requests_that_no_instance_gets_have_no_usage(gateway: Gateway) -> None:
    with gateway.connect() as connection:
        connection.sendall(gateway.request("none", request_body(model="other")))
        answer = read_message(connection)
    line = wait_for(lambda: next((one for one in gateway.lines if one["status"] == 404), None))
    assert line["id"] == answer.header("x-request-id")
    assert (line["usage"], line["first_token_ms"], line["model"]) == ("-", "-", "-")


# --- several requests -------------------------------------------------------------------------------------------------


def test_requests_of_a_connection_have_their_own_usage(gateway: Gateway) -> None:
    answer = b'{"usage":{"prompt_tokens":8,"completion_tokens":4}}'
    exchanges = [
        (event_stream([CHAT_STREAM.whole]), CHAT_STREAM.short, "100 64 50 6"),
        (unary(answer), answer, "8 0 4 0"),
        (unary(b"{}"), b"{}", "- - - 0"),
        (event_stream([CHAT_STREAM.events[1], usage_event(7, 3)]), CHAT_STREAM.events[1], "7 0 3 1"),
    ]
    with gateway.connect() as connection:
        for steps, expected, usage in exchanges:
            name = gateway.script(steps)
            connection.sendall(gateway.request(name, STREAM, more=""))
            assert read_message(connection).body == expected
            assert gateway.line(name)["usage"] == usage


def test_parallel_requests_have_their_own_usage(gateway: Gateway) -> None:
    found: dict[int, tuple[bytes, str]] = {}

    def run(number: int) -> None:
        parts = event_stream([*CHAT_STREAM.events * (number + 1), usage_event(number, number + 1), *CHAT_STREAM.last])
        one = gateway.exchange([step for part in parts for step in (part, 0.002)], STREAM)
        found[number] = (one.answer.body, one.line["usage"])

    in_parallel(run, 30)
    for number in range(30):
        answer = b"".join([*CHAT_STREAM.events * (number + 1), *CHAT_STREAM.last])
        assert found[number] == (answer, f"{number} 0 {number + 1} {6 * (number + 1)}")


@pytest.mark.parametrize("gateway", [10000], indirect=True)
def test_copies_for_a_canary_have_the_whole_answer(gateway: Gateway) -> None:
    body = request_body(stream=True, prompt="copied")
    gateway.exchange(event_stream([CHAT_STREAM.whole[:700], CHAT_STREAM.whole[700:]]), body)
    copy = wait_for(lambda: next((one for one in gateway.copies if one.request == body), None))
    assert (copy.path, copy.answer.body, copy.answer.streamed) == (CHAT, CHAT_STREAM.whole, True)


@pytest.mark.parametrize("copied", [100, 500])
def test_a_share_of_the_requests_is_copied(tmp_path: Path, copied: int) -> None:
    """Within five standard deviations: another result is one in 1.7 million."""
    threads, each = 4, 500
    with running_gateway(tmp_path, copied) as gateway:
        answer = b"".join([*CHAT_STREAM.events, *CHAT_STREAM.last])

        def run(thread: int) -> None:
            for number in range(each):
                name = gateway.script(event_stream([CHAT_STREAM.whole]))
                body = request_body(stream=True, prompt=f"{thread} {number}")
                with gateway.connect() as connection:
                    connection.sendall(gateway.request(name, body))
                    assert read_message(connection).body == answer

        in_parallel(run, threads)
        time.sleep(0.5)  # copies wait for 0.05 s
        requests, share = threads * each, copied / 10000
        assert abs(len(gateway.copies) - requests * share) < 5 * (requests * share * (1 - share)) ** 0.5


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_a_client_that_disconnects(gateway: Gateway) -> None:
    wait = Wait()
    name = gateway.script([*event_stream([b"".join(CHAT_STREAM.events[:4])])[:-1], wait])
    with gateway.connect() as connection:
        connection.sendall(gateway.request(name, STREAM))
        read_until(connection, CHAT_STREAM.events[3])
    line = gateway.line(name)
    wait.over.set()
    assert (line["usage"], line["end"], line["status"]) == ("- - - 4", "CD--", 200)
    assert int(line["first_token_ms"]) >= 0


def test_a_client_that_disconnects_before_the_answer(gateway: Gateway) -> None:
    wait = Wait()
    name = gateway.script([wait])
    with gateway.connect() as connection:
        connection.sendall(gateway.request(name, STREAM))
        wait.reached.wait(20)
    line = gateway.line(name)
    wait.over.set()
    assert (line["usage"], line["first_token_ms"], line["end"]) == ("- - - 0", "-1", "CH--")


@pytest.mark.parametrize("end", [[], [RESET]], ids=["closes", "resets"])
@pytest.mark.parametrize("rest", [b"", CHAT_STREAM.events[4][:40]], ids=["between events", "within an event"])
def test_an_instance_that_disconnects(gateway: Gateway, rest: bytes, end: list[Step]) -> None:
    whole = b"".join(CHAT_STREAM.events[:4])
    found = gateway.exchange([*event_stream([whole, rest])[:-1], 0.05, *end], STREAM)
    assert not found.answer.whole
    assert found.answer.body in (whole, whole + rest)
    assert (found.line["usage"], found.line["end"]) == ("- - - 4", "SD--")


def test_an_instance_that_disconnects_before_the_answer(gateway: Gateway) -> None:
    found = gateway.exchange([], STREAM)
    assert (found.line["status"], found.line["usage"], found.line["end"]) == (502, "- - - 0", "SH--")


def open_answer(gateway: Gateway, identity: str, usage: str) -> dict[str, Any] | None:
    """Return the open answer with this usage."""
    for path in (gateway.folder / "usage").glob(f"{gateway.process.pid}-*[0-9]"):
        for line in map(json.loads, path.read_text().splitlines()):
            if (line["id"], line["usage"]) == (identity, usage):
                return dict(line)
    return None


def test_open_streams_are_written_each_second(gateway: Gateway) -> None:
    waits = [Wait(), Wait()]
    parts = event_stream([b"".join(CHAT_STREAM.events[:2]), CHAT_STREAM.events[2], b"".join(CHAT_STREAM.events[3:])])
    name = gateway.script([*parts[:2], waits[0], parts[2], waits[1], *parts[3:]])
    with gateway.connect() as connection:
        connection.sendall(gateway.request(name, STREAM))
        waits[0].reached.wait(20)
        identity = str(gateway.instance.requests[name].header("x-request-id"))
        first = wait_for(lambda: open_answer(gateway, identity, "- - - 2"))
        waits[0].over.set()
        second = wait_for(lambda: open_answer(gateway, identity, "- - - 3"))
        waits[1].over.set()
        read_message(connection)
    line = gateway.line(name)
    assert line["usage"] == "- - - 6"
    assert 0 < first["total_ms"] < second["total_ms"] < line["total_ms"]
    assert first["first_token_ms"] == second["first_token_ms"] == line["first_token_ms"]
    assert second["bytes_in"] == len(STREAM)
    assert {name: second[name] for name in ("key", "model", "instance")} == {
        "key": "alice",
        "model": MODEL,
        "instance": line["instance"],
    }
    wait_for(lambda: not open_answer(gateway, identity, "- - - 3"))
