# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure when the tokens of a stream arrive, over HTTP/1.1 and HTTP/2, with curl."""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

# Options of curl, and its report.
VERSIONS = {"http1": "--http1.1", "http2": "--http2"}
PROTOCOLS = {"http1": "HTTP/1.1", "http2": "HTTP/2"}


@dataclass(frozen=True)
class TokenTimes:
    """Times of one stream in milliseconds: from the request to the first token, and between one token and the next."""

    first: float
    gaps: Sequence[float]


def token_times(url: str, version: str, body: Mapping[str, object], headers: Mapping[str, str]) -> TokenTimes:
    """Measure one stream; tokens in one read have a gap of 0.

    Raises:
        RuntimeError: The stream is incomplete.
    """
    command = ["curl", "--silent", "--show-error", "--fail", "--insecure", "--no-buffer", VERSIONS[version], url]
    command += ["--data", json.dumps(body), "--max-time", "60"]
    for name, value in headers.items():
        command += ["--header", f"{name}: {value}"]
    # curl reports the start of the request: its process start and handshakes are excluded.
    command.append("--verbose")
    arrivals: list[float] = []
    rest = b""
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
        ThreadPoolExecutor(1) as threads,
    ):
        assert process.stdout
        assert process.stderr
        reading = threads.submit(lambda lines: [(time.monotonic(), line.decode()) for line in lines], process.stderr)
        while part := os.read(process.stdout.fileno(), 65536):
            now = time.monotonic()
            *events, rest = (rest + part).split(b"\n\n")
            arrivals += [now] * sum(b'"content"' in event for event in events)
        report = reading.result()
    text = "".join(line for _moment, line in report)
    if process.returncode or len(arrivals) != body["max_tokens"]:
        raise RuntimeError(f"{url}: {len(arrivals)} of {body['max_tokens']} tokens; curl: {text}")
    sent = [moment for moment, line in report if re.match(rf"> POST \S+ {PROTOCOLS[version]}\s", line)]
    if not sent:
        raise RuntimeError(f"{url}: the request is not {version}; curl: {text}")
    gaps = [1000 * (after - before) for before, after in itertools.pairwise(arrivals)]
    return TokenTimes(1000 * (arrivals[0] - sent[0]), gaps)


def figures(streams: Sequence[TokenTimes]) -> dict[str, float]:
    """Return median and 95th percentile of the first tokens and of the gaps of streams, in milliseconds."""
    found: dict[str, float] = {}
    for name, values in (
        ("first_token", [one.first for one in streams]),
        ("gap", [gap for one in streams for gap in one.gaps]),
    ):
        found[f"{name}_ms_p50"] = statistics.median(values)
        found[f"{name}_ms_p95"] = statistics.quantiles(values, n=20, method="inclusive")[18]
    return found
