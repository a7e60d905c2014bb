# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A systemd unit: its state and its last journal lines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, Runner, run

# Seconds. systemctl and journalctl take milliseconds, or seconds while the host loads weights. A hanging system bus
# must not block the caller.
COMMAND_TIMEOUT = 20.0

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainStatus",
    "NRestarts",
    "InvocationID",
    "Job",
    "ConditionResult",
    "ConditionTimestampMonotonic",
)


def paragraphs(units: Sequence[str], text: str) -> dict[str, dict[str, str]]:
    """Return the properties of each unit from the output of ``systemctl show`` for these units."""
    values = [dict(line.split("=", 1) for line in part.splitlines()) for part in text.strip().split("\n\n")]
    return dict(zip(units, values))


def start_limit_reached(shown: Mapping[str, str]) -> bool:
    """Return whether a unit with these properties failed and reached its start limit.

    The result start-limit-hit does not show it: systemd keeps an earlier result.
    """
    restarts, limit = (int(shown.get(key) or 0) for key in ("NRestarts", "StartLimitBurst"))
    return shown.get("ActiveState") == "failed" and 0 < limit <= restarts


class UnitError(Exception):
    """systemd did not answer; the message has its error."""


@dataclass(frozen=True)
class Unit:
    """State of a unit, as systemd names it."""

    name: str
    load_state: str
    active_state: str
    sub_state: str
    result: str
    exec_main_status: int
    restarts: int
    invocation_id: str
    job_pending: bool
    skipped: bool  # by its conditions

    @property
    def exists(self) -> bool:
        return self.load_state == "loaded"

    @property
    def failed(self) -> bool:
        return self.active_state == "failed"

    @property
    def restarting(self) -> bool:
        """True if it ended and systemd is about to start it (``auto-restart``, ``auto-restart-queued``)."""
        return self.sub_state.startswith("auto-restart")

    @property
    def finished(self) -> bool:
        """True for a oneshot unit that ended well or was skipped."""
        if self.job_pending:
            return False
        if self.active_state == "active":
            return self.sub_state == "exited"
        return self.active_state == "inactive" and self.result == "success"

    def facts(self) -> dict[str, Any]:
        """Return the values for a playbook."""
        return {key: value for key, value in asdict(self).items() if key not in ("job_pending", "skipped")}

    def __str__(self) -> str:
        if not self.exists:
            return f"{self.name} is {self.load_state}"
        text = f"{self.name} is {self.active_state} ({self.sub_state})"
        if self.result != "success":
            text += f", result {self.result}, exit status {self.exec_main_status}"
        if self.restarts:
            text += f", {self.restarts} automatic restarts"
        return text


class Systemd:
    """A client for ``systemctl`` and ``journalctl``."""

    def __init__(self, runner: Runner = run) -> None:
        self._runner = runner

    def _run(self, *argv: str) -> CommandResult:
        """Return the result of a command. Raises UnitError."""
        try:
            done = self._runner(argv, COMMAND_TIMEOUT)
        except OSError as error:
            raise UnitError(f"{argv[0]}: {error.strerror}") from None
        if done.rc is None:
            raise UnitError(f"{argv[0]}: no answer within {COMMAND_TIMEOUT:g} s")
        if done.rc != 0:
            raise UnitError(f"{argv[0]}: {done.text or done.rc}")
        return done

    def _show(self, name: str, properties: Sequence[str]) -> dict[str, str]:
        """Return properties of a unit, which may be missing. Raises UnitError."""
        shown = self._run("systemctl", "show", f"--property={','.join(properties)}", "--", name)
        return dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)

    def unit(self, name: str) -> Unit:
        """Return the state of a unit, which may be missing. Raises UnitError if systemd does not answer."""
        value = self._show(name, _PROPERTIES)
        return Unit(
            name=name,
            load_state=value.get("LoadState", ""),
            active_state=value.get("ActiveState", ""),
            sub_state=value.get("SubState", ""),
            result=value.get("Result", "success"),
            exec_main_status=int(value.get("ExecMainStatus") or 0),
            restarts=int(value.get("NRestarts") or 0),
            invocation_id=value.get("InvocationID", ""),
            job_pending=value.get("Job", "0") not in ("", "0"),
            skipped=value.get("ConditionResult") == "no" and value.get("ConditionTimestampMonotonic", "0") != "0",
        )

    def started(self, name: str) -> float | None:
        """Return the start of a service's main process, in seconds since 1970; None if none runs. Raises UnitError."""
        value = self._show(name, ("MainPID", "ExecMainStartTimestampMonotonic"))
        if not int(value.get("MainPID") or 0):
            return None
        # The monotonic time has microseconds, the other one only seconds.
        age = time.clock_gettime(time.CLOCK_MONOTONIC) - int(value["ExecMainStartTimestampMonotonic"]) / 1e6
        return time.time() - age

    def journal(self, name: str, lines: int, invocation_id: str = "") -> list[str]:
        """Return the last lines of one run of the unit, or of the unit in this boot if that run has none.

        An unreadable journal is a line, because an exception would hide the failure of the unit.
        """
        tail = ["-n", str(lines), "-o", "cat", "--no-pager", "--quiet"]
        # Lines of the processes have the first field, lines of systemd about them the second.
        run_only = [f"_SYSTEMD_INVOCATION_ID={invocation_id}", "+", f"INVOCATION_ID={invocation_id}"]
        for match in [run_only] * bool(invocation_id) + [["--boot", f"--unit={name}"]]:
            try:
                found = self._run("journalctl", *tail, *match).stdout.splitlines()[-lines:]
            except UnitError as error:
                return [str(error)]
            if found:
                return found
        return []

    def last_line(self, name: str) -> float | None:
        """Return the time of the last line of the unit in this boot, in seconds since 1970; None without one."""
        try:
            shown = self._run(
                "journalctl", "-n", "1", "-o", "short-unix", "--no-pager", "--quiet", "--boot", f"--unit={name}"
            )
            return float(shown.stdout.split()[0])
        except (UnitError, IndexError, ValueError):
            return None


@dataclass(frozen=True)
class Waited:
    """Result of a wait. ``problem`` is empty if the unit has finished, or is ``running`` at the end of a turn."""

    unit: Unit
    problem: str
    seconds: float
    running: bool = False


def wait_finished(
    systemd: Systemd,
    name: str,
    timeout: float,
    interval: float,
    turn: float | None = None,
    waited: float = 0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Waited:
    """Wait until a oneshot unit has finished or failed, at most ``timeout`` seconds. Raises UnitError.

    ``waited``: seconds of the timeout that passed before. ``turn``: seconds after which to return in any case.
    """
    start = clock() - waited
    seen_running = False
    while True:
        unit = systemd.unit(name)
        seconds = clock() - start
        if not unit.exists:
            return Waited(unit, f"{unit}: the unit does not exist", seconds)
        if unit.failed:
            return Waited(unit, f"{unit}", seconds)
        if unit.finished:
            # systemd unloads a finished unit without references, and then shows it like one that never ran.
            # Only the former has lines in the journal of this boot.
            known = unit.active_state == "active" or seen_running or unit.invocation_id or unit.skipped
            if known or systemd.journal(name, 1):
                return Waited(unit, "", seconds)
            return Waited(unit, f"{unit}: it was not started since the boot", seconds)
        seen_running = True
        if seconds >= timeout:
            return Waited(unit, f"{unit}, not finished after {timeout:g} s", seconds)
        left = timeout - seconds
        if turn is not None:
            if seconds - waited >= turn:
                return Waited(unit, "", seconds, running=True)
            left = min(left, turn - (seconds - waited))
        sleep(min(interval, left))
