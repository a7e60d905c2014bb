"""The program of role host_health: what it answers to gateways, how it follows the kernel log, and hung commands."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.plugins.filter.fault_catalogue import fault_catalogue
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.health.kernel_log import Line
from roles.host_health.files import host_health
from roles.host_health.files.host_health import Commands, Health, KernelLog, Server

CONFIG = {"mode": "drain", "faults": [], "rare_interval": 300, "metrics_path": "/nowhere/fleet.prom"}
XID = "NVRM: Xid (PCI:0000:06:00): 79, pid=1, name=x, GPU has fallen off the bus."


def health(reasons: dict[str, str], instances: list[str], certain: bool = True, mode: str = "drain") -> Health:
    one = Health({**CONFIG, "mode": mode}, KernelLog(threading.Event()))
    one._certain, one._instances, one._reasons = certain, instances, reasons
    return one


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "name", "answer"),
    [
        pytest.param(health({}, ["serve-0"], certain=False), "gpu1.serve-0", "", id="not fit before it is certain"),
        pytest.param(health({"serve-0": "x"}, ["serve-0"], certain=False), "h.serve-0", "down #x\n", id="but unfit"),
        pytest.param(health({}, ["serve-0"]), "gpu1.serve-0", "up\n", id="fit"),
        pytest.param(health({"serve-0": "lost"}, ["serve-0"]), "gpu1.serve-0", "down #lost\n", id="unfit"),
        pytest.param(health({"serve-0": "lost"}, ["serve-0"]), "serve-0", "down #lost\n", id="without the host"),
        pytest.param(health({"serve-0": "lost"}, ["serve-0", "serve-1"]), "a.b.serve-1", "up\n", id="another one"),
        pytest.param(health({"serve-0": "lost"}, ["serve-0"]), "gpu1.serve-9", "", id="one that it does not know"),
        pytest.param(health({"serve-0": "lost"}, ["serve-0"]), "", "down #lost\n", id="the host, all unfit"),
        pytest.param(health({"serve-0": "lost"}, ["serve-0", "serve-1"]), "", "up\n", id="the host, one fit"),
        pytest.param(health({"serve-0": "x"}, ["serve-0"], mode="observe"), "serve-0", "up\n", id="mode observe"),
    ],
)
def test_what_gateways_get(one: Health, name: str, answer: str) -> None:
    assert one.answer(name) == answer


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server("127.0.0.1", 0, health({"serve-0": "lost"}, ["serve-0"]))
    threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield one
    one.shutdown()
    one.server_close()


def ask(server: Server, *parts: bytes) -> bytes:
    with socket.create_connection(server.socket.getsockname(), timeout=5) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        while got := connection.recv(100):
            answer += got
        return answer


def test_the_agent_check_of_any_haproxy(server: Server) -> None:
    assert ask(server) == b"down #lost\n"  # it sends nothing
    assert ask(server, b"gpu1.", b"serve-0\n") == b"down #lost\n"


def test_garbage_and_idle_clients_do_not_stop_it(server: Server) -> None:
    idle = [socket.create_connection(server.socket.getsockname()) for _number in range(5)]
    assert ask(server, b"\xff" * 500) == b""
    assert ask(server, b"gpu1.serve-0\n") == b"down #lost\n"
    for one in idle:
        one.close()
    time.sleep(0.1)
    assert ask(server, b"gpu1.serve-0\n") == b"down #lost\n"


# --- kernel log ------------------------------------------------------------------------------------------------------


def entry(text: str, cursor: str) -> str:
    return json.dumps({"MESSAGE": text, "__REALTIME_TIMESTAMP": "1795000000000000", "__CURSOR": cursor})


def followers() -> int:
    return sum(one.name.endswith("(_follow)") for one in threading.enumerate())


@pytest.fixture
def parked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Parks the threads that follow the log, which would go on to start programs beside all later tests."""
    before = followers()
    at_rest: list[None] = []

    def park(*_args: object) -> None:
        at_rest.append(None)
        threading.Event().wait()

    monkeypatch.setattr(host_health, "RESTART", 0.05)
    yield
    monkeypatch.setattr(KernelLog, "_stream", park)
    wait_for(lambda: len(at_rest) == followers() - before)


@pytest.fixture
def journal(parked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journalctl that prints the file of its kind and, with --follow, ends."""
    program = tmp_path / "journalctl"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys, pathlib\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "with (folder / 'calls').open('a') as calls: print(*sys.argv[1:], file=calls)\n"
        "file = folder / ('new' if '--follow' in sys.argv else 'old')\n"
        "print(file.read_text() if file.exists() else '', flush=True)\n"
        "file.unlink(missing_ok=True)\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def wait_for(condition: object, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_kernel_log_is_followed_from_the_last_line(journal: Path) -> None:
    (journal / "old").write_text(entry(XID, "s=1"))
    changed = threading.Event()
    log = KernelLog(changed)
    log.start()
    assert xids(log) == [79]
    assert log.signals(1_795_000_100)[0]["age_hours"] == 0.03
    changed.clear()
    (journal / "new").write_text(entry(XID.replace("79", "48"), "s=2"))
    wait_for(changed.is_set)
    wait_for(lambda: len(xids(log)) == 2)
    (journal / "new").write_text(entry(XID.replace("79", "95"), "s=3"))
    wait_for(lambda: len(xids(log)) == 3)
    calls = (journal / "calls").read_text().splitlines()
    assert any("--follow --no-tail" in call and call.endswith("--after-cursor=s=1") for call in calls)
    assert any(call.endswith("--after-cursor=s=2") for call in calls)


def xids(log: KernelLog) -> list[int]:
    return sorted(one["code"] for one in log.signals(1_795_000_100) if one["signal"] == "xid")


def test_many_lines_hide_no_fault(journal: Path) -> None:
    noise = [entry("NVRM: nvidia_uvm_open: some noise", f"s={number}") for number in range(3000)]
    many = [entry(XID.replace("79", "13"), f"s=x{number}") for number in range(3000)]
    (journal / "old").write_text("\n".join([entry(XID, "s=1"), *noise, *many]))
    log = KernelLog(threading.Event())
    log.start()
    assert xids(log) == [13, 79]
    assert [one["count"] for one in log.signals(1_795_000_100) if one["signal"] == "xid"] == [1, host_health.LINES]


def test_a_flood_of_one_line_starts_one_look() -> None:
    changed = threading.Event()
    log = KernelLog(changed)
    for number in range(3):
        log._add(Line(1000 + number, XID))
        assert changed.is_set() is (number == 0)
        changed.clear()
    log._add(Line(2000, XID))
    assert changed.is_set()


def test_a_journalctl_that_rejects_the_pattern_is_used_without_it(journal: Path) -> None:
    program = journal / "journalctl"
    rejects = "any('--grep' in one for one in sys.argv) and sys.exit('no pattern support')\n"
    program.write_text(program.read_text().replace("file = folder", f"{rejects}file = folder"))
    (journal / "old").write_text(entry(XID, "s=1"))
    log = KernelLog(threading.Event())
    log.start()
    assert xids(log) == [79]
    assert log._grep == ()


def test_a_follower_that_ends_is_reported(journal: Path) -> None:
    log = KernelLog(threading.Event())
    log.start()
    wait_for(lambda: any(one["signal"] == "probe" for one in log.signals(1_795_000_100)))


@pytest.mark.usefixtures("parked")
def test_a_kernel_log_that_cannot_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    log = KernelLog(threading.Event())
    log.start()
    (signal,) = log.signals(0)
    assert (signal["signal"], signal["name"]) == ("probe", "kernel log")


# --- commands --------------------------------------------------------------------------------------------------------


def test_no_second_nvidia_smi_while_one_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    # A link, as a program that was just written cannot be started while another thread starts one (ETXTBSY).
    smi.symlink_to(shutil.which("sleep") or "")
    # The killed one stays, as in state D: it is in a session of its own that the kill does not reach.
    started: list[subprocess.Popen[bytes]] = []

    def hang(argv: list[str], timeout: float) -> CommandResult:
        started.append(subprocess.Popen(["sleep", "60"], executable=str(smi)))
        return CommandResult(rc=None)

    monkeypatch.setattr(host_health, "run", hang)
    commands = Commands()
    assert commands([str(smi)], 1).rc is None
    assert commands([str(smi)], 1).rc is None
    assert len(started) == 1
    started[0].kill()
    started[0].wait()
    assert commands([str(smi)], 1).rc is None
    assert len(started) == 2
    started[1].kill()
    started[1].wait()


# --- catalogue -------------------------------------------------------------------------------------------------------


def test_the_catalogue_of_a_host_is_valid_there() -> None:
    rows = json.loads(json.dumps(fault_catalogue([{"id": "gpu_lost", "severity": "warning"}])))
    known = Health({**CONFIG, "faults": rows}, KernelLog(threading.Event()))._catalogue
    assert known["gpu_lost"].severity == "warning"
    assert "gateway_without_instances" not in known
