"""Account for the requests of a gateway by API key and model, and enforce the token quotas of its keys.

trtllm-gateway-usage.service runs it: gateway_usage.pyz CONFIG (usage.json, by role gateway). It follows the access log
in the journal, appends a record of each request to the file of its day, and saves each second how far it is. After a
crash it goes on from there. HAProxy writes each second what it knows of open streams, which this program saves, too, so
that the streams of a killed gateway are accounted for.
"""

from __future__ import annotations

import json
import os
import pwd
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.files import read_file, write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import GatewayError, Haproxy
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.quotas import (
    TABLE,
    own_counts,
    quotas,
    read_table,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage_ledger import Ledger
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage_metrics import render
from ansible_collections.trtllm.fleet.plugins.module_utils.health.kernel_log import Line, parse_journal
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_notify import notify

ROUND = 1.0  # seconds
RESTART = 1.0  # seconds until journalctl is started again
SETTLED = 3.0  # seconds after which a journalctl that still runs follows the journal
BATCH = 50  # commands for HAProxy in one request
CLEANING = 3600.0  # seconds
# Lines of the log that wait to be accounted for. The journal keeps the rest.
WAITING = 10000
# HAProxy's name in the log. Another user can write the name, but not as HAProxy's user.
TAG = "trtllm-gateway"
# Of requests before this program ran for the first time.
FIRST = "-10min"


class AccessLog:
    """Follows the access log in the journal. ``uid``: of HAProxy's user."""

    def __init__(self, uid: int, cursor: str, since: float) -> None:
        self.lines: queue.Queue[Line] = queue.Queue(WAITING)
        self._uid = uid
        self._cursor = cursor
        self._since = since
        self._began = 0.0
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.problem = ""

    @property
    def follows(self) -> bool:
        """Whether journalctl has run for some seconds, and its lines are read."""
        return self._thread.is_alive() and bool(self._began) and time.monotonic() - self._began > SETTLED

    def start(self) -> None:
        """Follow the journal in a thread."""
        self._thread.start()

    def _follow(self) -> None:
        while True:
            self._began = time.monotonic()
            error = self._stream()
            self._began = 0.0
            if error != self.problem and error:
                print(f"The access log cannot be read: {error}", flush=True)
            self.problem = error
            time.sleep(RESTART)

    def _stream(self) -> str:
        """Read lines until journalctl ends, and return its error."""
        begin = f"--after-cursor={self._cursor}" if self._cursor else f"--since={self._begin()}"
        argv = [
            "journalctl", "--follow", "--no-tail", "--output=json", "--output-fields=MESSAGE", "--quiet", begin,
            f"SYSLOG_IDENTIFIER={TAG}", f"_UID={self._uid}",
        ]  # fmt: skip
        read, error = 0, ""
        try:
            process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as problem:
            return f"journalctl: {problem.strerror}"
        with process:
            for text in process.stdout or ():
                for line in parse_journal(text):
                    self.lines.put(line)
                    self._cursor, self._since = line.cursor, line.time
                    read += 1
                    break
                else:
                    error = text.strip()
        if error and self._cursor and not read:
            # The journal has no such place any more. Requests that are known are not counted again.
            self._cursor = ""
        return error or f"journalctl ended with status {process.returncode}"

    def _begin(self) -> str:
        return f"@{int(self._since)}" if self._since else FIRST


class OpenAnswers:
    """The files that HAProxy's threads write: PID-THREAD, a JSON object on each line."""

    def __init__(self, directory: Path, user: str) -> None:
        self._directory = directory
        self._user = user
        self._read: dict[str, tuple[float, dict[str, Any]]] = {}

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the answers by file and id. Raises OSError."""
        if not self._directory.is_dir() and self._directory.parent.is_dir():  # it is gone after each stop of HAProxy
            self._directory.mkdir(mode=0o750)
            shutil.chown(self._directory, self._user)
        found = {}
        for path in self._directory.glob("*-*[0-9]"):
            try:
                written = path.stat().st_mtime
                if self._read.get(path.name, (0.0, {}))[0] != written:
                    lines = [json.loads(line) for line in read_file(path).splitlines()]
                    self._read[path.name] = (written, {str(line.pop("id")): line for line in lines})
            except (OSError, ValueError):
                continue
            found[path.name] = self._read[path.name][1]
        return found

    def remove(self, names: list[str]) -> None:
        """Remove files of processes that ended."""
        for name in names:
            self._read.pop(name, None)
            (self._directory / name).unlink(missing_ok=True)


def is_alive(name: str) -> bool:
    """Return True if the process of a file runs."""
    return "haproxy" in read_file(Path("/proc") / name.partition("-")[0] / "comm")


class Quotas:
    """Tells HAProxy the quotas of keys, and the other gateways the counts of this one."""

    def __init__(self, config: Mapping[str, Any], haproxy: Haproxy) -> None:
        self._gateway = config["gateway"]
        self._limits = config["limits"]
        self._maps = config["maps"]
        self._haproxy = haproxy
        self._told: dict[str, str] = {}
        self._counted: dict[str, int] = {}
        self._pid = ""

    def tell(self, ledger: Ledger, now: float) -> None:
        """Count the lines that HAProxy dropped, and set what changed. Raises GatewayError."""
        text = self._haproxy.ask("show info")
        facts = dict(re.findall(r"^(Pid|DroppedLogs): (\d+)$", text, re.MULTILINE))
        if facts.get("Pid", "") != self._pid:  # a new process has read its files
            self._pid, self._told = facts.get("Pid", ""), {}
        ledger.count_dropped(self._pid, int(facts.get("DroppedLogs", 0)), now)
        if not self._limits:
            return
        commands = {}
        for count in own_counts(self._gateway, self._limits, ledger.meters, now):
            name = f"{count.key}|{count.limit}"
            # The last 0 tells that there are none any more.
            if count.tokens or self._counted.get(name):
                commands[name] = count.command()
            self._counted[name] = count.tokens
        others = read_table(self._haproxy.ask(f"show table {TABLE}"))
        for quota in quotas(self._gateway, self._limits, ledger.meters, others, now):
            for name, value in {"left": quota.left, "until": quota.until, "reset": quota.reset}.items():
                path = f"{self._maps}/{quota.limit}_{name}.map"
                commands[f"{quota.key}|{path}"] = f"set map {path} {quota.key} {value}"
        new = {name: command for name, command in commands.items() if self._told.get(name) != command}
        self._send(new)

    def _send(self, commands: Mapping[str, str]) -> None:
        """Send all commands. Raises GatewayError if HAProxy rejects some, after the others."""
        rejected, names = "", list(commands)
        for first in range(0, len(names), BATCH):
            batch = names[first : first + BATCH]
            answer = self._haproxy.ask("; ".join(commands[name] for name in batch)).strip()
            if answer:
                # The next round sends them again. One that HAProxy does not know yet is of a key that it has not read.
                rejected = rejected or answer.splitlines()[0]
            else:
                self._told.update((name, commands[name]) for name in batch)
        if rejected:
            raise GatewayError(f"HAProxy rejects a quota: {rejected}")


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    os.umask(0o027)
    ledger = Ledger(Path(config["directory"]), config["keep_days"])
    log = AccessLog(pwd.getpwnam(config["user"]).pw_uid, ledger.cursor, ledger.last)
    answers = OpenAnswers(Path(config["open_directory"]), config["user"])
    limits = Quotas(config, Haproxy(Path(config["socket"])))
    log.start()
    notify("READY=1")
    problem, cleaned = "", 0.0
    while True:
        now, found = time.time(), ""
        # Each is done although another fails: a full disk must not keep keys rejected.
        for step in (
            partial(account, ledger, log, answers, now),
            partial(limits.tell, ledger, now),
            partial(write_metrics, Path(config["metrics_path"]), ledger, log),
        ):
            try:
                step()
            except (OSError, GatewayError) as error:
                found = found or str(error)
        if now - cleaned > CLEANING:  # a large file takes minutes
            threading.Thread(target=ledger.clean, args=(now,), daemon=True).start()
            cleaned = now
        if found != problem:
            print(found or "All is accounted for again", flush=True)
            problem = found
        notify("WATCHDOG=1")
        time.sleep(max(0.0, ROUND - (time.time() - now)))


def account(ledger: Ledger, log: AccessLog, answers: OpenAnswers, now: float) -> None:
    """Account for the lines that were read, and for open answers. Raises OSError."""
    # After an error the lines before come first.
    if not ledger.committed:
        ledger.commit()
    waiting, read = log.lines.qsize(), now
    for _number in range(waiting):
        line = log.lines.get()
        ledger.cursor, read = line.cursor, line.time
        try:
            ledger.add(dict(json.loads(line.text)), line.time)
        except (ValueError, KeyError, TypeError):
            continue  # a message of HAProxy, or a line of an older format
    found = answers.read()
    done = ledger.follow(found, {name: is_alive(name) for name in found}, now, read)
    ledger.commit()
    answers.remove(done)


def write_metrics(path: Path, ledger: Ledger, log: AccessLog) -> None:
    """Write the metrics for node_exporter, if the host has it, and the log is read. Raises OSError."""
    if path.parent.is_dir() and log.follows:
        write_file(path, render(ledger.sums, ledger.lost_lines, time.time()))


if __name__ == "__main__":
    main()
