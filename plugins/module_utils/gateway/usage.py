# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The usage of a gateway by API key and model: records of requests from its access log, their sums, and quotas.

A record is a JSON object on a line of the file of its day (UTC). It has no part of a prompt or an answer.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.access_log import FAULTS, NO_KEY

MINUTE = 60.0
DAY = 86400  # seconds
CLOCK = 1.0  # seconds by which a log may be ahead
# Of an answer whose usage the engine did not say, until exact ones are known: tokens for each byte of English text, and
# for each event of a stream.
PER_BYTE = 0.25
PER_EVENT = 1.0
# The context of gpt-oss, in tokens. Pictures have far more bytes than tokens.
LONGEST_PROMPT = 131072
RESPONSES = "/v1/responses"
# HAProxy's name of an instance for a request that none got.
NOBODY = "<NOSRV>"
# Exact requests that an estimate is learned from; older ones count less.
LEARNED = 1000.0
# The end of a request that was open when its gateway was killed.
KILLED = "killed"
UNKNOWN = "-"
# HAProxy 8.5, session state at disconnection: who interrupted a request, and when, before the instance got it.
INTERRUPTED = ("C", "S", "s", "D", KILLED[:1])
NOT_SENT = ("Q", "C")


class Entry:
    """What a line of a file of records has, whatever it is."""

    ended: float  # seconds since 1970

    @property
    def day(self) -> str:
        """Day of the end in UTC, as 2026-11-27."""
        return day_of(self.ended)

    def line(self) -> str:
        """Return the line of the file."""
        return json.dumps(vars(self), separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class Record(Entry):
    """A request that an instance got. Times in milliseconds; ``ended``: seconds since 1970.

    ``end``: HAProxy's termination state, or KILLED. ``estimated``: the engine did not say the tokens, because the
    answer was interrupted. ``first_token_ms``: -1 without an answer.
    """

    id: str
    ended: float
    key: str
    model: str
    instance: str
    status: int
    end: str
    streamed: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    estimated: bool
    first_token_ms: int
    total_ms: int

    @property
    def tokens(self) -> int:
        """Tokens that a quota counts."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Loss(Entry):
    """Lines of the access log that HAProxy dropped until a time, in seconds since 1970."""

    ended: float
    lost_lines: int


def day_of(moment: float) -> str:
    """Return the day of a time in UTC, as 2026-11-27."""
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def read_entries(lines: Iterable[str]) -> Iterator[Record | Loss]:
    """Yield the records and losses of lines. Other lines, and one that was cut off, are skipped."""
    for line in lines:
        try:
            found = json.loads(line)
            yield Loss(**found) if "lost_lines" in found else Record(**found)
        except (ValueError, TypeError):
            continue


@dataclass
class Ratio:
    """A quotient of sums, of which recent summands count more."""

    start: float
    above: float = 0.0
    below: float = 0.0

    def learn(self, above: float, below: float) -> None:
        """Add a pair."""
        keep = 1 - 1 / LEARNED
        self.above, self.below = self.above * keep + above, self.below * keep + below

    @property
    def value(self) -> float:
        """The quotient; the start value without a pair."""
        return self.above / self.below if self.below else self.start


class Estimates:
    """Tokens of interrupted answers, from the exact ones of the same key and model.

    Of the key, so that no key can change what another is billed. Requests of /v1/responses are not learned from: one
    may continue an answer that the instance has stored, and is then much shorter than its prompt.
    """

    def __init__(self) -> None:
        self._prompt: dict[str, Ratio] = {}
        self._event: dict[str, Ratio] = {}

    def tokens(self, line: Mapping[str, Any]) -> tuple[int, int, int, bool]:
        """Return tokens of prompt, cache and answer of a line of the access log, and whether they are estimated."""
        prompt, cached, completion, events = (str(line.get("usage") or "").split() + [UNKNOWN] * 4)[:4]
        name, size = f"{line.get('key')} {line['model']}", max(0, int(line.get("bytes_in", 0)))
        per_byte = self._prompt.setdefault(name, Ratio(PER_BYTE))
        per_event = self._event.setdefault(name, Ratio(PER_EVENT))
        number = int(events) if events.isdigit() else 0
        if prompt.isdigit() and completion.isdigit():
            if str(line.get("path", "")) != RESPONSES:
                per_byte.learn(int(prompt), size)
            if number:
                per_event.learn(int(completion), number)
            return int(prompt), int(cached) if cached.isdigit() else 0, int(completion), False
        if not answered(line):
            return 0, 0, 0, False
        tokens = min(round(size * min(per_byte.value, 1.0)), LONGEST_PROMPT)
        if line.get("streamed") != "yes":
            # An answer in one piece, without the usage that it should have, is not free.
            written = max(0, int(line.get("bytes_out", 0))) if str(line.get("end", "-"))[:1] == "-" else 0
            return tokens, 0, round(written * PER_BYTE), True
        # The first event of a stream has the role, and each other at least one token.
        return tokens, 0, max(number - 1, round(number * per_event.value)), True

    def save(self) -> dict[str, dict[str, list[float]]]:
        """Return what was learned, for ``load``."""
        return {
            name: {model: [ratio.above, ratio.below] for model, ratio in sorted(ratios.items())}
            for name, ratios in (("prompt", self._prompt), ("event", self._event))
        }

    def load(self, saved: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """Take over what was learned before."""
        for name, ratios, start in (("prompt", self._prompt, PER_BYTE), ("event", self._event, PER_EVENT)):
            for model, (above, below) in saved.get(name, {}).items():
                ratios[model] = Ratio(start, above, below)


def answered(line: Mapping[str, Any]) -> bool:
    """Return True if the instance may have worked for a request: it got it, and did not reject it."""
    end = str(line.get("end", "-"))
    # HAProxy names the instance that it could not connect to, too.
    got = str(line.get("instance", "")) not in ("", "<NOSRV>", UNKNOWN) and end[1:2] not in NOT_SENT
    status = int(line.get("status", 0))
    # An instance that fails, or does not answer in time, is not billed.
    return got and (status == 200 or (status < 500 and end[:1] in INTERRUPTED))


def record_of(line: Mapping[str, Any], ended: float, estimates: Estimates) -> Record | None:
    """Return the record of a line of the access log; None for a request without a model, which no instance got."""
    model = str(line.get("model") or UNKNOWN)
    if model == UNKNOWN or "usage" not in line or line.get("instance") == NOBODY:
        return None
    prompt, cached, completion, estimated = estimates.tokens(line)
    key = str(line.get("key") or "")
    return Record(
        id=str(line["id"]),
        ended=round(ended, 3),
        key="" if key in NO_KEY else key,
        model=model,
        instance=str(line.get("instance", "")),
        status=int(line.get("status", 0)),
        end=str(line.get("end", "")),
        streamed=line.get("streamed") == "yes",
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        estimated=estimated,
        first_token_ms=int(line.get("first_token_ms") or -1) if line.get("first_token_ms") != UNKNOWN else -1,
        total_ms=int(line.get("total_ms", 0)),
    )


@dataclass
class Sums:
    """Sums over the requests of one key and model. Times in milliseconds; those to the first token of streams only."""

    requests: int = 0
    failed: int = 0
    estimated: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    streams: int = 0
    first_token_ms: int = 0
    total_ms: int = 0

    def add(self, record: Record) -> None:
        """Add a request."""
        self.requests += 1
        interrupted = record.end == KILLED or (record.status == 200 and record.end[:1] in FAULTS)
        self.failed += record.status >= 500 or interrupted
        self.estimated += record.estimated
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        self.completion_tokens += record.completion_tokens
        self.total_ms += record.total_ms
        if record.streamed and record.first_token_ms >= 0:
            self.streams += 1
            self.first_token_ms += record.first_token_ms

    def merge(self, other: Mapping[str, int]) -> None:
        """Add the sums of other requests, as those of another gateway."""
        for name, value in other.items():
            setattr(self, name, getattr(self, name) + value)


def sum_up(entries: Iterable[Record | Loss]) -> tuple[dict[tuple[str, str], Sums], int]:
    """Return the sums of records by key and model, and the lines that were lost."""
    found: dict[tuple[str, str], Sums] = {}
    lost = 0
    for entry in entries:
        if isinstance(entry, Loss):
            lost += entry.lost_lines
        else:
            found.setdefault((entry.key, entry.model), Sums()).add(entry)
    return found, lost


@dataclass
class Meter:
    """The tokens of one key: of the last minute, and of the day (UTC)."""

    recent: deque[tuple[float, int]] = field(default_factory=deque)
    day: str = ""
    day_tokens: int = 0

    def add(self, moment: float, tokens: int) -> None:
        """Count tokens of a request that ended at a time."""
        self.add_recent(moment, tokens)
        if day_of(moment) > self.day:
            self.day, self.day_tokens = day_of(moment), 0
        if day_of(moment) == self.day:
            self.day_tokens += tokens

    def add_recent(self, moment: float, tokens: int) -> None:
        """Count tokens that the day has already."""
        self.recent.append((moment, tokens))
        self._forget(moment)

    def minute(self, now: float) -> int:
        """Return the tokens of the last minute."""
        self._forget(now)
        return sum(tokens for _moment, tokens in self.recent)

    def today(self, now: float) -> int:
        """Return the tokens of this day."""
        return self.day_tokens if self.day == day_of(now) else 0

    def free_at(self, now: float, excess: int) -> int:
        """Return when more than ``excess`` tokens are older than a minute; in a minute if there are fewer.

        In seconds since 1970.
        """
        for moment, tokens in self.recent:
            excess -= tokens
            if excess < 0:
                return math.ceil(max(moment + MINUTE, now))
        return math.ceil(now + MINUTE)

    def _forget(self, now: float) -> None:
        # After a step of the clock there may be later ones.
        if self.recent and not now - MINUTE < self.recent[0][0] <= self.recent[-1][0] <= now + CLOCK:
            self.recent = deque(one for one in self.recent if now - MINUTE < one[0] <= now + CLOCK)
