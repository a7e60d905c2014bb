# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The usage of a gateway as metrics."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.trtllm.fleet.plugins.module_utils.exposition import Sample, exposition
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage import Sums

HELP: Mapping[str, str] = {
    "fleet_usage_last_run_timestamp_seconds": "Time at which the gateway's requests were last accounted for.",
    "fleet_usage_dropped_lines_total": "Lines of the access log that HAProxy dropped, whose requests are not counted.",
    "fleet_usage_requests_total": "Requests that instances got, by API key and model.",
    "fleet_usage_failed_requests_total": "Requests that failed by a fault of the instance or gateway.",
    "fleet_usage_estimated_requests_total": "Interrupted requests, whose tokens are estimated.",
    "fleet_usage_tokens_total": "Tokens by kind: prompt, cached (a part of prompt), and completion.",
    "fleet_usage_streams_total": "Streams that had a first token.",
    "fleet_usage_first_token_seconds_total": "Seconds until the first token, over all streams.",
    "fleet_usage_request_seconds_total": "Seconds until the end, over all requests.",
}


def render(sums: Mapping[tuple[str, str], Sums], dropped: int, now: float) -> str:
    """Return the metrics of sums by key and model."""
    samples: list[Sample] = [
        ("fleet_usage_last_run_timestamp_seconds", {}, now),
        ("fleet_usage_dropped_lines_total", {}, dropped),
    ]
    for (key, model), one in sorted(sums.items()):
        labels = {"key": key, "model": model}
        samples += [
            ("fleet_usage_requests_total", labels, one.requests),
            ("fleet_usage_failed_requests_total", labels, one.failed),
            ("fleet_usage_estimated_requests_total", labels, one.estimated),
            ("fleet_usage_tokens_total", {**labels, "kind": "prompt"}, one.prompt_tokens),
            ("fleet_usage_tokens_total", {**labels, "kind": "cached"}, one.cached_tokens),
            ("fleet_usage_tokens_total", {**labels, "kind": "completion"}, one.completion_tokens),
            ("fleet_usage_streams_total", labels, one.streams),
            ("fleet_usage_first_token_seconds_total", labels, one.first_token_ms / 1000),
            ("fleet_usage_request_seconds_total", labels, one.total_ms / 1000),
        ]
    return exposition(HELP, samples)
