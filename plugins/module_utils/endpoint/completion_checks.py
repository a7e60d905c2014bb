# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of one completion: token counts, harmony, text, reasoning, time to first token, workers."""

from __future__ import annotations

import re

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check
from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.expectation import Expectation
from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.hints import (
    HINT_ADDRESS,
    HINT_AGGREGATED,
    HINT_IMAGE,
    HINT_MAX_TOKENS,
    HINT_PARSERS,
    HINT_RAW,
    HINT_RECIPE,
    HINT_WORKER_IDS,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.openai_completion import Completion

# Harmony tokens between the channels of gpt-oss, or the text without them. Images before 1.1 have them in the content,
# and later ones when parsing falls back to raw text (TensorRT-LLM issues 9188, 9256).
RAW_HARMONY = re.compile(
    r"<\|(?:start|end|message|channel|constrain|return|call)\|>|\Aanalysis[A-Z]|\Aanalysis.*?assistantfinal", re.DOTALL
)


def completion_checks(wanted: Expectation, done: Completion) -> list[Check]:
    """Return the checks of the sample completion itself, in order."""
    out_of_tokens = done.finish_reason == "length" and not done.text
    checks = [_usage(done)]
    if wanted.harmony:
        raw = RAW_HARMONY.search(done.text)
        hint = HINT_PARSERS if wanted.dynamo else HINT_RAW
        checks.append(_check("harmony", raw is None, quote(done.text), "content without harmony tokens", hint))
    if wanted.expected_text:
        found = re.search(wanted.expected_text, done.text)
        hint = HINT_MAX_TOKENS if out_of_tokens else "Check prompt and expected_text, then the weights and the recipe"
        checks.append(
            _check("expected_text", bool(found), quote(done.text), f"text matching {wanted.expected_text!r}", hint)
        )
    if wanted.reasoning:
        observed = f"{len(done.reasoning)} characters of reasoning, {len(done.text)} of content"
        hint = HINT_MAX_TOKENS if out_of_tokens else parser_hint(wanted)
        checks.append(_check("reasoning", bool(done.reasoning and done.text), observed, "both, separated", hint))
    if wanted.max_ttft is not None:
        expected = f"at most {wanted.max_ttft:g} s"
        if done.ttft is None:
            checks.append(Check("time_to_first_token", "unknown", "an answer in one piece", expected, HINT_ADDRESS))
        else:
            fast = done.ttft <= wanted.max_ttft
            checks.append(_check("time_to_first_token", fast, f"{done.ttft:.3f} s", expected, HINT_RECIPE))
    if wanted.disaggregated_by_ids:
        checks.append(_disaggregated(done))
    return checks


def _disaggregated(done: Completion) -> Check:
    expected = "prefill and decode by different workers"
    prefill, decode = (done.workers.get(role) for role in ("prefill", "decode"))
    if not done.workers:
        return Check("disaggregated", "unknown", "an answer without worker ids", expected, HINT_WORKER_IDS)
    observed = f"prefill by {prefill or 'no worker'}, decode by {decode or 'no worker'}"
    return _check("disaggregated", bool(prefill and decode and prefill != decode), observed, expected, HINT_AGGREGATED)


def _usage(done: Completion) -> Check:
    expected = "prompt and completion tokens above 0 that add up to the total"
    if done.usage is None:
        return Check("usage", "unknown", "an answer without token counts", expected, HINT_ADDRESS)
    prompt, completion, total = (done.usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total"))
    good = prompt > 0 and completion > 0 and prompt + completion == total
    return _check("usage", good, f"{prompt} + {completion} = {total}", expected, HINT_ADDRESS)


def parser_hint(wanted: Expectation) -> str:
    """Return the hint for an answer that was not parsed."""
    return HINT_PARSERS if wanted.dynamo else HINT_IMAGE


def _check(id: str, good: bool, observed: str, expected: str, hint: str) -> Check:
    return Check(id, "pass" if good else "fail", observed, expected, "" if good else hint)


def quote(text: str) -> str:
    """Return a text on one line, in quotes and shortened."""
    text = " ".join(text.split())
    return f'"{text[:200]}…"' if len(text) > 200 else f'"{text}"' if text else "no content"
