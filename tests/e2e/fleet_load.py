"""Send a steady load with the OpenAI client and record each request, to measure the effect of a rolling update."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import anyio
import httpx2
import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

SHORT_TOKENS = 16
# Bytes at the end of a long stream, enough for its last chunks.
TAIL = 8192
# Seconds for responses after the start of the last request.
DRAIN = 300.0
# Seconds; a long response without streaming has no byte until it is complete.
TIMEOUT = httpx2.Timeout(DRAIN, connect=10.0)
# A connection for each request in flight, so that no request waits for another.
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
# A gateway without power is detected within 25 seconds.
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
# A broken connection, as the OpenAI client reports it.
BROKEN = (openai.APIConnectionError, httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)
# Responses to a request whose headers have arrived; empty before the first.
RESPONSES: ContextVar[list[httpx2.Response]] = ContextVar("RESPONSES")


@dataclass(frozen=True)
class Request:
    """Request of a client; times in seconds of time.monotonic(). It succeeded if error is empty.

    first: time of its first token if streamed, otherwise of its response; ended if there is none.
    tokens: number in the response's usage. error: an HTTP status; timeout: no byte for long, or the load ended; cut: it
    ended early, or the connection broke during the response; short: it lacks tokens; otherwise an exception's name.
    instance: the instance that answered, if known; clients do not know it.
    """

    began: float
    first: float
    ended: float
    streamed: bool
    long: bool
    tokens: int
    error: str = ""
    instance: str = ""
    url: str = ""
    request_id: str = ""


def judge(finish: str | None, usage: CompletionUsage | None, max_tokens: int) -> str:
    """Return the error of a completed response, or an empty string."""
    if not finish or usage is None:
        return "cut"
    return "" if finish == "stop" or usage.completion_tokens == max_tokens else "short"


def name(error: BaseException, answered: bool) -> str:
    """Return the short name of a client's error; answered: True if the headers of a response had arrived."""
    if isinstance(error, openai.APIStatusError):
        return str(error.status_code)
    if isinstance(error, (openai.APITimeoutError, httpx2.TimeoutException, asyncio.CancelledError)):
        return "timeout"
    if answered and isinstance(error, BROKEN):
        return "cut"
    if error.__class__ is openai.APIError:  # It is in the stream, in place of further chunks.
        return "cut"
    if isinstance(error, openai.APIConnectionError) and error.__cause__:
        return type(error.__cause__).__name__
    return type(error).__name__


async def skim(stream: openai.AsyncStream[ChatCompletionChunk]) -> AsyncIterator[ChatCompletionChunk]:
    """Yield the chunks at the end of a long stream, after an empty one for the first byte.

    Parsing each chunk costs the client two thirds of a core at 1500 tokens/s; this a quarter.
    """
    tail = b""
    async for part in stream.response.aiter_bytes():
        if not tail:
            yield ChatCompletionChunk.model_construct(choices=[], usage=None)
        tail = (tail + part)[-TAIL:]
    for line in tail.splitlines():
        # An error has no choices, so the response stays without its end.
        if line.startswith(b"data: {") and "choices" in (chunk := json.loads(line.removeprefix(b"data: "))):
            yield ChatCompletionChunk.model_validate(chunk)


async def remember(response: httpx2.Response) -> None:
    RESPONSES.get().append(response)


class Load:
    """Requests that start at a steady rate, independent of earlier ones, and are never repeated.

    Each second request is streamed; gateways alternate by two. If the load's event loop lacks CPU time, requests start
    late: late is the maximum in seconds, and response times mean little unless it is small.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        api_key: str,
        model: str,
        rate: float,
        ca_file: Path | None = None,
        long_every: int = 200,
        long_tokens: int = 20000,
    ) -> None:
        """base_urls: of the gateways, such as https://10.0.0.3/v1, in turns; rate: requests/s in total.

        ca_file: CA of the gateways' certificates; None disables verification. long_every: interval of long requests of
        long_tokens tokens; 0 for none.
        """
        if not base_urls or rate <= 0:
            raise ValueError("a load needs a gateway and a rate")
        self.base_urls = list(base_urls)
        self.api_key = api_key
        self.model = model
        self.rate = rate
        self.verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca_file) if ca_file else False
        self.long_every = long_every
        self.long_tokens = long_tokens
        self.requests: list[Request] = []
        self.late = 0.0
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.work, name="load", daemon=True)

    def client(self, base_url: str) -> openai.AsyncOpenAI:
        """Return the client of a gateway with separate connections and without retries."""
        http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(verify=self.verify, limits=LIMITS, socket_options=KEEPALIVE),
            trust_env=False,
            timeout=TIMEOUT,
            event_hooks={"response": [remember]},
        )
        return openai.AsyncOpenAI(
            base_url=base_url, api_key=self.api_key, max_retries=0, timeout=TIMEOUT, http_client=http
        )

    async def once(self, number: int, clients: Sequence[openai.AsyncOpenAI]) -> None:
        """Send one request and record its result."""
        long = self.long_every > 0 and number % self.long_every == self.long_every - 1
        # Long requests have a separate count, so that each gateway gets streamed and other ones.
        turn = number // self.long_every if long else number
        streamed = turn % 2 == 1
        client, url = clients[turn // 2 % len(clients)], self.base_urls[turn // 2 % len(clients)]
        max_tokens = self.long_tokens if long else SHORT_TOKENS
        finish: str | None = None
        usage: CompletionUsage | None = None
        first, error = math.inf, ""
        responses: list[httpx2.Response] = []
        RESPONSES.set(responses)
        began = time.monotonic()
        try:
            if streamed:
                async with await client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": f"Question {number}: are you there?"}],
                    max_tokens=max_tokens,
                    stream=True,
                    stream_options={"include_usage": True},
                ) as stream:
                    async for chunk in skim(stream) if long else stream:
                        first = min(first, time.monotonic())
                        usage = chunk.usage or usage
                        for choice in chunk.choices:
                            finish = choice.finish_reason or finish
            else:
                answer = await client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": f"Question {number}: are you there?"}],
                    max_tokens=max_tokens,
                )
                usage = answer.usage
                finish = answer.choices[0].finish_reason if answer.choices else None
            error = judge(finish, usage, max_tokens)
        except (Exception, asyncio.CancelledError) as failed:
            error = name(failed, bool(responses))
        ended = time.monotonic()
        self.requests.append(
            Request(
                began=began,
                first=min(first, ended),
                ended=ended,
                streamed=streamed,
                long=long,
                tokens=usage.completion_tokens if usage else 0,
                error=error,
                url=url,
                request_id=responses[-1].headers.get("x-request-id", "") if responses else "",
            )
        )

    async def steady(self) -> None:
        """Start requests until the load is to stop, and wait for those in flight."""
        clients = [self.client(url) for url in self.base_urls]
        # Import it now, not during the first request.
        assert all(client.chat.completions for client in clients)
        flying: set[asyncio.Task[None]] = set()
        began, number = time.monotonic(), 0
        while not self.stopping.is_set():
            early = began + number / self.rate - time.monotonic()
            if early > 0:
                await asyncio.sleep(min(early, 0.1))
                continue
            self.late = max(self.late, -early)
            task = asyncio.create_task(self.once(number, clients))
            flying.add(task)
            task.add_done_callback(flying.discard)
            number += 1
            # Read what has arrived, also while requests are late.
            await asyncio.sleep(0)
        if flying:
            unfinished = (await asyncio.wait(flying, timeout=DRAIN))[1]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished)
        for client in clients:
            await client.close()

    def work(self) -> None:
        try:
            asyncio.run(self.steady())
        except BaseException as failure:
            self.failure = failure

    def __enter__(self) -> Load:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.thread.join()
        if self.failure and not error:
            raise RuntimeError("the load broke") from self.failure

    def wait(self, seconds: float) -> None:
        """Continue the load for some seconds; RuntimeError if it has failed."""
        self.thread.join(seconds)
        if not self.thread.is_alive():
            raise RuntimeError("the load broke") from self.failure

    def since(self, moment: float) -> list[Request]:
        """Return the requests that ended after a moment, in order."""
        return sorted((one for one in list(self.requests) if one.ended >= moment), key=lambda one: one.ended)

    def errors(self, moment: float = 0) -> dict[str, int]:
        """Return the number of errors by kind since a moment."""
        return dict(sorted(Counter(one.error for one in self.since(moment) if one.error).items()))

    def percentile(self, q: float, since: float, until: float, long: bool = False) -> float:
        """Return the percentile of response times in seconds, of short or of long requests.

        Only successful requests that ended between two moments count; ValueError if there are none.
        """
        good = [one for one in self.since(since) if one.ended <= until and not one.error and one.long == long]
        if not good or not 0 <= q <= 100:
            raise ValueError(f"no {q}th percentile of {len(good)} answers")
        took = sorted(one.ended - one.began for one in good)
        return took[max(math.ceil(q / 100 * len(took)) - 1, 0)]


def report(load: Load, cpu: float) -> dict[str, object]:
    """Return the load's results; times in seconds, None without requests."""
    done = load.since(0)
    summary: dict[str, object] = {
        "requests": len(done),
        "streamed": sum(one.streamed for one in done),
        "long": sum(one.long for one in done),
        "by_url": dict(sorted(Counter(one.url for one in done).items())),
        "failed": sum(bool(one.error) for one in done),
        "errors": load.errors(),
    }
    for long, kind in ((False, ""), (True, "long_")):
        some = any(one.long == long and not one.error for one in done)
        for q in (50, 99):
            summary[f"{kind}p{q}"] = round(load.percentile(q, 0, math.inf, long), 4) if some else None
    return summary | {"late": round(load.late, 4), "cpu_seconds": round(cpu, 2)}


def main() -> int:
    """Load gateways for a while; return 1 if a request failed."""
    parser = argparse.ArgumentParser(description="Load gateways for a while and print the results of the requests.")
    parser.add_argument("urls", nargs="+", help="base URLs, such as https://10.0.0.3/v1")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rate", type=float, default=10.0, help="requests/s in total")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--ca-file", type=Path)
    parser.add_argument("--long-every", type=int, default=200)
    parser.add_argument("--long-tokens", type=int, default=20000)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    arguments = parser.parse_args()
    before = time.process_time()
    with Load(
        arguments.urls,
        arguments.key,
        arguments.model,
        arguments.rate,
        arguments.ca_file,
        arguments.long_every,
        arguments.long_tokens,
    ) as load:
        load.wait(arguments.seconds)
    summary = report(load, time.process_time() - before)
    print(json.dumps(summary) if arguments.json else "\n".join(f"{key}: {value}" for key, value in summary.items()))
    return 1 if load.errors() else 0


if __name__ == "__main__":
    raise SystemExit(main())
