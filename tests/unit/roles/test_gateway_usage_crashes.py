"""The usage of a gateway after any sequence of requests, crashes, full disks, kills of HAProxy and reboots."""

from __future__ import annotations

import errno
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage import KILLED, Record, sum_up
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage_ledger import GRACE, Ledger, read_days
from ansible_collections.trtllm.fleet.tests.unit.usage_sample import MIDNIGHT, MODEL, OTHER, log_line

KEYS = ("alice", "bob", "-")
KINDS: dict[str, dict[str, Any]] = {
    "exact": {},
    "unary": {"usage": "7 0 3 0", "streamed": "-"},
    "interrupted": {"usage": "- - - 9", "end": "CD--"},
    "rejected": {"status": 400, "usage": "- - - 0"},
}
OPEN = ("key", "model", "instance", "usage", "first_token_ms", "total_ms", "bytes_in")


class Crash(BaseException):
    """The program is killed."""


def recorded(directory: Path, begin: float, end: float) -> Iterator[Record]:
    return (one for one in read_days(directory, begin, end) if isinstance(one, Record))


@contextmanager
def faults(operations: int | None, error: type[BaseException]) -> Iterator[None]:
    """Let the first operations on files succeed, and none after them. Nothing waits for the disk."""
    left = float("inf") if operations is None else operations
    real_write, real_replace = os.write, os.replace

    def use() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise error(errno.ENOSPC, "No space left on device")

    def write(descriptor: int, data: bytes) -> int:
        try:
            use()
        except Crash:
            if left == -1:  # the process is killed within the write
                real_write(descriptor, data[: len(data) * 2 // 3])
            raise
        return real_write(descriptor, data[: len(data) // 2 or 1])

    def replace(old: str, new: Path) -> None:
        use()
        real_replace(old, new)

    def truncate(descriptor: int, size: int) -> None:
        if left < 0 and error is Crash:
            raise Crash
        os.truncate(descriptor, size)

    with mock.patch.multiple(os, write=write, fsync=lambda _file: use(), replace=replace, ftruncate=truncate):
        yield


class Gateway(RuleBasedStateMachine):
    """A gateway whose program is killed now and then, and goes on from its files."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.directory = Path(self.folder.name)
        self.now = MIDNIGHT - 30
        self.number = 0
        self.journal: list[tuple[dict[str, Any], float]] = []
        self.files: dict[str, dict[str, dict[str, Any]]] = {"1-1": {}}  # of HAProxy's threads
        self.alive = "1-1"
        self.running: dict[str, dict[str, Any]] = {}
        # Killed streams: those that the program has to know, and those that it may know.
        self.lost: set[str] = set()
        self.may_be_lost: set[str] = set()
        self.lagged = False
        self.ledger = Ledger(self.directory, 90, lambda: self.now)

    def name(self) -> str:
        self.number += 1
        return f"r{self.number}"

    # --- HAProxy

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), kind=st.sampled_from(sorted(KINDS)))
    def log(self, keys: list[str], kind: str) -> None:
        for key in keys:
            line = log_line(self.name(), key=key, model=MODEL if self.number % 3 else OTHER, **KINDS[kind])
            self.journal.append((line, self.now))

    @rule(key=st.sampled_from(KEYS))
    def begin(self, key: str) -> None:
        name = self.name()
        self.running[name] = log_line(name, key=key)
        self.files[self.alive][name] = {field: log_line(name, key=key, usage="- - - 5")[field] for field in OPEN}

    @precondition(lambda self: self.running)
    @rule(written=st.booleans())
    def end(self, written: bool) -> None:
        name, line = self.running.popitem()
        self.journal.append((line, self.now))
        if written:
            del self.files[self.alive][name]

    @rule()
    def kill(self) -> None:
        self.lost |= self.running.keys()
        self.may_be_lost |= self.running.keys()
        self.running.clear()
        self.start()

    def start(self) -> None:
        self.alive = f"{int(self.alive[:-2]) + 1}-1"
        self.files[self.alive] = {}

    @rule(seconds=st.sampled_from([0.25, 1, 7, 40, 86400]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # --- the program

    def account(self, lines: int | None = None) -> None:
        """Do what the program does each second. ``lines``: those that journalctl printed, all by default."""
        self.ledger.commit()
        begin = int(self.ledger.cursor or 0)
        new = self.journal[begin:][:lines]
        read = new[-1][1] if new else self.now
        self.lagged |= begin + len(new) < len(self.journal)
        for line, moment in new:
            begin += 1
            self.ledger.cursor = str(begin)
            self.ledger.add(line, moment)
        alive = {name: name == self.alive for name in self.files}
        done = self.ledger.follow({name: dict(one) for name, one in self.files.items()}, alive, self.now, read)
        self.ledger.commit()
        for name in done:
            self.files.pop(name, None)

    @rule(
        lines=st.sampled_from([None, 1, 3]),
        operations=st.none() | st.integers(0, 25),
        error=st.sampled_from([OSError, Crash]),
    )
    def round(self, lines: int | None, operations: int | None, error: type[BaseException]) -> None:
        self.now += 1
        with faults(operations, error):
            try:
                self.account(lines)
            except OSError:
                pass
            except Crash:
                self.crash()

    @rule()
    def crash(self) -> None:
        self.ledger = Ledger(self.directory, 90, lambda: self.now)

    @rule(saved=st.booleans())
    def reboot(self, saved: bool) -> None:
        """The machine loses the files of HAProxy, and what the program did not save."""
        with faults(None, OSError):
            if saved:
                self.account(lines=1)
                self.account(lines=1)
        self.may_be_lost |= self.running.keys()
        self.lost = self.lost | self.running.keys() if saved else set()
        self.running.clear()
        self.files.clear()
        self.start()
        self.crash()

    def teardown(self) -> None:
        try:
            with faults(None, OSError):
                for _second in range(3):
                    self.now += GRACE
                    self.account()
                self.check()
        finally:
            self.folder.cleanup()

    def check(self) -> None:
        records = list(recorded(self.directory, 0, 1e12))
        assert [name for name, number in Counter(one.id for one in records).items() if number > 1] == []
        logged = {line["id"]: moment for line, moment in self.journal}
        assert {one.id: one.ended for one in records if one.end != KILLED} == logged
        killed = {one.id for one in records if one.end == KILLED}
        assert self.lost - logged.keys() <= killed <= self.may_be_lost
        for ledger in (self.ledger, Ledger(self.directory, 90, lambda: self.now)):
            assert ledger.sums == sum_up(records)[0]
            for key, meter in ledger.meters.items():
                own = [one for one in records if one.key == key]
                assert meter.day == max(one.day for one in own)
                assert meter.day_tokens == sum(one.tokens for one in own if one.day == meter.day)
                if not self.lagged:
                    assert meter.minute(self.now) == sum(one.tokens for one in own if one.ended > self.now - 60)


TestGateway = Gateway.TestCase
TestGateway.settings = settings(max_examples=100, stateful_step_count=30)
