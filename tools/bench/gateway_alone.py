# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure what a gateway's configuration costs HAProxy, on this machine alone: no lab, and no other hosts.

Of a request the benchmark measures the time through HAProxies with this configuration, with parts of it, and with TLS
alone, in turns, in front of an instance that answers at once; then of requests with long prompts. Of streams it
measures the chunks that a core forwards, and with many of them at once, the longest time to a first token and the
memory. Needs a copy of a gateway's directory /etc/trtllm-fleet/gateway of the same release with its key, and HAProxy
2.5 or later. The key of inventory/local has to be valid there.

The last line is one JSON object. The exit status is 1 if the gateway adds more than HIGHEST_ABOVE_TLS to a request, or
forwards less than LOWEST_CHUNKS_SHARE of the chunks without its filter (see tools/bench/gateway.py), or if a stream
takes more than HIGHEST_BUFFERS, or does not with a header removed early, so that the figure shows nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tools.bench import gateway

# Ports: of the instance that answers at once, of the one that streams, and the first of HAProxy, which has two each.
AT_ONCE, FAST, FIRST = 19400, 19401, 19410
ROUNDS = 3
# Streams that begin at once, with tokens of each as fast as they are forwarded.
CROWD_STREAMS, CROWD_TOKENS = 2000, 200
# Of a stream's memory in buffers of gateway_max_body_mib 4, with transparent huge pages off or by madvise. HAProxy
# touches a whole one if a header is removed before the body is complete.
HIGHEST_BUFFERS = 0.1
HOST = "127.0.0.1"
UNIT = Path(__file__).parents[2] / "roles/gateway/templates/trtllm-gateway.service.j2"

# What HAProxy runs with, by name.
WAYS: Mapping[str, Callable[[str], str]] = {
    "gateway": lambda config: config,
    "unfiltered": gateway.without_filter,
    "early": lambda config: gateway.altered(
        config,
        {r"^(  http-request wait-for-body time 30s if completes)$": r"  http-request del-header Content-Type\n\1"},
    ),
    # The gateway opens a connection to the instance for each request; the proxy that only ends TLS keeps it.
    "reused": lambda config: gateway.altered(
        config, {r"^  option http-server-close\n": "", r"^  http-reuse never$": "  http-reuse always"}
    ),
    # As the gateway, without the environment of its unit, which concerns HAProxy with glibc's malloc.
    "bare": lambda config: config,
    "unkept": lambda config: re.sub(r"^  tune.memory.hot-size .*\n", "", config, flags=re.MULTILINE),
}


def alone(config: str, directory: Path, port: int, instance: int) -> str:
    """Return a gateway's configuration with one instance of this machine, for any user and without checks."""
    config = gateway.elsewhere(config, port, port + 1)
    return gateway.altered(
        config.replace(gateway.ROOT, str(directory)),
        {
            r"^  (user|group|log-tag|localpeer) .*\n": "",
            r"/run/bench-": f"{directory}/bench-",
            r" user haproxy mode 600$": "",
            r"^  bind :(\d+) ssl": rf"  bind {HOST}:\1 ssl",
            r"^  server .*\n": "",
            r"^  default-server .*\n": f"  server one {HOST}:{instance} maxconn {CROWD_STREAMS}\n",
        },
    )


def environment() -> dict[str, str]:
    """Return the environment variables that the gateway's unit sets."""
    (line,) = re.findall(r"^Environment=(.*)$", UNIT.read_text(), flags=re.MULTILINE)
    return dict(one.split("=", 1) for one in line.split())


@contextmanager
def haproxy(program: str, path: Path, config: str) -> Iterator[int]:
    """Run HAProxy with the configuration of a way, and return its process ID."""
    path.write_text(config)
    variables = {**os.environ, **(environment() if path.stem in WAYS and path.stem != "bare" else {})}
    process = subprocess.Popen((program, "-q", "-db", "-f", str(path)), env=variables)
    try:
        time.sleep(2)  # time to start listening
        if process.poll() is not None:
            raise RuntimeError(f"{program} -f {path} has ended with {process.returncode}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def instance(port: int, seconds: float) -> Iterator[None]:
    command = (sys.executable, "-c", gateway.INSTANCE.read_text(), str(port), str(seconds))
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.communicate()


def seconds_of(process: int) -> float:
    """Return the CPU seconds of a process so far."""
    return gateway.ticks_of([Path(f"/proc/{process}/stat").read_text()]) / os.sysconf("SC_CLK_TCK")


def chunks(process: int, url: str) -> float:
    """Read streams, and return the chunks that a core of HAProxy forwards in a second.

    Raises:
        RuntimeError: A stream is incomplete.
    """
    before = seconds_of(process)
    read = gateway.read_streams(url)
    if read < gateway.FAST_STREAMS * gateway.FAST_TOKENS:
        raise RuntimeError(f"{url}: {read} chunks of {gateway.FAST_STREAMS * gateway.FAST_TOKENS}")
    return read / (seconds_of(process) - before)


def buffer_bytes(config: str) -> int:
    """Return the size of a buffer of HAProxy."""
    return int(re.findall(r"^  tune\.bufsize (\d+)$", config, flags=re.MULTILINE)[0])


def memory(status: str, name: str) -> int:
    """Return a number of bytes of /proc/PID/status."""
    return 1024 * int(re.findall(rf"^{name}:\s+(\d+) kB$", status, flags=re.MULTILINE)[0])


def crowd(process: int, url: str) -> dict[str, float]:
    """Read many streams at once.

    Return the largest number open at once, the longest time to a first token in s, and the memory of all in bytes.

    Raises:
        RuntimeError: A stream is incomplete.
    """
    status = Path(f"/proc/{process}/status")
    before = memory(status.read_text(), "VmRSS")
    Path(f"/proc/{process}/clear_refs").write_text("5")  # forgets VmHWM
    streams = gateway.Streams(HOST, CROWD_STREAMS, urlsplit(url).port or 443, CROWD_TOKENS)
    asyncio.run(streams.all())
    if streams.wrong:
        raise RuntimeError(f"{url}: {dict(streams.wrong)}")
    taken = memory(status.read_text(), "VmHWM") - before
    return {"open": streams.most, "first_token_s_max": streams.first_token, "bytes": taken}


def configurations(config: str, directory: Path, target: int) -> dict[str, tuple[str, str]]:
    """Return configuration and URL of each way, TLS alone among them."""
    ways = {}
    for number, (name, change) in enumerate(WAYS.items()):
        port = FIRST + 2 * number
        ways[name] = (alone(change(config), directory, port, target), f"https://{HOST}:{port}")
    floors = gateway.floors(config.replace(gateway.ROOT, str(directory)), [f"{HOST}:{target}"])
    return ways | {"tls": (floors, f"https://{HOST}:{gateway.TLS}")}


def measure(program: str, directory: Path, requests: int) -> dict[str, float]:
    config = (directory / "haproxy.cfg").read_text() + "\n"
    with ExitStack() as stack:
        stack.enter_context(instance(AT_ONCE, 0))
        urls = {"direct": f"http://{HOST}:{AT_ONCE}"}
        for name, (text, url) in configurations(config, directory, AT_ONCE).items():
            stack.enter_context(haproxy(program, directory / f"{name}.cfg", text))
            urls[name] = url
        clients = {name: [gateway.Client(url)] for name, url in urls.items()}
        figures = gateway.latency(clients, requests)
        figures |= gateway.long_prompts(urls["direct"], urls["gateway"])
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        stack.enter_context(instance(FAST, gateway.FAST_SECONDS))
        running = {}
        for name, (text, url) in configurations(config, directory, FAST).items():
            process = stack.enter_context(haproxy(program, directory / f"{name}.cfg", gateway.one_thread(text)))
            running[name] = (process, url)
        for _round in range(ROUNDS):
            for name, (process, url) in running.items():
                rates.setdefault(name, []).append(chunks(process, url))
        for name in ("gateway", "early"):
            found = crowd(*running[name])
            figures |= {f"{name}_{key}": found[key] for key in ("open", "first_token_s_max")}
            figures[f"{name}_crowd_mib"] = found["bytes"] / 2**20
            figures[f"{name}_buffers_per_stream"] = found["bytes"] / CROWD_STREAMS / buffer_bytes(config)
    figures |= {f"{name}_chunks_per_core": statistics.median(found) for name, found in rates.items()}
    figures["chunks_share"] = figures["gateway_chunks_per_core"] / figures["unfiltered_chunks_per_core"]
    figures["above_tls_ms_p50"] = figures["gateway_ms_p50"] - figures["tls_ms_p50"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="copy of /etc/trtllm-fleet/gateway")
    parser.add_argument("--haproxy", default="haproxy", help="HAProxy's program (default: haproxy)")
    parser.add_argument("--requests", type=int, default=1000, help="requests of each way (default: 1000)")
    given = parser.parse_args()
    if not (given.directory / "haproxy.cfg").exists():
        parser.error(f"{given.directory} has no haproxy.cfg. Name a copy of {gateway.ROOT}")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(shutil.copytree(given.directory, f"{folder}/gateway"))
        figures = measure(given.haproxy, directory, given.requests)
    print(json.dumps({name: round(value, 3) for name, value in sorted(figures.items())}))
    raise SystemExit(
        figures["above_tls_ms_p50"] > gateway.HIGHEST_ABOVE_TLS
        or figures["chunks_share"] < gateway.LOWEST_CHUNKS_SHARE
        or not figures["gateway_buffers_per_stream"] <= HIGHEST_BUFFERS < figures["early_buffers_per_stream"]
    )
