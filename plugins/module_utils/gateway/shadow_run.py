# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send copies of live requests to a canary, and keep the facts of its answers and of those that clients got.

HAProxy (usage.lua of role gateway) connects to a socket and sends copies: a line with numbers, the request, the answer.
Requests and answers are in memory only, and only until they are compared.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import queue
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.shadow import (
    PATHS,
    Answer,
    Facts,
    Texts,
    density,
    facts,
    garbage_limits,
    is_garbage,
)

USER = "haproxy"
# Copies that wait for the canary. Further ones are dropped: it is slower than the share of requests that it gets.
WAITING = 64
LARGEST = 2**21  # bytes of an answer of the canary
HEAD = 4096  # bytes of the line of a copy
POLL = 0.5  # seconds
PAIRS = 2000  # of a result


@dataclass(frozen=True)
class Copy:
    """A request of a client, and the answer that the client got."""

    path: str
    request: bytes
    answer: Answer


@dataclass
class Collected:
    """Pairs of facts, with what the other copies came to.

    Attributes:
        pairs: Of the canary and of the instance in service.
        dropped: Copies for which the canary was too slow.
        not_compared: Copies that cannot be compared, such as a request that was there before.
    """

    pairs: list[tuple[Facts, Facts]] = field(default_factory=list)
    dropped: int = 0
    not_compared: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def read_copies(stream: BinaryIO) -> Iterator[Copy]:
    """Yield the copies of a connection. Raises ValueError for another form."""
    while head := stream.readline(HEAD):
        path, status, streamed, first, total, request, answer = head.decode().split()
        body, text = stream.read(int(request)), stream.read(int(answer))
        if len(text) < int(answer):
            return
        yield Copy(path, body, Answer(int(status), streamed == "1", text, float(first), float(total)))


def ask(address: tuple[str, int], path: str, body: bytes, timeout: float) -> Answer:
    """Send a request to the canary. One without a whole answer in time has status 0."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read1(LARGEST)
        first = time.monotonic() - began
        while len(content) < LARGEST and (part := response.read1(LARGEST)):
            if time.monotonic() - began > timeout:
                raise TimeoutError
            content += part
        streamed = "text/event-stream" in (response.getheader("Content-Type") or "")
        return Answer(response.status, streamed, content, first * 1000, (time.monotonic() - began) * 1000)
    except (OSError, http.client.HTTPException):
        return Answer(0, False, b"", 0.0, (time.monotonic() - began) * 1000)
    finally:
        connection.close()


def compare(copy: Copy, address: tuple[str, int], timeout: float) -> tuple[Facts, Facts] | None:
    """Return the facts of the canary's answer and of the client's; None for a request that is not understood."""
    try:
        request = json.loads(copy.request)
    except ValueError:
        return None
    if copy.path not in PATHS or not isinstance(request, dict):
        return None
    body = dict(request)
    if body.get("stream"):
        # As the gateway does for the request of the client.
        body["stream_options"] = {"include_usage": True}
    answer = ask(address, copy.path, json.dumps(body).encode(), timeout)
    return facts(request, answer), facts(request, copy.answer)


class Shadow:
    """A listener for copies, and workers that send them to the canary's instances in turn."""

    def __init__(self, path: Path, addresses: Sequence[tuple[str, int]], at_a_time: int, timeout: float) -> None:
        self._path = path
        self._addresses = addresses
        self._timeout = timeout
        self._workers = [threading.Thread(target=self._work, daemon=True) for _number in range(at_a_time)]
        self._copies: queue.Queue[tuple[int, Copy]] = queue.Queue(WAITING)
        self._over = threading.Event()
        self._number = 0
        # Equal requests are not independent of each other.
        self._seen: set[bytes] = set()
        self.collected = Collected()

    def run(self, seconds: float) -> None:
        """Take copies for a time. Raises OSError."""
        for worker in self._workers:
            worker.start()
        end = time.monotonic() + seconds
        with suppress(FileNotFoundError):
            self._path.unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._path))
            self._path.chmod(0o600)
            shutil.chown(self._path, USER)
            listener.listen(WAITING)
            listener.settimeout(POLL)
            try:
                while time.monotonic() < end and len(self.collected.pairs) < PAIRS:
                    with suppress(socket.timeout):
                        connection = listener.accept()[0]
                        self._take(connection)
            finally:
                self._path.unlink(missing_ok=True)

    def finish(self) -> Collected:
        """Wait for the answers to copies that were sent, and return all. Copies that still wait are dropped."""
        with suppress(queue.Empty):
            while True:
                self._copies.get_nowait()
                self.collected.dropped += 1
        self._over.set()
        end = time.monotonic() + self._timeout + POLL
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
        return self.collected

    def _take(self, connection: socket.socket) -> None:
        connection.settimeout(POLL)
        with connection, connection.makefile("rb") as stream, suppress(ValueError, OSError):
            for copy in read_copies(stream):
                digest = hashlib.blake2b(copy.request, digest_size=16).digest()
                # The canary may take twice as long.
                if digest in self._seen or copy.answer.total_ms > self._timeout * 500:
                    self.collected.not_compared += 1
                    continue
                self._seen.add(digest)
                self._number += 1
                try:
                    self._copies.put_nowait((self._number, copy))
                except queue.Full:
                    self.collected.dropped += 1

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                number, copy = self._copies.get(timeout=POLL)
            except queue.Empty:
                continue
            try:
                pair = compare(copy, self._addresses[number % len(self._addresses)], self._timeout)
            except Exception:  # a request that a client made to harm must not end the comparison
                pair = None
            with self.collected.lock:
                if pair is None:
                    self.collected.not_compared += 1
                else:
                    self.collected.pairs.append(pair)


def result(collected: Collected, served_model: str) -> list[dict[str, Any]]:
    """Return the pairs without texts, with the defects that one answer alone does not show: model and garbage.

    ``served_model``: the model id that the canary's answers must have.
    """
    texts = Texts()
    for _canary, serving in collected.pairs:
        texts.learn(serving.text)
    limits = garbage_limits([(texts.likelihood(one.text), density(one.text)) for _canary, one in collected.pairs])
    found = []
    for canary, serving in collected.pairs:
        defects = list(canary.defects)
        if canary.model and canary.model != served_model:
            defects.append("model")
        if is_garbage((texts.likelihood(canary.text), density(canary.text)), limits):
            defects.append("garbage")
        found.append({"canary": _numbers(canary, defects), "serving": _numbers(serving, serving.defects)})
    return found


def _numbers(one: Facts, defects: Sequence[str]) -> Mapping[str, Any]:
    return {
        "defects": list(defects),
        "finish": one.finish,
        "tokens": one.tokens,
        "cached_tokens": one.cached_tokens,
        "first_ms": round(one.first_ms, 1),
        "token_ms": round(one.token_ms, 3),
    }
