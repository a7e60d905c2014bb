"""Watch an instance, and kill its container when it no longer works, so that its unit restarts it.

Run from the release by a transient unit that the instance's unit starts, and that ends with it:
  python3 watchdog.py UNIT CONTAINER BASE_URL MODEL GPUS TIMEOUT START_TIMEOUT     (seconds; GPUS as 0,1)
It is no part of the instance's unit: a tool that restarts what maps a replaced library would restart the engine.
"""

from __future__ import annotations

import http.client
import json
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

# Seconds between two looks.
INTERVAL = 20
# A port that refuses, and an answer such as 503, may be the matter of a moment.
REFUSALS = 3
# Seconds for docker and systemctl.
PATIENCE = 60
# What was done, for module host_status; gone with the next boot, as systemd's own counters are.
NOTES = Path("/run/trtllm-fleet/healed")


class Refused(Exception):
    """It answered that it is not well, or there is nobody to answer. Says what was asked, and what came.

    ``ready``: its health was well before, which is so in no release while it loads.
    """

    def __init__(self, words: str, ready: bool = False) -> None:
        super().__init__(words)
        self.ready = ready


class Silent(Refused):
    """It did not answer in time."""


class Gpus:
    """The GPUs of the instance. ``ids``: as nvidia-smi takes them, with commas between."""

    def __init__(self, ids: str) -> None:
        query = ["--query-gpu=utilization.memory", "--format=csv,noheader,nounits"]
        self._command = ["nvidia-smi", "-i", ids, *query]
        self._asked: subprocess.Popen[str] | None = None

    def work(self) -> bool:
        """Whether one of them has read or written its memory in the last second.

        Each iteration of the engine reads the weights. A kernel that waits for another GPU for ever does not, though it
        keeps its own GPU at 100 %: measured with NCCL on two H100, driver 580. Unknown counts as no.
        """
        if self._asked and self._asked.poll() is None:  # It hangs in the driver, and cannot be killed.
            return False
        try:
            self._asked = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            said = self._asked.communicate(timeout=PATIENCE)[0]
        except OSError:
            return False
        except subprocess.TimeoutExpired:
            if self._asked:
                self._asked.kill()
            return False
        return any(line.strip().isdigit() and int(line) > 0 for line in said.splitlines())


def ask(base_url: str, model: str, gpus: Gpus, timeout: float, completes: bool) -> bool:
    """Request the health and, where the GPUs do nothing, a completion of one token. Raises Refused and Silent.

    Some releases end themselves when a health check finds the engine broken. A completion may
    have to wait for all requests in front of it, so ``timeout`` seconds count from the last moment in which the GPUs
    did something. Streams, answers that are not streamed and prompts are all work of the GPUs, in every release.

    The answer is whether it was completed. If the server ``completes`` such requests, it has to; else it may not like
    them, and shows with any status below 500 that it works.
    """
    body = {"model": model, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 1}
    _answer(base_url, "GET", "/health", None, timeout, lambda: False, completes=False)
    if gpus.work():
        return completes
    path = "/v1/chat/completions"
    try:
        status = _answer(base_url, "POST", path, json.dumps(body), timeout, gpus.work, completes)
    except Refused as problem:
        problem.ready = True
        raise
    return status == 200


def _answer(
    base_url: str,
    method: str,
    path: str,
    content: str | None,
    timeout: float,
    works: Callable[[], bool],
    completes: bool,
) -> int:
    """The status of an answer. ``works``: whether a server that has not answered yet does something."""
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
        answer.read()
    except socket.timeout:
        raise Silent(f"{method} {path} was not answered within {timeout:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"{method} {path}: {error}") from None
    finally:
        connection.close()
    if answer.status >= 500 or (completes and answer.status != 200):
        raise Refused(f"{method} {path}: HTTP {answer.status}")
    return answer.status


class Watch:
    """What the answers so far say of this start. ``start_timeout``: seconds until it has to be ready."""

    def __init__(self, start_timeout: float, now: float) -> None:
        self._start_timeout = start_timeout
        self._started = now
        self._ready = False
        self._refusals = 0

    def reason(self, problem: Refused | None, now: float) -> str:
        """Why it has to be restarted, after an answer or a problem; empty while there is no reason."""
        if problem is None:
            self._ready, self._refusals = True, 0
            return ""
        self._ready = self._ready or problem.ready
        if not self._ready:  # it loads, and until then refuses or says nothing
            late = now - self._started >= self._start_timeout
            return f"not ready within {self._start_timeout:g} s of its start, the last try: {problem}" if late else ""
        self._refusals += 1
        if isinstance(problem, Silent):
            return str(problem)
        return f"{problem}, {REFUSALS} times in a row" if self._refusals >= REFUSALS else ""


def run(*command: str) -> tuple[bool, str]:
    """Whether a command did it, and what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def note(path: Path, reason: str) -> None:
    """Write down that it was done once more, and why."""
    path.parent.mkdir(parents=True, exist_ok=True)
    times = json.loads(path.read_text())["times"] if path.exists() else 0
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"times": times + 1, "at": now, "reason": reason}) + "\n")
    new.replace(path)


def invocation(unit: str) -> tuple[str, str]:
    """The state of a unit, and which of its starts this is."""
    said = run("systemctl", "show", "--property=ActiveState", "--property=InvocationID", "--", unit)[1]
    values = dict(line.partition("=")[::2] for line in said.splitlines())
    return values.get("ActiveState", ""), values.get("InvocationID", "")


def heal(unit: str, container: str, reason: str, start: str, notes: Path = NOTES) -> bool:
    """Kill the container, and write down why. Answers whether it is gone. ``start``: the one that is watched."""
    state, current = invocation(unit)
    if state != "active":  # it is being stopped, and finishes what it has
        print(f"Left alone, as {unit} is {state}: {reason}.", flush=True)
        return False
    if current != start:  # systemd restarts this, and it knows nothing of the start before
        sys.exit(f"{unit} was started again.")
    print(f"Not well: {reason}. The container is killed, and systemd restarts it.", flush=True)
    # With the container the unit ends, and systemd would end this before it is written down.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    killed, words = run("docker", "kill", container)
    if killed:
        note(notes / f"{unit}.json", reason)
    else:
        print(f"The container could not be killed: {words}", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return killed


def main(unit: str, container: str, base_url: str, model: str, gpus: str, timeout: str, start_timeout: str) -> None:
    watch, completes = Watch(float(start_timeout), time.monotonic()), False
    start, instance = invocation(unit)[1], Gpus(gpus)
    while True:
        problem = None
        try:
            completes = ask(base_url, model, instance, float(timeout), completes)
        except Refused as error:
            problem = error
        reason = watch.reason(problem, time.monotonic())
        if reason and heal(unit, container, reason, start):
            return
        time.sleep(INTERVAL)


if __name__ == "__main__":
    main(*sys.argv[1:])
