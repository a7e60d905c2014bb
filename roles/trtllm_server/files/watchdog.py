"""Watch an instance, and kill its container when the engine hangs, so that systemd restarts the unit.

A transient unit, which the instance's unit starts and which ends with it, runs it from the release:
  python3 watchdog.py UNIT CONTAINER BASE_URL MODEL GPUS TIMEOUT START_TIMEOUT     (seconds; GPUS as 0,1)
MODEL is an empty text for a worker of NVIDIA Dynamo. In the instance's own unit, needrestart would restart the engine
after an update of Python's libraries.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

# Seconds between two checks.
INTERVAL = 20
# A closed port or a status such as 503 may be transient.
MAX_FAILURES = 3
# Seconds for docker, systemctl and nvidia-smi.
COMMAND_TIMEOUT = 60
# Restarts by the watchdog, for module host_status. The next boot deletes them, as it does systemd's counters.
RECORDS = Path("/run/trtllm-fleet/healed")
# Of a worker of NVIDIA Dynamo: requests without a whole answer, and bytes of answers. Its other endpoints may hold some
# requests for long.
COUNTS = re.compile(
    r'^dynamo_component_(inflight_requests|response_bytes_total)\{[^}]*\bdynamo_endpoint="generate"[^}]*\} (\S+)$',
    re.MULTILINE,
)


class Unhealthy(Exception):
    """A request that failed; the message names the request and the failure.

    ``ready``: ``/health`` succeeded before it. In every release it fails while the model loads.
    """

    def __init__(self, message: str, ready: bool = False) -> None:
        super().__init__(message)
        self.ready = ready


class Unanswered(Unhealthy):
    """A request without an answer in time."""


class Gpus:
    """The GPUs of the instance. ``ids``: separated by commas, as for nvidia-smi."""

    def __init__(self, ids: str) -> None:
        query = ["--query-gpu=utilization.memory", "--format=csv,noheader,nounits"]
        self._command = ["nvidia-smi", "-i", ids, *query]
        self._query: subprocess.Popen[str] | None = None

    def work(self) -> bool | None:
        """Return whether a GPU has read or written its memory in the last second; None if that is unknown.

        Each iteration of the engine reads the weights. A kernel that waits for another GPU forever does not, although
        it keeps its own GPU at 100 %: measured with NCCL on two H100, driver 580.
        """
        if self._query and self._query.poll() is None:  # It hangs in the driver and cannot be killed.
            return None
        try:
            self._query = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            output = self._query.communicate(timeout=COMMAND_TIMEOUT)[0]
        except OSError:
            return None
        except subprocess.TimeoutExpired:
            if self._query:
                self._query.kill()
            return None
        figures = [int(line) for line in output.split() if line.isdigit()]
        return any(figures) if figures else None


def probe(base_url: str, model: str, gpus: Gpus, timeout: float, completes: bool) -> bool:
    """Request ``/health`` and, while the GPUs do nothing, a completion of one token.

    Some releases exit when ``/health`` finds the engine broken. A completion may wait for all requests before it, so
    ``timeout`` seconds count from the last moment that the GPUs worked. In every release prompts and answers, streamed
    or not, are work of the GPUs.

    Returns whether the request was completed. If the server ``completes`` such requests, any other status raises
    Unhealthy; else a status below 500 is enough, as the server may not support the request.

    Raises Unhealthy and Unanswered.
    """
    body = {"model": model, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 1}
    _answer(base_url, "GET", "/health", None, timeout, lambda: False, completes=False)
    if gpus.work():
        return completes
    path = "/v1/chat/completions"
    try:
        status, _text = _answer(base_url, "POST", path, json.dumps(body), timeout, gpus.work, completes)
    except Unhealthy as problem:
        problem.ready = True
        raise
    return status == 200


class Worker:
    """The progress of a worker of NVIDIA Dynamo.

    Its runtime answers while the engine hangs, and it takes no requests of others. Upstream's own check, a request to
    itself (DYN_HEALTH_CHECK_ENABLED), ends decode workers of TensorRT-LLM, which need what a prefill worker sends
    (ai-dynamo/dynamo, pull requests 8215 and 11083).
    """

    def __init__(self, base_url: str, gpus: Gpus, timeout: float, now: float) -> None:
        self._base_url = base_url
        self._gpus = gpus
        self._timeout = timeout
        self._ready = False
        self._moved = now
        self._still = 0  # checks in a row without progress
        self._sent = 0.0
        self._blind = ""

    def probe(self, now: float) -> None:
        """Find out whether requests wait while the GPUs do nothing and no answer grows.

        Without ``/health`` the worker has lost its lease and finishes its requests, or will not: the GPUs tell.

        Raises Unhealthy, and Unanswered.
        """
        problem, waiting, sent = "", 0.0, self._sent
        try:
            self._get("/health")
            self._ready = True
            waiting, sent = self._counts()
        except Unanswered:
            raise
        except Unhealthy as error:
            if not self._ready:
                raise
            problem = str(error)
        idle = not problem and not waiting
        works = idle or sent != self._sent or self._gpus.work()
        if works or (works is None and not problem):
            self._moved, self._still, self._sent = now, 0, sent
            return
        self._still += 1
        still = now - self._moved
        if still >= self._timeout and self._still >= MAX_FAILURES:
            found = problem or f"{waiting:g} requests waited"
            raise Unanswered(f"{found}, while the GPUs did nothing for {still:.0f} s", ready=True)

    def _counts(self) -> tuple[float, float]:
        """Return the requests in flight and the bytes of answers; none in flight if the worker does not say it."""
        try:
            text = self._get("/metrics")
            found = COUNTS.findall(text)
            blind = "" if found else "/metrics has no requests of the endpoint generate"
        except Unanswered:
            raise
        except Unhealthy as error:
            found, blind = [], str(error)
        if blind and blind != self._blind:
            print(f"Hung requests would not be found: {blind}.", flush=True)
        self._blind = blind
        waiting = sum(float(value) for name, value in found if name == "inflight_requests")
        return waiting, sum(float(value) for name, value in found if name != "inflight_requests")

    def _get(self, path: str) -> str:
        return _answer(self._base_url, "GET", path, None, self._timeout, lambda: False, completes=False)[1]


def _answer(
    base_url: str,
    method: str,
    path: str,
    content: str | None,
    timeout: float,
    works: Callable[[], bool | None],
    completes: bool,
) -> tuple[int, str]:
    """Return the status of an answer, and its text.

    ``works`` returns whether a server without an answer yet makes progress.
    """
    url = urlsplit(base_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout)
    try:
        connection.request(method, path, content, {"Content-Type": "application/json"})
        since = time.monotonic()
        while not select.select([connection.sock], [], [], min(INTERVAL, timeout))[0]:
            if works():
                since = time.monotonic()
            elif time.monotonic() - since >= timeout:
                raise socket.timeout
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except socket.timeout:
        raise Unanswered(f"{method} {path} was not answered within {timeout:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise Unhealthy(f"{method} {path}: {error}") from None
    finally:
        connection.close()
    if answer.status >= 500 or (completes and answer.status != 200):
        raise Unhealthy(f"{method} {path}: HTTP {answer.status}")
    return answer.status, text


class Watch:
    """The state of one start of the instance. ``start_timeout``: seconds until it has to be ready."""

    def __init__(self, start_timeout: float, now: float) -> None:
        self._start_timeout = start_timeout
        self._started = now
        self._ready = False
        self._failures = 0

    def reason(self, problem: Unhealthy | None, now: float) -> str:
        """Return why the instance needs a restart after a success or a problem; empty without a reason."""
        if problem is None:
            self._ready, self._failures = True, 0
            return ""
        self._ready = self._ready or problem.ready
        if not self._ready:  # it loads
            late = now - self._started >= self._start_timeout
            return f"not ready within {self._start_timeout:g} s of its start, the last try: {problem}" if late else ""
        self._failures += 1
        if isinstance(problem, Unanswered):
            return str(problem)
        return f"{problem}, {MAX_FAILURES} times in a row" if self._failures >= MAX_FAILURES else ""


def run(*command: str) -> tuple[bool, str]:
    """Return whether a command succeeded, and its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def record(path: Path, reason: str) -> None:
    """Count a restart and record its reason."""
    path.parent.mkdir(parents=True, exist_ok=True)
    times = json.loads(path.read_text())["times"] if path.exists() else 0
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"times": times + 1, "at": now, "reason": reason}) + "\n")
    new.replace(path)


def invocation(unit: str) -> tuple[str, str]:
    """Return the state of a unit and the ID of its current start."""
    output = run("systemctl", "show", "--property=ActiveState", "--property=InvocationID", "--", unit)[1]
    values = dict(line.partition("=")[::2] for line in output.splitlines())
    return values.get("ActiveState", ""), values.get("InvocationID", "")


def restart(unit: str, container: str, reason: str, start: str, records: Path = RECORDS) -> bool:
    """Kill the container, record the reason, and return whether it was killed. ``start``: ID of the watched start."""
    state, current = invocation(unit)
    if state != "active":  # it stops, and finishes its requests
        print(f"{unit} is {state}, so its container is not killed: {reason}.", flush=True)
        return False
    if current != start:  # systemd restarts this program, without the state of the old start
        sys.exit(f"{unit} was started again.")
    print(f"Unhealthy: {reason}. The container is killed, and systemd restarts it.", flush=True)
    # The unit ends with the container, and systemd would end this program before it has recorded the reason.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    killed, output = run("docker", "kill", container)
    if killed:
        record(records / f"{unit}.json", reason)
    else:
        print(f"The container could not be killed: {output}", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return killed


def main(unit: str, container: str, base_url: str, model: str, gpus: str, timeout: str, start_timeout: str) -> None:
    watch, completes = Watch(float(start_timeout), time.monotonic()), False
    start, instance = invocation(unit)[1], Gpus(gpus)
    worker = None if model else Worker(base_url, instance, float(timeout), time.monotonic())
    while True:
        problem = None
        try:
            if worker:
                worker.probe(time.monotonic())
            else:
                completes = probe(base_url, model, instance, float(timeout), completes)
        except Unhealthy as error:
            problem = error
        reason = watch.reason(problem, time.monotonic())
        if reason and restart(unit, container, reason, start):
            return
        time.sleep(INTERVAL)


if __name__ == "__main__":
    main(*sys.argv[1:])
