"""Watch the health of a GPU host: report unfit instances to gateways, write metrics, and restart broken engines.

trtllm-health.service runs it: host_health.pyz CONFIG (health.json, by role host_health).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, run
from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file, write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.health import metrics
from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import diagnose, load_catalogue
from ansible_collections.trtllm.fleet.plugins.module_utils.health.kernel_log import (
    COMMAND,
    GREP,
    Line,
    classify,
    kernel_signals,
    parse_journal,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.health.platform import unreadable
from ansible_collections.trtllm.fleet.plugins.module_utils.health.remedies import (
    HistoryError,
    Remedy,
    read_remedies,
    record_remedy,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.health.signals import frequent_signals, rare_signals
from ansible_collections.trtllm.fleet.plugins.module_utils.health.verdict import STATE, OpenFaults, restarts, unfit
from ansible_collections.trtllm.fleet.plugins.module_utils.host_status import (
    BOOTED,
    NET,
    HostStatus,
    connections_by_port,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_notify import notify

RELEASES = Path("/etc/trtllm-fleet")
COMMAND_TIMEOUT = 60.0  # seconds
# Seconds until the next look while a fault waits for its confirmation or its end.
CONFIRM = 3.0
# Lines of the kernel log that are kept of each signal.
LINES = 1000
# Seconds until the first reading of the kernel log is ended, and until a journalctl that follows it is known to work.
READ_TIMEOUT = 60.0
SETTLED = 5.0
# Seconds that a client may take to name an instance; HAProxy's agent-check sends nothing by default.
NAME_TIMEOUT = 0.5
NAME_LENGTH = 200
CLIENTS = 32  # at a time
REPEATED = 60.0  # seconds in which the same line starts no other look
RESTART = 5.0  # seconds until journalctl is started again
PING = 60.0  # seconds between two reports to systemd, whose WatchdogSec is longer


class KernelLog:
    """Follows the kernel log of this boot. ``changed`` is set with each line that is a signal."""

    def __init__(self, changed: threading.Event) -> None:
        self._changed = changed
        # By signal, so that a driver that writes one error a thousand times a second hides no other.
        self._lines: dict[tuple[Any, ...], deque[Line]] = {}
        self._lock = threading.Lock()
        self._cursor = ""
        self._grep: tuple[str, ...] = (f"--grep={GREP}",)
        self._began = 0.0
        self.problem = "not read yet"

    def start(self) -> None:
        """Read what is there, and follow it in a thread."""
        self.problem = self._stream(READ_TIMEOUT)
        if self.problem and not self._lines:
            # A journalctl without regular expressions rejects the option.
            self._grep = ()
            self.problem = self._stream(READ_TIMEOUT)
        threading.Thread(target=self._follow, daemon=True).start()

    def signals(self, now: float) -> list[dict[str, Any]]:
        """Return the signals of all lines, and that the log cannot be read."""
        if self._began and time.monotonic() - self._began > SETTLED:
            self.problem = ""
        with self._lock:
            lines = sorted((line for kept in self._lines.values() for line in kept), key=lambda line: line.time)
        found = kernel_signals(lines, now)
        return [*found, unreadable("kernel log", self.problem)] if self.problem else found

    def _add(self, line: Line) -> None:
        self._cursor = line.cursor or self._cursor
        signal = classify(line.text)
        if signal is None:
            return
        with self._lock:
            kept = self._lines.setdefault(tuple(signal.values()), deque(maxlen=LINES))
            repeated = bool(kept) and line.time - kept[-1].time < REPEATED
            kept.append(line)
        if not repeated:  # else the next look counts it, so that a flood does not cause a look per line
            self._changed.set()

    def _stream(self, timeout: float | None, *options: str) -> str:
        """Add the lines that journalctl prints until it ends, and return its error."""
        after = [f"--after-cursor={self._cursor}"] if self._cursor else []
        error = ""
        try:
            process = subprocess.Popen(
                [*COMMAND, *self._grep, *options, *after], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except OSError as problem:
            return f"journalctl: {problem.strerror}"
        killer = threading.Timer(timeout, process.kill) if timeout else None
        if killer:
            killer.start()
        with process:
            for text in process.stdout or ():
                lines = list(parse_journal(text))
                error = error if lines else text.strip() or error
                for line in lines:
                    self._add(line)
        if killer:
            killer.cancel()
        # Status 1 without a message: no line matches.
        failed = error or process.returncode not in (0, 1)
        return f"journalctl: {error or f'exit status {process.returncode}'}" if failed else ""

    def _follow(self) -> None:
        while True:
            self._began = time.monotonic()
            # Without --no-tail, journalctl --follow begins with the last ten lines.
            problem = self._stream(None, "--follow", "--no-tail")
            self._began = 0.0
            self.problem = problem or "journalctl ended"
            self._changed.set()
            time.sleep(RESTART)
            if not self._cursor:
                # Nothing was read, so all is read again.
                with self._lock:
                    self._lines.clear()


class Commands:
    """Runs commands, and starts no second nvidia-smi while one hangs in the driver."""

    def __init__(self) -> None:
        self._hung = False

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        smi = os.path.basename(argv[0]) == "nvidia-smi"
        if smi and self._hung and own_child("nvidia-smi"):
            return CommandResult(rc=None)
        done = run(argv, timeout)
        if smi:
            self._hung = done.rc is None
        return done


def own_child(name: str) -> bool:
    """Return True if this program has a child of this name that still runs, even if it was killed."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _separator, after = path.read_text().rpartition(")")
        except OSError:
            continue
        state, parent = after.split()[:2]
        if before.partition("(")[2] == name and int(parent) == os.getpid() and state != "Z":
            return True
    return False


class Health:
    """The looks of a host, and what they found. ``config``: content of CONFIG."""

    def __init__(self, config: dict[str, Any], log: KernelLog) -> None:
        self._config = config
        self._catalogue = load_catalogue(config["faults"])
        self._log = log
        self._run = Commands()
        self._faults = OpenFaults()
        self._rare: list[dict[str, Any]] = []
        self._next_rare = 0.0
        self._looks = 0
        self._instances: list[str] = []
        self._reasons: dict[str, str] = {}
        # Whether a fit instance is certain: after a start, a fault that is a state needs two looks.
        self._certain = False

    @property
    def settled(self) -> bool:
        """Whether the next look may wait."""
        return self._faults.settled

    def look(self) -> None:
        """Examine the host once. Raises OSError and ReleaseError; then the last result stays."""
        now = time.time()
        status = HostStatus(RELEASES, shutil.which("nvidia-smi"), BOOTED.is_dir(), self._run).gather(compare=False)
        if now >= self._next_rare or not self.settled:
            self._rare = rare_signals(status, self._run)
            self._next_rare = now + self._config["rare_interval"]
        signals = [*frequent_signals(status, self._log.signals(now), self._run), *self._rare]
        self._faults.update(diagnose(socket.gethostname(), signals, self._catalogue), now)
        faults = self._faults.confirmed
        instances = [one for one in signals if one["signal"] == "instance"]
        reasons = unfit([one.finding for one in faults], instances)
        for name in reasons.keys() - self._reasons.keys():
            print(f"{name} is unfit to serve: {reasons[name]}", flush=True)
        for name in self._reasons.keys() - reasons.keys():
            print(f"{name} is fit to serve again", flush=True)
        self._instances, self._reasons = [one["name"] for one in instances], reasons
        self._certain = (self._certain or self.settled) and not self._log.problem
        self._restart(signals, {one["name"]: one["port"] for one in status["instances"]}, now)
        self._looks += 1
        told = {} if self._config["mode"] == "observe" else reasons
        self._write(status, signals, told, now)

    def _restart(self, signals: list[dict[str, Any]], ports: dict[str, int], now: float) -> None:
        """Restart the engines that may be. systemd goes on with it."""
        by_port = connections_by_port(read_file(NET / "tcp") + read_file(NET / "tcp6"))
        connections = {name: by_port.get(port, 0) for name, port in ports.items()}
        chosen = restarts(self._faults.confirmed, signals, connections, read_remedies(), self._config["mode"], now)
        for unit, fault in chosen.items():
            try:
                record_remedy(Remedy("restart_engine", unit, fault, now, "started"))
            except HistoryError as error:  # without a record nothing limits the restarts
                print(f"{unit} is not restarted: {error}", flush=True)
                continue
            print(f"{unit} is restarted: {fault}", flush=True)
            run(["systemctl", "reset-failed", unit], COMMAND_TIMEOUT)
            run(["systemctl", "restart", "--no-block", unit], COMMAND_TIMEOUT)
            self._next_rare = 0.0

    def _write(
        self, status: dict[str, Any], signals: list[dict[str, Any]], reasons: dict[str, str], now: float
    ) -> None:
        faults = self._faults.confirmed
        state = {
            "at": now,
            "mode": self._config["mode"],
            "unfit": reasons,
            "faults": [{**one.finding.as_dict(), "since": one.since} for one in faults],
        }
        write_file(STATE, json.dumps(state, indent=1) + "\n")
        place = Path(self._config["metrics_path"])
        if place.parent.is_dir():
            write_file(place, metrics.render(status, signals, faults, reasons, now, self._looks))

    def answer(self, instance: str) -> str:
        """Return the line for HAProxy's agent-check: ``up`` or ``down #reason``. Empty changes nothing there.

        Without the name of an instance it is about the host, which is unfit if all its instances are.
        """
        reasons = self._reasons
        if self._config["mode"] == "observe":
            return "up\n" if self._certain else ""
        if instance:
            # A gateway's name of it begins with the host. One without a match was started since the last look.
            own = next((one for one in self._instances if f".{instance}".endswith(f".{one}")), "")
            reason, known = reasons.get(own), bool(own)
        else:
            everything = reasons and reasons.keys() == set(self._instances)
            reason, known = next(iter(reasons.values())) if everything else None, True
        if reason:
            return f"down #{reason}\n"
        return "up\n" if known and self._certain else ""


class Server(socketserver.ThreadingTCPServer):
    """Answers HAProxy's agent-check."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = CLIENTS

    def __init__(self, address: str, port: int, health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.health = health
        self.free = threading.BoundedSemaphore(CLIENTS)
        super().__init__((address, port), Client)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self.free.acquire(blocking=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class Client(socketserver.BaseRequestHandler):
    """A connection: the name of an instance, or nothing, and the answer."""

    server: Server

    def handle(self) -> None:
        self.request.settimeout(NAME_TIMEOUT)
        name = b""
        try:
            while b"\n" not in name and len(name) < NAME_LENGTH and (part := self.request.recv(NAME_LENGTH)):
                name += part
        except socket.timeout:
            pass
        self.request.sendall(self.server.health.answer(name.decode(errors="replace").strip()).encode())

    def finish(self) -> None:
        self.server.free.release()


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    changed = threading.Event()
    log = KernelLog(changed)
    health = Health(config, log)
    server = Server(config["listen_address"], config["port"], health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    notify("READY=1")
    log.start()
    while True:
        changed.clear()
        try:
            health.look()
        except Exception as error:  # the next look may succeed, and gateways keep what the last one found
            print(f"The host could not be examined: {error!r}", flush=True)
        notify("WATCHDOG=1")
        end = time.monotonic() + (config["interval"] if health.settled else CONFIRM)
        while (left := end - time.monotonic()) > 0 and not changed.wait(min(left, PING)):
            notify("WATCHDOG=1")
        if changed.is_set():
            time.sleep(0.5)  # the lines of one event are written one after the other


if __name__ == "__main__":
    main()
