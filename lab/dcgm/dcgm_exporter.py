#!/usr/bin/python3
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's dcgm-exporter: flags, counter file, web configuration and text format of NVIDIA's, without DCGM.

Values are those of the lab's nvidia-smi. Facts are from NVIDIA/dcgm-exporter at 4.5.3-4.8.2: pkg/cmd/app.go,
internal/pkg/counters/counter_config.go, internal/pkg/rendermetrics/render_metrics.go, internal/pkg/collector and
docker/Dockerfile; those of the web configuration from prometheus/exporter-toolkit 0.16.0.

Differences: it knows only the fields below, does not read flags from the environment, does not read its files again,
and has no collectors besides that of GPUs. Profiling fields follow the utilization, links have no errors, and there is
no Xid.
"""

from __future__ import annotations

import base64
import binascii
import csv
import ctypes
import hmac
import http.server
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

VERSION = "4.5.3-4.8.2"
# Flags by the type of their value, each with its short name.
FLAGS: dict[type, str] = {
    str: """collectors/f address/a cpu-devices/p configmap-data/m remote-hostengine-info/r devices/d switch-devices/s
        web-config-file dcgm-log-level log-format kubernetes-gpu-id-type kubernetes-pod-label-allowlist-regex
        nvidia-resource-names pod-resources-kubelet-socket hpc-job-mapping-dir dump-directory
        gpu-bind-unbind-poll-interval""",
    int: "collect-interval/c xid-count-window-size/x clock-events-count-window-size dump-retention",
    bool: """kubernetes/k use-old-namespace/o no-hostname/n replace-blanks-in-model-name/rbmn
        kubernetes-enable-pod-labels kubernetes-enable-pod-uid kubernetes-virtual-gpus kubernetes-enable-dra fake-gpus
        debug enable-dcgm-log dump-enabled dump-compression disable-startup-validate enable-gpu-bind-unbind-watch
        enable-pprof web-systemd-socket help/h version/v""",
}
TYPES = {word.partition("/")[0]: kind for kind, words in FLAGS.items() for word in words.split()}
SHORT = {word.partition("/")[2]: word.partition("/")[0] for words in FLAGS.values() for word in words.split()}
TRUTHS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
LOG_LEVELS = ("NONE", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "VERB")
KINDS = ("gauge", "counter", "histogram", "summary", "label")
# The distroless image has none, and its check at the start fails without it (issue 612).
LINKER_CACHE = Path("/etc/ld.so.cache")
SYS_ADMIN = 21  # number of the capability
SMI_TIMEOUT = 10.0  # seconds
TEXT = "text/plain; charset=utf-8"

# Fields with the value of an element of nvidia-smi -q -x, or with the sum of several.
ELEMENTS: dict[str, tuple[str, ...]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("clocks/sm_clock",),
    "DCGM_FI_DEV_MEM_CLOCK": ("clocks/mem_clock",),
    "DCGM_FI_DEV_MEMORY_TEMP": ("temperature/memory_temp",),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature/gpu_temp",),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu_power_readings/average_power_draw",),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("pci/replay_counter",),
    "DCGM_FI_DEV_GPU_UTIL": ("utilization/gpu_util",),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("utilization/memory_util",),
    "DCGM_FI_DEV_ENC_UTIL": ("utilization/encoder_util",),
    "DCGM_FI_DEV_DEC_UTIL": ("utilization/decoder_util",),
    "DCGM_FI_DEV_FB_FREE": ("fb_memory_usage/free",),
    "DCGM_FI_DEV_FB_USED": ("fb_memory_usage/used",),
    "DCGM_FI_DEV_FB_RESERVED": ("fb_memory_usage/reserved",),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("remapped_rows/remapped_row_unc",),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("remapped_rows/remapped_row_corr",),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("remapped_rows/remapped_row_failure",),
    **{
        f"DCGM_FI_DEV_ECC_{kind}_{age}_TOTAL": tuple(f"ecc_errors/{element}/{name}" for name in names)
        for age, element in (("VOL", "volatile"), ("AGG", "aggregate"))
        for kind, names in (
            ("SBE", ("sram_correctable", "dram_correctable")),
            ("DBE", ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")),
        )
    },
}
# Ends of the names of fields that are not whole numbers.
FRACTIONAL = ("_POWER_USAGE", "_ACTIVE")
# Profiling fields: the element whose percentage they follow, and the value at 100 %.
PROFILING: dict[str, tuple[str, float]] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("utilization/gpu_util", 1),
    "DCGM_FI_PROF_SM_ACTIVE": ("utilization/gpu_util", 1),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("utilization/gpu_util", 0.3),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("utilization/memory_util", 1),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("utilization/gpu_util", 1e9),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("utilization/gpu_util", 1e9),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("utilization/gpu_util", 2e10),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("utilization/gpu_util", 2e10),
}
# Only for GPUs with NVLink.
LINK_ERRORS = tuple(
    f"DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL" for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
)
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
# Without a value until the driver reports one.
XID = "DCGM_FI_DEV_XID_ERRORS"
DRIVER = "DCGM_FI_DRIVER_VERSION"
FIELDS = {*ELEMENTS, *PROFILING, *LINK_ERRORS, ENERGY, XID, DRIVER}

Element = ET.Element


class Refused(Exception):
    """The exporter does not start; the message is that of its log."""


class UsageError(Refused):
    """A wrong command line."""


class Counter(NamedTuple):
    """A line of the counter file."""

    name: str
    kind: str
    help: str


def log(level: str, message: str) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    text = message.replace('"', '\\"')
    print(f'time={now} level={level} msg="{text}"', file=sys.stderr, flush=True)


def parse_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the given flags by name, as urfave/cli reads them. Raises UsageError."""
    given: dict[str, Any] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word, equals, value = rest.pop(0).partition("=")
        short = word.removeprefix("-").removeprefix("-")
        name = SHORT.get(short, short)
        if name not in TYPES:
            raise UsageError(f"flag provided but not defined: -{short}")
        if TYPES[name] is bool:
            if equals and value.lower() not in TRUTHS:
                raise UsageError(f'invalid boolean value "{value}" for -{short}: parse error')
            given[name] = TRUTHS[value.lower()] if equals else True
            continue
        if not equals and not rest:
            raise UsageError(f"flag needs an argument: -{short}")
        text = value if equals else rest.pop(0)
        if TYPES[name] is int and not text.removeprefix("-").isdecimal():
            raise UsageError(f'invalid value "{text}" for flag -{short}: parse error')
        given[name] = TYPES[name](text)
    return given


def read_counters(path: str, profiling: bool) -> list[Counter]:
    """Return the counters of a file. Raises Refused.

    ``profiling``: whether the process may read profiling fields, which are left out otherwise.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        text = f"open {path}: {(error.strerror or '').lower()}"
        log("ERROR", f"Could not read metrics file '{path}'; err: {text}")
        raise Refused(text) from None
    counters = []
    for number, record in enumerate(csv.reader(line for line in lines if line and not line.startswith("#"))):
        row = [cell.strip(" ") for cell in record]
        if len(row) != 3:
            raise Refused(
                f"malformed CSV record; err: failed to parse line {number} (`[{' '.join(row)}]`), expected 3 fields"
            )
        name, kind, text = row
        if name not in FIELDS:
            raise Refused(f"could not find DCGM field; err: unknown ExporterCounter field '{name}'")
        if name in PROFILING and not profiling:
            log("WARN", f"Skipping line {number} ('{name}'): metric not enabled")
            continue
        if kind not in KINDS:
            raise Refused(f"could not find Prometheus metric type '{kind}'")
        counters.append(Counter(name, kind, text))
    return counters


def may_profile(status: Path = Path("/proc/self/status")) -> bool:
    """Return True if the process has the capability SYS_ADMIN."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> SYS_ADMIN & 1)


def query_gpus() -> Element | None:
    """Return what nvidia-smi says of the GPUs, None without a driver. Raises TimeoutExpired."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-q", "-x"], capture_output=True, text=True, check=False, timeout=SMI_TIMEOUT
        )
    except OSError:
        return None
    return ET.fromstring(done.stdout) if done.returncode == 0 else None


def number_of(gpu: Element, path: str) -> float | None:
    """Return the number of an element, None for N/A."""
    word = (gpu.findtext(path) or "N/A").split()[0]
    try:
        return {"Yes": 1.0, "No": 0.0}.get(word) if word in ("Yes", "No") else float(word)
    except ValueError:
        return None


@dataclass
class Collector:
    """Values of the GPUs, read once in an interval.

    ``interval``: seconds. ``query``: the XML document of nvidia-smi, as ``query_gpus``.
    """

    counters: Sequence[Counter]
    interval: float
    hostname: str
    query: Callable[[], Element | None] = query_gpus
    clock: Callable[[], float] = time.monotonic
    _taken: float | None = None
    _text: str = ""
    _energy: dict[str, float] = field(default_factory=dict)  # mJ by UUID
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        with self._lock:
            now = self.clock()
            if self._taken is None or now - self._taken >= self.interval:
                try:
                    self._text = self._render(self.query(), now - (now if self._taken is None else self._taken))
                except subprocess.TimeoutExpired:
                    log("ERROR", "nvidia-smi does not answer; the metrics keep their values")
                self._taken = now
            return self._text

    def _render(self, root: Element | None, seconds: float) -> str:
        if root is None:
            log("INFO", "Not collecting GPU metrics; the driver does not answer")
            return ""
        gpus = list(enumerate(root.findall("gpu")))
        for _index, gpu in gpus:
            uuid = gpu.findtext("uuid", "")
            watts = number_of(gpu, *ELEMENTS["DCGM_FI_DEV_POWER_USAGE"]) or 0.0
            self._energy[uuid] = self._energy.get(uuid, 0.0) + watts * seconds * 1000
        lines: list[str] = []
        for counter in self.counters:
            samples = [] if counter.kind == "label" else list(self._samples(counter.name, root, gpus))
            if samples:
                lines += [f"# HELP {counter.name} {counter.help}", f"# TYPE {counter.name} {counter.kind}", *samples]
        return "".join(f"{line}\n" for line in lines)

    def _samples(self, name: str, root: Element, gpus: Sequence[tuple[int, Element]]) -> Iterator[str]:
        for index, gpu in gpus:
            value = self._value(name, gpu)
            if value is None:
                continue
            labels = {
                "gpu": index,
                "UUID": gpu.findtext("uuid"),
                "pci_bus_id": gpu.findtext("pci/pci_bus_id"),
                "device": f"nvidia{index}",
                "modelName": gpu.findtext("product_name"),
                # This version has it with --no-hostname too.
                "Hostname": self.hostname,
                **{one.name: root.findtext("driver_version") for one in self.counters if one.kind == "label"},
            }
            pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
            yield f"{name}{{{pairs}}} {value}"

    def _value(self, name: str, gpu: Element) -> str | None:
        """Return the value of a field, None for a blank one."""
        linked = gpu.findtext("fabric/state") not in (None, "N/A")
        value: float | None = None
        if name in ELEMENTS:
            parts = [number for path in ELEMENTS[name] if (number := number_of(gpu, path)) is not None]
            value = sum(parts) if parts else None
        elif name == ENERGY:
            value = self._energy[gpu.findtext("uuid", "")]
        elif name in LINK_ERRORS and linked:
            value = 0
        elif name in PROFILING and (linked or "NVLINK" not in name):
            path, full = PROFILING[name]
            percent = number_of(gpu, path)
            value = None if percent is None else percent / 100 * full
        if value is None:
            return None
        return f"{value:f}" if name.endswith(FRACTIONAL) else str(int(value))


@dataclass(frozen=True)
class WebConfig:
    """A web configuration of exporter-toolkit: TLS and the users with the hashes of their passwords."""

    tls: ssl.SSLContext | None
    users: Mapping[str, str]


def read_web_config(path: str) -> WebConfig:
    """Return the web configuration of a file; an empty path is none. Raises Refused."""
    if not path:
        return WebConfig(None, {})
    try:
        config = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise Refused(f"open {path}: {(error.strerror or '').lower()}") from None
    tls = config.pop("tls_server_config", None)
    users = config.pop("basic_auth_users", None) or {}
    if config:
        raise Refused(f"yaml: unmarshal errors: field {next(iter(config))} not found in type web.Config")
    if not tls:
        return WebConfig(None, users)
    # Relative paths are relative to the file.
    certificate, key = (Path(path).parent / tls[name] for name in ("cert_file", "key_file"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise Refused(f"failed to load X509KeyPair: {error}") from None
    return WebConfig(context, users)


class Passwords:
    """Checks passwords against their bcrypt hashes by libcrypt, once each."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._lock = threading.Lock()
        self._known: dict[tuple[str, bytes], bool] = {}
        self._library = ctypes.CDLL("libcrypt.so.1")
        self._library.crypt.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        self._library.crypt.restype = ctypes.c_char_p

    def accept(self, header: str | None) -> bool:
        """Return True if a header Authorization has a user and the password."""
        scheme, _space, encoded = (header or "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            name, _colon, password = base64.b64decode(encoded, validate=True).partition(b":")
            user = name.decode()
        except (binascii.Error, UnicodeDecodeError):
            return False
        if user not in self._users:
            return False
        # crypt() has one buffer for its result.
        with self._lock:
            if (user, password) not in self._known:
                wanted = self._users[user].encode()
                found = self._library.crypt(password, wanted) or b""
                self._known[user, password] = hmac.compare_digest(found, wanted)
            return self._known[user, password]


class Handler(http.server.BaseHTTPRequestHandler):
    """The pages of the exporter."""

    protocol_version = "HTTP/1.1"
    timeout = 10  # seconds, as the original's
    server: Server

    def do_GET(self) -> None:
        pages: dict[str, Callable[[], str]] = {
            "/": lambda: "<html><head><title>GPU Exporter</title></head></html>",
            "/health": lambda: "OK",
            "/metrics": self.server.collector.text,
        }
        if self.server.passwords and not self.server.passwords.accept(self.headers["Authorization"]):
            self._reply(401, "Unauthorized\n", {"WWW-Authenticate": "Basic"})
        elif self.path.partition("?")[0] in pages:
            self._reply(200, pages[self.path.partition("?")[0]]())
        else:
            self._reply(404, "404 page not found\n")

    def _reply(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": TEXT, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no requests."""


class Server(http.server.ThreadingHTTPServer):
    """The exporter's server."""

    daemon_threads = True

    def __init__(self, address: str, collector: Collector, web: WebConfig) -> None:
        """Listen on ``HOST:PORT``; without a host on all addresses. Raises OSError and ValueError."""
        host, _colon, port = address.rpartition(":")
        name = host.strip("[]")
        if ":" in name or (not name and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        self.collector = collector
        self.passwords = Passwords(web.users) if web.users else None
        self._tls = web.tls
        super().__init__((name, int(port)), Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        # The handshake is in the thread of the connection.
        return (
            self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            if self._tls
            else connection
        ), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a client that breaks its connection, or speaks no TLS."""


def start(flags: Mapping[str, Any]) -> Server:
    """Return the listening server for the flags. Raises Refused."""
    log("INFO", f"Starting dcgm-exporter {VERSION} (lab: no DCGM, values of nvidia-smi)")
    if flags.get("log-format", "text") not in ("text", "json"):
        raise Refused(f"invalid log-format parameter values: {flags['log-format']}")
    level = flags.get("dcgm-log-level", "NONE")
    if level not in LOG_LEVELS:
        raise Refused(f"invalid dcgm-log-level parameter value: {level}")
    if not flags.get("disable-startup-validate") and not LINKER_CACHE.exists():
        raise Refused("exit status 1")
    profiling = may_profile()
    if not profiling:
        log("WARN", "dcgm-exporter doesn't have sufficient privileges to expose profiling metrics")
    counters = read_counters(flags.get("collectors", "/etc/dcgm-exporter/default-counters.csv"), profiling)
    web = read_web_config(flags.get("web-config-file", ""))
    hostname = os.environ.get("NODE_NAME") or socket.gethostname()
    collector = Collector(counters, flags.get("collect-interval", 30000) / 1000, hostname)
    try:
        return Server(flags.get("address", ":9400"), collector, web)
    except (OSError, ValueError) as error:
        raise Refused(f"Failed to Listen and Server HTTP server: {error}") from None


def stop(*_signal: object) -> None:
    sys.exit(0)


def main(arguments: Sequence[str]) -> int:
    # The kernel ignores signals without a handler for the first process of a container.
    signal.signal(signal.SIGTERM, stop)
    try:
        flags = parse_flags(arguments)
        if flags.get("version") or flags.get("help"):
            print(f"DCGM Exporter version {VERSION}")
            return 0
        server = start(flags)
    except Refused as error:
        if isinstance(error, UsageError):
            print(f"Incorrect Usage: {error}\n")
        log("ERROR", str(error))
        return 1
    log("INFO", "HTTP server started - ready to serve metrics")
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
