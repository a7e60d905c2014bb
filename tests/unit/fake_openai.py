"""Scripted HTTP server: each path, with or without its query, has a sequence of responses. The last one repeats."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MODEL = "openai/gpt-oss-120b"


class Handler(http.server.BaseHTTPRequestHandler):
    """Request handler that runs the script; the helpers below are the script's steps."""

    protocol_version = "HTTP/1.1"
    server: Server

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        fake = self.server.fake
        fake.requests.append(Request(self.command, self.path, dict(self.headers), body))
        answers = fake.script.get(self.path) or fake.script.get(self.path.partition("?")[0], [reply(404)])
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client disconnected first, as some tests intend
            (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


Answer = Callable[[Handler], None]


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    fake: FakeOpenAI

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a TLS handshake that the client rejected


@dataclass
class FakeOpenAI:
    """``with FakeOpenAI(script) as fake``; for ``listen_after`` seconds the port is bound but does not listen."""

    script: dict[str, list[Answer]]
    listen_after: float = 0.0
    cert_file: str = ""
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> FakeOpenAI:
        self._server = Server(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.fake = self
        self._server.server_bind()
        if self.cert_file:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self.cert_file)
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        if not self.listen_after:  # here, because on a busy machine the thread may start after the first request
            self._server.server_activate()
        scheme = "https" if self.cert_file else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def _serve(self) -> None:
        if self.listen_after:
            time.sleep(self.listen_after)
            self._server.server_activate()
        self._server.serve_forever(poll_interval=0.02)

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def paths(self) -> list[str]:
        """Return the requested paths in order."""
        return [request.path for request in self.requests]

    def bodies(self, path: str) -> list[Any]:
        """Return the bodies posted to a path, in order."""
        return [request.body for request in self.requests if request.path == path]


def reply(status: int, body: Any = b"", headers: dict[str, str] | None = None) -> Answer:
    """Send a whole response; anything but bytes as JSON."""

    def answer(handler: Handler) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def stream(
    events: Sequence[Any], end: bytes = b"data: [DONE]\n\n", before_first: float = 0.0, cut: bool = False
) -> Answer:
    """Send server-sent events in chunked encoding. ``cut`` resets the connection after the events instead of ending."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        time.sleep(before_first)
        text = b"".join(e if isinstance(e, bytes) else b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)
        data = text + (b"" if cut else end)
        # Chunks that ignore the boundaries of events and lines, as a proxy may send them.
        for start in range(0, len(data), 50):
            part = data[start : start + 50]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        if cut:
            reset(handler)
        else:
            handler.wfile.write(b"0\r\n\r\n")

    return answer


def raw(data: bytes) -> Answer:
    """Send these bytes and close the connection."""

    def answer(handler: Handler) -> None:
        handler.wfile.write(data)

    return answer


def hang(handler: Handler) -> None:
    """Send nothing for longer than any test's deadline."""
    time.sleep(60)


def reset(handler: Handler) -> None:
    """Reset the connection, like a published port whose container does not listen yet."""
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def drip(data: bytes, pause: float = 0.05) -> Answer:
    """Send a byte at a time: each read succeeds, the response never ends."""

    def answer(handler: Handler) -> None:
        for byte in data:
            handler.wfile.write(bytes([byte]))
            time.sleep(pause)

    return answer


USAGE = {"prompt_tokens": 70, "completion_tokens": 30, "total_tokens": 100}


def chat(content: str | None = "New York is in the United States.", **fields: Any) -> dict[str, Any]:
    """Return a chat completion of TensorRT-LLM; ``fields`` are the message's, except finish_reason and usage."""
    finish_reason = fields.pop("finish_reason", "stop")
    usage = fields.pop("usage", USAGE)
    message = {"role": "assistant", "content": content, "reasoning_content": None, "tool_calls": [], **fields}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}


def chat_chunks(content: Sequence[str], reasoning: Sequence[str] = (), finish_reason: str = "stop") -> list[Any]:
    """Return the same as a stream: role, reasoning, content, end, and the chunk with the usage."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": part} for part in reasoning] + [{"content": part} for part in content]
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return [
        *chunks,
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]},
        {"choices": [], "usage": USAGE},
    ]


def response(text: str, reasoning: str = "", status: str = "completed", **fields: Any) -> dict[str, Any]:
    """Return a response of the Responses API."""
    output: list[Any] = []
    if reasoning:
        output.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": reasoning}]})
    output.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
    usage = {"input_tokens": 70, "output_tokens": 30, "total_tokens": 100}
    return {"object": "response", "status": status, "error": None, "output": output, "usage": usage, **fields}


def worker(name: str, number: int = 1, address: str = "10.0.0.1", port: int = 34347) -> dict[str, Any]:
    """Return a worker's entry in /health of Dynamo 1.6 by its endpoint. Ids exceed the exact range of a float."""
    namespace, component, endpoint = name[len("dyn://") :].split(".")
    transport = {"tcp": f"{address}:{port}/f27ac1be9000dcb/{namespace}/{component}/{endpoint}"} if address else {}
    return {
        "component": component,
        "endpoint": endpoint,
        "namespace": namespace,
        "instance_id": 2**63 + number,
        "transport": transport,
        "device_type": "cuda",
    }


def frontend_health(*workers: dict[str, Any]) -> Answer:
    """Return /health of Dynamo's frontend, which is healthy with any list of workers."""
    names = {f"dyn://{entry['namespace']}.{entry['component']}.{entry['endpoint']}" for entry in workers}
    return reply(200, {"status": "healthy", "endpoints": sorted(names), "instances": workers})


def serving(**answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Return the script of a healthy server; ``health``, ``models``, ``chat`` and others replace its responses."""
    script: dict[str, list[Answer]] = {
        "/health": [reply(200)],
        "/v1/models": [reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})],
        "/version": [reply(200, {"version": "1.2.1"})],
        "/v1/chat/completions": [stream(chat_chunks(["New York is in ", "the United States."], ["A location."]))],
    }
    paths = {
        "health": "/health",
        "models": "/v1/models",
        "version": "/version",
        "chat": "/v1/chat/completions",
        "responses": "/v1/responses",
        "completions": "/v1/completions",
        "metrics": "/metrics",
    }
    return {**script, **{paths[name]: list(script_of) for name, script_of in answers.items()}}
