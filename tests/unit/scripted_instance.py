"""HAProxy with the configuration of role gateway, in front of an instance that sends what a test scripted."""

from __future__ import annotations

import json
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.configuration import render
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import RegisteredHost, Server
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.shadow_run import Copy, read_copies
from ansible_collections.trtllm.fleet.tests.unit import gateway_config
from ansible_collections.trtllm.fleet.tests.unit.usage_sample import MODEL

HAPROXY = shutil.which("haproxy")
CHAT = "/v1/chat/completions"
KEY = {"name": "alice", "sha256": "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90"}
RESET = "reset"


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def in_parallel(run: Callable[[int], None], number: int) -> None:
    """Call a function with 0, 1 and so on, each in a thread. Raises the exception of the first that has one."""
    with ThreadPoolExecutor(number) as pool:
        list(pool.map(run, range(number)))


# --- HTTP -------------------------------------------------------------------------------------------------------------


@dataclass
class Message:
    """A request or a response. ``whole``: its end arrived."""

    head: str
    body: bytes
    whole: bool = True

    def header(self, name: str) -> str | None:
        found = re.search(rf"^{name}: *(.*?)\r?$", self.head, re.MULTILINE | re.IGNORECASE)
        return found[1] if found else None


def read_message(connection: socket.socket) -> Message:
    """Read a message whose body has a length, has chunks, or ends with the connection."""
    file = connection.makefile("rb")
    rows = []
    while (row := file.readline().decode()) not in ("\r\n", ""):
        rows.append(row)
    message = Message("".join(rows), b"")
    length = message.header("content-length")
    if message.header("transfer-encoding") == "chunked":
        chunks = []
        try:
            while size := int(file.readline(), 16):
                chunk = file.read(size + 2)
                chunks.append(chunk[:size])
                if len(chunk) < size + 2:
                    raise ValueError
            file.readline()
        except (ValueError, ConnectionError):
            message.whole = False
        message.body = b"".join(chunks)
    elif length is not None:
        message.body = file.read(int(length))
        message.whole = len(message.body) == int(length)
    elif not rows or not rows[0].startswith(("GET ", "POST ")):
        message.body = file.read()
    return message


def read_until(connection: socket.socket, text: bytes) -> None:
    """Read from a connection until a text arrived."""
    got = b""
    while text not in got:
        part = connection.recv(65536)
        assert part, got
        got += part


def chunked(parts: Sequence[bytes]) -> list[bytes]:
    """Return each part as a chunk, and the end."""
    return [b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part] + [b"0\r\n\r\n"]


def event_stream(parts: Sequence[bytes]) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *chunked(parts)]


def unary(body: bytes, length: bool = True) -> list[bytes]:
    kind = b"Content-Length: %d" % len(body) if length else b"Transfer-Encoding: chunked"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%b\r\n\r\n" % kind
    return [head, body] if length else [head, *chunked([body])]


# --- instance and gateway ---------------------------------------------------------------------------------------------


class Wait:
    """A step of a script that lasts until the test continues."""

    def __init__(self) -> None:
        self.reached, self.over = threading.Event(), threading.Event()


# Bytes to send, seconds to sleep, or RESET for the end of the connection.
Step = bytes | float | Wait | str


@dataclass
class Instance:
    """An engine that answers the request with the name of a script with its steps."""

    listener: socket.socket
    scripts: dict[str, Sequence[Step]] = field(default_factory=dict)
    requests: dict[str, Message] = field(default_factory=dict)

    def run(self) -> None:
        while True:
            try:
                connection, _address = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with closing(connection):
            try:
                request = read_message(connection)
                name = request.header("x-script")
                if name is None:  # a check
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    return
                self.requests[name] = request
                for step in self.scripts[name]:
                    if isinstance(step, Wait):
                        step.reached.set()
                        step.over.wait(20)
                    elif isinstance(step, float):
                        time.sleep(step)
                    elif isinstance(step, str):
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        connection.sendall(step)
            except OSError:
                return


@dataclass
class Exchange:
    """A message to the client, a message to the instance, and the line of the access log."""

    answer: Message
    request: Message
    line: dict[str, Any]


class Gateway:
    """A gateway without TLS, with one instance. ``copied``: how many of 10,000 requests are copied for a canary."""

    def __init__(self, folder: Path, copied: int) -> None:
        self.folder = folder
        self.instance = Instance(socket.create_server(("127.0.0.1", 0), backlog=100))
        self.lines: list[dict[str, Any]] = []
        self.alerts: list[str] = []
        self.copies: list[Copy] = []
        self.number = 0
        (folder / "usage").mkdir()
        # Not the socket of a file, which holds only 10 lines.
        self.log = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.log.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        self.log.bind(("127.0.0.1", 0))
        self.shadow = socket.socket(socket.AF_UNIX)
        self.shadow.bind(str(folder / "usage/shadow.sock"))
        self.shadow.listen(100)
        ports = [socket.create_server(("127.0.0.1", 0)) for _number in range(3)]
        self.port, metrics, peers = (one.getsockname()[1] for one in ports)
        for one in ports:
            one.close()
        given = {
            "gateway_api_keys": [KEY],
            "gateway_listen_address": "127.0.0.1",
            "gateway_port": self.port,
            "gateway_metrics_port": metrics,
            "gateway_metrics_password": "",
            "gateway_peers_port": peers,
            "gateway_health_port": 0,
            "gateway_max_connections": 100,
        }
        port = self.instance.listener.getsockname()[1]
        hosts = {"gpu1": RegisteredHost({"serve-0": Server("127.0.0.1", port, MODEL, 100)})}
        text, _fingerprint = render(gateway_config.head(folder, **given), hosts, {})
        text = text.replace("log /dev/log ", f"log 127.0.0.1:{self.log.getsockname()[1]} ")
        text = text.replace(f" ssl crt {folder}/crt alpn h2,http/1.1", "")
        config = gateway_config.install(folder, text, **given)
        (folder / "shadow.map").write_text(f"{MODEL} {(int(time.time()) + 3600) * 100000 + copied}\n")
        for run in (self.instance.run, self.listen, self.receive_copies):
            threading.Thread(target=run, daemon=True).start()
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen([HAPROXY or "", "-db", "-f", str(config)], stdout=output, stderr=output)
        wait_for(self.is_up)

    def is_up(self) -> bool:
        assert self.process.poll() is None, (self.folder / "output").read_text()
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def listen(self) -> None:
        while text := self.log.recv(65536).decode():
            message = text.partition("]: ")[2]
            if message.startswith("{"):
                self.lines.append(json.loads(message))
            elif any(word in message for word in ("usage:", "shadow:", "Lua filter")):
                self.alerts.append(message)

    def receive_copies(self) -> None:
        while True:
            try:
                connection, _address = self.shadow.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                self.copies += read_copies(stream)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self.log.getsockname())
        for one in (self.instance.listener, self.shadow):
            one.shutdown(socket.SHUT_RDWR)
            one.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def script(self, steps: Sequence[Step]) -> str:
        self.number += 1
        name = f"script-{self.number}"
        self.instance.scripts[name] = steps
        return name

    def request(
        self, name: str, body: bytes, path: str = CHAT, parts: int = 0, more: str = "Connection: close\r\n"
    ) -> bytes:
        """Return a request. ``parts``: chunks; 0 for one with a length. ``more``: headers."""
        size = len(body) // parts + 1 if parts else 0
        content = (
            b"".join(chunked([body[place : place + size] for place in range(0, len(body), size)])) if parts else body
        )
        kind = "Transfer-Encoding: chunked" if parts else f"Content-Length: {len(body)}"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer alice\r\nX-Script: {name}\r\n{kind}\r\n"
            f"Content-Type: application/json\r\n{more}\r\n"
        )
        return head.encode() + content

    def line(self, name: str) -> dict[str, Any]:
        """Return the line of the access log of a script's request."""
        identity = self.instance.requests[name].header("x-request-id")
        return dict(wait_for(lambda: next((line for line in self.lines if line["id"] == identity), None)))

    def exchange(self, steps: Sequence[Step], body: bytes, **how: Any) -> Exchange:
        """Send a request to an instance with a script, and read the answer."""
        name = self.script(steps)
        with self.connect() as connection:
            connection.sendall(self.request(name, body, **how))
            answer = read_message(connection)
        return Exchange(answer, self.instance.requests[name], self.line(name))


@contextmanager
def running_gateway(folder: Path, copied: int = 0) -> Iterator[Gateway]:
    """Run a gateway whose filter never fails."""
    gateway = Gateway(folder, copied)
    try:
        yield gateway
        assert gateway.alerts == []
    finally:
        gateway.stop()


# --- requests and answers ---------------------------------------------------------------------------------------------


OPTIONS = b',"stream_options":{"include_usage":true,"continuous_usage_stats":false}'
USAGE = {
    "prompt_tokens": 100,
    "total_tokens": 150,
    "completion_tokens": 50,
    "prompt_tokens_details": {"cached_tokens": 64},
}
# A text with the patterns of the filter.
QUOTED = json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}) + '\n\n"choices":[{'


def request_body(**values: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **values}).encode()


STREAM = request_body(stream=True)
STREAM_WITH_USAGE = request_body(stream=True, stream_options={"include_usage": True})


def with_options(body: bytes) -> bytes:
    """Return a body with the options at the end of the object, as the instance gets it."""
    brace = body.rindex(b"}")
    return body[:brace] + OPTIONS + body[brace:]


def chat(**values: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, **values}


def delta(**values: Any) -> dict[str, Any]:
    return chat(choices=[{"index": 0, "delta": values, "finish_reason": None}])


def data(value: Any, separator: str = "\n\n") -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return f"data: {text}{separator}".encode()


def usage_event(prompt: int, completion: int) -> bytes:
    return data(chat(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion}))


@dataclass
class Stream:
    """The events of an answer that each client gets, the additional one with the usage, and the last ones."""

    events: list[bytes]
    extra: bytes
    last: list[bytes]

    @property
    def short(self) -> bytes:
        return b"".join([*self.events, *self.last])

    @property
    def whole(self) -> bytes:
        return b"".join([*self.events, self.extra, *self.last])


def chat_stream(tokens: Sequence[str] = ("Hello", " ", QUOTED, "."), separator: str = "\n\n") -> Stream:
    values: list[Any] = [delta(role="assistant", content=""), *(delta(content=token) for token in tokens)]
    values.append(chat(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]))
    extra = data(chat(choices=[], usage=USAGE), separator)
    return Stream([data(value, separator) for value in values], extra, [data("[DONE]", separator)])


CHAT_STREAM = chat_stream()  # of 6 events with choices
