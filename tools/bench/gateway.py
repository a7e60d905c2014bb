# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the latency and the capacity of a gateway: equal requests to the instances directly and through it.

Two proxies with fewer tasks run beside it, in a separate HAProxy on the gateway's host: ``tcp`` forwards bytes, ``tls``
only terminates TLS. Next, a HAProxy with the gateway's configuration holds many streams of slow instances. Last,
streams of 20 tokens/s are read from an instance directly and through each gateway at the same time, over HTTP/1.1 and
HTTP/2. Needs idle GPU hosts of the lab behind gateways: see docs/test-results/benchmarks.md.

The last line is one JSON object. The exit status is 1 if ``added_ms_p50``, the median through the gateway less the
median without it, is 1 ms or more, if a core of the gateway forwards fewer requests/s than the instances answer, if a
stream is incomplete, if a gateway delays the first token by HIGHEST_HELD_BACK or a later one by HIGHEST_GAP, or if it
does not meet the bars HIGHEST_ABOVE_TLS and LOWEST_CHUNKS_SHARE.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import re
import ssl
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tools.bench.token_times import VERSIONS, TokenTimes, token_times
from tools.bench.token_times import figures as token_figures

MODEL = "gpt-oss-120b"
BODY = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1})
# The public key of inventory/local.
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer lab-key-0123456789abcdef"}
UNIT = "trtllm-gateway"
ROOT = "/etc/trtllm-fleet/gateway"
# Ports of the benchmark's processes.
TCP, TLS, SLOW, QUICK, FAST, HELD, UNFILTERED = 9443, 9444, 9445, 9446, 9447, 9450, 9452
INSTANCE = Path(__file__).with_name("gateway_instance.py")

HIGHEST_ADDED = 1.0  # milliseconds
WARM_UP = 20  # requests of each kind
ROUNDS = 3
ROUND_SECONDS = 4.0
# Streams: tokens of each, and seconds between two. All have to start before the first ends.
TOKENS, TOKEN_SECONDS = 20, 1.5
HANDSHAKES = 50  # at a time
# Streams with timed tokens: rounds, tokens of each, and seconds between two.
TIMED_ROUNDS, TIMED_TOKENS, TIMED_SECONDS = 10, 40, 0.05
HIGHEST_HELD_BACK = 50.0  # milliseconds
# Bars of a gateway that routes by model and counts tokens: milliseconds above a proxy that only ends TLS, chunks of
# streams of a core as a share of those without the filter that counts, and milliseconds of a gap between tokens above a
# direct request's. The share was 0.75 and 0.82 on a machine with 16 cores (docs/test-results/benchmarks.md), and 0.43
# to 0.51 with a call into Lua for each chunk.
HIGHEST_ABOVE_TLS, LOWEST_CHUNKS_SHARE, HIGHEST_GAP = 0.4, 0.6, 3.0
# Fast streams: how many, the chunks of each, and seconds between two.
FAST_STREAMS, FAST_TOKENS, FAST_SECONDS = 40, 1000, 0.004
# Bytes of prompts in front of the model.
PROMPTS = (30_000, 300_000, 3_000_000)
PROMPT_REQUESTS = 30
STREAM_TIMEOUT = 120.0  # seconds


def connect(url: str) -> http.client.HTTPConnection:
    """Return a connection to the server of a URL, which opens with the first request."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        # The benchmark does not verify the gateway's certificate.
        return http.client.HTTPSConnection(parts.netloc, context=ssl._create_unverified_context())
    return http.client.HTTPConnection(parts.netloc)


class Client:
    """Client that keeps its connection."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url)

    def ask(self) -> float:
        """Return milliseconds until a completion is whole.

        Raises:
            RuntimeError: The status is not 200.
        """
        began = time.perf_counter()
        self._connection.request("POST", "/v1/completions", BODY, HEADERS)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"HTTP {answer.status}: {text[:200]!r}")
        return 1000 * (time.perf_counter() - began)


def output(*command: str) -> str:
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout.strip()


def address(host: str) -> str:
    """Return the address of a host of the lab."""
    form = "{{range .NetworkSettings.Networks}}{{.IPAMConfig.IPv4Address}}{{end}}"
    return output("docker", "inspect", "--format", form, host)


@contextmanager
def running(host: str, *command: str) -> Iterator[None]:
    """Run a command on a host of the lab until the block ends."""
    process = subprocess.Popen(("docker", "exec", "-i", host, *command), stdin=subprocess.PIPE)
    try:
        time.sleep(2)  # time to start listening
        if process.poll() is not None:
            raise RuntimeError(f"{host}: {command[0]} has ended with {process.returncode}")
        yield
    finally:
        process.communicate()


@contextmanager
def proxy(host: str, name: str, config: str) -> Iterator[None]:
    """Run a HAProxy of the benchmark on a host of the lab."""
    path = f"/run/{name}.cfg"
    subprocess.run(
        ("docker", "exec", "-i", host, "tee", path), input=config.encode(), stdout=subprocess.DEVNULL, check=True
    )
    with running(host, "sh", "-c", f"haproxy -q -db -f {path} & cat; kill $!; rm {path}"):
        yield


def floors(config: str, servers: Sequence[str]) -> str:
    """Return the configuration of the proxies with fewer tasks."""
    certificate = re.search(r" ssl crt (\S+)", config)
    if not certificate:
        raise RuntimeError(f"{ROOT}/haproxy.cfg has no certificate")
    lines = "".join(f"  server s{number} {server}\n" for number, server in enumerate(servers))
    timeouts = "  timeout connect 3s\n  timeout client 1h\n  timeout server 1h\n  balance leastconn\n"
    return (
        f"listen tcp\n  mode tcp\n  bind :{TCP}\n{timeouts}{lines}"
        # As the gateway, it delivers each token at once. A proxy that merges tokens forwards more of them.
        f"listen tls\n  mode http\n  option http-no-delay\n  bind :{TLS} ssl crt {certificate[1]}\n"
        f"  http-reuse always\n{timeouts}{lines}"
    )


def altered(config: str, changes: Mapping[str, str]) -> str:
    """Replace patterns in a configuration.

    Raises:
        RuntimeError: A pattern does not occur.
    """
    for pattern, new in changes.items():
        config, count = re.subn(pattern, new, config, flags=re.MULTILINE)
        if not count:
            raise RuntimeError(f"the gateway's configuration has nothing like {pattern}")
    return config


def elsewhere(config: str, port: int, metrics_port: int) -> str:
    """Return a gateway's configuration for a second HAProxy beside it."""
    return altered(
        config,
        {
            r"^  stats socket .*\n": "",
            # These lines concern a gateway with its peers.
            r"^peers .*\n(  .*\n)+": "",
            r" peers \w+ store ": " store ",
            r"^  server-state-file .*\n": "",
            r"/run/trtllm-gateway/progress.sock": f"/run/bench-progress-{port}.sock",
            # The accountant would count its requests.
            r"/run/trtllm-gateway/usage": f"/run/bench-usage-{port}",
            r"^  log-tag .*": "  log-tag bench",
            r"^  bind \S+ ssl": f"  bind :{port} ssl",
            r"^  bind 127\.0\.0\.1:\d+$": f"  bind 127.0.0.1:{metrics_port}",
        },
    )


def one_thread(config: str) -> str:
    """Return a configuration for one core."""
    return f"global\n  nbthread 1\n{config}"


def without_filter(config: str) -> str:
    """Return a gateway's configuration that does not count tokens."""
    return altered(
        config,
        {
            r"^  filter lua\.usage\n": "",
            r"^  http-request set-header Content-Length .*\n": "",
            r"^  http-response del-header Content-Length .*\n": "",
        },
    )


def held(config: str, servers: Sequence[str], streams: int, port: int = HELD) -> str:
    """Return the gateway's configuration with other instances that accept all streams. It has two ports."""
    return altered(elsewhere(config, port, port + 1), {r"^  server .*\n": ""}) + "".join(
        f"  server slow.{number} {server} maxconn {streams} weight 100\n" for number, server in enumerate(servers)
    )


def latency(clients: Mapping[str, Sequence[Client]], requests: int) -> dict[str, float]:
    """Measure the routes one request at a time in turns; return their times and the gateway's addition to each."""
    for client in (*(client for ways in clients.values() for client in ways),) * WARM_UP:
        client.ask()
    times: dict[str, list[float]] = {name: [] for name in clients}
    for turn in range(requests):
        # In random order, because each leaves work behind, such as a log line, during the next request.
        for name, ways in random.sample(list(clients.items()), len(clients)):
            times[name].append(ways[turn % len(ways)].ask())
    quartiles = statistics.quantiles((to - by for to, by in zip(times["gateway"], times["direct"], strict=True)), n=4)
    figures = {f"{name}_ms_p50": statistics.median(found) for name, found in times.items()}
    figures |= {f"{name}_ms_p99": statistics.quantiles(found, n=100)[98] for name, found in times.items()}
    for name in times.keys() - {"direct"}:
        key = "added_ms_p50" if name == "gateway" else f"{name}_added_ms_p50"
        figures[key] = figures[f"{name}_ms_p50"] - figures["direct_ms_p50"]
    return figures | {"pairs_added_ms_p25": quartiles[0], "pairs_added_ms_p75": quartiles[2]}


def ticks_of(processes: Iterable[str]) -> int:
    """Return the CPU time so far of processes, from their lines of /proc/PID/stat."""
    # User and system time are fields after the name, which may contain spaces.
    return sum(sum(map(int, line.rpartition(")")[2].split()[11:13])) for line in processes)


def processor_seconds(host: str) -> float:
    """Return the CPU seconds of the gateway's HAProxy so far."""
    script = f"getconf CLK_TCK; cat $(pgrep -P $(systemctl show -P MainPID {UNIT}) | sed 's,.*,/proc/&/stat,')"
    ticks, *processes = output("docker", "exec", host, "sh", "-c", script).splitlines()
    return ticks_of(processes) / int(ticks)


def keep_asking(url: str, end: float) -> int:
    """Send requests until a moment, and return how many."""
    client, done = Client(url), 0
    while time.monotonic() < end:
        client.ask()
        done += 1
    return done


def throughput(urls: Mapping[str, Sequence[str]], gateway: str, concurrency: int) -> dict[str, float]:
    """Return requests/s of concurrent clients by route, in turns, and the gateway's CPU time per request."""
    rates: dict[str, list[float]] = {name: [] for name in urls}
    spent, carried = 0.0, 0
    for _round in range(ROUNDS):
        for name, ways in urls.items():
            before, end = processor_seconds(gateway), time.monotonic() + ROUND_SECONDS
            with ThreadPoolExecutor(concurrency) as threads:
                asking = [threads.submit(keep_asking, ways[one % len(ways)], end) for one in range(concurrency)]
            done = sum(one.result() for one in asking)
            rates[name].append(done / ROUND_SECONDS)
            if name == "gateway":
                spent += processor_seconds(gateway) - before
                carried += done
    figures = {f"{name}_per_second": statistics.median(found) for name, found in rates.items()}
    return figures | {"gateway_cpu_ms": 1000 * spent / carried, "gateway_per_core": carried / spent}


def proxy_seconds(host: str, name: str) -> float:
    """Return the CPU seconds so far of a HAProxy of the benchmark."""
    # The brackets keep the shell, whose command line has the pattern too, out of what is found.
    script = f"getconf CLK_TCK; cat $(pgrep -f '[h]aproxy -q -db -f /run/{name}' | sed 's,.*,/proc/&/stat,')"
    ticks, *processes = output("docker", "exec", host, "sh", "-c", script).splitlines()
    return ticks_of(processes) / int(ticks)


def read_stream(url: str) -> int:
    """Read a fast stream, and return its chunks."""
    connection = connect(url)
    body = json.dumps({"prompt": "a", "max_tokens": FAST_TOKENS, "stream": True, "model": MODEL})
    connection.request("POST", "/v1/completions", body, HEADERS)
    return connection.getresponse().read().count(b'"content"')


def read_streams(url: str) -> int:
    """Read fast streams at the same time, and return their chunks."""
    with ThreadPoolExecutor(FAST_STREAMS) as threads:
        return sum(threads.map(read_stream, [url] * FAST_STREAMS))


def chunks(host: str, name: str, url: str) -> tuple[int, float]:
    """Read streams through a HAProxy, and return their chunks and how many of them a core forwards in a second."""
    before = proxy_seconds(host, name)
    read = read_streams(url)
    return read, read / (proxy_seconds(host, name) - before)


def chunk_figures(host: str, ways: Mapping[str, str]) -> dict[str, float]:
    """Compare a gateway with the same without its filter, in turns. ``ways``: URLs by the HAProxy's name."""
    read: list[int] = []
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _round in range(ROUNDS):
        for name, url in ways.items():
            counted, rate = chunks(host, name, url)
            read.append(counted)
            rates[name].append(rate)
    filtered, unfiltered = (statistics.median(found) for found in rates.values())
    return {
        "chunks": min(read),
        "chunks_expected": FAST_STREAMS * FAST_TOKENS,
        "chunks_per_core": filtered,
        "unfiltered_chunks_per_core": unfiltered,
        "chunks_share": filtered / unfiltered,
    }


def long_prompts(direct: str, gateway: str) -> dict[str, float]:
    """Return the milliseconds that a gateway adds to prompts in front of the model, by their bytes, at the median."""
    figures = {}
    for size in PROMPTS:
        body = json.dumps({"prompt": "a" * size, "max_tokens": 1, "model": MODEL})
        times: dict[str, list[float]] = {direct: [], gateway: []}
        for _turn in range(PROMPT_REQUESTS):
            for url, found in times.items():
                connection = connect(url)
                connection.connect()
                began = time.perf_counter()
                connection.request("POST", "/v1/completions", body, HEADERS)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{url}: HTTP {answer.status} for {size} bytes")
                found.append(1000 * (time.perf_counter() - began))
                connection.close()
        name = f"prompt_{size // 1000}_kb"
        figures[f"{name}_direct_ms_p50"] = statistics.median(times[direct])
        figures[f"{name}_added_ms_p50"] = statistics.median(times[gateway]) - statistics.median(times[direct])
    return figures


class Streams:
    """Concurrent streams.

    ``most``: the largest number open at once; ``first_token``: the longest time to a first token in seconds;
    ``wrong``: incomplete ones by reason.
    """

    def __init__(self, host: str, number: int, port: int = HELD, tokens: int = TOKENS) -> None:
        self.host = host
        self.number = number
        self.port = port
        self.tokens = tokens
        self.open = self.most = 0
        self.first_token = 0.0
        self.wrong: Counter[str] = Counter()
        self._ready = asyncio.Semaphore(HANDSHAKES)
        self._everybody = asyncio.Barrier(number)

    async def one(self) -> None:
        body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": self.tokens, "stream": True})
        headers = HEADERS | {"Host": self.host, "Connection": "close", "Content-Length": str(len(body))}
        lines = ["POST /v1/completions HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", body]
        request = "\r\n".join(lines).encode()
        async with self._ready:
            reader, writer = await asyncio.open_connection(self.host, self.port, ssl=ssl._create_unverified_context())
            # All but the last bytes of the request.
            writer.write(request[:-1])
            await writer.drain()
        await self._everybody.wait()
        writer.write(request[-1:])
        began = time.monotonic()
        try:
            async with asyncio.timeout(STREAM_TIMEOUT):
                received = await reader.readuntil(b"data: ")
                self.first_token = max(self.first_token, time.monotonic() - began)
                self.open += 1
                self.most = max(self.most, self.open)
                received += await reader.read()
                self.open -= 1
            if received.count(b'"content"') != self.tokens or not received.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
                self.wrong[f"cut after {len(received)} bytes"] += 1
        except asyncio.IncompleteReadError as error:
            self.wrong[f"not begun: {error.partial[:40]!r}"] += 1
        except (OSError, TimeoutError) as error:
            self.wrong[type(error).__name__] += 1
        writer.transport.abort()

    async def all(self) -> None:
        await asyncio.gather(*(self.one() for _number in range(self.number)))


async def streams(host: str, number: int) -> dict[str, float]:
    """Open streams concurrently; return how many were open at once, and how many were incomplete."""
    held_open = Streams(host, number)
    await held_open.all()
    for what, count in held_open.wrong.items():
        print(f"{count} streams: {what}")
    return {"streams": number, "streams_open_at_once": held_open.most, "streams_failed": held_open.wrong.total()}


def release(host: str) -> str:
    """Return the HAProxy version on a host of the lab, such as 3.0."""
    found = re.search(r"version (\d+\.\d+)", output("docker", "exec", host, "haproxy", "-v"))
    if not found:
        raise RuntimeError(f"{host}: haproxy -v names no version")
    return found[1]


def timed_streams(direct: str, gateways: Mapping[str, str]) -> dict[str, float]:
    """Read a stream by each route at the same time, several times. ``gateways``: URLs by HAProxy version."""
    ways = {("direct", "http1"): direct}
    ways |= {(f"haproxy_{name}", version): url for name, url in gateways.items() for version in VERSIONS}
    body = {"model": MODEL, "prompt": "a", "max_tokens": TIMED_TOKENS, "stream": True}
    found: dict[tuple[str, str], list[TokenTimes]] = {way: [] for way in ways}
    with ThreadPoolExecutor(len(ways)) as threads:
        for _round in range(TIMED_ROUNDS):
            reading = {
                (name, version): threads.submit(token_times, f"{url}/v1/completions", version, body, HEADERS)
                for (name, version), url in ways.items()
            }
            for way, one in reading.items():
                found[way].append(one.result())
    return {
        f"{name}_{version}_{figure}": value
        for (name, version), streams in found.items()
        for figure, value in token_figures(streams).items()
    }


def held_back(figures: Mapping[str, float]) -> bool:
    """Return True if a gateway delivers tokens later than a direct request to an instance."""
    return any(
        value - figures[f"direct_http1_{figure}"] >= highest
        for figure, highest in (("first_token_ms_p50", HIGHEST_HELD_BACK), ("gap_ms_p95", HIGHEST_GAP))
        for name, value in figures.items()
        if name.endswith(figure) and name.startswith("haproxy_")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gateway", nargs="+", default=["gpu3"], help="gateways of the lab, the first under load (default: gpu3)"
    )
    parser.add_argument("--requests", type=int, default=1000, help="requests by each route in sequence (default: 1000)")
    parser.add_argument("--concurrency", type=int, default=16, help="concurrent clients (default: 16)")
    parser.add_argument("--streams", type=int, default=2000, help="concurrent streams (default: 2000)")
    given = parser.parse_args()
    loaded, gateway = given.gateway[0], address(given.gateway[0])
    config = output("docker", "exec", loaded, "cat", f"{ROOT}/haproxy.cfg") + "\n"
    instances = re.findall(r"^  server \S+ (\S+) maxconn ", config, flags=re.MULTILINE)
    hosts = sorted(set(re.findall(r"^  server ([\w-]+)\.", config, flags=re.MULTILINE)))
    urls = {
        "direct": [f"http://{instance}" for instance in instances],
        "tcp": [f"http://{gateway}:{TCP}"],
        "tls": [f"https://{gateway}:{TLS}"],
        "gateway": [f"https://{gateway}"],
    }
    with proxy(loaded, "bench-floors", floors(config, instances)):
        # As many connections as instances, so that each has its instance where bytes are forwarded.
        clients = {name: [Client(way) for way in ways * (len(instances) // len(ways))] for name, ways in urls.items()}
        figures = latency(clients, given.requests)
        figures |= throughput(urls, loaded, given.concurrency)
    with ExitStack() as stack:
        for name in hosts:
            program = INSTANCE.read_text()
            stack.enter_context(running(name, "python3", "-c", program, str(SLOW), str(TOKEN_SECONDS)))
        slow = [f"{address(name)}:{SLOW}" for name in hosts]
        stack.enter_context(proxy(loaded, "bench-held", held(config, slow, given.streams)))
        figures |= asyncio.run(streams(gateway, given.streams))
    with ExitStack() as stack:
        stack.enter_context(running(hosts[0], "python3", "-c", INSTANCE.read_text(), str(QUICK), str(TIMED_SECONDS)))
        quick = f"{address(hosts[0])}:{QUICK}"
        for name in given.gateway:
            own = output("docker", "exec", name, "cat", f"{ROOT}/haproxy.cfg") + "\n"
            stack.enter_context(proxy(name, "bench-held", held(own, [quick], given.streams)))
        by_release = {release(name): f"https://{address(name)}:{HELD}" for name in given.gateway}
        figures |= timed_streams(f"http://{quick}", by_release)
    with ExitStack() as stack:
        stack.enter_context(running(hosts[0], "python3", "-c", INSTANCE.read_text(), str(FAST), str(FAST_SECONDS)))
        fast = f"{address(hosts[0])}:{FAST}"
        one = one_thread(config)
        stack.enter_context(proxy(loaded, "bench-held", held(one, [fast], given.streams)))
        unfiltered = held(without_filter(one), [fast], given.streams, UNFILTERED)
        stack.enter_context(proxy(loaded, "bench-unfiltered", unfiltered))
        ways = {"bench-held": f"https://{gateway}:{HELD}", "bench-unfiltered": f"https://{gateway}:{UNFILTERED}"}
        figures |= chunk_figures(loaded, ways)
        figures |= long_prompts(f"http://{fast}", f"https://{gateway}:{HELD}")
    figures |= {"requests": given.requests, "concurrency": given.concurrency}
    print(json.dumps({name: round(value, 3) for name, value in sorted(figures.items())}))
    raise SystemExit(
        figures["added_ms_p50"] >= HIGHEST_ADDED
        or figures["added_ms_p50"] - figures["tls_added_ms_p50"] > HIGHEST_ABOVE_TLS
        or figures["chunks_share"] < LOWEST_CHUNKS_SHARE
        or figures["chunks"] < figures["chunks_expected"]
        or figures["gateway_per_core"] < figures["direct_per_second"]
        or figures["streams_failed"] > 0
        or held_back(figures)
    )
