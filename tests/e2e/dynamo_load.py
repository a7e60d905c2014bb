"""Send a steady stream of completions and record each request, to measure the effect of faults on clients."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

MODEL = "openai/gpt-oss-120b"
# Ignore a proxy in the environment of the tests.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Request:
    """Request of a client; times in seconds of time.monotonic(). It succeeded if error is empty."""

    began: float
    ended: float
    error: str = ""


def ask(url: str, body: Any = None, timeout: float = 30) -> Any:
    """Return the decoded response to a GET, or to a POST of a body.

    Raises:
        OSError: The request failed, or its status is not 200.
        ValueError: The response is not JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with OPENER.open(request, timeout=timeout) as response:
            return json.load(response)
    except http.client.HTTPException as error:
        raise ConnectionError(f"{url} was cut off: {error!r}") from error


def complete(api: str, max_tokens: int = 8, timeout: float = 30, prompt: str = "Are you there?") -> dict[str, Any]:
    """Return the response to a chat completion, with the ids of its workers; raises as ask does."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "nvext": {"extra_fields": ["worker_id"]},
    }
    answer: dict[str, Any] = ask(f"{api}/v1/chat/completions", body, timeout)
    if not answer["choices"]:
        raise ValueError("an answer without a choice")
    return answer


class Load:
    """Clients that repeat requests, each to its frontend first, and to the next without a connection.

    Like a balancer, a client tries another frontend only if it cannot connect or the connection closes without a
    response. An error response or a timeout is a failed request.
    """

    def __init__(self, apis: Sequence[str], clients: int = 4, period: float = 0.4) -> None:
        """apis: base URLs of the frontends; period: seconds between a client's requests, if the last has ended."""
        self.apis = apis
        self.period = period
        self.requests: list[Request] = []
        self.began = time.monotonic()
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(number,), daemon=True) for number in range(clients)]

    def once(self, first: int) -> str:
        """Send one request; return its final error or an empty string."""
        error = ""
        for number in range(len(self.apis)):
            try:
                complete(self.apis[(first + number) % len(self.apis)])
            except urllib.error.HTTPError as refused:
                return f"{refused.code}"
            except TimeoutError:
                return "timeout"
            except (OSError, ValueError) as failed:
                reason = getattr(failed, "reason", failed)
                if isinstance(reason, TimeoutError):
                    return "timeout"
                error = type(reason).__name__
            else:
                return ""
        return error

    def client(self, number: int) -> None:
        while not self.stopping.is_set():
            began = time.monotonic()
            error = self.once(number)
            self.requests.append(Request(began, time.monotonic(), error))
            self.stopping.wait(max(0.0, began + self.period - time.monotonic()))

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def since(self, moment: float) -> list[Request]:
        """Return the requests that ended after a moment, in order."""
        return sorted((one for one in list(self.requests) if one.ended >= moment), key=lambda one: one.ended)

    def recovered(self, moment: float, quiet: float) -> float | None:
        """Return the seconds from a moment to the end of the last failed request; None without recovery.

        quiet: seconds of successful requests that count as recovery. 0.0 if no request failed.
        """
        after, now = self.since(moment), time.monotonic()
        last = max((one.ended for one in after if one.error), default=moment)
        good = [one for one in after if not one.error and one.began >= last]
        if now - last < quiet or not good or now - good[-1].ended > quiet / 2:
            return None
        return last - moment

    def errors(self, moment: float) -> dict[str, int]:
        """Return the number of errors by kind since a moment."""
        kinds = sorted(one.error for one in self.since(moment) if one.error)
        return {kind: len(list(group)) for kind, group in itertools.groupby(kinds)}
