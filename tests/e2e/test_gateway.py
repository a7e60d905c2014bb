"""A gateway with malformed requests, slow clients and failures, while other clients get responses as usual."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import re
import secrets
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import wait_for
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY, MODEL, Fleet

FLEET = Fleet("roll-", gpus=3, gateways=2)
PORT = 443
METRICS_PORT = 8405
PEERS_PORT = 8406
UNIT = "trtllm-gateway"
MIB = 2**20
MAX_BODY = 4 * MIB
# Requests per second of the other clients.
RATE = 4
# Limit in seconds for short responses to other clients during a test.
QUICK = 3.0
# Open at a time, over both gateways.
STREAMS = 2000
STREAM_TOKENS = 200
# Connections made at a time, so that the gateway does not time one out.
HANDSHAKES = 50
NOBODY = "<NOSRV>"
REFUSED = {0, 400, 401, 404, 405, 501, 505}
REQUEST_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CHAT = "/v1/chat/completions"

AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


def question(prompt: str = "Are you there?", tokens: int = 4, **options: Any) -> bytes:
    messages = [{"role": "user", "content": prompt}]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": tokens, **options}).encode()


BODY = question()


@dataclass(frozen=True)
class Answer:
    """Response; the status is 0 if the connection closed, or no byte came for long."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    open: bool

    @property
    def error(self) -> dict[str, Any]:
        """Return the error in OpenAI's format."""
        assert self.headers["content-type"] == "application/json"
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]


def halves(text: Any, mark: Any) -> tuple[Any, Any]:
    """Return the parts before and after a separator, of bytes or of a string."""
    parts = text.partition(mark)
    return parts[0], parts[2]


def joined(chunks: bytes) -> bytes:
    """Return the body of a chunked response, which must be complete."""
    body = b""
    while True:
        size, rest = halves(chunks, b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        if not length:
            return body
        body, chunks = body + rest[:length], rest[length + 2 :]


def parse(data: bytes, seconds: float, is_open: bool) -> Answer:
    head, body = halves(data, b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    found = re.match(r"HTTP/1\.[01] (\d{3})", first)
    headers = {name.strip().lower(): value.strip() for name, value in (halves(line, ":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = joined(body)
    return Answer(int(found[1]) if found else 0, headers, body, seconds, is_open)


def insecure_context(**options: Any) -> ssl.SSLContext:
    """Return a client context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for name, value in options.items():
        setattr(context, name, value)
    return context


def whole(data: bytes) -> bool:
    """Return True if the response has the length of its Content-Length."""
    head, end, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
    return bool(end and length) and len(body) >= int(length[1])  # type: ignore[index]


def exchange(address: str, data: bytes, timeout: float = 5.0) -> Answer:
    """Send bytes over TLS and read until the response is complete, the gateway closes, or a timeout without a byte."""
    began = time.monotonic()
    received, is_open = b"", False
    with (
        socket.create_connection((address, PORT), timeout=10) as connection,
        insecure_context().wrap_socket(connection, suppress_ragged_eofs=True) as tls,
    ):
        try:
            tls.sendall(data)
            tls.settimeout(timeout)
            while not whole(received) and (part := tls.recv(65536)):
                received += part
        except TimeoutError:
            is_open = True
        except OSError:
            pass
    return parse(received, time.monotonic() - began, is_open)


def request(
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    version: str = "HTTP/1.1",
) -> bytes:
    """Return a request as bytes; a library would correct malformed ones."""
    lines = [f"{method} {target} {version}", "Host: gateway", "Connection: close"]
    given = AUTHORIZED if headers is None else headers
    lines += [f"{name}: {value}" for name, value in given.items()]
    if body is not None and "Content-Length" not in given:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def ask(address: str, method: str, target: str, body: bytes | None = None, **options: Any) -> Answer:
    return exchange(address, request(method, target, body, **options))


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with FLEET.serving() as fleet:
        yield fleet


@pytest.fixture(scope="module")
def clients(fleet: Fleet) -> Iterator[Load]:
    """Run the other clients."""
    with fleet.load(RATE, long_every=40, long_tokens=2000) as load:
        load.wait(2)
        yield load
    assert load.errors() == {}


@pytest.fixture(autouse=True)
def others(clients: Load) -> Iterator[Load]:
    """Check that the other clients have no error during a test."""
    began = time.monotonic()
    yield clients
    clients.wait(0.5)
    assert clients.errors(began) == {}


@pytest.fixture(params=[0, 1], ids=["gateway 1", "gateway 2"])
def gateway(fleet: Fleet, request: pytest.FixtureRequest) -> str:
    """Return each gateway; their hosts have different HAProxy versions."""
    return fleet.gateway_names[request.param]


@pytest.fixture
def address(fleet: Fleet, gateway: str) -> str:
    return fleet.address(gateway)


def now(fleet: Fleet, host: str) -> str:
    """Return the time in the format of journalctl."""
    return "@" + fleet.shell(host, "date +%s")


def journal(fleet: Fleet, gateway: str, since: str) -> list[str]:
    script = f"journalctl --sync; journalctl -u {UNIT} -o cat --no-pager --since={since}"
    return fleet.shell(gateway, script).splitlines()


def access(lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the requests in a journal by their id; each log line must be JSON."""
    requests = [json.loads(line) for line in lines if line.startswith("{")]
    return {one["id"]: one for one in requests}


def seen(fleet: Fleet, words: str) -> int:
    """Return how many requests with these words the instances received."""
    script = f"journalctl --sync; journalctl -u 'trtllm-serve-*' -o cat --no-pager --since=-10min | grep -cF {words}"
    return sum(int(fleet.shell(host, script, check=False)) for host in fleet.gpu_names)


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer another-key"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY.upper()}"},
        {"Authorization": f"Bearer {hashlib.sha256(KEY.encode()).hexdigest()}"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer " + "k" * 12000},
        {"Api-Key": KEY},
        {"Cookie": f"Authorization=Bearer {KEY}"},
    ],
    ids=lambda headers: str(headers)[:40],
)
def test_requests_without_a_key_are_rejected(address: str, headers: dict[str, str]) -> None:
    for method, target, body in (("POST", CHAT, BODY), ("GET", "/v1/models", None), ("GET", "/update_weights", None)):
        answer = ask(address, method, target, body, headers=headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.error["type"] == "invalid_request_error"
        assert answer.seconds < QUICK


def test_key_in_the_query_is_rejected(address: str) -> None:
    assert ask(address, "GET", f"/v1/models?api_key={KEY}&key={KEY}", headers={}).status == 401


def test_request_with_a_key_succeeds(address: str) -> None:
    answer = ask(address, "POST", CHAT, BODY)
    assert answer.status == 200
    assert json.loads(answer.body)["usage"]["completion_tokens"] == 4
    assert ask(address, "GET", "/v1/models").status == 200


# --- routes -----------------------------------------------------------------------------------------------------------

# Routes of TensorRT-LLM's server, without authentication.
CLOSED = (
    "release_memory",
    "resume_memory",
    "update_weights",
    "start_profile",
    "stop_profile",
    "metrics",
    "health_generate",
    "server_info",
    "kv_cache_events",
    "steady_clock_offset",
    "version",
    "docs",
    "openapi.json",
    "v1/embeddings",
    "v1/responses/resp_1",
    "",
)
DISGUISED = (
    "/v1/../update_weights",
    "/v1/./../update_weights",
    "/v1/%2e%2e/update_weights",
    "/v1/..%2fupdate_weights",
    "/v1/chat/completions/../../../update_weights",
    "/v1/chat/completions/..%2f..%2f..%2fupdate_weights",
    "/v1/chat/completions/",
    "/v1/chat//completions",
    "//v1/chat/completions",
    "///update_weights",
    "/V1/CHAT/COMPLETIONS",
    "/v1/chat/completions%20",
    "/v1/chat/completions%00",
    "/v1/chat/completions%3f",
    "/v1/chat/completions;x=y",
    "/v1/chat%2fcompletions",
    "/v1%2fchat%2fcompletions",
    "/%76%31/chat/completions",
    "/%2e/v1/chat/completions",
    "/update_weights%3f/v1/chat/completions",
    "/update_weights#/v1/chat/completions",
    "/v1/chat/completions#/../../../update_weights",
    "https://gateway/update_weights",
    "https://gateway/v1/chat/completions/../../../update_weights",
    "/v1/models/../../metrics",
    "/v1/models/../metrics",
    "/v1/models/./metrics",
    "/v1/models/x/../../../metrics",
    "/v1/models//../..//metrics",
    "/v1/models/%2e%2e/%2e%2e/metrics",
    "/v1/models/%2E%2E/%2E%2E/metrics",
    "/v1/models/.%2e/.%2e/metrics",
    "/v1/models/..%2f..%2fmetrics",
    "/v1/models/..%2F..%2Fmetrics",
    "/v1/models/..%5c..%5cmetrics",
    "/v1/models/..\\..\\metrics",
    "/v1/models/..;/..;/metrics",
    "/v1/models/%252e%252e/%252e%252e/metrics",
    "/v1/models/",
)


def refused(fleet: Fleet, gateway: str, requests: Mapping[str, bytes], statuses: set[int]) -> None:
    """Check that requests get one of these statuses without reaching an instance."""
    address, began = fleet.address(gateway), now(fleet, gateway)
    answers = {name: exchange(address, data) for name, data in requests.items()}
    log = access(journal(fleet, gateway, began))
    ids = {name: answer.headers.get("x-request-id", "") for name, answer in answers.items()}
    assert {name: answer.status for name, answer in answers.items() if answer.status not in statuses} == {}
    asked = {name: log[ids[name]]["instance"] for name in answers if ids[name]}
    assert {name: instance for name, instance in asked.items() if instance != NOBODY} == {}
    # Two responses would mean two requests.
    assert [name for name, answer in answers.items() if b"HTTP/1." in answer.body] == []


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_only_routes_of_openai_pass(fleet: Fleet, gateway: str, method: str) -> None:
    mark = f"mark{secrets.token_hex(8)}"
    body = BODY if method in ("POST", "PUT") else None
    requests = {
        target: request(method, f"{target}?{mark}", body) for target in (*(f"/{name}" for name in CLOSED), *DISGUISED)
    }
    refused(fleet, gateway, requests, {400, 404, 405})
    assert seen(fleet, mark) == 0
    # They would be visible.
    assert ask(fleet.address(gateway), "POST", f"{CHAT}?{mark}", BODY).status == 200
    assert seen(fleet, mark) == 1


def test_only_routes_of_openai_pass_by_http2(fleet: Fleet, gateway: str) -> None:
    mark = f"mark{secrets.token_hex(8)}"
    address, targets = fleet.address(gateway), [f"/{name}" for name in CLOSED]
    targets += [target for target in DISGUISED if target.startswith("/") and "#" not in target]
    urls = " ".join(f"'https://{address}{target}?{mark}'" for target in targets)
    form = "%{http_version} %{http_code}\\n"
    command = f"curl -sk --http2 --path-as-is -H 'Authorization: Bearer {KEY}' -w '{form}'"
    outputs = " ".join(["-o /dev/null"] * len(targets))
    lines = fleet.shell(gateway, f"{command} {outputs} {urls}").splitlines()
    assert len(lines) == len(targets)
    assert {
        target: line for target, line in zip(targets, lines, strict=True) if line not in ("2 400", "2 404", "2 405")
    } == {}
    assert seen(fleet, mark) == 0


def test_the_model_has_its_name_on_the_hub(address: str) -> None:
    """The release of the instances, 1.2.1, lists the last part of the name."""
    answer = json.loads(ask(address, "GET", "/v1/models").body)
    (model,) = answer.pop("data")
    assert answer == {"object": "list"}
    assert abs(model.pop("created") - time.time()) < 60
    assert model == {"id": MODEL, "object": "model", "owned_by": "tensorrt_llm"}
    # Clients of OpenAI send the slash in one way or the other.
    for name in (MODEL, MODEL.replace("/", "%2F"), MODEL.rpartition("/")[2]):
        answer = json.loads(ask(address, "GET", f"/v1/models/{name}").body)
        assert (answer["id"], answer["object"]) == (unquote(name), "model")
    head = ask(address, "HEAD", "/v1/models")
    assert (head.status, head.body) == (200, b"")


def test_unknown_model_is_not_found(address: str) -> None:
    for name in ("gpt-4o", "openai/gpt-oss", "120b"):
        answer = ask(address, "GET", f"/v1/models/{name}")
        assert (answer.status, answer.error["type"]) == (404, "invalid_request_error")


@pytest.mark.parametrize(
    ("name", "status"),
    [(MODEL, 200), ("gpt-oss-120b", 200), ("gpt-4o", 404), ("openai/gpt-oss", 404), ("", 404), (5, 404)],
)
def test_request_is_routed_by_a_name_of_the_model(address: str, name: str | int, status: int) -> None:
    body = json.dumps({**json.loads(BODY), "model": name}).encode()
    answer = ask(address, "POST", CHAT, body)
    assert answer.status == status
    if status == 404:
        assert answer.error["code"] == "model_not_found"
        assert MODEL in answer.error["message"]


@pytest.mark.parametrize(
    ("method", "target"),
    [(method, CHAT) for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "post", "FROBNICATE")]
    + [(method, "/v1/models") for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get")],
)
def test_other_methods_are_rejected(fleet: Fleet, gateway: str, method: str, target: str) -> None:
    address, began = fleet.address(gateway), now(fleet, gateway)
    answer = ask(address, method, target, BODY if method == "POST" else None)
    assert answer.status == 405
    assert method == "HEAD" or answer.error["type"] == "invalid_request_error"
    entry = access(journal(fleet, gateway, began))[answer.request_id]
    assert entry["instance"] == NOBODY
    assert entry["method"] == method


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length", [MAX_BODY + 1, 2**31 - 1, 2**31, 2**32, 2**32 + len(BODY), 2**33 + 5, 2**63 - 1, 2**64 - 1]
)
def test_too_large_request_is_rejected_at_once(fleet: Fleet, gateway: str, length: int) -> None:
    """Reject by Content-Length, before the body is sent; a length above 32 bits too."""
    began = now(fleet, gateway)
    headers = {**AUTHORIZED, "Content-Type": "application/json", "Content-Length": str(length)}
    answer = ask(fleet.address(gateway), "POST", CHAT, headers=headers)
    assert answer.status == 413
    assert answer.seconds < QUICK
    assert answer.error["message"] == "The request is larger than 4 MiB."
    assert access(journal(fleet, gateway, began))[answer.request_id]["instance"] == NOBODY


def test_largest_request_succeeds(address: str) -> None:
    answer = ask(address, "POST", CHAT, BODY + b" " * (MAX_BODY - len(BODY)))
    assert answer.status == 200


@pytest.mark.parametrize("length", ["-1", "+5", "0x5", "5.0", "1e3", "", "five", "1" * 30, "5, 6", "5;"])
def test_malformed_length_is_rejected(fleet: Fleet, gateway: str, length: str) -> None:
    data = request("POST", CHAT, headers={**AUTHORIZED, "Content-Length": length}) + BODY
    refused(fleet, gateway, {length: data}, {400, 413})


@pytest.mark.parametrize(("size", "status"), [(0, 400), (len(BODY), 200), (MAX_BODY, 200), (MAX_BODY + 1, 413)])
def test_request_without_a_length_has_the_same_limit(address: str, size: int, status: int) -> None:
    body = BODY.ljust(size) if size else b""
    chunks = (b"%x\r\n%s\r\n" % (size, body) if size else b"") + b"0\r\n\r\n"
    headers = {**AUTHORIZED, "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    answer = exchange(address, request("POST", CHAT, headers=headers) + chunks)
    assert answer.status == status


def test_request_without_a_body_has_no_model(address: str) -> None:
    answer = exchange(address, request("POST", CHAT))
    assert answer.status == 400
    assert MODEL in answer.error["message"]


@pytest.mark.parametrize(
    "data",
    [
        request("GET", "/v1/models", headers={**AUTHORIZED, "X-Large": "a" * 40000}),
        request("GET", "/v1/models", headers={**AUTHORIZED, "X" * 40000: "a"}),
        request("GET", "/v1/models", headers={**AUTHORIZED, **{f"X-{number}": "a" for number in range(1000)}}),
        request("GET", "/v1/models?" + "a" * 40000),
        request("G" * 40000, "/v1/models"),
    ],
    ids=["value", "name", "many", "target", "method"],
)
def test_too_large_headers_are_rejected(fleet: Fleet, gateway: str, data: bytes) -> None:
    # The gateway does not read all of it, so the response may be lost.
    refused(fleet, gateway, {"": data}, {0, 400, 405, 414, 431})


# --- malformed HTTP ---------------------------------------------------------------------------------------------------


def malformed(mark: str) -> dict[str, bytes]:
    """Return malformed and ambiguous requests; the second request in each contains a mark."""
    plain = request("POST", f"{CHAT}?{mark}", BODY)
    start, rest = halves(plain, b"\r\n")
    second = request("GET", f"/v1/models?{mark}")

    def with_header(*lines: bytes, data: bytes = plain) -> bytes:
        head, body = halves(data, b"\r\n\r\n")
        return b"\r\n".join([head, *lines, b"", body])

    bare = request("POST", f"{CHAT}?{mark}")
    return {
        "every byte": bytes(range(256)) * 8,
        "random bytes": secrets.token_bytes(4096) + b"\r\n\r\n",
        "no request line": b"\r\n\r\n\r\n",
        "one word": b"GET\r\n\r\n",
        "no version": b"GET /v1/models\r\n\r\n",
        "version 0.9": start.replace(b"HTTP/1.1", b"HTTP/0.9") + b"\r\n\r\n",
        "version of letters": start.replace(b"HTTP/1.1", b"HTTP/x.y") + b"\r\n" + rest,
        "version of many digits": start.replace(b"HTTP/1.1", b"HTTP/1.10") + b"\r\n" + rest,
        "no HTTP": start.replace(b"HTTP/1.1", b"ICAP/1.0") + b"\r\n" + rest,
        "three words": start.replace(b" HTTP", b" x HTTP") + b"\r\n" + rest,
        "method of quotes": plain.replace(b"POST", b'PO"ST', 1),
        "method of control characters": plain.replace(b"POST", b"PO\x01ST", 1),
        "long method": plain.replace(b"POST", b"POST" * 200, 1),
        "method with an end": plain.replace(b"POST", b"POST\r", 1),
        "two lengths": with_header(b"Content-Length: 3"),
        "a list of lengths": plain.replace(b"Content-Length: ", b"Content-Length: 3, "),
        "length and chunks": with_header(
            b"Content-Length: 5", b"Transfer-Encoding: chunked", data=bare + b"0\r\n\r\n" + second
        ),
        "chunks and length": with_header(
            b"Transfer-Encoding: chunked", b"Content-Length: 5", data=bare + b"0\r\n\r\n" + second
        ),
        "chunks with a space": with_header(b"Transfer-Encoding : chunked"),
        "chunks with a tab": with_header(b"Transfer-Encoding:\x0bchunked"),
        "chunks twice": with_header(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        "chunks and more": with_header(b"Transfer-Encoding: chunked, identity"),
        "chunks of another kind": with_header(b"Transfer-Encoding: xchunked"),
        "chunks of an older version": with_header(
            b"Transfer-Encoding: chunked", data=plain.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        ),
        "folded chunks": with_header(b"Transfer-Encoding:\r\n chunked"),
        "CR alone": plain.replace(b"\r\n", b"\r"),
        "CR in a header": with_header(b"X-One: a\rX-Two: b"),
        "NUL in a header": with_header(b"X-One: a\0b"),
        "NUL behind much else": with_header(b"X-One: " + b"a" * 12000, b"X-Two: a\0b"),
        "NUL in a name": with_header(b"X-\0One: a"),
        "NUL in the target": plain.replace(CHAT.encode(), CHAT.encode() + b"\0", 1),
        "space in a name": with_header(b"X One: a"),
        "no colon": with_header(b"X-One"),
        "no name": with_header(b": a"),
        "space before the first header": plain.replace(b"\r\nHost", b"\r\n Host", 1),
        "two hosts": with_header(b"Host: another"),
        "no ASCII in the target": b"GET /v1/models/\xff\xfe HTTP/1.1" + rest,
        "space in the target": plain.replace(CHAT.encode(), CHAT.encode() + b" " + b"x", 1),
    }


def test_malformed_request_is_not_forwarded(fleet: Fleet, gateway: str) -> None:
    mark = f"mark{secrets.token_hex(8)}"
    refused(fleet, gateway, malformed(mark), REFUSED)
    assert seen(fleet, mark) == 0


@pytest.mark.parametrize(
    "data",
    [
        request("POST", CHAT, BODY).replace(b"\r\n", b"\n"),
        request("POST", CHAT, BODY, headers={**AUTHORIZED, "X-One": "a\nX-Two: b"}),
        request("POST", CHAT, BODY, headers={**AUTHORIZED, "X-One": "a\r\n b"}),
        request("POST", CHAT, BODY, headers={**AUTHORIZED, "X-One": "a\nContent-Length: 3"}),
        request("POST", CHAT, BODY, headers={**AUTHORIZED, "X-One": "a\r\n Content-Length: 3"}),
        request("POST", CHAT, BODY, headers={**AUTHORIZED, "X-One": "a\nTransfer-Encoding: chunked"}),
    ],
    ids=["LF alone", "LF in a header", "folded", "LF and a length", "a length folded", "LF and chunks"],
)
def test_old_line_endings_do_not_add_a_request(fleet: Fleet, gateway: str, data: bytes) -> None:
    """RFC 9112 lets a server accept LF for CRLF and a folded line for one; it then forwards CRLF and one line."""
    before = sum(one["requests"] for one in statistics(fleet, gateway).values())
    answer = exchange(fleet.address(gateway), data)
    assert answer.status in {200, 400}
    assert answer.body.count(b"HTTP/1.") == 0
    if answer.status == 200:
        assert json.loads(answer.body)["usage"]["completion_tokens"] == 4
        assert sum(one["requests"] for one in statistics(fleet, gateway).values()) > before


def test_upgrade_is_rejected(address: str) -> None:
    for upgrade in (
        {"Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="},
        {"Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"},
    ):
        headers = {**AUTHORIZED, **upgrade, "Connection": "Upgrade, HTTP2-Settings"}
        answer = ask(address, "GET", "/v1/models", headers=headers)
        assert answer.status in {200, 400, 501}
    answer = exchange(address, b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n" + authorized() + b"\r\n")
    assert answer.status in REFUSED


def authorized() -> bytes:
    return f"Authorization: Bearer {KEY}\r\n".encode()


def statistics(fleet: Fleet, gateway: str) -> dict[str, dict[str, int]]:
    """Return the figures of each instance from HAProxy's exporter."""
    metrics = fleet.shell(gateway, f"curl -sf http://127.0.0.1:{METRICS_PORT}/metrics")
    names = {"haproxy_server_sessions_total": "requests", "haproxy_server_current_sessions": "in_flight"}
    found: dict[str, dict[str, int]] = {}
    for line in metrics.splitlines():
        row = re.match(r'(\w+)\{proxy="model:[^"]+",server="([^"]+)"\} (\d+)', line)
        if row and row[1] in names:
            found.setdefault(row[2], {})[names[row[1]]] = int(row[3])
    return found


# --- slow clients -----------------------------------------------------------------------------------------------------


async def trickle(address: str, first: bytes, part: bytes, pause: float, limit: float) -> tuple[float, int]:
    """Send a start and then parts at intervals; return the seconds until the gateway ends it, and the status."""
    reader, writer = await asyncio.open_connection(address, PORT, ssl=insecure_context())
    began = time.monotonic()
    writer.write(first)
    received = b""
    try:
        while time.monotonic() - began < limit:
            try:
                received += (data := await asyncio.wait_for(reader.read(4096), pause))
                if not data or whole(received):
                    break
            except TimeoutError:
                writer.write(part)
    except OSError:
        pass
    took = time.monotonic() - began
    writer.transport.abort()
    return took, parse(received, took, False).status


def answered_quickly(address: str, seconds: float) -> float:
    """Send requests for some seconds; return the slowest response."""
    began, slowest = time.monotonic(), 0.0
    while time.monotonic() - began < seconds:
        answer = ask(address, "POST", CHAT, BODY)
        assert answer.status == 200
        slowest = max(slowest, answer.seconds)
        time.sleep(0.5)
    return slowest


def slow_clients(address: str, number: int, first: bytes, part: bytes, limit: float) -> list[tuple[float, int]]:
    """Return the results of slow clients, and check that another client gets quick responses."""

    async def all_clients() -> list[tuple[float, int]]:
        return await asyncio.gather(*(trickle(address, first, part, 2, limit) for _turn in range(number)))

    with ThreadPoolExecutor(1) as threads:
        good = threads.submit(answered_quickly, address, 8)
        ends = asyncio.run(all_clients())
        assert good.result() < QUICK
    return ends


def test_slow_headers_are_ended(address: str) -> None:
    ends = slow_clients(address, 200, b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nX-Slow: ", b"a", 30)
    assert min(ends)[0] > 8
    assert max(ends)[0] < 16
    assert {end[1] for end in ends} <= {0, 408}


def slow_body(length: int) -> bytes:
    """Return the start of a request with a body of this length."""
    headers = {**AUTHORIZED, "Content-Type": "application/json", "Content-Length": str(length)}
    return request("POST", CHAT, headers=headers) + BODY


def test_slow_body_is_ended(fleet: Fleet, gateway: str) -> None:
    began = now(fleet, gateway)
    ends = slow_clients(fleet.address(gateway), 20, slow_body(len(BODY) + 1000), b" ", 50)
    assert min(ends)[0] > 25
    assert max(ends)[0] < 36
    assert {end[1] for end in ends} == {408}
    entries = [one for one in access(journal(fleet, gateway, began)).values() if one["status"] == 408]
    assert {one["instance"] for one in entries} == {NOBODY}


def test_slow_body_does_not_delay_other_clients(fleet: Fleet, gateway: str) -> None:
    """A body larger than HAProxy's buffer reaches an instance, and leaves it with its client."""
    first = slow_body(len(BODY) + MIB) + b" " * 100_000
    assert slow_clients(fleet.address(gateway), 20, first, b" ", 10)
    for _turn in range(20):
        flying = sum(one["in_flight"] for one in statistics(fleet, gateway).values())
        if flying < 10:
            break
        time.sleep(0.5)
    assert flying < 10


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_ends_the_work_of_the_instance(fleet: Fleet, gateway: str, stream: bool) -> None:
    began = now(fleet, gateway)
    with (
        socket.create_connection((fleet.address(gateway), PORT), timeout=10) as connection,
        insecure_context().wrap_socket(connection) as tls,
    ):
        tls.sendall(request("POST", CHAT, question(tokens=30000, stream=stream)))
        time.sleep(2)
    for _turn in range(20):
        entries = access(journal(fleet, gateway, began)).values()
        ended = [one for one in entries if one["end"].startswith("C") and (one["streamed"] == "yes") == stream]
        if ended:
            break
        time.sleep(0.5)
    assert [one["total_ms"] < 10_000 for one in ended] == [True]


def set_power(fleet: Fleet, host: str, on: bool) -> None:
    """Drop all packets from and to a host without closing connections, as a power loss does."""
    for interface in ("INPUT --in-interface", "OUTPUT --out-interface"):
        fleet.shell(host, f"iptables {'--delete' if on else '--insert'} {interface} eth0 --jump DROP")


@pytest.mark.parametrize("stream", [False, True])
def test_power_loss_of_a_host_is_detected(fleet: Fleet, gateway: str, stream: bool, others: Load) -> None:
    # Its share of the requests grows for 30 s after it is up again.
    assert wait_for(lambda: all(row["weight"] == row["uweight"] for row in fleet.backend(gateway).values()), 60)
    lost, address, began = fleet.gpu_names[0], fleet.address(gateway), now(fleet, gateway)
    # Responses of 15 s, or more on a busy machine, in HTTP/1.0, so that the connection's end ends a body.
    asked = request("POST", CHAT, question(tokens=20000, stream=stream), version="HTTP/1.0")
    with ThreadPoolExecutor(max_workers=2 * fleet.gpus) as threads:
        futures = [threads.submit(exchange, address, asked, timeout=180) for _turn in range(2 * fleet.gpus)]
        time.sleep(5)
        set_power(fleet, lost, on=False)
        try:
            answers = [future.result() for future in futures]
        finally:
            set_power(fleet, lost, on=True)
    entries = access(journal(fleet, gateway, began))
    ours = {answer.request_id: answer for answer in answers}
    cut = {name for name in ours if entries[name]["instance"].startswith(f"{lost}.")}
    assert 0 < len(cut) < len(answers)
    for name, answer in ours.items():
        whole_answer = answer.body.rstrip().endswith(b"data: [DONE]") if stream else answer.status == 200
        assert whole_answer == (name not in cut)
        assert answer.status == (502 if name in cut and not stream else 200)
    # Ten seconds of silence and three unanswered probes, after the five until the power loss.
    assert max(ours[name].seconds for name in cut) < 5 + 25 + 5
    assert wait_for(lambda: fleet.in_service() == fleet.all_instances, 60)
    # Requests of the other clients that were in flight on that host are lost, too, at either gateway.
    for name in fleet.gateway_names:
        there = {
            key for key, one in access(journal(fleet, name, began)).items() if one["instance"].startswith(f"{lost}.")
        }
        others.requests[:] = [one for one in others.requests if one.request_id not in there]


# --- TLS --------------------------------------------------------------------------------------------------------------


def handshake(address: str, context: ssl.SSLContext, name: str | None = None) -> tuple[str, str, str | None]:
    """Return the version, cipher and compression of a connection; ssl.SSLError if the gateway rejects it."""
    with (
        socket.create_connection((address, PORT), timeout=10) as connection,
        context.wrap_socket(connection, server_hostname=name) as tls,
    ):
        return str(tls.version()), tls.cipher()[0], tls.compression()  # type: ignore[index]


def only(version: ssl.TLSVersion, ciphers: str = "ALL:COMPLEMENTOFALL:@SECLEVEL=0") -> ssl.SSLContext:
    context = insecure_context()
    context.set_ciphers(ciphers)
    context.minimum_version = version
    context.maximum_version = version
    return context


def chosen(address: str, without: str) -> tuple[str, str, str | None] | None:
    """Return the gateway's choice among all of TLS 1.2 except some ciphers."""
    try:
        return handshake(address, only(ssl.TLSVersion.TLSv1_2, f"{without}ALL:COMPLEMENTOFALL:@SECLEVEL=0"))
    except ssl.SSLError:
        return None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_tls_is_rejected(address: str, version: ssl.TLSVersion) -> None:
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        handshake(address, only(version))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_accepted_ciphers_are_secure(address: str, version: ssl.TLSVersion) -> None:
    """Offer all ciphers of OpenSSL, and then all except the chosen ones, until the gateway rejects."""
    if version == ssl.TLSVersion.TLSv1_3:
        assert handshake(address, only(version))[:2] in {
            ("TLSv1.3", "TLS_AES_128_GCM_SHA256"),
            ("TLSv1.3", "TLS_AES_256_GCM_SHA384"),
            ("TLSv1.3", "TLS_CHACHA20_POLY1305_SHA256"),
        }
        return
    taken: list[str] = []
    while found := chosen(address, "".join(f"!{cipher}:" for cipher in taken)):
        assert found[0] == "TLSv1.2"
        assert found[2] is None
        taken.append(found[1])
    assert taken
    assert [
        one for one in taken if not re.fullmatch(r"ECDHE-(ECDSA|RSA)-(AES\d+-GCM-SHA\d+|CHACHA20-POLY1305)", one)
    ] == []


@pytest.mark.parametrize(
    "cipher", ["AES128-SHA", "ECDHE-ECDSA-AES128-SHA", "AES128-GCM-SHA256", "NULL-SHA256", "aNULL"]
)
def test_insecure_cipher_is_rejected(address: str, cipher: str) -> None:
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        handshake(address, only(ssl.TLSVersion.TLSv1_2, f"{cipher}:@SECLEVEL=0"))


def test_renegotiation_is_rejected(address: str) -> None:
    client = subprocess.Popen(
        ["openssl", "s_client", "-connect", f"{address}:{PORT}", "-tls1_2", "-legacy_renegotiation"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert client.stdin
    time.sleep(1)
    client.stdin.write("R\n")
    client.stdin.flush()
    time.sleep(1)
    output = client.communicate("")[0]
    assert "RENEGOTIATING" in output
    assert re.search("no renegotiation|ssl handshake failure", output), output
    assert "Compression: NONE" in output


def test_certificate_has_the_gateways_name(fleet: Fleet, gateway: str) -> None:
    address = fleet.address(gateway)
    trust = ssl.create_default_context(cadata=fleet.shell(gateway, f"cat /etc/trtllm-fleet/gateway/{address}.crt"))
    assert handshake(address, trust, address)[0] == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|not valid for"):
        handshake(address, trust, "203.0.113.1")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|not valid for"):
        handshake(address, trust, "gateway.example")
    mode = fleet.shell(gateway, f"stat -c '%a %U' /etc/trtllm-fleet/gateway/{address}.crt.key")
    assert mode == "600 root"


@pytest.mark.parametrize(
    "data", [request("POST", CHAT, BODY), request("GET", "/health"), b"\x00" * 64, b"SSH-2.0-x\r\n"]
)
def test_plain_http_gets_no_response(address: str, data: bytes) -> None:
    received = b""
    with socket.create_connection((address, PORT), timeout=10) as connection:
        try:
            connection.sendall(data)
            while part := connection.recv(4096):
                received += part
        except OSError:
            pass
    assert parse(received, 0, False).status in {0, 400}
    assert MODEL.encode() not in received
    assert len(received) < 500


# --- health and metrics -----------------------------------------------------------------------------------------------


def test_health_has_only_the_status(fleet: Fleet, gateway: str) -> None:
    answer = ask(fleet.address(gateway), "GET", "/health", headers={})
    assert answer.status == 200
    told = f"{answer.headers} {answer.body!r}".lower()
    for secret in ("haproxy", "nginx", "uvicorn", MODEL, *fleet.gpu_names, *map(fleet.address, fleet.gpu_names)):
        assert secret not in told
    for target in ("/health/", "/healthx", "/health/../v1/models"):
        assert ask(fleet.address(gateway), "GET", target, headers={}).status == 401


def test_metrics_are_on_loopback_only(fleet: Fleet, gateway: str) -> None:
    began = now(fleet, gateway)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((fleet.address(gateway), METRICS_PORT), timeout=10).close()
    metrics = fleet.shell(gateway, f"curl -sf http://127.0.0.1:{METRICS_PORT}/metrics")
    for host in fleet.gpu_names:
        assert re.search(rf'^haproxy_server_status\{{.*server="{host}\.serve-0".*state="UP"', metrics, re.MULTILINE)
    assert "haproxy_server_http_responses_total" in metrics
    assert KEY not in metrics
    status = fleet.shell(gateway, f"curl -s -o /dev/null -w '%{{http_code}}' http://127.0.0.1:{METRICS_PORT}/")
    assert status == "404"
    # The health check requests them continuously.
    assert [line for line in journal(fleet, gateway, began) if str(METRICS_PORT) in line] == []


def test_only_the_gateways_ports_are_open(fleet: Fleet, gateway: str) -> None:
    listeners = fleet.shell(gateway, "ss -Hltnp | grep haproxy | awk '{print $4}'").splitlines()
    peers = f"{fleet.address(gateway)}:{PEERS_PORT}"
    assert set(listeners) == {f"0.0.0.0:{PORT}", f"127.0.0.1:{METRICS_PORT}", peers}


# --- the log ----------------------------------------------------------------------------------------------------------


def test_each_response_has_a_logged_id(fleet: Fleet, gateway: str) -> None:
    address, began = fleet.address(gateway), now(fleet, gateway)
    large = {**AUTHORIZED, "Content-Length": str(MAX_BODY + 1)}
    answers = {
        200: ask(address, "POST", CHAT, BODY),
        401: ask(address, "POST", CHAT, BODY, headers={}),
        404: ask(address, "GET", "/metrics"),
        405: ask(address, "DELETE", CHAT),
        400: ask(address, "POST", CHAT, b"{}"),
        413: ask(address, "POST", CHAT, headers=large),
    }
    assert {status: answer.status for status, answer in answers.items()} == {status: status for status in answers}
    ids = {answer.request_id for answer in answers.values()}
    assert len(ids) == len(answers)
    assert all(REQUEST_ID.fullmatch(one) for one in ids)
    log = access(journal(fleet, gateway, began))
    for status, answer in answers.items():
        entry = log[answer.request_id]
        assert entry["status"] == status
        assert entry["key"] == ("-" if status == 401 else "lab")
        assert (entry["instance"] == NOBODY) == (status != 200)


def test_clients_request_id_is_replaced(fleet: Fleet, gateway: str) -> None:
    began = now(fleet, gateway)
    mine = f"mine-{secrets.token_hex(8)}"
    answer = ask(fleet.address(gateway), "GET", "/v1/models", headers={**AUTHORIZED, "X-Request-Id": mine})
    assert REQUEST_ID.fullmatch(answer.request_id)
    assert mine not in "\n".join(journal(fleet, gateway, began))


def test_log_has_no_secret(fleet: Fleet, gateway: str) -> None:
    address, began = fleet.address(gateway), now(fleet, gateway)
    canary = f"canary{secrets.token_hex(8)}"
    wrong = {"Authorization": f"Bearer {canary}"}
    for target in (f"{CHAT}?{canary}", f"{CHAT}?api_key={canary}#{canary}"):
        ask(address, "POST", target, question(prompt=canary))
        ask(address, "POST", target, question(prompt=canary), headers=wrong)
    assert ask(address, "POST", f"{CHAT}?{canary}", question(prompt=canary)).status == 200
    assert ask(address, "GET", f"/v1/models?{canary}", headers={**AUTHORIZED, "Cookie": canary}).status == 200
    assert ask(address, "GET", f"/metrics?{canary}", headers={**AUTHORIZED, "User-Agent": canary}).status == 404
    exchange(address, request("POST", CHAT, question(prompt=canary)).replace(b"POST", b'"', 1))
    exchange(address, f"{canary}\r\n\r\n{canary}".encode())
    log = "\n".join(journal(fleet, gateway, began))
    # One line each; a malformed request has no id.
    assert sum(line.startswith("{") for line in log.splitlines()) >= 9
    assert access(log.splitlines())
    assert canary not in log
    assert KEY not in log
    assert hashlib.sha256(KEY.encode()).hexdigest().upper() not in log.upper()
    # Nor anywhere else on the gateway.
    assert canary not in fleet.shell(gateway, f"journalctl -o cat --no-pager --since={began}")


def test_log_lines_cannot_be_injected(fleet: Fleet, gateway: str) -> None:
    """Each line is one JSON object, with any path."""
    address, began = fleet.address(gateway), now(fleet, gateway)
    mark = f"mark{secrets.token_hex(4)}"
    paths = [f'/{mark}","status":200,"x":"', f"/{mark}\\", f"/{mark}%0a{{}}", f"/{mark}'{{}}", f"/{mark}<script>"]
    answers = {path: ask(address, "GET", path) for path in paths}
    assert {answer.status for answer in answers.values()} <= {400, 404}
    log = access(journal(fleet, gateway, began))
    for path, answer in answers.items():
        if answer.status == 404:
            assert log[answer.request_id]["path"] == path
            assert log[answer.request_id]["status"] == 404


def test_keys_are_kept_as_hashes(fleet: Fleet, gateway: str) -> None:
    root = "/etc/trtllm-fleet/gateway"
    keys = fleet.shell(gateway, f"cat {root}/keys.map")
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    assert f"{digest.upper()} lab" in keys.splitlines()
    assert fleet.shell(gateway, f"stat -c '%a %U' {root}/keys.map") == "600 root"
    assert fleet.shell(gateway, f"grep -rlF {KEY} /etc /run /var/lib /var/log /root", check=False) == ""


# --- failures and reloads ---------------------------------------------------------------------------------------------


async def stream(address: str, ready: asyncio.Semaphore, barrier: asyncio.Barrier, tokens: int) -> str:
    """Stream one long response, started at the same moment as all others; return its error or an empty string."""
    body = question(tokens=tokens, stream=True, stream_options={"include_usage": True}, ignore_eos=True)
    data = request("POST", CHAT, body)
    async with ready:
        reader, writer = await asyncio.open_connection(address, PORT, ssl=insecure_context())
        # All but the last bytes of the request.
        writer.write(data[:-1])
        await writer.drain()
    await barrier.wait()
    writer.write(data[-1:])
    received, tail = b"", b""
    try:
        while part := await asyncio.wait_for(reader.read(65536), 120):
            received = received or part
            tail = (tail + part)[-4096:]
    except (OSError, TimeoutError) as error:
        return type(error).__name__
    finally:
        writer.transport.abort()
    if not received.startswith(b"HTTP/1.1 200 "):
        return received[:40].decode("latin-1")
    complete = tail.endswith(b"0\r\n\r\n")
    # A chunk of HTTP may begin within an event.
    tail = re.sub(rb"\r\n[0-9A-Fa-f]+\r\n", b"", tail)
    if not complete or b"data: [DONE]" not in tail:
        return "cut"
    counted = re.findall(rb'"completion_tokens":(\d+)', tail)
    return "" if counted == [b"%d" % tokens] else f"{counted} tokens"


async def streams(addresses: Sequence[str], number: int, tokens: int) -> list[str]:
    ready, barrier = asyncio.Semaphore(HANDSHAKES), asyncio.Barrier(number)
    return await asyncio.gather(
        *(stream(addresses[one % len(addresses)], ready, barrier, tokens) for one in range(number))
    )


def test_all_concurrent_streams_complete(fleet: Fleet) -> None:
    """More than the instances accept at a time: the rest waits in the gateways."""
    ends = asyncio.run(streams([fleet.address(name) for name in fleet.gateway_names], STREAMS, STREAM_TOKENS))
    assert {end: ends.count(end) for end in set(ends)} == {"": STREAMS}


def kept_open(address: str, until: threading.Event) -> list[str]:
    """Send requests on one connection while the gateway keeps it open; return the failures.

    Unlike the OpenAI client this one does not check the connection before a request.
    """
    connection = http.client.HTTPSConnection(address, PORT, context=insecure_context(), timeout=10)
    broken = []
    while not until.wait(0.1):
        try:
            connection.request("GET", "/v1/models", headers=AUTHORIZED)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                broken.append(str(answer.status))
        except (http.client.HTTPException, OSError) as error:
            broken.append(type(error).__name__)
            connection.close()
    connection.close()
    return broken


def workers(fleet: Fleet, gateway: str) -> int:
    """Return the active processes of HAProxy."""
    return int(fleet.shell(gateway, f"pgrep -c -P $(systemctl show -P MainPID {UNIT}) haproxy", check=False))


def test_reload_loses_nothing(fleet: Fleet, gateway: str) -> None:
    address, over = fleet.address(gateway), threading.Event()
    before = fleet.shell(gateway, f"systemctl show -P MainPID {UNIT}")
    with ThreadPoolExecutor(5) as threads, fleet.load(RATE, long_every=10, long_tokens=5000) as load:
        load.wait(2)
        long = threads.submit(asyncio.run, streams([address], 4, 20000))
        kept = [threads.submit(kept_open, address, over) for _turn in range(4)]
        try:
            load.wait(2)
            for _turn in range(5):
                fleet.shell(gateway, f"systemctl reload {UNIT}")
                load.wait(2)
            assert long.result() == [""] * 4
        finally:
            over.set()
    assert load.errors() == {}
    assert [one.result() for one in kept] == [[]] * 4
    assert fleet.shell(gateway, f"systemctl show -P MainPID {UNIT}") == before
    # The old processes end when their requests and kept connections have ended.
    end = time.monotonic() + 90
    while workers(fleet, gateway) > 1 and time.monotonic() < end:
        time.sleep(1)
    assert workers(fleet, gateway) == 1


def test_limits_of_a_key_are_enforced(fleet: Fleet) -> None:
    """The requests of other keys do not count."""
    keys = {name: f"{name}-{secrets.token_hex(16)}" for name in ("lab", "often", "many")} | {"lab": KEY}
    limits = {"often": {"requests_per_minute": 5}, "many": {"max_requests": 2}}
    given = [
        {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), **limits.get(name, {})}
        for name, key in keys.items()
    ]
    address = fleet.address(fleet.gateway_names[0])

    def asked(name: str) -> Answer:
        return ask(address, "POST", CHAT, BODY, headers={"Authorization": f"Bearer {keys[name]}"})

    try:
        run = fleet.play("gateway", gateway_api_keys=given)
        assert run.status == 0, run.output
        answers = [asked("often") for _turn in range(10)]
        assert [answer.status for answer in answers] == [200] * 5 + [429] * 5
        for answer in answers[5:]:
            assert int(answer.headers["retry-after"]) > 0
            assert answer.error["type"] == "rate_limit_exceeded"
        headers = {"Authorization": f"Bearer {keys['many']}"}
        body = question(tokens=10000, stream=True)
        with ThreadPoolExecutor(2) as threads:
            data = request("POST", CHAT, body, headers=headers)
            long = [threads.submit(exchange, address, data, 60.0) for _turn in range(2)]
            time.sleep(2)
            answer = asked("many")
            assert answer.status == 429
            assert int(answer.headers["retry-after"]) > 0
            assert "max_requests" in answer.error["message"]
            assert asked("lab").status == 200
            assert [one.result().status for one in long] == [200, 200]
        # Ended requests do not count.
        assert [asked("many").status for _turn in range(10)] == [200] * 10
        assert [asked("lab").status for _turn in range(20)] == [200] * 20
    finally:
        run = fleet.play("gateway")
    assert run.status == 0, run.output
    assert asked("many").status == 401
    assert asked("lab").status == 200


# --- affinity ---------------------------------------------------------------------------------------------------------

LONG = "What a conversation begins with. " * 40
# Requests in a row. With other clients present, an instance above its share passes new prompts to the next.
TURNS, MOST = 20, 14


@pytest.fixture(scope="module")
def affinity(fleet: Fleet) -> Iterator[None]:
    """Set the affinity until the end of this module."""
    run = fleet.play("gateway", gateway_affinity="prefix")
    assert run.status == 0, run.output
    yield
    run = fleet.play("gateway")
    assert run.status == 0, run.output


def instances(fleet: Fleet, gateway: str, bodies: Sequence[bytes], **headers: str) -> Counter[str]:
    """Return the number of responses by instance, for requests in sequence."""
    began = now(fleet, gateway)
    address = fleet.address(gateway)
    answers = [ask(address, "POST", CHAT, body, headers=AUTHORIZED | headers) for body in bodies]
    assert {answer.status for answer in answers} == {200}
    log = access(journal(fleet, gateway, began))
    return Counter(log[answer.request_id]["instance"] for answer in answers)


@pytest.mark.usefixtures("affinity")
def test_equal_prefixes_go_to_the_same_instance(fleet: Fleet, gateway: str) -> None:
    alike = instances(fleet, gateway, [question(f"{LONG}{turn}", tokens=turn + 1) for turn in range(TURNS)])
    assert max(alike.values()) >= MOST
    unlike = instances(fleet, gateway, [question(f"{turn} {LONG}") for turn in range(TURNS)])
    assert max(unlike.values()) < MOST


@pytest.mark.usefixtures("affinity")
def test_session_goes_to_the_same_instance(fleet: Fleet, gateway: str) -> None:
    bodies = [question(f"{turn} {LONG}") for turn in range(TURNS)]
    assert max(instances(fleet, gateway, bodies, **{"X-Session-Id": "one"}).values()) >= MOST
    assert max(instances(fleet, gateway, bodies, **{"X-Session-Id": ""}).values()) < MOST


@pytest.mark.usefixtures("affinity")
def test_common_prefix_does_not_fill_one_instance(fleet: Fleet, gateway: str, address: str) -> None:
    began, number = now(fleet, gateway), 30
    assert set(asyncio.run(streams([address], number, 1000))) == {""}
    counts: Counter[str] = Counter()

    def logged() -> bool:
        log = access(journal(fleet, gateway, began)).values()
        counts.clear()
        counts.update(one["instance"] for one in log if one["streamed"] and one["bytes_out"] > 100_000)
        return counts.total() >= number

    assert wait_for(logged, 10), counts
    assert max(counts.values()) < number * 1.5 / len(counts) + 5


@pytest.mark.usefixtures("affinity")
def test_drained_instance_gets_no_affinity_requests(fleet: Fleet, gateway: str) -> None:
    bodies = [question(f"{LONG}{turn}") for turn in range(TURNS)]
    home = instances(fleet, gateway, bodies).most_common(1)[0][0]
    host = home.partition(".")[0]
    try:
        assert fleet.play("drain", "--limit", host).status == 0
        assert home not in instances(fleet, gateway, bodies)
    finally:
        run = fleet.play("undrain", "--limit", host)
    assert run.status == 0, run.output
    assert instances(fleet, gateway, bodies).most_common(1)[0][0] == home
