"""Watch an instance, and kill its container when it no longer answers, so that its unit starts it afresh.

Run by the instance's unit once its container is started, from its release:
  python3 watch.py UNIT CONTAINER BASE_URL MODEL TIMEOUT START_TIMEOUT     (seconds)
It goes on in the background as a part of the unit, so it ends with this start of the unit, and knows of no other.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

# Seconds between an answer and the next question.
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


def ask(base_url: str, model: str, timeout: float, completes: bool) -> bool:
    """Ask for the health and a completion of one token, each within ``timeout`` seconds. Raises Refused and Silent.

    The health for releases that end themselves when they are asked for it and find the engine broken. A completion that
    has to wait keeps its place among the engine's requests all the time, so it comes before those that were sent later.

    The answer is whether it was completed. If the server ``completes`` such requests, it has to; else it may not like
    them, and shows with any status below 500 that it works.
    """
    url = urlsplit(base_url)
    body = {"model": model, "messages": [{"role": "user", "content": "ping"}], "max_tokens": 1}
    ready = False
    for method, path, content in (("GET", "/health", None), ("POST", "/v1/chat/completions", json.dumps(body))):
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout)
        try:
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except socket.timeout:
            raise Silent(f"{method} {path} was not answered within {timeout:g} s", ready) from None
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"{method} {path}: {error}", ready) from None
        finally:
            connection.close()
        if answer.status >= 500 or (completes and answer.status != 200):
            raise Refused(f"{method} {path}: HTTP {answer.status}", ready)
        ready = True
    return answer.status == 200


class Watch:
    """What the answers so far say of this start. ``start_timeout``: seconds until it has to be ready."""

    def __init__(self, start_timeout: float, now: float) -> None:
        self._start_timeout = start_timeout
        self._started = now
        self._ready = False
        self._refusals = 0

    def reason(self, problem: Refused | None, now: float) -> str:
        """Why it has to be started afresh, after an answer or a problem; empty while there is no reason."""
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


def heal(unit: str, container: str, reason: str, notes: Path = NOTES) -> bool:
    """Kill the container, and write down why. Answers whether it is gone."""
    state = run("systemctl", "show", "--property=ActiveState", "--value", "--", unit)[1]
    if state != "active":  # it is being stopped, and finishes what it has
        print(f"Left alone, as {unit} is {state}: {reason}.", flush=True)
        return False
    print(f"Not well: {reason}. The container is killed, and systemd starts it afresh.", flush=True)
    # With the container the unit ends, and systemd would end this before it is written down.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    killed, words = run("docker", "kill", container)
    if killed:
        note(notes / f"{unit}.json", reason)
    else:
        print(f"The container could not be killed: {words}", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return killed


def main(unit: str, container: str, base_url: str, model: str, timeout: str, start_timeout: str) -> None:
    watch, completes = Watch(float(start_timeout), time.monotonic()), False
    while True:
        problem = None
        try:
            completes = ask(base_url, model, float(timeout), completes)
        except Refused as error:
            problem = error
        reason = watch.reason(problem, time.monotonic())
        if reason and heal(unit, container, reason):
            return
        time.sleep(INTERVAL)


if __name__ == "__main__" and os.fork() == 0:
    main(*sys.argv[1:])
