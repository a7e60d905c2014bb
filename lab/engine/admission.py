# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Admit requests like TensorRT-LLM's default scheduler (GUARANTEED_NO_EVICT), and reject the same requests.

A request reserves the KV cache for its prompt and max_tokens until it ends, the whole context without max_tokens.
Requests are admitted in order of arrival: none passes the first that does not fit.
This proxy runs between nginx and the server that generates: Dynamo's frontend, whose mocker does not have these limits,
or torch_server.py on a real GPU.
  python3 -m lab.engine.admission SETTINGS     (JSON, see Settings)
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lab.engine.metrics import OPENMETRICS, TEXT, Answer, Collector, Reader

CHUNK = 65536  # bytes
LAST_CHUNK = b"\r\n0\r\n\r\n"
# The lab's nvidia-smi reads a file here for each busy GPU; the container shares the directory with its host.
ACTIVITY = Path("/dev/shm/nvidia-lab")
# If set, a line for each request that the server answered with 200, as an own count of the engine beside the gateway's.
REQUEST_LOG = bool(os.environ.get("LAB_ENGINE_REQUEST_LOG"))
REQUEST_ID = re.compile(rb"^x-request-id: *(\S+)", re.IGNORECASE | re.MULTILINE)
USAGE = re.compile(rb'^.*"usage": ?(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})', re.DOTALL)
EVENT = re.compile(rb'"choices": ?\[\{')
END = 8192  # bytes of a response in which its usage is looked for

# Names of the output limit by path; TensorRT-LLM takes both for a chat (openai_protocol.py).
LIMITS = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
}
# The frontend counts the first for each token but the first of a request, streamed or not; torch_server.py iterations.
TOKENS = re.compile(
    rb"^(?:dynamo_frontend_inter_token_latency_seconds_count|lab_engine_iterations_total)(?:\{.*\})? (\S+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Settings:
    """Limits of the engine."""

    port: int
    frontend: int  # port of the server that generates
    model: str
    tokenizer: str  # a file; empty: one token per word
    blocks: int  # of the KV cache of one attention rank
    tokens_per_block: int
    slots: int  # max_batch_size of one attention rank
    ranks: int
    max_seq_len: int
    max_num_tokens: int | None  # null with chunked prefill
    answer_tokens: int  # default output limit
    harmony: bool
    too_long: str
    invalid_request: str
    iteration_statistics: bool
    metrics: Mapping[str, Any] | None  # arguments of metrics.Collector; null: no /prometheus/metrics


class Prepared(NamedTuple):
    """Request for the server that generates; numbers are of tokens."""

    content: bytes
    prompt: int
    reserved: int
    answer: int
    streamed: bool


class Rejected(Exception):
    """Request with a 400 response; ``body`` is its content. ``invalid``: it has not the form of a request."""

    def __init__(self, body: Mapping[str, Any], invalid: bool = False) -> None:
        super().__init__(json.dumps(body))
        self.body = body
        self.invalid = invalid


@dataclass
class Ticket:
    """Waiting request, or one admitted to an attention rank."""

    blocks: int
    admitted: asyncio.Future[int]


class Scheduler:
    """KV blocks and batch slots of each attention rank, and the queue for them."""

    def __init__(self, blocks: int, slots: int, ranks: int = 1) -> None:
        self.total = blocks
        self.free = [blocks] * ranks
        self.slots = [slots] * ranks
        self.waiting: deque[Ticket] = deque()

    async def reserve(self, blocks: int) -> int:
        """Wait for the turn of a request; return the rank that admitted it."""
        ticket = Ticket(min(blocks, self.total), asyncio.get_running_loop().create_future())
        self.waiting.append(ticket)
        self._admit()
        try:
            return await ticket.admitted
        except asyncio.CancelledError:
            if ticket.admitted.done() and not ticket.admitted.cancelled():
                self.release(ticket.admitted.result(), blocks)
            elif ticket in self.waiting:
                self.waiting.remove(ticket)
                self._admit()
            raise

    def release(self, rank: int, blocks: int) -> None:
        """Release the blocks and slot of a request."""
        self.free[rank] += min(blocks, self.total)
        self.slots[rank] += 1
        self._admit()

    def _admit(self) -> None:
        while self.waiting:
            rank = max(range(len(self.free)), key=lambda each: (self.slots[each] > 0, self.free[each]))
            first = self.waiting[0]
            if not self.slots[rank] or first.blocks > self.free[rank]:
                return
            self.waiting.popleft()
            self.free[rank] -= first.blocks
            self.slots[rank] -= 1
            first.admitted.set_result(rank)


def texts(value: Any) -> list[str]:
    """Collect the text of a prompt, of messages, or of the input of a response."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return texts(value.get("content", value.get("text")))
    return [text for each in value or [] for text in texts(each)] if isinstance(value, list) else []


def prompt_tokens(body: Mapping[str, Any], count: Callable[[str], int]) -> int:
    """Count the tokens of a request's prompt, without those that a chat template adds."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    given = [body[name] for name in ("messages", "prompt", "instructions", "input") if name in body]
    return sum(count(text) for text in texts(given))


def error(message: str, kind: str = "BadRequestError") -> dict[str, Any]:
    """Build the object of create_error_response (tensorrt_llm/serve/openai_server.py)."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": 400}


class Proxy:
    """Proxy of one engine."""

    def __init__(self, settings: Settings, count: Callable[[str], int]) -> None:
        self.settings = settings
        self.count = count
        self.scheduler = Scheduler(settings.blocks, settings.slots, settings.ranks)
        self.running = 0
        self.finished = 0
        self.iteration = 0
        self.reported = 0
        self.moves = asyncio.Event()
        self.moves.set()
        self.metrics = Collector(**settings.metrics) if settings.metrics is not None else None
        reads = self.metrics and self.metrics.release.iterations and settings.iteration_statistics
        self.reader = Reader(self.metrics, self.state()) if self.metrics and reads else None

    def prepare(self, path: str, content: bytes) -> Prepared:
        """Return the request for the server that generates.

        Raises:
            Rejected: TensorRT-LLM would reject the request.
        """
        settings = self.settings
        try:
            body = json.loads(content)
        except ValueError:
            body = None
        problem = "Input should be a valid dictionary" if not isinstance(body, dict) else "Field required"
        if not isinstance(body, dict) or not body.get("model"):
            where = ("body",) if not isinstance(body, dict) else ("body", "model")
            said = f"1 validation error:\n  {{'type': 'missing', 'loc': {where}, 'msg': '{problem}'}}"
            raise Rejected({"error": said} if settings.invalid_request == "text" else error(said), invalid=True)
        kind = "internal_error" if settings.harmony and path == "/v1/chat/completions" else "BadRequestError"
        prompt = prompt_tokens(body, self.count)
        if settings.max_num_tokens and prompt > settings.max_num_tokens:
            # _check_arguments of tensorrt_llm/llmapi/llm.py, which divides by the size of context parallelism.
            raise Rejected(
                error(
                    f"The sum of prompt length ({float(prompt)}), query length (0) should not exceed "
                    f"max_num_tokens ({settings.max_num_tokens})",
                    kind,
                )
            )
        left = settings.max_seq_len - prompt
        if left <= 0:
            raise Rejected(
                error(settings.too_long.format(prompt=prompt, limit=settings.max_seq_len, default=left), kind)
            )
        names = LIMITS[path]
        asked = next((body[name] for name in names if isinstance(body.get(name), int)), None)
        reserved = left if asked is None else min(asked, left)
        # TensorRT-LLM does not compare the model of a request with its own; Dynamo does.
        body["model"] = settings.model
        for name in names:
            body.pop(name, None)
        answer = body[names[-1]] = min(reserved, settings.answer_tokens) if asked is None else reserved
        return Prepared(json.dumps(body).encode(), prompt, prompt + reserved, answer, bool(body.get("stream")))

    async def complete(self, path: str, head: bytes, content: bytes, writer: asyncio.StreamWriter) -> None:
        """Forward a completion after its admission."""
        arrival = time.monotonic()
        try:
            request = self.prepare(path, content)
        except Rejected as rejected:
            if self.metrics and rejected.invalid:
                self.metrics.reject()
            reply(writer, rejected.body, "400 Bad Request")
            return
        blocks = -(-request.reserved // self.settings.tokens_per_block)
        rank = await self.scheduler.reserve(blocks)
        scheduled, first, counts = time.monotonic(), None, False
        try:
            self.running += 1
            if self.reader and self.running == 1 and self.reader.is_tired():
                self.reader.sleep(await self.tokens())
            first = await self.relay(head, request.content, writer)
            if first is not None:
                self.finished += 1
                counts = self.record(path, request, arrival, scheduled, first)
        finally:
            self.scheduler.release(rank, blocks)
            if self.reader:
                self.reader.stop()
                if counts:
                    # Statistics have the requests at the start of an iteration, so those of the last one have this.
                    self.reader.wake(self.state())
            self.running -= 1

    def record(self, path: str, request: Prepared, arrival: float, scheduled: float, first: float) -> bool:
        """Record a complete response in the metrics; return True if the release counts such a one."""
        if not self.metrics:
            return False
        last = time.monotonic()
        if not request.streamed:
            # The first token is not seen: take all to have needed the same time.
            first = scheduled + (last - scheduled) / max(request.answer, 1)
        answer = Answer(
            path=path,
            harmony=self.settings.harmony,
            streamed=request.streamed,
            arrival=arrival,
            scheduled=scheduled,
            first_token=first,
            last_token=last,
            prompt_tokens=request.prompt,
            output_tokens=request.answer,
        )
        return self.metrics.finish(answer)

    async def relay(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> float | None:
        """Send a request to the frontend and stream its response to the client.

        Return the time of the first byte of its body; None for a response other than 200.
        """
        await self.moves.wait()
        reader, upstream = await asyncio.open_connection("127.0.0.1", self.settings.frontend)
        received, tail, first = b"", b"", None
        end, events = b"", 0
        try:
            upstream.write(head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
            while part := await reader.read(CHUNK):
                await self.moves.wait()
                if first is None:
                    received += part
                    first = time.monotonic() if received.partition(b"\r\n\r\n")[2] else None
                writer.write(part)
                if REQUEST_LOG:
                    end, events = (end + part)[-END:], events + len(EVENT.findall(part))
                # The client may close the connection before the frontend does.
                tail = (tail + part)[-len(LAST_CHUNK) :]
                if tail == LAST_CHUNK:
                    break
                await writer.drain()
            return first if received.startswith(b"HTTP/1.1 200") else None
        finally:
            upstream.close()
            if REQUEST_LOG and received.startswith(b"HTTP/1.1 200"):
                print(request_line(head, end, events, tail == LAST_CHUNK), flush=True)

    async def tokens(self) -> int:
        """Return the generated tokens by the frontend's metrics; the previous number if it does not respond."""
        if self.moves.is_set():
            with suppress(OSError, asyncio.TimeoutError):
                text = await asyncio.wait_for(fetch(self.settings.frontend, "/metrics"), 2)
                self.iteration = int(sum(float(count) for count in TOKENS.findall(text))) + self.finished
        return self.iteration

    def state(self) -> dict[str, Any]:
        """Return the statistics of the present iteration, with the names of /metrics."""
        total = self.settings.blocks * self.settings.ranks
        free = sum(self.scheduler.free)
        return {
            "numActiveRequests": self.running,
            "numQueuedRequests": len(self.scheduler.waiting),
            "maxNumActiveRequests": self.settings.slots,
            "kvCacheStats": {
                "maxNumBlocks": total,
                "freeNumBlocks": free,
                "usedNumBlocks": total - free,
                "tokensPerBlock": self.settings.tokens_per_block,
            },
        }

    async def statistics(self) -> list[dict[str, Any]]:
        """Return /metrics of TensorRT-LLM for the iterations since the last read.

        Upstream has an entry for each iteration. Here one entry stands for all.
        """
        if not self.settings.iteration_statistics:
            return []
        latest = await self.tokens()
        if self.reader:
            self.reported, latest = self.reader.share(self.reported, latest)
        if latest == self.reported:
            return []
        self.reported = latest
        return [{"timestamp": time.strftime("%m-%d-%Y %H:%M:%S", time.gmtime()), "iter": latest, **self.state()}]

    async def prometheus(self, metrics: Collector, openmetrics: bool) -> str:
        """Return /prometheus/metrics; the gauges follow the iterations while the reader is awake."""
        before = self.iteration
        if self.reader and self.reader.awake and self.running and await self.tokens() != before:
            metrics.iterate(self.state())
        return metrics.write(openmetrics)

    async def answer(self, path: str, head: bytes, content: bytes, writer: asyncio.StreamWriter) -> None:
        """Handle one request."""
        if path in LIMITS:
            await self.complete(path, head, content, writer)
        elif path == "/metrics":
            reply(writer, await self.statistics())
        elif path.startswith("/prometheus/metrics") and self.metrics:
            accepted = b"\n".join(line for line in head.lower().split(b"\r\n") if line.startswith(b"accept:"))
            openmetrics = b"application/openmetrics-text" in accepted
            text = await self.prometheus(self.metrics, openmetrics)
            reply(writer, text, kind=OPENMETRICS if openmetrics else TEXT)
        elif path == "/v1/models":
            card = {"id": self.settings.model, "object": "model", "created": int(time.time())}
            reply(writer, {"object": "list", "data": [{**card, "owned_by": "tensorrt_llm"}]})
        else:
            reply(writer, {"detail": "Not Found"}, "404 Not Found")
        await writer.drain()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request of a connection; cancel it when the client disconnects."""
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            start, *headers = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
            path = start.decode().split()[1].partition("?")[0]
            length = next((int(each[15:]) for each in headers if each.lower().startswith(b"content-length:")), 0)
            content = await reader.readexactly(length)
            kept = [each for each in headers if not each.lower().startswith((b"content-length:", b"connection:"))]
            head = b"".join(each + b"\r\n" for each in (start, *kept))
            work = asyncio.ensure_future(self.answer(path, head, content, writer))
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            work.cancel()
            gone.cancel()
            for result in await asyncio.gather(work, gone, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, OSError):
                    traceback.print_exception(result)
        writer.close()

    async def heed(self, fault: Callable[[], str]) -> None:
        """Stop all transfers while the fault is ``hang``: connections stay open, no byte is sent or counted."""
        while True:
            if fault() == "hang":
                self.moves.clear()
            else:
                self.moves.set()
            await asyncio.sleep(0.2)

    async def show_work(self, activity: Path, gpus: Sequence[str], interval: float = 1) -> None:
        """Mark the GPUs as busy for the lab's nvidia-smi while tokens are generated."""
        finished = 0
        while True:
            before = self.iteration
            if (self.running or self.finished != finished) and await self.tokens() != before:
                activity.mkdir(parents=True, exist_ok=True)
                for gpu in gpus:
                    (activity / gpu).touch()
            finished = self.finished
            await asyncio.sleep(interval)


def request_line(head: bytes, end: bytes, events: int, complete: bool) -> str:
    """Return the line of a request for the log: its id, usage if the response said it, and events of its stream."""
    identity, usage = REQUEST_ID.search(head), USAGE.match(end)
    found = {
        "id": identity[1].decode() if identity else "",
        "usage": json.loads(usage[1]) if usage else None,
        "events": events,
        "complete": complete,
    }
    return f"LAB_REQUEST {json.dumps(found)}"


def reply(writer: asyncio.StreamWriter, body: Any, status: str = "200 OK", kind: str = "application/json") -> None:
    """Send a complete response: text unchanged, all else as JSON."""
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + content)


async def fetch(port: int, path: str) -> bytes:
    """Return the response of a server on this machine, with its head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()


def counter(tokenizer: str) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text."""
    if not tokenizer:
        return lambda text: len(text.split())
    from tokenizers import Tokenizer  # type: ignore[import-not-found]

    loaded = Tokenizer.from_file(tokenizer)
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids)


async def run(settings: Settings, fault: Callable[[], str]) -> None:
    """Serve until the process ends."""
    proxy = Proxy(settings, counter(settings.tokenizer))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", settings.port, limit=2**20, backlog=4096)
    gpus = [path.name for path in Path("/dev").glob("nvidia[0-9]*")]
    async with server:
        await asyncio.gather(proxy.heed(fault), proxy.show_work(ACTIVITY, gpus))


if __name__ == "__main__":
    import uvloop  # type: ignore[import-not-found]

    from lab.engine.trtllm_serve import fault

    uvloop.run(run(Settings(**json.loads(sys.argv[1])), fault))
