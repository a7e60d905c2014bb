# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a gateway's usage: a file of records for each day, and the state from which accounting goes on.

Records are on disk before the state that includes them. After a crash the records behind the state are read from the
files, so that none is counted twice.
"""

from __future__ import annotations

import calendar
import gzip
import hashlib
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file, write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage import (
    DAY,
    KILLED,
    Estimates,
    Loss,
    Meter,
    Record,
    Sums,
    day_of,
    read_entries,
    record_of,
)

STATE = "state.json"
DAYS = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9].jsonl*"
# Days after which a file is compressed: no request of its day ends any more.
PLAIN_DAYS = 2
# Bytes of records, and requests, that are known by their id: those that may be in the journal or in a file of HAProxy
# a second time.
TAIL = 2**21
KNOWN = 10000
LINE = 2**16  # bytes; longer than a record
# Seconds after the end of a process in which its last lines are still read from the journal.
GRACE = 5.0
FILE_MODE = 0o640

Open = dict[str, dict[str, Any]]


class Ledger:
    """The records, sums and meters of a gateway. Methods raise OSError."""

    def __init__(self, directory: Path, keep_days: int, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._directory = directory
        self._keep_days = keep_days
        self._estimates = Estimates()
        self._pending: list[Record | Loss] = []
        self._ids: dict[str, None] = {}
        self._open: dict[str, Open] = {}
        # When the process of open answers was first seen to have ended.
        self._ended: dict[str, float] = {}
        self._saved = ""
        self.committed = True
        self.cursor = ""
        self.last = 0.0
        # The process of HAProxy that was seen last, and the lines of the log that it had dropped.
        self.dropped: tuple[str, int] = ("", 0)
        self.lost_lines = 0
        self.sums: dict[tuple[str, str], Sums] = {}
        self.meters: dict[str, Meter] = {}
        self._load()

    def add(self, line: Mapping[str, Any], moment: float) -> None:
        """Account for a line of the access log that was written at a time."""
        moment = min(moment, self._clock())  # a clock that was ahead
        self.last = max(self.last, moment)
        identity = str(line.get("id", ""))
        if identity in self._ids:
            return
        record = record_of(line, moment, self._estimates)
        if record is not None:
            self._count(record)
            self._pending.append(record)

    def count_dropped(self, process: str, lines: int, now: float) -> None:
        """Take over the number of lines that a process of HAProxy has dropped, and record what is new."""
        before = self.dropped[1] if self.dropped[0] == process else 0
        if lines > before:
            self._pending.append(Loss(round(now, 3), lines - before))
            self.lost_lines += lines - before
        self.dropped = (process, lines)

    def follow(self, answers: Mapping[str, Open], alive: Mapping[str, bool], now: float, read: float) -> list[str]:
        """Take over the open answers of HAProxy's threads. Return the threads that need none any more.

        An answer of a process that ended, without a line in the access log, was interrupted by its death. ``read``:
        time until which the log was read.
        """
        self._open.update(answers)
        done = []
        for name, open_answers in list(self._open.items()):
            if name in answers and alive.get(name):
                self._ended.pop(name, None)
            elif read - self._ended.setdefault(name, now) >= GRACE:
                for identity, one in open_answers.items():
                    self.add({**one, "id": identity, "status": 200, "end": KILLED, "streamed": "yes"}, now)
                done.append(name)
                del self._open[name], self._ended[name]
        return done

    def commit(self) -> None:
        """Write the records, then the state. After an error ``committed`` is false, and the next call writes both."""
        self.committed = False
        for day in sorted({entry.day for entry in self._pending}):
            with self._lock if self._clock() - _start(day) > PLAIN_DAYS * DAY else nullcontext():
                self._append(day, [entry for entry in self._pending if entry.day == day])
            self._pending = [entry for entry in self._pending if entry.day != day]
        state = json.dumps(self._state(), indent=1)
        if state != self._saved:
            write_file(self._directory / STATE, state + "\n", FILE_MODE)
            self._saved = state
        self.committed = True
        self._forget()

    def clean(self, now: float) -> None:
        """Compress the files of past days, and remove those that are too old. May run beside the other methods."""
        for path in self._directory.glob(f".{DAYS}"):  # of a run that was killed
            path.unlink(missing_ok=True)
        for day in _days(self._directory):
            age = (now - _start(day)) / DAY
            plain, packed = _paths(self._directory, day)
            if age > self._keep_days + 1:
                plain.unlink(missing_ok=True)
                packed.unlink(missing_ok=True)
            elif age > PLAIN_DAYS and plain.exists():
                with self._lock:
                    write_file(packed, _compressed(_lines(self._directory, day)), FILE_MODE)
                    plain.unlink()

    def _count(self, record: Record) -> None:
        self._ids[record.id] = None
        self.sums.setdefault((record.key, record.model), Sums()).add(record)
        self.meters.setdefault(record.key, Meter()).add(record.ended, record.tokens)

    def _append(self, day: str, entries: Sequence[Record | Loss]) -> None:
        path = self._directory / f"{day}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE)
        try:
            size = os.fstat(descriptor).st_size
            try:
                rest = "".join(entry.line() for entry in entries).encode()
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            except OSError:  # a full disk: all or nothing
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def _sizes(self) -> dict[str, int]:
        return {
            path.name: path.stat().st_size for path in sorted(self._directory.glob(DAYS)) if path.suffix == ".jsonl"
        }

    def _state(self) -> dict[str, Any]:
        return {
            "cursor": self.cursor,
            "last": self.last,
            "dropped": list(self.dropped),
            "lost_lines": self.lost_lines,
            "files": self._sizes(),
            "sums": [[key, model, asdict(sums)] for (key, model), sums in sorted(self.sums.items())],
            "days": {key: [meter.day, meter.day_tokens] for key, meter in sorted(self.meters.items())},
            "estimates": self._estimates.save(),
            "open": {
                name: {identity: one for identity, one in answers.items() if identity not in self._ids}
                for name, answers in self._open.items()
            },
        }

    def _load(self) -> None:
        text = read_file(self._directory / STATE)
        state = json.loads(text) if text else {}
        now = self._clock()
        self.cursor, self.last = state.get("cursor", ""), min(state.get("last", 0.0), now)
        process, lines = state.get("dropped", ["", 0])
        self.dropped, self.lost_lines = (process, lines), state.get("lost_lines", 0)
        self._open = state.get("open", {})
        self._estimates.load(state.get("estimates", {}))
        self.sums = {(key, model): Sums(**sums) for key, model, sums in state.get("sums", [])}
        self.meters = {
            key: Meter(day=day, day_tokens=tokens)
            for key, (day, tokens) in state.get("days", {}).items()
            if day <= day_of(now)
        }
        for name in self._sizes():
            path = self._directory / name
            _cut_last_line(path)
            known = state.get("files", {}).get(name, 0)
            for record in _records(path, max(0, known - TAIL), known):
                self._ids[record.id] = None
                self.meters.setdefault(record.key, Meter()).add_recent(record.ended, record.tokens)
            for record in _records(path, known, path.stat().st_size):
                self._count(record)

    def _forget(self) -> None:
        """Forget the oldest ids."""
        for identity in list(self._ids)[: max(0, len(self._ids) - KNOWN)]:
            del self._ids[identity]


def _records(path: Path, begin: int, end: int) -> Iterator[Record]:
    """Return the records between two places of a file; the first may be a part of a line."""
    with path.open("rb") as file:
        file.seek(begin)
        lines = file.read(max(0, end - begin)).decode(errors="replace").splitlines()
    return (entry for entry in read_entries(lines) if isinstance(entry, Record))


def _cut_last_line(path: Path) -> None:
    """Remove a line that a crash cut off. The journal has it whole."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LINE))
        rest = file.read()
        whole = rest.rfind(b"\n") + 1
        if whole < len(rest):
            file.truncate(size - len(rest) + whole)


def read_days(directory: Path, begin: float, end: float) -> Iterator[Record | Loss]:
    """Yield the records and losses of a span, without its end, oldest day first. Times in seconds since 1970."""
    for day in _days(directory):
        if _start(day) < end and _start(day) + DAY > begin:
            yield from (entry for entry in read_entries(_lines(directory, day)) if begin <= entry.ended < end)


def oldest_day(directory: Path) -> str:
    """Return the first day that has a file, as 2026-11-27; empty without one."""
    return min(_days(directory), default="")


def moment_of(name: str, text: str) -> float:
    """Return a time in UTC, as 2026-11-01 or 2026-11-01T08:30:00, in seconds since 1970. Raises ValueError."""
    try:
        found = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        raise ValueError(f"{name} is {text}; it must be a time in UTC, as 2026-11-01 or 2026-11-01T08:30.") from None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


def _days(directory: Path) -> list[str]:
    return sorted({path.name[:10] for path in directory.glob(DAYS)})


def _start(day: str) -> float:
    """Return the beginning of a day."""
    return float(calendar.timegm(time.strptime(day, "%Y-%m-%d")))


def _paths(directory: Path, day: str) -> tuple[Path, Path]:
    """Return the file of a day, and the compressed one."""
    return directory / f"{day}.jsonl", directory / f"{day}.jsonl.gz"


def _lines(directory: Path, day: str) -> Iterator[str]:
    """Yield the lines of a day. A crash leaves lines in both files, and a long stop adds lines to a compressed day."""
    plain, packed = _paths(directory, day)
    with ExitStack() as stack:
        files: list[Iterable[str]] = []
        # The compressed file is complete before the other one is removed, so this one is opened first.
        with suppress(FileNotFoundError):
            files.append(stack.enter_context(plain.open()))
        with suppress(FileNotFoundError):
            files.insert(0, stack.enter_context(gzip.open(packed, "rt")))
        seen: set[bytes] = set()
        for line in chain.from_iterable(files):
            if len(files) > 1:
                digest = hashlib.blake2b(line.encode(), digest_size=16).digest()
                if digest in seen:
                    continue
                seen.add(digest)
            yield line


def _compressed(lines: Iterable[str]) -> Iterator[bytes]:
    """Yield the parts of a file for gzip. A file of a day may be larger than the memory of the unit."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    for line in lines:
        yield packer.compress(line.encode())
    yield packer.flush()
