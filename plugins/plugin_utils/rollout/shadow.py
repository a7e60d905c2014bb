# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge a canary by its answers to copies of live requests, beside the answers that clients got.

Each pair of answers is to the same request, so pairs are compared, and only pairs that differ count: under the
hypothesis that the canary is as good as the others, either answer of such a pair is the worse one with probability 1/2
(sign test; for defects McNemar's exact test).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Pair = Mapping[str, Any]

# Probability of a false alarm of one test. There are about ten, so one good release in a hundred is stopped.
ALPHA = 0.001
# Answers may be so many times as long, at the median, before lengths count as different.
LENGTH_RATIO = 1.25
# The canary's times are measured by another program than the others', on a busy gateway.
SLACK_MS = 50.0
WORDS = {
    "status": "have an HTTP status other than 200",
    "broken": "are not whole",
    "empty": "are empty",
    "harmony": "have harmony tokens in their text",
    "tool_call": "have a malformed tool call",
    "model": "have another model id",
    "garbage": "are garbage",
}


def tail(hits: int, trials: int) -> float:
    """Return the probability of ``hits`` or more in ``trials`` of probability 1/2."""
    return sum(math.comb(trials, number) for number in range(hits, trials + 1)) / 2**trials if trials else 1.0


def verdict(results: Sequence[Mapping[str, Any]], min_requests: int, max_ratio: float) -> dict[str, Any]:
    """Return ``problems``, the number of ``pairs``, and all of it as ``text``.

    Args:
        results: Results of module gateway_shadow, one for each gateway.
        min_requests: Number of pairs without which a canary is not found good.
        max_ratio: See ``shadow_problems``.
    """
    pairs = [pair for result in results for pair in result["pairs"]]
    dropped = sum(result["dropped"] for result in results)
    compared = f"{len(pairs)} copies of live requests" + (f" ({dropped} more were dropped)" if dropped else "")
    # A few pairs suffice to find a canary worse, as the tests take their number into account, but not to find it good.
    problems = shadow_problems(pairs, max_ratio)
    if dropped > len(pairs):
        problems.append("it was too slow for most of them; with a smaller rollout_shadow_share it gets fewer")
    if problems:
        text = f"The canary does worse than the others on {compared}: {'; '.join(problems)}"
    elif len(pairs) < min_requests:
        few = f"rollout_shadow_min_requests asks for {min_requests}, so there is no verdict"
        text = f"The canary answered {compared}; {few}."
    else:
        text = f"The canary answered {compared} as well as the others."
    return {"problems": problems, "pairs": len(pairs), "text": text}


def shadow_problems(pairs: Sequence[Pair], max_ratio: float) -> list[str]:
    """Return in what a canary is worse; empty if it is not.

    Args:
        pairs: Facts of two answers to one request, ``canary`` and ``serving``, of module gateway_shadow.
        max_ratio: How many times as long the first byte or a further token of an answer may take.
    """
    return [*_defects(pairs), *_finish(pairs), *_lengths(pairs), *_times(pairs, max_ratio)]


def _defects(pairs: Sequence[Pair]) -> Iterator[str]:
    only: dict[str, list[int]] = {}
    for pair in pairs:
        ours, theirs = set(pair["canary"]["defects"]), set(pair["serving"]["defects"])
        for defect in ours ^ theirs:
            only.setdefault(defect, [0, 0])[defect in theirs] += 1
    for defect, (ours_only, theirs_only) in sorted(only.items()):
        chance = tail(ours_only, ours_only + theirs_only)
        if chance < ALPHA:
            yield (
                f"{ours_only} of {len(pairs)} of its answers {WORDS.get(defect, defect)} where those in service do "
                f"not, and {theirs_only} the other way round (p = {chance:.1g})"
            )


def _good(pairs: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in pairs if not pair["canary"]["defects"] and not pair["serving"]["defects"]]


def _finish(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield finish reasons that the canary has more often, or less often, than the others."""
    changed = Counter((pair["serving"]["finish"], pair["canary"]["finish"]) for pair in _good(pairs))
    for reason in sorted({name for names in changed for name in names}):
        more = sum(number for (theirs, ours), number in changed.items() if ours == reason != theirs)
        fewer = sum(number for (theirs, ours), number in changed.items() if theirs == reason != ours)
        chance = tail(max(more, fewer), more + fewer) * 2
        if chance < ALPHA:
            yield (
                f"{more} of {len(pairs)} of its answers, and {fewer} of those in service, have the finish reason "
                f"{reason} where the other has not (p = {chance:.1g})"
            )


def _lengths(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield that answers are shorter or longer."""
    ratios = sorted(
        pair["canary"]["tokens"] / pair["serving"]["tokens"]
        for pair in _good(pairs)
        if pair["canary"]["tokens"] and pair["serving"]["tokens"]
    )
    below, above = sum(ratio < 1 for ratio in ratios), sum(ratio > 1 for ratio in ratios)
    chance = tail(max(below, above), below + above) * 2
    if chance < ALPHA:
        middle = ratios[len(ratios) // 2]
        if not 1 / LENGTH_RATIO <= middle <= LENGTH_RATIO:
            yield (
                f"its answers have {middle:.2f} times the tokens of those in service, at the median (p = {chance:.1g})"
            )


def _as_cold(pair: Pair) -> bool:
    """Return True if the canary had no less of the prompt in its KV cache. It has not seen earlier turns of a chat."""
    return bool(pair["canary"]["cached_tokens"] >= pair["serving"]["cached_tokens"])


def _times(pairs: Sequence[Pair], max_ratio: float) -> Iterator[str]:
    """Yield that most answers take longer than the limit allows."""
    for name, what, slack in (
        ("first_ms", "the first byte of its answers", SLACK_MS),
        ("token_ms", "a further token of its answers", 0.0),
    ):
        times = [
            (pair["canary"][name], pair["serving"][name])
            for pair in _good(pairs)
            if pair["canary"][name] > 0 and pair["serving"][name] > 0 and (name != "first_ms" or _as_cold(pair))
        ]
        slower = sum(ours > theirs * max_ratio + slack for ours, theirs in times)
        chance = tail(slower, len(times))
        if chance < ALPHA:
            middle = statistics.median(ours / theirs for ours, theirs in times)
            yield (
                f"{what} takes {middle:.2f} times as long as in service, at the median of {len(times)}; "
                f"rollout_shadow_max_ratio allows {max_ratio:g} (p = {chance:.1g})"
            )
