"""What is kept of the answers to copies of live requests, and the program that sends the copies."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway import shadow_run
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.shadow import (
    Answer,
    Texts,
    density,
    facts,
    garbage_limits,
    is_garbage,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.shadow_run import Shadow, result
from ansible_collections.trtllm.fleet.plugins.modules import gateway_shadow
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
SENTENCE = "the gateway sends each request to an instance of the model that its body names in front of the prompt"
WORDS = SENTENCE.split()


def message(content: str | None = "Hello there", finish: str = "stop", **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    choice = {"index": 0, "message": {"content": content, **more}, "finish_reason": finish}
    return {"model": "m", "choices": [choice], "usage": usage}


def whole(body: Any, status: int = 200) -> Answer:
    return Answer(status, False, json.dumps(body).encode() if not isinstance(body, bytes) else body, 5.0, 5.0)


def stream(*deltas: Mapping[str, Any], finish: str | None = "stop", tokens: int = 5) -> Answer:
    chunks: list[dict[str, Any]] = [{"model": "m", "choices": [{"index": 0, "delta": dict(one)}]} for one in deltas]
    if finish:
        chunks.append({"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    chunks.append({"model": "m", "choices": [], "usage": usage})
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
    return Answer(200, True, body.encode(), 10.0, 50.0)


def calls(name: str = "weather", arguments: str = '{"city": "Bern"}') -> list[dict[str, Any]]:
    return [{"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}]


@pytest.mark.parametrize(
    ("answer", "defects"),
    [
        pytest.param(whole(message()), (), id="good"),
        pytest.param(whole({}, 500), ("status",), id="status"),
        pytest.param(whole(b"{"), ("broken",), id="not JSON"),
        pytest.param(whole(message("<|channel|>analysis<|message|>We")), ("harmony",), id="raw harmony"),
        pytest.param(whole(message(None)), ("empty",), id="empty"),
        pytest.param(whole(message(None, "tool_calls", tool_calls=calls())), (), id="tool call"),
        pytest.param(whole(message(None, tool_calls=calls("forecast"))), ("tool_call",), id="unknown tool"),
        pytest.param(whole(message(None, tool_calls=calls(arguments='{"city":'))), ("tool_call",), id="cut arguments"),
        pytest.param(whole(message(None, tool_calls=calls(arguments='"Bern"'))), ("tool_call",), id="no object"),
        pytest.param(stream({"role": "assistant", "content": ""}, {"content": "Hi"}), (), id="stream"),
        pytest.param(stream({"content": "Hi"}, finish=None), ("broken",), id="interrupted stream"),
        pytest.param(stream({"content": "<|chan"}, {"content": "nel|>"}), ("harmony",), id="harmony over two events"),
        pytest.param(
            stream(
                {"tool_calls": [{"index": 0, "function": {"name": "weather", "arguments": ""}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": ' "Bern"}'}}]},
            ),
            (),
            id="streamed tool call",
        ),
        pytest.param(
            stream({"tool_calls": [{"index": 0, "function": {"name": "weather", "arguments": "{"}}]}),
            ("tool_call",),
            id="streamed tool call, cut",
        ),
    ],
)
def test_defects_of_an_answer(answer: Answer, defects: tuple[str, ...]) -> None:
    assert facts({"tools": TOOLS}, answer).defects == defects


def test_numbers_of_a_stream() -> None:
    found = facts({}, stream({"content": "one"}, {"content": " two"}, finish="length", tokens=5))
    assert (found.model, found.finish, found.tokens, found.first_ms, found.token_ms) == ("m", "length", 5, 10.0, 10.0)


def text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _word in range(words))


@pytest.mark.parametrize("words", [10, 200])
def test_garbage_is_found_beside_texts_in_service(words: int) -> None:
    chance, texts = random.Random(1), Texts()
    serving = [text(chance, words) for _number in range(60)]
    for one in serving:
        texts.learn(one)
    limits = garbage_limits([(texts.likelihood(one), density(one)) for one in serving])

    def garbage(one: str) -> bool:
        return is_garbage((texts.likelihood(one), density(one)), limits)

    assert not [one for one in (text(chance, words) for _number in range(200)) if garbage(one)]
    assert garbage("".join(chance.choices([chr(number) for number in range(33, 0x500)], k=5 * words)))
    assert not garbage("short")
    if words > 50:
        assert garbage("the the " * words)


def test_the_result_has_no_text() -> None:
    chance = random.Random(2)
    collected = shadow_run.Collected()
    for number in range(40):
        mine = "".join(chance.choices("{}[]ÃÂ§~", k=90)) if number == 7 else text(chance, 30)
        canary = facts({}, whole({**message(mine), "model": "other" if number == 8 else "m"}))
        collected.pairs.append((canary, facts({}, whole(message(text(chance, 30))))))
    found = result(collected, "m")
    assert [one["canary"]["defects"] for one in found][6:9] == [[], ["garbage"], ["model"]]
    assert "request" not in json.dumps(found)
    assert "gateway" not in json.dumps(found)


class Canary(BaseHTTPRequestHandler):
    """Answers as the first word of the prompt says."""

    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        word = body["messages"][0]["content"].split()[0]
        if word == "hang":
            time.sleep(5)
            return
        answer = json.dumps(message("<|channel|>" if word == "raw" else "Hello there")).encode()
        self.send_response(500 if word == "fail" else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def canary() -> Iterator[tuple[str, int]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Canary)
    Canary.bodies = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield ("127.0.0.1", server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def copy(prompt: str, path: str = CHAT, **more: Any) -> bytes:
    return raw(json.dumps({"messages": [{"content": prompt}], **more}).encode(), path)


def raw(request: bytes, path: str = CHAT) -> bytes:
    answer = json.dumps(message()).encode()
    return f"{path} 200 0 4 9 {len(request)} {len(answer)}\n".encode() + request + answer


def connect(connection: socket.socket, path: Path) -> None:
    """Connect to a socket that is being made: it has a path before it listens."""
    end = time.monotonic() + 5
    while connection.connect_ex(str(path)):
        assert time.monotonic() < end
        time.sleep(0.01)


def send(path: Path, content: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connect(connection, path)
        connection.sendall(content)


def run(path: Path, address: tuple[str, int], copies: list[bytes], timeout: float = 2.0) -> shadow_run.Collected:
    one = Shadow(path, [address], 2, timeout)
    thread = threading.Thread(target=one.run, args=(2.0,))
    thread.start()
    for content in copies:
        send(path, content)
    thread.join()
    return one.finish()


@pytest.fixture(autouse=True)
def _owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_run.shutil, "chown", lambda *_: None)


def test_copies_are_sent_and_compared(tmp_path: Path) -> None:
    copies = [copy("raw") + copy("good", stream=True, stream_options={"include_usage": False}), copy("fail")]
    with canary() as address:
        collected = run(tmp_path / "shadow.sock", address, copies)
    assert sorted(one.defects for one, _serving in collected.pairs) == [(), ("harmony",), ("status",)]
    assert [one.defects for _canary, one in collected.pairs] == [()] * 3
    assert [body["stream_options"] for body in Canary.bodies if "stream" in body] == [{"include_usage": True}]
    assert not (tmp_path / "shadow.sock").exists()


def test_what_is_not_understood_is_left_out(tmp_path: Path) -> None:
    cut = copy("good")[:-20]
    nested = copy("good", path="/v1/responses")
    with canary() as address:
        harmful = [raw(b'{"messages":' + b"[" * 5000), copy("good", tools=5, path="/v1/completions")]
        collected = run(tmp_path / "shadow.sock", address, [b"nonsense\n", cut, nested, b"", *harmful, copy("fine")])
    assert len(collected.pairs) == 1


def test_of_equal_requests_one_counts(tmp_path: Path) -> None:
    with canary() as address:
        collected = run(tmp_path / "shadow.sock", address, [copy("good") * 5 + copy("good", seed=1)])
    assert (len(collected.pairs), collected.not_compared) == (2, 4)


def test_a_request_that_takes_long_is_left_out(tmp_path: Path) -> None:
    with canary() as address:
        content = copy("good").replace(b" 4 9 ", b" 4 1500 ", 1)
        collected = run(tmp_path / "shadow.sock", address, [content], timeout=2.0)
    assert (len(collected.pairs), collected.not_compared) == (0, 1)


def test_a_canary_that_hangs_or_is_dead_has_broken_answers(tmp_path: Path) -> None:
    with canary() as address:
        collected = run(tmp_path / "shadow.sock", address, [copy("hang")], timeout=0.5)
    assert [one.defects for one, _serving in collected.pairs] == [("status",)]
    collected = run(tmp_path / "shadow.sock", address, [copy("good")], timeout=0.5)
    assert [one.defects for one, _serving in collected.pairs] == [("status",)]


def test_copies_for_a_slow_canary_are_dropped(tmp_path: Path) -> None:
    with canary() as address:
        copies = b"".join(copy("hang", seed=number) for number in range(100))
        began = time.monotonic()
        collected = run(tmp_path / "shadow.sock", address, [copies], timeout=1.0)
    # Two at a time for three seconds.
    assert collected.dropped >= 80
    assert time.monotonic() - began < 6


def test_copies_that_are_not_compared_do_not_make_the_task_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible counts a task as skipped whose result has a true ``skipped``."""
    monkeypatch.setattr(gateway_shadow.Haproxy, "ask", lambda *_: "\n")
    (tmp_path / "usage").mkdir()
    sender = threading.Thread(target=send, args=(tmp_path / "usage/shadow.sock", copy("good") * 3))
    with canary() as (address, port):
        instances = [{"address": address, "port": port}]
        options = {"model": "m", "served_model": "m", "share": 1.0, "seconds": 1, "instances": instances}
        sender.start()
        found = run_module(gateway_shadow, capsys, {**options, "socket": str(tmp_path / "admin.sock")})
    sender.join()
    assert (len(found["pairs"]), found["not_compared"]) == (1, 2)
    assert "skipped" not in found
