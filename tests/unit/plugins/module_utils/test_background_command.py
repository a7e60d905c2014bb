"""Test the background command of a benchmark."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark import background_command
from ansible_collections.trtllm.fleet.plugins.module_utils.benchmark.background_command import End


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(background_command, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(background_command, "GRACE_SECONDS", 0.3)
    made = tmp_path / "load"
    made.mkdir()
    yield made
    for path in made.glob("*.pid"):
        for pid in path.read_text().split():
            if alive(int(pid)):
                os.kill(int(pid), signal.SIGKILL)


def start(
    folder: Path, code: str, timeout: float = 60, lease: float = 60, cleanup: tuple[str, ...] = (), **env: str
) -> None:
    background_command.start(folder, [sys.executable, "-u", "-c", code], env, timeout, lease, cleanup)


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def end(folder: Path) -> tuple[End, str]:
    """Poll a command until its end."""
    found, log = wait_for(lambda: looked if (looked := background_command.look(folder))[0] else None)
    return found, log


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def pid_of(folder: Path, name: str = "a.pid") -> int:
    return int(wait_for(lambda: (folder / name).exists() and (folder / name).read_text()))


SLEEPS = "import os, time; open('a.pid', 'w').write(str(os.getpid())); time.sleep(60)"


def test_it_ends_by_itself(folder: Path) -> None:
    start(
        folder,
        "import os, sys; print('1 of 2\\r2 of 2'); print(os.environ['KEY'], file=sys.stderr); sys.exit(3)",
        KEY="k",
    )
    found, log = end(folder)
    assert (found.rc, found.reason) == (3, "ended")
    assert log == "1 of 2\n2 of 2\nk\n"
    assert background_command.describe(found) == "ended with 3"
    # A later poll returns the same.
    assert background_command.look(folder) == (found, log)


def test_it_is_not_waited_for(folder: Path) -> None:
    began = time.monotonic()
    start(folder, SLEEPS, timeout=20)
    assert time.monotonic() - began < 10
    assert background_command.look(folder)[0] is None
    pid = pid_of(folder)
    # Of a session of its own, so that what ends this one leaves it.
    assert os.getsid(pid) not in (os.getsid(0), os.getsid(os.getpid()))
    assert os.getsid(pid) == pid


def test_output_so_far(folder: Path) -> None:
    start(folder, "import time; print('Profiling: 3/4 '); time.sleep(60)", timeout=20)
    # Without a buffer, print writes the text and the end of its line one after the other.
    log = wait_for(lambda: log if (log := background_command.look(folder)[1]).endswith("\n") else None)
    assert log == "Profiling: 3/4 \n"
    assert background_command.look(folder)[0] is None


def test_only_the_end_of_a_long_output_is_looked_at(folder: Path) -> None:
    start(folder, "print('a' * 100000 + 'the end')")
    __, log = end(folder)
    assert len(log) == background_command.TAIL
    assert log.endswith("athe end\n")


def test_killed(folder: Path) -> None:
    start(folder, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    found, __ = end(folder)
    assert found.rc == -9
    assert background_command.describe(found) == "was killed by signal 9"


def test_no_such_program(folder: Path) -> None:
    background_command.start(folder, ["/nowhere/aiperf"], {}, 60, 60)
    found, log = end(folder)
    assert (found.rc, found.reason) == (127, "ended")
    assert "No such file or directory: '/nowhere/aiperf'" in log


def test_timeout(folder: Path) -> None:
    start(folder, SLEEPS, timeout=0.3)
    pid = pid_of(folder)
    found, __ = end(folder)
    assert (found.rc, found.reason) == (-15, "timeout")
    assert 0.3 < found.seconds < 20
    assert background_command.describe(found).startswith("was ended after ")
    assert not alive(pid)


def test_a_command_without_polls_is_ended(folder: Path) -> None:
    start(folder, SLEEPS, lease=0.5)
    pid = pid_of(folder)
    wait_for((folder / background_command.END).exists)
    found, __ = background_command.look(folder)
    assert found is not None
    assert found.reason == "abandoned"
    assert background_command.describe(found) == "was ended because polling stopped"
    assert not alive(pid)


def test_a_poll_renews_the_lease(folder: Path) -> None:
    start(folder, SLEEPS, lease=1.0, timeout=20)
    began = time.monotonic()
    while time.monotonic() - began < 2.5:
        assert background_command.look(folder)[0] is None
        time.sleep(0.1)


STUBBORN = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "open('b.pid', 'w').write(str(os.getpid())); time.sleep(60)"
)


@pytest.mark.parametrize("parent", ["time.sleep(60)", "sys.exit(0)"], ids=["timeout", "ends by itself"])
def test_child_processes_end_with_the_command(folder: Path, parent: str) -> None:
    """As its workers do, which may be deaf to a request."""
    child = f"subprocess.Popen([sys.executable, '-c', {STUBBORN!r}])"
    wait = "while not (os.path.exists('b.pid') and open('b.pid').read()): time.sleep(0.01)\n"
    start(folder, f"import os, subprocess, sys, time\n{child}\n{wait}{parent}", timeout=1.5)
    pid = pid_of(folder, "b.pid")
    end(folder)
    wait_for(lambda: not alive(pid))


def test_one_that_is_deaf_to_a_request_is_killed(folder: Path) -> None:
    start(folder, STUBBORN, timeout=1.0)
    pid = pid_of(folder, "b.pid")
    found, __ = end(folder)
    assert (found.rc, found.reason) == (-9, "timeout")
    assert not alive(pid)


def test_cleanup_before_and_after(folder: Path) -> None:
    """What an earlier load left goes first, as a container whose name is taken."""
    note = f"open({str(folder / 'order')!r}, 'a').write"
    start(folder, f"{note}('load ')", cleanup=(sys.executable, "-c", f"{note}('cleanup ')"))
    found, log = end(folder)
    assert (folder / "order").read_text() == "cleanup load cleanup "
    assert (found.rc, log) == (0, "")


def test_cleanup_that_fails_is_no_failure(folder: Path) -> None:
    start(folder, "print('well')", cleanup=(sys.executable, "-c", "raise SystemExit('no such container')"))
    assert end(folder)[0].rc == 0


def test_cleanup_after_a_timeout(folder: Path) -> None:
    note = f"open({str(folder / 'order')!r}, 'a').write('cleanup ')"
    start(folder, SLEEPS, timeout=0.3, cleanup=(sys.executable, "-c", note))
    assert end(folder)[0].reason == "timeout"
    assert (folder / "order").read_text() == "cleanup cleanup "


def test_it_ends_if_its_folder_is_removed(folder: Path) -> None:
    """The play removes it whatever happened, and no load may stay behind."""
    start(folder, SLEEPS)
    pid = pid_of(folder)
    folder.rename(folder.parent / "gone")
    wait_for(lambda: not alive(pid))
    assert not folder.exists()


def test_a_killed_supervisor_is_reported(folder: Path) -> None:
    """As when memory runs out: the end is never written."""
    start(folder, SLEEPS)
    pid = pid_of(folder)
    watching = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(watching, signal.SIGKILL)
    found, __ = end(folder)
    assert background_command.describe(found) == "was lost: its supervisor was killed"
