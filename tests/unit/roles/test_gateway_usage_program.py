"""The program that accounts for a gateway's requests, with a journalctl and a HAProxy that tests script."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage import KILLED, Loss, Record, day_of
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.usage_ledger import STATE, Ledger, read_days
from ansible_collections.trtllm.fleet.plugins.module_utils.health.kernel_log import Line
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.usage_sample import MODEL, log_line
from ansible_collections.trtllm.fleet.tests.unit.zipapps import zipapp
from roles.gateway.files.gateway_usage import AccessLog, OpenAnswers, account

PROGRAM = ROOT / "roles/gateway/files/gateway_usage.py"
USER = pwd.getpwuid(os.getuid())
# Prints the lines of FOLDER/journal behind a cursor, which is the number of a line, or from a time on, and follows the
# file. With FOLDER/lost it has no line of any cursor. It ends with its parent, as the unit ends both.
JOURNALCTL = f"""#!{sys.executable}
import json, os, sys, time
folder = os.path.dirname(sys.argv[0])
parent = os.getppid()
with open(folder + "/calls", "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
(begin,) = [one for one in sys.argv if one.startswith(("--after-cursor=", "--since="))]
option, _, value = begin.partition("=")
if option == "--after-cursor" and os.path.exists(folder + "/lost"):
    print("Failed to seek to cursor: Invalid argument", file=sys.stderr)
    sys.exit(1)
number = 0
with open(folder + "/journal") as journal:
    while os.getppid() == parent and not os.path.exists(folder + "/ended"):
        line = journal.readline()
        if not line.endswith("\\n"):
            journal.seek(journal.tell() - len(line.encode()))
            time.sleep(0.02)
            continue
        number += 1
        row = json.loads(line)
        since = int(value[1:]) * 10**6 if value.startswith("@") else 0
        if number > int(value[2:]) if option == "--after-cursor" else int(row["__REALTIME_TIMESTAMP"]) >= since:
            print(json.dumps({{**row, "__CURSOR": f"s={{number}}"}}), flush=True)
"""


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class FakeHaproxy:
    """HAProxy's runtime API."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid = 4711
        self.dropped = 2
        self.table = "# table: token_counts, type: string, size:102400, used:0\n"
        self.rejected = ""
        self.heard: list[str] = []
        self.server: socketserver.BaseServer | None = None

    def start(self) -> None:
        haproxy = self

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                commands = self.rfile.readline().decode().strip().split("; ")
                self.wfile.write("".join(map(haproxy.answer, commands)).encode())

        self.server = socketserver.ThreadingUnixStreamServer(str(self.path), Connection)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.path.unlink()
            self.server = None

    def answer(self, command: str) -> str:
        self.heard.append(command)
        if command == "show info":
            return f"Name: HAProxy\nPid: {self.pid}\nUptime_sec: 9\nDroppedLogs: {self.dropped}\n\n"
        if command == "show table token_counts":
            return self.table
        return "Unknown map identifier.\n" if self.rejected and self.rejected in command else "\n"

    def told(self, beginning: str) -> list[str]:
        """The commands that begin so, without this beginning, each once."""
        return list(dict.fromkeys(one[len(beginning) :] for one in self.heard if one.startswith(beginning)))


class Site:
    """A gateway's files, and the program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.haproxy = FakeHaproxy(folder / "admin.sock")
        self.processes: list[subprocess.Popen[Any]] = []
        self.limits: dict[str, dict[str, int]] = {}
        self.states: list[str] = []  # that systemd gets
        self.systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.systemd.bind(str(folder / "notify"))
        threading.Thread(target=self.listen, daemon=True).start()
        for name in ("usage", "metrics", "run", "bin"):
            (folder / name).mkdir()
        (folder / "bin/journalctl").write_text(JOURNALCTL)
        (folder / "bin/journalctl").chmod(0o755)
        self.journal = (folder / "bin/journal").open("a")

    def listen(self) -> None:
        while state := self.systemd.recv(100):
            self.states.append(state.decode())

    def log(self, *messages: Any, moment: float | None = None) -> None:
        """Append messages of HAProxy to the journal."""
        for message in messages:
            text = message if isinstance(message, (str, list)) else json.dumps(message)
            moment_text = f"{(moment or time.time()) * 1e6:.0f}"
            print(json.dumps({"MESSAGE": text, "__REALTIME_TIMESTAMP": moment_text}), file=self.journal)
        self.journal.flush()

    def start(self, user: str = USER.pw_name) -> subprocess.Popen[str]:
        config = {
            "gateway": "gateway1",
            "user": user,
            "directory": str(self.folder / "usage"),
            "keep_days": 90,
            "open_directory": str(self.folder / "run/usage"),
            "socket": str(self.haproxy.path),
            "maps": "/maps",
            "metrics_path": str(self.folder / "metrics/usage.prom"),
            "limits": self.limits,
        }
        (self.folder / "usage.json").write_text(json.dumps(config))
        output = (self.folder / "output").open("a")
        environment = {
            "PATH": str(self.folder / "bin"),
            "NOTIFY_SOCKET": str(self.folder / "notify"),
        }
        argv = [sys.executable, str(zipapp(PROGRAM)), str(self.folder / "usage.json")]
        process = subprocess.Popen(argv, env=environment, stdout=output, stderr=output, text=True)
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[Any]) -> None:
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.processes:
            self.kill(process)
        self.haproxy.stop()
        self.systemd.shutdown(socket.SHUT_RDWR)
        self.systemd.close()
        self.journal.close()

    @property
    def output(self) -> list[str]:
        return (self.folder / "output").read_text().splitlines()

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "bin/calls").read_text().splitlines()]

    def records(self) -> list[Record]:
        return [one for one in read_days(self.folder / "usage", 0, 1e12) if isinstance(one, Record)]

    def ids(self) -> list[str]:
        return [one.id for one in self.records()]

    def metrics(self) -> dict[str, float]:
        path = self.folder / "metrics/usage.prom"
        text = path.read_text() if path.exists() else ""
        rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in rows}

    def open_answers(self, name: str, *answers: Mapping[str, Any]) -> Path:
        path = self.folder / "run/usage" / name
        path.with_suffix(".new").write_text("".join(f"{json.dumps(one)}\n" for one in answers))
        path.with_suffix(".new").replace(path)
        return path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    one = Site(tmp_path)
    one.haproxy.start()
    yield one
    one.stop()


def names(first: int, last: int) -> list[str]:
    return [f"r{number}" for number in range(first, last + 1)]


def lines(identities: Sequence[str], **values: Any) -> list[dict[str, Any]]:
    return [log_line(identity, **values) for identity in identities]


# --- the log ----------------------------------------------------------------------------------------------------------


def test_requests_of_the_log_are_accounted_for(site: Site) -> None:
    site.log(*lines(names(1, 2)))
    site.start()
    wait_for(lambda: site.ids() == names(1, 2))
    site.log(*lines(names(3, 3), key="bob"))
    wait_for(lambda: site.ids() == names(1, 3))
    assert site.states[:2] == ["READY=1", "WATCHDOG=1"]
    (call,) = site.calls
    assert {"--follow", "--output=json", "--since=-10min"} < {*call}
    assert {f"_UID={USER.pw_uid}", "SYSLOG_IDENTIFIER=trtllm-gateway"} < {*call}
    wait_for(lambda: f'fleet_usage_requests_total{{key="bob",model="{MODEL}"}}' in site.metrics())
    metrics = site.metrics()
    assert metrics[f'fleet_usage_requests_total{{key="alice",model="{MODEL}"}}'] == 2
    assert metrics["fleet_usage_dropped_lines_total"] == 2
    assert abs(metrics["fleet_usage_last_run_timestamp_seconds"] - time.time()) < 30


def test_other_messages_are_skipped(site: Site) -> None:
    messages = [
        "Server model:m/gpu2.serve-0 is DOWN, reason: Layer4 timeout.",
        json.dumps(log_line("cut"))[:-40],
        "",
        "[1]",
        '"text"',
        "7",
        "null",
        [255, 254],  # not UTF-8
        {**log_line("older"), "status": None},
        {"id": "x", "usage": "1 2 3 4", "model": "m", "bytes_in": "no number"},
        {name: value for name, value in log_line("").items() if name != "id"},
    ]
    site.log(*messages, log_line("a"), *messages, log_line("b"))
    process = site.start()
    wait_for(lambda: site.ids() == ["a", "b"])
    assert process.poll() is None
    assert site.output == []


def test_a_kill_loses_and_repeats_nothing(site: Site) -> None:
    written = names(1, 400)
    done = threading.Event()

    def write() -> None:
        for identity in written:
            site.log(log_line(identity))
            time.sleep(0.02)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    # Each is killed at another moment of its rounds.
    for seconds in (1.3, 0.9, 2.2, 1.1):
        process = site.start()
        time.sleep(seconds)
        site.kill(process)
    writer.join()
    assert len(site.ids()) > 0
    site.start()
    wait_for(lambda: len(site.ids()) == 400)
    time.sleep(1.5)
    assert site.ids() == written
    state = json.loads((site.folder / "usage" / STATE).read_text())
    assert state["cursor"] == "s=400"
    assert [sums["requests"] for _key, _model, sums in state["sums"]] == [400]


def test_a_journal_without_the_cursor_is_read_from_the_last_line(site: Site) -> None:
    begin = int(time.time()) - 100
    site.log(*lines(names(1, 3)), moment=begin + 0.2)
    site.log(*lines(names(4, 6)), moment=begin + 10.2)
    process = site.start()
    wait_for(lambda: site.ids() == names(1, 6))
    wait_for(lambda: json.loads((site.folder / "usage" / STATE).read_text())["cursor"] == "s=6")
    site.kill(process)
    (site.folder / "bin/lost").touch()
    site.log(*lines(names(7, 9)), moment=begin + 10.7)
    site.start()
    wait_for(lambda: site.ids() == names(1, 9))
    time.sleep(1.5)
    assert site.ids() == names(1, 9)
    assert [call[5] for call in site.calls] == ["--since=-10min", "--after-cursor=s=6", f"--since=@{begin + 10}"]
    assert site.output == ["The access log cannot be read: Failed to seek to cursor: Invalid argument"]


def test_a_journalctl_that_ends_is_started_again(site: Site) -> None:
    site.log(*lines(names(1, 2)))
    site.start()
    wait_for(lambda: site.ids() == names(1, 2))
    (site.folder / "bin/ended").touch()
    wait_for(lambda: len(site.calls) > 1)
    assert site.output == ["The access log cannot be read: journalctl ended with status 0"]
    site.log(*lines(names(3, 4)))
    (site.folder / "bin/ended").unlink()
    wait_for(lambda: site.ids() == names(1, 4))
    assert site.calls[-1][5] == "--after-cursor=s=2"
    # The journal loses the cursor of a program that runs.
    (site.folder / "bin/lost").touch()
    (site.folder / "bin/ended").touch()
    site.log(*lines(names(5, 6)))
    wait_for(lambda: site.calls[-1][5].startswith("--since=@"))
    (site.folder / "bin/ended").unlink()
    wait_for(lambda: site.ids() == names(1, 6))


def test_a_host_without_journalctl_is_reported(site: Site) -> None:
    (site.folder / "bin/journalctl").rename(site.folder / "bin/other")
    process = site.start()
    wait_for(lambda: site.output == ["The access log cannot be read: journalctl: No such file or directory"])
    (site.folder / "bin/other").rename(site.folder / "bin/journalctl")
    site.log(log_line("a"))
    wait_for(lambda: site.ids() == ["a"])
    assert process.poll() is None


def test_a_host_without_the_user_of_haproxy_is_reported(site: Site) -> None:
    process = site.start("no-such-user")
    assert process.wait(30) == 1
    assert "no-such-user" in site.output[-1]


# --- open streams -----------------------------------------------------------------------------------------------------


def answer(identity: str, events: int) -> dict[str, Any]:
    fields = ("id", "key", "model", "instance", "usage", "first_token_ms", "total_ms", "bytes_in")
    return {name: log_line(identity, usage=f"- - - {events}")[name] for name in fields}


@pytest.fixture
def worker(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the name of HAProxy."""
    (site.folder / "haproxy").symlink_to(shutil.which("sleep") or "")
    with subprocess.Popen([str(site.folder / "haproxy"), "600"]) as process:
        yield process
        process.kill()


def test_streams_of_a_killed_haproxy_are_accounted_for(site: Site, worker: subprocess.Popen[bytes]) -> None:
    site.start()
    wait_for((site.folder / "run/usage").is_dir)
    assert ((site.folder / "run/usage").stat().st_mode & 0o777, (site.folder / "run/usage").owner()) == (
        0o750,
        USER.pw_name,
    )
    one = site.open_answers(f"{worker.pid}-1", answer("a", 5), answer("b", 5))
    other = site.open_answers(f"{worker.pid}-2")
    time.sleep(1.5)
    site.open_answers(f"{worker.pid}-1", answer("a", 8), answer("b", 8))
    time.sleep(6.5)
    assert site.ids() == []
    worker.kill()
    worker.wait()
    site.log(log_line("b"))
    wait_for(lambda: sorted(site.ids()) == ["a", "b"])
    wait_for(lambda: not one.exists() and not other.exists())
    ends = {record.id: (record.end, record.completion_tokens) for record in site.records()}
    assert ends == {"a": (KILLED, 8), "b": ("----", 50)}


def test_streams_are_known_after_a_kill_of_both(site: Site, worker: subprocess.Popen[bytes]) -> None:
    process = site.start()
    wait_for((site.folder / "run/usage").is_dir)
    site.open_answers(f"{worker.pid}-1", answer("a", 8))
    state = site.folder / "usage" / STATE
    wait_for(lambda: state.exists() and '"a"' in state.read_text())
    site.kill(process)
    worker.kill()
    worker.wait()
    shutil.rmtree(site.folder / "run/usage")  # as systemd does
    site.start()
    wait_for(lambda: site.ids() == ["a"])
    assert (site.folder / "run/usage").is_dir()


def test_lines_that_are_read_late_come_before_open_streams(site: Site) -> None:
    """After a long stop the program reads the log for longer than lines of a process that ended may take."""
    (site.folder / "run/usage").mkdir()
    site.open_answers("999999999-1", answer("a", 8), answer("b", 8))  # no such process
    ledger = Ledger(site.folder / "usage", 90)
    log = AccessLog(USER.pw_uid, "", 0)
    answers = OpenAnswers(site.folder / "run/usage", USER.pw_name)
    now = time.time()
    for second in range(20):
        log.lines.put(Line(now - 100 + second, json.dumps(log_line(f"old{second}")), f"s={second}"))
        account(ledger, log, answers, now + second)
    log.lines.put(Line(now - 80, json.dumps(log_line("a")), "s=20"))
    account(ledger, log, answers, now + 20)
    account(ledger, log, answers, now + 21)
    assert {one.id: one.end for one in site.records() if "old" not in one.id} == {"a": "----", "b": KILLED}
    assert list((site.folder / "run/usage").iterdir()) == []


# --- quotas -----------------------------------------------------------------------------------------------------------


def test_quotas_are_set_in_haproxy(site: Site) -> None:
    site.limits = {"alice": {"tokens_per_minute": 1000, "tokens_per_day": 5000}, "bob": {"tokens_per_day": 100}}
    today = int(time.time() // 86400)
    site.haproxy.table += (
        f"0x55: key=gateway2|alice|tokens_per_day use=0 exp=9 shard=0 gpc0=1000 gpc1={today}\n"
        f"0x56: key=gateway1|alice|tokens_per_day use=0 exp=9 shard=0 gpc0=77 gpc1={today}\n"
    )
    site.start()
    maps = site.haproxy.told
    wait_for(lambda: maps("set map /maps/tokens_per_day_left.map ") == ["alice 4000", "bob 100"])
    assert maps("set map /maps/tokens_per_minute_left.map ") == ["alice 1000"]
    assert maps("set map /maps/tokens_per_minute_until.map ") == ["alice 0"]
    assert maps("set table ") == []
    site.log(log_line("a", usage="200 0 100 9"), log_line("b", key="bob"), log_line("c", key="carol"))
    wait_for(lambda: "bob 0" in maps("set map /maps/tokens_per_day_left.map "))
    assert maps("set map /maps/tokens_per_day_left.map ") == ["alice 4000", "bob 100", "alice 3700", "bob 0"]
    assert maps("set map /maps/tokens_per_minute_left.map ") == ["alice 1000", "alice 700"]
    midnight = (today + 1) * 86400
    assert maps("set map /maps/tokens_per_day_until.map ") == ["alice 0", "bob 0", f"bob {midnight}"]
    assert maps("set map /maps/tokens_per_day_reset.map ") == [f"alice {midnight}", f"bob {midnight}"]
    counts = maps("set table token_counts key ")
    assert f"gateway1|alice|tokens_per_day data.gpc0 300 data.gpc1 {today}" in counts
    assert f"gateway1|bob|tokens_per_day data.gpc0 150 data.gpc1 {today}" in counts
    assert any(
        re.fullmatch(r"gateway1\|alice\|tokens_per_minute data.gpc0 300 data.gpc1 \d{10}", one) for one in counts
    )
    assert not any("carol" in one for one in site.haproxy.heard)


def test_a_new_process_of_haproxy_gets_all_quotas(site: Site) -> None:
    site.limits = {"alice": {"tokens_per_day": 5000}}
    site.log(log_line("a"))
    site.start()
    left = "set map /maps/tokens_per_day_left.map alice 4850"
    count = "set table token_counts key gateway1|alice|tokens_per_day data.gpc0 150 "
    wait_for(lambda: left in site.haproxy.heard)
    time.sleep(2)
    assert site.haproxy.heard.count(left) == 1
    assert sum(one.startswith(count) for one in site.haproxy.heard) == 1
    site.haproxy.pid, site.haproxy.dropped = 4712, 5
    wait_for(lambda: site.haproxy.heard.count(left) == 2)
    assert sum(one.startswith(count) for one in site.haproxy.heard) == 2
    # Those of both processes.
    wait_for(lambda: site.metrics().get("fleet_usage_dropped_lines_total") == 7)


def test_lines_that_were_dropped_count_once(site: Site) -> None:
    process = site.start()
    wait_for(lambda: site.metrics().get("fleet_usage_dropped_lines_total") == 2)
    site.kill(process)
    site.start()
    wait_for(lambda: site.haproxy.heard.count("show info") > 4)
    site.haproxy.dropped = 3
    wait_for(lambda: site.metrics().get("fleet_usage_dropped_lines_total") == 3)
    lost = [one.lost_lines for one in read_days(site.folder / "usage", 0, 1e12) if isinstance(one, Loss)]
    assert lost == [2, 1]


def test_a_full_disk_does_not_keep_keys_rejected(site: Site) -> None:
    site.limits = {"alice": {"tokens_per_day": 5000}}
    (site.folder / "usage/state.json").mkdir()
    (site.folder / "usage/state.json/x").touch()
    site.start()
    wait_for(lambda: "set map /maps/tokens_per_day_until.map alice 0" in site.haproxy.heard)


def test_requests_are_accounted_for_without_haproxy(site: Site) -> None:
    site.limits = {"alice": {"tokens_per_day": 5000}}
    site.haproxy.stop()
    site.start()
    wait_for(lambda: len(site.output) == 1)
    site.log(log_line("a"))
    wait_for(lambda: site.ids() == ["a"])
    assert "HAProxy does not listen" in site.output[0]
    site.haproxy.start()
    wait_for(lambda: "set map /maps/tokens_per_day_left.map alice 4850" in site.haproxy.heard)
    wait_for(lambda: site.output[1:] == ["All is accounted for again"])


def test_a_quota_that_haproxy_rejects_is_tried_again(site: Site) -> None:
    site.limits = {"alice": {"tokens_per_day": 5000}}
    site.haproxy.rejected = "tokens_per_day_until"
    site.start()
    problem = "HAProxy rejects a quota: Unknown map identifier."
    wait_for(lambda: site.output == [problem])
    site.haproxy.rejected = ""
    wait_for(lambda: site.output == [problem, "All is accounted for again"])
    assert site.haproxy.told("set map /maps/tokens_per_day_until.map ") == ["alice 0"]


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_written_lose_nothing(site: Site) -> None:
    site.start()
    wait_for(lambda: site.states)
    blocked = [site.folder / "usage" / f"{day_of(time.time() + shift)}.jsonl" for shift in (0, 86400)]
    for path in blocked:
        path.mkdir()
    site.log(log_line("a"), log_line("b"))
    wait_for(lambda: len(site.output) == 1)
    assert "Is a directory" in site.output[0]
    site.log(log_line("c"))
    time.sleep(1.5)
    for path in blocked:
        path.rmdir()
    wait_for(lambda: site.ids() == ["a", "b", "c"])
    wait_for(lambda: site.output[1:] == ["All is accounted for again"])


def test_no_metrics_are_written_without_their_directory(site: Site) -> None:
    (site.folder / "metrics").rmdir()
    site.start()
    site.log(log_line("a"))
    wait_for(lambda: site.ids() == ["a"])
    time.sleep(1.2)
    assert not (site.folder / "metrics").exists()
    assert site.output == []
