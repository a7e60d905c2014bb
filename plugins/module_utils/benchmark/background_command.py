# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a background command until it ends, times out, or polling stops."""

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
LEASE = "lease"  # modified by each poll, locked by the supervisor
END = "end.json"
TAIL = 65536  # bytes of the log that a poll reads; progress bars make it long
LOOK_SECONDS = 0.5
GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL

Reason = Literal["ended", "timeout", "abandoned", "lost"]


@dataclass(frozen=True)
class End:
    """End of a command; ``rc`` is negative after a signal, as in subprocess."""

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
    """Start a command in its own session and return. Run ``cleanup`` before the command and after its end.

    The command is ended after ``timeout`` seconds, or after ``lease`` seconds without a call of ``look``.
    """
    watched = os.open(folder / LEASE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(watched, fcntl.LOCK_EX)
    if os.fork():
        os.wait()
        os.close(watched)
        return
    # Fork twice: init adopts the second child, and Ansible does not wait for it.
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
        except OSError as error:  # the program or the folder is missing
            with suppress(OSError):
                log.write(f"{error}\n".encode())
    if folder.is_dir():
        end = {"rc": rc, "reason": reason, "seconds": time.monotonic() - began}
        write_file(folder / END, json.dumps(end), 0o600)


def _quietly(argv: Sequence[str]) -> None:
    if argv:
        subprocess.run(list(argv), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process with its group and return its status."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    # Children that outlived it.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def look(folder: Path) -> tuple[End | None, str]:
    """Return the end of the command, None while it runs, and the last output. Renew the lease."""
    (folder / LEASE).touch()
    end = _ended(folder)
    if end is None and not _watched(folder):
        # It may have ended between the two calls.
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
    """Describe the end of a command."""
    if end.reason == "timeout":
        return f"was ended after {end.seconds:.0f} s"
    if end.reason == "abandoned":
        return "was ended because polling stopped"
    if end.reason == "lost":
        return "was lost: its supervisor was killed"
    return f"ended with {end.rc}" if end.rc >= 0 else f"was killed by signal {-end.rc}"
