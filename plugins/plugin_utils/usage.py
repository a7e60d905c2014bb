# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The usage of all gateways by API key and model, as data and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage import Sums
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status_text import aligned

Tree = Mapping[str, Any]

HEADER = ("key", "model", "requests", "failed", "prompt", "cached", "completion", "first token", "time", "estimated")
NAMES = 2  # columns of text
COUNTS = tuple(asdict(Sums()))
KINDS = {"prompt": "prompt_tokens", "completion": "completion_tokens"}


def report(gateways: Mapping[str, Tree], series: Mapping[str, Sequence[Tree]] | None = None) -> dict[str, Any]:
    """Return the sums of all gateways (``usage``), what is missing (``problems``), and a table (``text``).

    ``complete`` is false if a gateway did not answer or dropped lines of its log.

    Args:
        gateways: Result of module gateway_usage_info by gateway.
        series: Tokens that the engines counted in the same span: series of module monitoring_info, ``prompt`` and
            ``completion``, with the model as their label.
    """
    sums: dict[tuple[str, str], Sums] = {}
    problems, notes = [], []
    for name, result in gateways.items():
        if "usage" not in result:
            reason = str(result.get("msg", "it did not answer"))
            problems.append(f"The requests of {name} are missing: {reason}")
            continue
        for row in result["usage"]:
            sums.setdefault((row["key"], row["model"]), Sums()).merge({field: row[field] for field in COUNTS})
        if result["lost_lines"]:
            problems.append(
                f"HAProxy on {name} dropped {result['lost_lines']:,} lines of its log, whose requests are missing."
            )
        if result["oldest"] and _day(result["begin"]) < result["oldest"]:
            notes.append(f"The records of {name} begin on {result['oldest']}.")
    usage = [
        {"key": key, "model": model, **{field: getattr(one, field) for field in COUNTS}}
        for (key, model), one in sorted(sums.items())
    ]
    engines = list(_engines(series or {}))
    notes += _checks(usage, engines)
    text = "\n".join([*_table(usage), *(f"\n{line}" for line in (*notes, *problems))])
    return {"usage": usage, "engines": engines, "problems": problems, "complete": not problems, "text": text}


def _engines(series: Mapping[str, Sequence[Tree]]) -> Iterator[dict[str, Any]]:
    """Yield the tokens that the engines counted, by kind and model."""
    for kind in KINDS:
        for line in series.get(kind, []):
            yield {"kind": kind, "model": line["legend"], "tokens": line["points"][-1][1]}


def _table(usage: Sequence[Tree]) -> list[str]:
    rows = [HEADER, *(_row(one["key"] or "-", one["model"], one) for one in usage)]
    if len(usage) > 1:
        total = {field: sum(one[field] for one in usage) for field in COUNTS}
        rows.append(_row("total", "", total))
    return aligned(rows, NAMES)


def _row(key: str, model: str, one: Tree) -> tuple[str, ...]:
    return (
        key,
        model,
        *(f"{one[field]:,}" for field in ("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens")),
        f"{one['first_token_ms'] / one['streams']:,.0f} ms" if one["streams"] else "-",
        f"{one['total_ms'] / one['requests'] / 1000:,.2f} s" if one["requests"] else "-",
        f"{one['estimated']:,}",
    )


def _checks(usage: Sequence[Tree], engines: Sequence[Tree]) -> Iterator[str]:
    """Yield a line for each model and kind of tokens that the engines counted."""
    for one in engines:
        own = sum(row[KINDS[one["kind"]]] for row in usage if row["model"] == one["model"])
        share = f", {own / one['tokens']:.1%} of them" if one["tokens"] else ""
        counted = f"the engines counted {one['tokens']:,.0f} tokens of {one['kind']}s"
        yield f"{one['model']}: {counted}, the gateways {own:,}{share}."


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).date().isoformat()
