# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An HTTP client with one deadline for all waits.

Standard library only. It uses no proxy: ``http.client`` ignores the proxy environment, which may not except loopback.
"""

from __future__ import annotations

import base64
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
from dataclasses import dataclass
from typing import Any, Callable
from urllib.parse import urlsplit

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
    """A client for one endpoint. Raises ValueError, with the option, for an invalid URL, key or CA file.

    With ``user`` the key is the password of basic authentication. ``server_name`` is the name in the certificate, if it
    is not the host of the URL.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        ca_file: str = "",
        option: str = "base_url",
        user: str = "",
        server_name: str = "",
    ) -> None:
        try:
            url = urlsplit(base_url)
            port = url.port or {"http": 80, "https": 443}[url.scheme]
            extra = url.query or url.fragment or url.username or url.path.rstrip("/").endswith("/v1")
            if not url.hostname or extra:
                raise ValueError("only scheme, host, port and a path before /v1 belong there")
        except (KeyError, ValueError) as error:
            shown = re.sub("//[^/]*@", "//", base_url)
            raise ValueError(f"{option} is {shown!r} ({error}); it must look like http://127.0.0.1:8000") from None
        if not user and not re.fullmatch(r"[\x21-\x7e]*", api_key):
            raise ValueError("api_key holds characters that an HTTP header cannot carry, such as a space or a newline")
        self.base_url = base_url.rstrip("/")
        self._host = url.hostname
        self._port = port
        self._prefix = url.path.rstrip("/")
        self._api_key = api_key
        self._authorization = f"Bearer {api_key}" if api_key else ""
        if user:
            self._authorization = f"Basic {base64.b64encode(f'{user}:{api_key}'.encode()).decode()}"
        self._server_name = server_name or url.hostname
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
                    return self._tls.wrap_socket(sock, server_hostname=self._server_name)
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
        if self._authorization:
            headers["Authorization"] = self._authorization
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


def _text(error: Exception) -> str:
    """Return a connection error as text, without its number."""
    return (getattr(error, "strerror", None) or str(error)).lower()
