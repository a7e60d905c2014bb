# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client for the OpenAI HTTP API with one deadline for all waits, and its answers.

Standard library only. It uses no proxy: ``http.client`` ignores the proxy environment, which may not except loopback.
"""

from __future__ import annotations

import http.client
import io
import json
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable
from urllib.parse import urlsplit

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "completions": "/v1/completions"}

# Far above any answer; a server that sends without end must not fill the memory.
MAX_ANSWER_BYTES = 16 * 1024 * 1024


class EndpointError(Exception):
    """The endpoint gave no usable answer. The message may quote it at any length: see ``Client.excerpt``."""


class NotListening(EndpointError):
    """Refused, or closed before an answer, as a published port does while the container loads."""


class OutOfTime(EndpointError):
    """The deadline passed."""


class HttpError(EndpointError):
    """Answered with another status than 200."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"HTTP {reply.status}: {reply.explain()}")
        self.status = reply.status
        # FastAPI's message for a path without a route. Dynamo's 404 for a model without a route yet differs.
        self.no_such_route = reply.status == 404 and reply.explain() == "Not Found"


class Deadline:
    """A time on the monotonic clock at which all operations end."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.seconds = seconds
        self._end = clock() + seconds

    def within(self, seconds: float) -> Deadline:
        """Return a deadline in ``seconds``, or this one if it is earlier."""
        return Deadline(max(0.0, min(seconds, self.remaining())), self._clock)

    def remaining(self) -> float:
        """Return the seconds left; negative after the deadline."""
        return self._end - self._clock()

    def left(self) -> float:
        """Return the seconds left, for a socket timeout. Raises OutOfTime after the deadline."""
        remaining = self.remaining()
        if remaining <= 0:
            raise OutOfTime(f"no complete answer within {self.seconds:.1f} s")
        return remaining


class _BoundedReader(io.RawIOBase):
    """A reader of a socket. A timeout for each read would let a server that sends single bytes wait for ever."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._deadline.left())
        return self._sock.recv_into(buffer)


class _BoundedSocket:
    """The part of a socket that ``http.client`` uses."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._sock, self._deadline))

    def close(self) -> None:
        """Do nothing: http.client closes before the last read; Client.open closes the socket."""


def _resolve(host: str, port: int, deadline: Deadline) -> list[Any]:
    """Return the addresses of a host. getaddrinfo has no timeout, so it runs in a thread that may outlast this call."""
    answer: queue.Queue[Any] = queue.Queue()

    def look_up() -> None:
        try:
            answer.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.put(error)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        found = answer.get(timeout=deadline.left())
    except queue.Empty:
        raise OutOfTime(f"{host} was not resolved within {deadline.seconds:.1f} s") from None
    if isinstance(found, Exception):
        raise EndpointError(f"{host} does not resolve: {found}")
    return found


@dataclass(frozen=True)
class Reply:
    """A complete answer."""

    status: int
    headers: dict[str, str]  # lower-case names
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object. Raises EndpointError."""
        return parse_object(self.body)

    def explain(self) -> str:
        """Return the server's message: ``{error: {message}}``, ``{message}`` or ``{detail}``."""
        try:
            value: Any = json.loads(self.body)
        except ValueError:
            value = None
        for key in ("error", "message", "detail"):
            if isinstance(value, dict) and value.get(key):
                value = value[key]
        return (value if isinstance(value, str) else self.body.decode("utf-8", "replace")) or "empty body"


def parse_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object from the server. Raises EndpointError with other data."""
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise EndpointError(f"not a JSON object: {data.decode('utf-8', 'replace') or 'empty body'}")
    return value


class Client:
    """A client for one endpoint. Raises ValueError, with the option, for an invalid URL, key or CA file."""

    def __init__(self, base_url: str, api_key: str = "", ca_file: str = "", option: str = "base_url") -> None:
        try:
            url = urlsplit(base_url)
            port = url.port or {"http": 80, "https": 443}[url.scheme]
            extra = url.query or url.fragment or url.username or url.path.rstrip("/").endswith("/v1")
            if not url.hostname or extra:
                raise ValueError("only scheme, host, port and a path before /v1 belong there")
        except (KeyError, ValueError) as error:
            shown = re.sub("//[^/]*@", "//", base_url)
            raise ValueError(f"{option} is {shown!r} ({error}); it must look like http://127.0.0.1:8000") from None
        if not re.fullmatch(r"[\x21-\x7e]*", api_key):
            raise ValueError("api_key holds characters that an HTTP header cannot carry, such as a space or a newline")
        self.base_url = base_url.rstrip("/")
        self._host = url.hostname
        self._port = port
        self._prefix = url.path.rstrip("/")
        self._api_key = api_key
        self._tls = None
        if url.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=ca_file or None)
            except OSError as error:
                raise ValueError(f"ca_file is {ca_file}, which cannot be used: {error}") from None

    def excerpt(self, message: object) -> str:
        """Return the server's message on one short line, with the API key masked."""
        text = " ".join(str(message).split())
        if self._api_key:
            text = text.replace(self._api_key, "********")
        return text[:300] + "…" if len(text) > 300 else text

    def _connect(self, deadline: Deadline) -> socket.socket:
        failure: Exception = EndpointError(f"{self._host} has no address")
        for family, kind, protocol, _name, address in _resolve(self._host, self._port, deadline):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(deadline.left())
                sock.connect(address)
                if self._tls:
                    sock.settimeout(deadline.left())
                    return self._tls.wrap_socket(sock, server_hostname=self._host)
                return sock
            except (OSError, OutOfTime) as error:
                sock.close()
                failure = error
        raise failure

    @contextmanager
    def open(
        self, path: str, deadline: Deadline, payload: dict[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """GET, or POST ``payload``. Yield the response while its body can be read. Raises EndpointError."""
        headers = {"Accept": "application/json, text/event-stream", "Connection": "close"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        body = None
        if payload is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(payload).encode()
        sock = None
        response = None
        try:
            sock = self._connect(deadline)
            connection = http.client.HTTPConnection(self._host, self._port)
            connection.sock = _BoundedSocket(sock, deadline)
            connection.request("GET" if body is None else "POST", self._prefix + path, body, headers)
            response = connection.getresponse()
            yield response
        except socket.timeout:
            raise OutOfTime(f"no complete answer within {deadline.seconds:.1f} s") from None
        except (ssl.SSLCertVerificationError, ssl.CertificateError) as error:
            raise EndpointError(f"its TLS certificate is not trusted: {error}") from None
        except (ssl.SSLEOFError, http.client.RemoteDisconnected, ConnectionError) as error:
            if response is None:
                raise NotListening(_text(error)) from None
            raise EndpointError(f"the answer was cut off: {_text(error)}") from None
        except http.client.IncompleteRead:
            raise EndpointError("the answer was cut off: connection closed in the middle") from None
        except ssl.SSLError as error:
            raise EndpointError(f"TLS failed: {_text(error)}") from None
        except http.client.HTTPException as error:
            raise EndpointError(f"not an HTTP answer: {type(error).__name__} {error}") from None
        except OSError as error:
            raise NotListening(_text(error)) from None
        finally:
            if sock is not None:
                sock.close()

    def read(self, response: http.client.HTTPResponse) -> Reply:
        """Read the rest of an open response."""
        body = response.read(MAX_ANSWER_BYTES + 1)
        if len(body) > MAX_ANSWER_BYTES:
            raise EndpointError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        if response.length:  # bytes of Content-Length that are missing
            raise http.client.IncompleteRead(body, response.length)
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, headers, body)

    def get(self, path: str, deadline: Deadline) -> Reply:
        """GET a complete answer of any status. Raises EndpointError."""
        with self.open(path, deadline) as response:
            return self.read(response)

    def complete(self, api: str, payload: dict[str, Any], deadline: Deadline) -> Completion:
        """POST a request to one of the APIs in ``PATHS``. Raises EndpointError, HttpError for another status than 200.

        A server may answer a request for a stream with a complete answer, which has no time to first token.
        """
        done = Completion(api)
        absorb = done.absorb_response if api == "responses" else done.absorb_choices
        start = time.monotonic()
        with self.open(PATHS[api], deadline, payload) as response:
            streamed = "text/event-stream" in (response.getheader("Content-Type") or "")
            if response.status != 200:
                raise HttpError(self.read(response))
            try:
                if not streamed:
                    absorb(self.read(response).json())
                for data in _events(response) if streamed else ():
                    if data == b"[DONE]":
                        break
                    first = absorb(parse_object(data))
                    if first and done.ttft is None:
                        done.ttft = time.monotonic() - start
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise EndpointError(f"not an answer of {PATHS[api]}: {type(error).__name__} {error}") from None
        done.duration = time.monotonic() - start
        if streamed and not done.finish_reason:
            raise EndpointError(
                f"the stream ended before it was finished, after {len(done.text) + len(done.reasoning)} characters"
            )
        return done


def _text(error: Exception) -> str:
    """Return a connection error as text, without its number."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the data of each server-sent event. Raises EndpointError for an event with name ``error``."""
    data: list[bytes] = []
    comments: list[bytes] = []
    name = b""
    size = 0
    while True:
        line = response.readline(MAX_ANSWER_BYTES)
        size += len(line)
        if size > MAX_ANSWER_BYTES:
            raise EndpointError(f"the stream is larger than {MAX_ANSWER_BYTES} bytes")
        if not line:
            return
        key, _colon, value = line.rstrip(b"\r\n").partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value
        elif not key and value:
            comments.append(value)
        elif not key:
            if name == b"error":  # Dynamo puts the message into a comment
                raise EndpointError("error in the stream: " + Reply(200, {}, b"\n".join(data or comments)).explain())
            if data:
                yield b"\n".join(data)
            data, comments, name = [], [], b""


@dataclass
class Completion:
    """Answer to a request. ``ttft`` and ``duration`` are in seconds from the start of the request.

    ``workers``: the ids of Dynamo's workers by ``prefill`` and ``decode``, if the request has them.
    """

    api: str
    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    usage: dict[str, int] | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    workers: dict[str, str] = field(default_factory=dict)
    ttft: float | None = None
    duration: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Return completion tokens, reasoning included, per second from the request to the last byte."""
        if not self.usage or not self.duration:
            return None
        return self.usage["completion_tokens"] / self.duration

    def facts(self) -> dict[str, Any]:
        """Return the values for a playbook."""
        speed = self.tokens_per_second
        return {
            "api": self.api,
            "text": self.text,
            "reasoning": self.reasoning,
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "ttft": None if self.ttft is None else round(self.ttft, 4),
            "tokens_per_second": None if speed is None else round(speed, 2),
            "duration": round(self.duration, 4),
            "workers": self.workers,
        }

    def absorb_choices(self, answer: dict[str, Any]) -> bool:
        """Add a chat or plain completion, complete or one chunk. Return True if it has text."""
        _raise_error(answer)
        brought = ""
        for choice in (answer.get("choices") or [])[:1]:
            message = choice.get("message") or choice.get("delta") or {}
            text = message.get("content") or choice.get("text") or ""
            # TensorRT-LLM and Dynamo use reasoning_content, newer servers reasoning.
            thought = message.get("reasoning_content") or message.get("reasoning") or ""
            self.text += text
            self.reasoning += thought
            self.tool_calls += message.get("tool_calls") or []
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            brought = text + thought
        self._add_workers(answer)
        self._add_usage(answer.get("usage"), "prompt_tokens", "completion_tokens")
        return bool(brought)

    def absorb_response(self, answer: dict[str, Any]) -> bool:
        """Add an answer of the Responses API, complete or one event. Return True if it has text.

        The last event of a stream has the complete answer, so only that one is added.
        """
        _raise_error(answer)
        kind = answer.get("type", "")
        if kind.endswith(".delta"):
            return bool(answer.get("delta"))
        if kind:
            if kind not in ("response.completed", "response.incomplete", "response.failed"):
                return False
            answer = answer["response"]
            _raise_error(answer)
        for item in answer["output"]:
            parts = [*(item.get("content") or []), *(item.get("summary") or [])]
            text = "".join(part.get("text") or "" for part in parts)
            if item["type"] == "reasoning":
                self.reasoning += text
            elif item["type"] == "message":
                self.text += text
        status = answer["status"]
        if status == "incomplete":
            status = (answer.get("incomplete_details") or {}).get("reason") or status
        self.finish_reason = {"completed": "stop", "max_output_tokens": "length"}.get(status, status)
        self._add_workers(answer)
        self._add_usage(answer.get("usage"), "input_tokens", "output_tokens")
        return False

    def _add_workers(self, answer: dict[str, Any]) -> None:
        """Add Dynamo's worker ids as text, because most exceed the exact integers of JSON."""
        ids = (answer.get("nvext") or {}).get("worker_id") or {}
        for role in ("prefill", "decode"):
            if ids.get(f"{role}_worker_id") is not None:
                self.workers[role] = str(ids[f"{role}_worker_id"])

    def _add_usage(self, usage: dict[str, Any] | None, prompt: str, completion: str) -> None:
        if usage:
            self.usage = {
                "prompt_tokens": int(usage[prompt]),
                "completion_tokens": int(usage[completion]),
                "total_tokens": int(usage["total_tokens"]),
            }


def _raise_error(answer: dict[str, Any]) -> None:
    """Raise EndpointError for an error in an answer of status 200."""
    if answer.get("error") or answer.get("type") == "error" or answer.get("object") == "error":
        raise EndpointError("error in the answer: " + Reply(200, {}, json.dumps(answer).encode()).explain())
