# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a gateway costs: the same request sent to the instances directly and through the gateway, in turns, in one run.

Needs GPU hosts of the lab behind a gateway, all otherwise idle: docs/benchmarks.md says how. The last line is one JSON
object; the exit status is 1 if ``added_ms_p50``, the median through the gateway less that without it, is 1 ms or more.
"""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
import statistics
import subprocess
import time
from urllib.parse import urlsplit

BODY = {"prompt": "a", "max_tokens": 1}
MODEL = "gpt-oss-120b"
# Of inventory/local, which is no secret.
KEY = "lab-key-0123456789abcdef"
HIGHEST_ADDED = 1.0  # milliseconds


class Client:
    """One user, who keeps the connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "https":
            # The gateway's own certificate: what is measured is not who signed it.
            context = ssl._create_unverified_context()
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(parts.netloc, context=context)
        else:
            self._connection = http.client.HTTPConnection(parts.netloc)
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        self._body = json.dumps({**BODY, "model": MODEL})

    def ask(self) -> float:
        """Milliseconds until a completion is whole. Raises RuntimeError for any other answer than 200."""
        began = time.perf_counter()
        self._connection.request("POST", "/v1/completions", self._body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"HTTP {answer.status}: {text[:200]!r}")
        return 1000 * (time.perf_counter() - began)


def address(host: str) -> str:
    """The address of a host of the lab."""
    form = "{{range .NetworkSettings.Networks}}{{.IPAMConfig.IPv4Address}}{{end}}"
    command = ["docker", "inspect", "--format", form, host]
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", nargs="+", default=["gpu1", "gpu2"], help="GPU hosts of the lab")
    parser.add_argument("--gateway", default="gpu3", help="gateway of the lab")
    parser.add_argument("--requests", type=int, default=1000, help="of each kind")
    given = parser.parse_args()
    direct = [Client(f"http://{address(name)}:8000") for name in given.hosts]
    gateway = Client(f"https://{address(given.gateway)}")
    for client in (*direct, gateway) * 20:  # warm up
        client.ask()
    without, through = [], []
    for turn in range(given.requests):
        without.append(direct[turn % len(direct)].ask())
        through.append(gateway.ask())
    figures = {
        "requests": given.requests,
        "direct_ms_p50": statistics.median(without),
        "gateway_ms_p50": statistics.median(through),
        "added_ms_p50": statistics.median(through) - statistics.median(without),
        "direct_ms_p99": statistics.quantiles(without, n=100)[98],
        "gateway_ms_p99": statistics.quantiles(through, n=100)[98],
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    raise SystemExit(figures["added_ms_p50"] >= HIGHEST_ADDED)
