# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the benefit of ``gateway_affinity`` for conversations about long documents.

Each turn sends the whole conversation again; the instance of the previous turn has most of it in its cache. Each
value of ``gateway_affinity`` has a separate HAProxy on the gateway's host with the configuration of role gateway. Needs
idle GPU hosts of the lab behind a gateway: see docs/test-results/benchmarks.md.

The last line is one JSON object. The exit status is 1 if the median time to the first token with ``session`` or
``prefix`` exceeds that with ``none``.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tools.bench.gateway import HEADERS, MODEL, ROOT, Client, address, altered, elsewhere, output, proxy

ROLE = Path(__file__).parents[2] / "roles/gateway"
WAYS = ("none", "session", "prefix")
PORT = 9451  # of the first HAProxy; the others and their metrics follow
WORDS = 1500  # of a document: 13 kB, 13,000 tokens; recipes take prompts of 16,384
TURNS = 5
ROUNDS = 4
THINKING = (0.2, 0.6)  # seconds between an answer and the next question


@dataclass(frozen=True)
class Turn:
    """``first_ms``: time to the first token. ``moved``: True if the instance differs from the previous turn's."""

    first_ms: float
    moved: bool


class User(Client):
    """Client that holds conversations."""

    def converse(self, name: str | None) -> list[Turn]:
        """Return the results of all turns but the first, which no instance has cached.

        Raises:
            RuntimeError: A response failed.
        """
        document = " ".join(f"{random.getrandbits(32):x}" for _word in range(WORDS))
        messages = [{"role": "system", "content": document}]
        turns, before = [], ""
        for number in range(TURNS):
            messages.append({"role": "user", "content": f"Question {number}?"})
            first, instance, said = self.say(messages, {"X-Session-Id": name} if name else {})
            if number:
                turns.append(Turn(first, instance != before))
            before = instance
            messages.append({"role": "assistant", "content": said})
            time.sleep(random.uniform(*THINKING))
        return turns

    def say(self, messages: list[dict[str, str]], headers: dict[str, str]) -> tuple[float, str, str]:
        """Return milliseconds to the first token, the instance, and the whole response."""
        body = json.dumps({"messages": messages, "model": MODEL, "max_tokens": 16, "stream": True})
        began, first, said = time.perf_counter(), 0.0, ""
        self._connection.request("POST", "/v1/chat/completions", body, HEADERS | headers)
        answer = self._connection.getresponse()
        for line in answer:
            first = first or 1000 * (time.perf_counter() - began)
            if line.startswith(b'data: {"'):
                said += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        if answer.status != 200 or not said:
            raise RuntimeError(f"HTTP {answer.status} and {said[:200]!r}")
        return first, answer.headers["X-Instance"], said


def head(gateway: str, way: str) -> str:
    """Return the configuration without instances, from the role's template for a host of the lab."""
    path = f"/run/bench-{way}.head"
    given = [
        f"@{ROLE}/defaults/main.yml",
        f"@{ROLE}/vars/main.yml",
        f"gateway_affinity={way}",
        f"gateway_name={address(gateway)}",
    ]
    # The template searches the role's files below the playbook's directory.
    command = ["ansible", "-i", "inventory/local", "--become", "--playbook-dir", str(ROLE)]
    command += ["-m", "ansible.builtin.template", "-a", f"src={ROLE}/templates/head.cfg.j2 dest={path} mode=0600"]
    subprocess.run(
        [*command, *(part for one in given for part in ("-e", one)), gateway], stdout=subprocess.DEVNULL, check=True
    )
    return output("docker", "exec", gateway, "sh", "-c", f"cat {path}; rm {path}") + "\n"


def configuration(text: str, servers: str, port: int) -> str:
    """Return a gateway's configuration with the instance in a header, and without checks, which use CPU time."""
    changes = {
        r"^  default_backend": "  http-response set-header X-Instance %s\n  default_backend",
        r"^  default-server check .*\n": "",
    }
    return altered(elsewhere(text, port, port + len(WAYS)), changes) + servers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", default="gpu3", help="gateway of the lab (default: gpu3)")
    parser.add_argument("--users", type=int, default=8, help="concurrent conversations (default: 8)")
    given = parser.parse_args()
    running = output("docker", "exec", given.gateway, "cat", f"{ROOT}/haproxy.cfg") + "\n"
    servers = "".join(re.findall(r"^  server .* maxconn .*\n", running, flags=re.MULTILINE))
    ports = {way: PORT + number for number, way in enumerate(WAYS)}
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        for way, port in ports.items():
            text = configuration(head(given.gateway, way), servers, port)
            stack.enter_context(proxy(given.gateway, f"bench-{way}", text))
        threads = stack.enter_context(ThreadPoolExecutor(given.users))
        for number in range(ROUNDS):
            for way, port in ports.items():
                url = f"https://{address(given.gateway)}:{port}"
                names = [f"{number}-{user}" if way == "session" else None for user in range(given.users)]
                asking = [threads.submit(User(url).converse, name) for name in names]
                turns[way] += [turn for one in asking for turn in one.result()]
    figures: dict[str, float] = {"users": given.users, "instances": servers.count("\n"), "turns": len(turns["none"])}
    for way, found in turns.items():
        quantiles = statistics.quantiles((turn.first_ms for turn in found), n=20)
        figures |= {f"{way}_first_ms_p50": quantiles[9], f"{way}_first_ms_p95": quantiles[18]}
        figures[f"{way}_moved"] = statistics.mean(turn.moved for turn in found)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    raise SystemExit(
        max(figures["session_first_ms_p50"], figures["prefix_first_ms_p50"]) > figures["none_first_ms_p50"]
    )
