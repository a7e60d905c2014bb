# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is compared of two answers to the same request: that of an instance in service, and that of a canary.

Only numbers and names of defects are kept of an answer, never a part of its text.
"""

from __future__ import annotations

import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.completion_checks import RAW_HARMONY
from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import EndpointError, parse_object
from ansible_collections.trtllm.fleet.plugins.module_utils.openai_completion import Completion, events

CACHED = re.compile(rb'"cached_tokens": ?(\d+)')
# Paths whose answers are understood.
PATHS = ("/v1/chat/completions", "/v1/completions")
# Characters of a text without which its likelihood says nothing.
SHORTEST = 24
# A text is garbage if its likelihood is so many bits a character below the lowest of those in service, or if it
# compresses so many times better, as a text does that repeats itself.
MARGIN_BITS = 1.0
MARGIN_REPEATED = 2.0
# Texts in service from which the limits of garbage are learned at least.
LEARNED = 20
REPEATED_BYTES = 200  # a text must be so long to be taken for one that repeats itself


@dataclass(frozen=True)
class Answer:
    """An answer as it arrived. Times in milliseconds from the request to the first byte of the body, and to the end."""

    status: int
    streamed: bool
    body: bytes
    first_ms: float
    total_ms: float


@dataclass(frozen=True)
class Facts:
    """What is kept of an answer.

    Attributes:
        defects: Names of what is wrong with it by itself: status, broken, harmony, tool_call, empty.
        model: The model id in it.
        finish: The finish reason.
        tokens: Tokens of the answer; 0 if it does not say them.
        cached_tokens: Tokens of its prompt that were in the KV cache.
        first_ms: Milliseconds until the first byte of its body.
        token_ms: Milliseconds for each further token of a stream; 0 if unknown.
        text: Its text, only until ``Texts`` has seen it.
    """

    defects: tuple[str, ...]
    model: str = ""
    finish: str = ""
    tokens: int = 0
    cached_tokens: int = 0
    first_ms: float = 0.0
    token_ms: float = 0.0
    text: str = field(default="", repr=False)


def facts(request: Mapping[str, Any], answer: Answer) -> Facts:
    """Return the facts of an answer to a request."""
    if answer.status != 200:
        return Facts(("status",), finish=str(answer.status))
    done, model = Completion("chat"), ""
    try:
        parts = events(io.BytesIO(answer.body)) if answer.streamed else (answer.body,)
        for part in parts:
            if part == b"[DONE]":
                break
            found = parse_object(part)
            model = str(found.get("model") or model)
            done.absorb_choices(found)
    except (EndpointError, AttributeError, LookupError, TypeError, ValueError):
        return Facts(("broken",))
    defects = []
    if not done.finish_reason:
        defects.append("broken")
    if RAW_HARMONY.search(done.text):
        defects.append("harmony")
    if not tool_calls_are_good(done.tool_calls, request):
        defects.append("tool_call")
    if not (done.text or done.reasoning or done.tool_calls):
        defects.append("empty")
    tokens = int((done.usage or {}).get("completion_tokens", 0))
    spent = answer.total_ms - answer.first_ms
    token_ms = spent / (tokens - 1) if answer.streamed and tokens > 1 else 0.0
    text = done.reasoning + done.text
    cached = [int(number) for number in CACHED.findall(answer.body)]
    return Facts(
        tuple(defects), model, done.finish_reason, tokens, max(cached, default=0), answer.first_ms, token_ms, text
    )


def tool_calls_are_good(calls: Iterable[Mapping[str, Any]], request: Mapping[str, Any]) -> bool:
    """Return True if each call of an answer names a tool of the request, with a JSON object as its arguments."""
    offered = {
        (tool.get("function") or {}).get("name") for tool in request.get("tools") or [] if isinstance(tool, dict)
    }
    whole: dict[Any, list[str]] = {}
    for number, call in enumerate(calls):
        function = call.get("function") or {}
        # The parts of a streamed call have its index.
        parts = whole.setdefault(call.get("index", number), ["", ""])
        parts[0] += function.get("name") or ""
        parts[1] += function.get("arguments") or ""
    for name, arguments in whole.values():
        try:
            good = isinstance(json.loads(arguments or "{}"), dict)
        except ValueError:
            good = False
        if not good or name not in offered:
            return False
    return True


class Texts:
    """What texts in service look like: pairs of characters, whose likelihood tells garbage in any language.

    Only counts are kept, no text.
    """

    def __init__(self) -> None:
        self._pairs: Counter[str] = Counter()
        self._firsts: Counter[str] = Counter()

    def learn(self, text: str) -> None:
        """Add a text in service."""
        self._pairs.update(map("".join, zip(text, text[1:])))
        self._firsts.update(text[:-1])

    def likelihood(self, text: str) -> float | None:
        """Return the mean of log2 of the probabilities of its characters, each after the one before; None if short."""
        if len(text) < SHORTEST:
            return None
        kinds = len(self._firsts) + 1
        pairs = zip(text, text[1:])
        bits = (math.log2((self._pairs[one + two] + 1) / (self._firsts[one] + kinds)) for one, two in pairs)
        return sum(bits) / (len(text) - 1)


def density(text: str) -> float | None:
    """Return the compressed bytes for each byte of a text; None if it is short."""
    content = text.encode(errors="replace")
    return len(zlib.compress(content)) / len(content) if len(content) >= REPEATED_BYTES else None


Likeness = tuple[Optional[float], Optional[float]]  # likelihood and density


def garbage_limits(serving: Sequence[Likeness]) -> Likeness:
    """Return likelihood and density below which a text is far from those in service; None without enough of these."""
    likelihoods = [one[0] for one in serving if one[0] is not None]
    densities = [one[1] for one in serving if one[1] is not None]
    return (
        min(likelihoods) - MARGIN_BITS if len(likelihoods) >= LEARNED else None,
        min(densities) / MARGIN_REPEATED if len(densities) >= LEARNED else None,
    )


def is_garbage(values: Likeness, limits: Likeness) -> bool:
    """Return True if likelihood or density of a text is below its limit."""
    return any(value is not None and limit is not None and value < limit for value, limit in zip(values, limits))
