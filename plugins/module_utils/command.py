# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command that might never end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class CommandResult:
    """Result of a command. ``rc`` is None if it was still running at its deadline."""

    rc: int | None
    stdout: str = ""
    stderr: str = ""

    @property
    def text(self) -> str:
        """Return both streams as one stripped text, because tools write errors to either one."""
        return "\n".join(filter(None, (self.stdout.strip(), self.stderr.strip())))


Runner = Callable[[Sequence[str], float], CommandResult]


def run(argv: Sequence[str], timeout: float) -> CommandResult:
    """Run ``argv`` in the C locale for at most ``timeout`` seconds. Raises OSError when it cannot be started.

    ``subprocess.run(timeout=...)`` waits for the process that it killed, and a process that hangs in a broken driver
    cannot be killed. So the process is not waited for.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, LC_ALL="C"),
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return CommandResult(rc=None)
    return CommandResult(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


def output(argv: Sequence[str], timeout: float, runner: Runner, failure: type[Exception]) -> str:
    """Return the output of a command that has to succeed within ``timeout`` seconds. Raises ``failure`` otherwise."""
    try:
        done = runner(argv, timeout)
    except OSError as error:
        raise failure(f"{argv[0]}: {error.strerror}") from None
    if done.rc != 0:
        problem = f"no answer within {timeout:g} s" if done.rc is None else done.text or f"exit status {done.rc}"
        raise failure(f"{' '.join(argv)}: {problem}")
    return done.stdout
