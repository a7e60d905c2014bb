# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A long command that outlives the connection, and not by much whoever waits for it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file

LOG = "output.log"
LEASE = "lease"  # its time is when somebody asked last; who watches over the command has it locked
END = "end.json"
TAIL = 65536  # bytes of the log that are looked at: a progress line is drawn anew many times
LOOK_SECONDS = 0.5
GRACE_SECONDS = 10.0  # between a request to end and the end

Reason = Literal["ended", "timeout", "abandoned", "lost"]


@dataclass(frozen=True)
class End:
    """How the command ended; ``rc`` is negative after a signal, as subprocess has it."""

    rc: int
    reason: Reason
    seconds: float


def start(
    folder: Path,
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    lease: float,
    cleanup: Sequence[str] = (),
) -> None:
    """Start ``argv`` in a session of its own and return. ``cleanup`` is run before it, and after its end.

    It is ended after ``timeout`` seconds, or when nobody has asked with ``look`` for ``lease`` seconds.
    """
    watched = os.open(folder / LEASE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(watched, fcntl.LOCK_EX)
    if os.fork():
        os.wait()
        os.close(watched)
        return
    # The first child ends at once, so that the second one is nobody's, and Ansible does not wait for it.
    try:
        os.setsid()
        if not os.fork():
            _supervise(folder, argv, environment, timeout, lease, cleanup)
    finally:
        os._exit(0)


def _supervise(
    folder: Path,
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    lease: float,
    cleanup: Sequence[str],
) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    began = time.monotonic()
    rc, reason = 127, "ended"
    with (folder / LOG).open("ab", buffering=0) as log:
        try:
            _quietly(cleanup)
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=folder,
                start_new_session=True,
            )
            try:
                while process.poll() is None and reason == "ended":
                    time.sleep(LOOK_SECONDS)
                    if time.monotonic() - began > timeout:
                        reason = "timeout"
                    elif time.time() - (folder / LEASE).stat().st_mtime > lease:
                        reason = "abandoned"
            finally:
                rc = _end(process)
                _quietly(cleanup)
        except OSError as error:  # the program is not there, or the folder has gone
            with suppress(OSError):
                log.write(f"{error}\n".encode())
    if folder.is_dir():
        end = {"rc": rc, "reason": reason, "seconds": time.monotonic() - began}
        write_file(folder / END, json.dumps(end), 0o600)


def _quietly(argv: Sequence[str]) -> None:
    if argv:
        subprocess.run(list(argv), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _end(process: subprocess.Popen[bytes]) -> int:
    """The status of a process, which with its group has ended then."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    # Those of its children that it left.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def look(folder: Path) -> tuple[End | None, str]:
    """How it ended, None while it runs, and the last of its output. Whoever asks renews the lease."""
    (folder / LEASE).touch()
    end = _ended(folder)
    if end is None and not _watched(folder):
        # It may have ended as it should between the two.
        end = _ended(folder) or End(-signal.SIGKILL, "lost", 0.0)
    try:
        with (folder / LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL))
            text = log.read().decode(errors="replace")
    except OSError:
        text = ""
    return end, text.replace("\r", "\n")


def _ended(folder: Path) -> End | None:
    try:
        return End(**json.loads((folder / END).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _watched(folder: Path) -> bool:
    with (folder / LEASE).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def describe(end: End) -> str:
    """The end in words, for whoever waited."""
    if end.reason == "timeout":
        return f"was ended after {end.seconds:.0f} s"
    if end.reason == "abandoned":
        return "was ended, as nobody waited for it any longer"
    if end.reason == "lost":
        return "was lost: what watched over it was killed"
    return f"ended with {end.rc}" if end.rc >= 0 else f"was killed by signal {-end.rc}"
