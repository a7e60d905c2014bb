# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and directories that module host_files writes, and those that it refuses."""

from __future__ import annotations

import base64
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.files import put_directory, put_file
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd
from ansible_collections.trtllm.fleet.plugins.modules import host_files
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

Run = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a user without root own files as root does."""
    if os.getuid():
        monkeypatch.setattr(os, "chown", lambda *_arguments: None)


@pytest.fixture
def hardened() -> Iterator[None]:
    old = os.umask(0o077)
    yield
    os.umask(old)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(**arguments: Any) -> dict[str, Any]:
        for file in arguments.get("files", []):
            file["content"] = base64.b64encode(file.get("content", "").encode()).decode()
        return run_module(host_files, capsys, arguments)

    return _run


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="the owner of the files is root")


@needs_root
def test_writes_directories_and_files_once(run: Run, tmp_path: Path) -> None:
    file = {"path": str(tmp_path / "a/b/file"), "content": "text\n", "mode": "0600"}
    wanted = {"directories": [{"path": str(tmp_path / "a/b"), "mode": "0700"}], "files": [file]}
    done = run(**wanted)
    assert done["written"] == done["created"] == [str(tmp_path / "a/b"), str(tmp_path / "a/b/file")]
    assert ((tmp_path / "a/b/file").read_text(), mode(tmp_path / "a/b/file")) == ("text\n", 0o600)
    assert (mode(tmp_path / "a"), mode(tmp_path / "a/b")) == (0o755, 0o700)
    file["content"] = "text\n"
    again = run(**wanted)
    assert (again["changed"], again["written"]) == (False, [])


@needs_root
@pytest.mark.usefixtures("hardened")
def test_the_umask_of_the_login_does_not_matter(run: Run, tmp_path: Path) -> None:
    run(files=[{"path": str(tmp_path / "a/b/file")}], directories=[{"path": str(tmp_path / "c/d")}])
    modes = [mode(tmp_path / name) for name in ("a", "a/b", "a/b/file", "c", "c/d")]
    assert modes == [0o755, 0o755, 0o644, 0o755, 0o755]


@needs_root
@pytest.mark.parametrize("what", ["content", "mode", "owner", "link", "missing"])
def test_puts_right_what_changed(run: Run, tmp_path: Path, what: str) -> None:
    path = tmp_path / "file"
    run(files=[{"path": str(path), "content": "text"}])
    if what == "content":
        path.write_text("other")
    elif what == "mode":
        path.chmod(0o666)
    elif what == "owner":
        os.chown(path, 1, 1)
    else:
        path.unlink()
    if what == "link":
        path.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_text("text")
    assert run(files=[{"path": str(path), "content": "text"}])["written"] == [str(path)]
    assert (path.read_text(), mode(path), path.stat().st_uid, path.is_symlink()) == ("text", 0o644, 0, False)


@needs_root
def test_a_directory_keeps_its_owner(run: Run, tmp_path: Path) -> None:
    """Apt gives the directory partial of its lists to its own user at each run."""
    path = tmp_path / "partial"
    path.mkdir(mode=0o700)
    os.chown(path, 1, 1)
    assert run(directories=[{"path": str(path), "mode": "0700"}])["written"] == []
    assert run(directories=[{"path": str(path), "mode": "0755"}])["written"] == [str(path)]
    assert (mode(path), path.stat().st_uid) == (0o755, 1)


@needs_root
def test_check_mode_reports_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    found = run(
        directories=[{"path": str(tmp_path / "a")}],
        files=[{"path": str(tmp_path / "a/file"), "content": "text"}],
        _ansible_check_mode=True,
    )
    assert found["written"] == [str(tmp_path / "a"), str(tmp_path / "a/file")]
    assert not list(tmp_path.iterdir())


@needs_root
def test_diff_has_the_text_but_not_of_sensitive_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("old\n")
    found = run(
        files=[
            {"path": str(tmp_path / "plain"), "content": "new\n"},
            {"path": str(tmp_path / "secret"), "content": "hf_secret\n", "sensitive": True},
        ],
        _ansible_diff=True,
    )
    assert [(one["before"], one["after"]) for one in found["diff"]] == [("old\n", "new\n")]
    assert "hf_secret" not in str(found)
    assert base64.b64encode(b"hf_secret\n").decode() not in str(found)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"files": [{"path": "file"}]}, "path is file; a path of host_files starts with /."),
        ({"files": [{"path": "/x", "mode": "644"}]}, "mode of /x is 644; a mode has four octal digits, such as 0644."),
        ({"directories": [{"path": "/x", "mode": "u=rw"}]}, "mode of /x is u=rw; a mode has four octal digits"),
    ],
)
def test_wrong_options_are_refused_before_a_change(run: Run, wrong: dict[str, Any], message: str) -> None:
    found = run(**wrong)
    assert found["failed"]
    assert message in found["msg"]


def test_what_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    directory, file = tmp_path / "directory", tmp_path / "file"
    assert run(files=[{"path": str(directory)}])["msg"] == f"{directory} cannot be written: it is a directory"
    assert run(directories=[{"path": str(file)}])["msg"] == f"{file} cannot be written: it is not a directory"
    assert "cannot be written: " in run(files=[{"path": str(file / "below")}])["msg"]


@needs_root
def test_a_file_that_vanishes_while_it_is_read_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit that downloads the weights removes its token when it ends."""
    path = tmp_path / "token"
    path.write_text("token")
    read = Path.read_bytes

    def vanish(self: Path) -> bytes:
        self.unlink()
        return read(self)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", vanish)
        assert [change.path for change in put_file(path, b"token", 0o600)] == [str(path)]
    assert (path.read_text(), mode(path)) == ("token", 0o600)


@needs_root
@pytest.mark.parametrize(
    ("started", "stale"), [(None, []), (-60.0, ["a.service"]), (60.0, [])], ids=["stopped", "before", "after"]
)
def test_a_unit_is_stale_from_the_write_until_its_start(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: float | None, stale: list[str]
) -> None:
    """A run may be interrupted between both."""
    path = tmp_path / "file"
    wanted = {"files": [{"path": str(path), "content": "text", "unit": "a.service"}]}

    def answer(argv: Sequence[str], _timeout: float) -> CommandResult:
        assert argv[:2] == ("systemctl", "show")
        assert argv[-1] == "a.service"
        if started is None:
            return CommandResult(0, "MainPID=0\nExecMainStartTimestampMonotonic=0\n")
        age = time.time() - path.stat().st_mtime - started
        moment = (time.clock_gettime(time.CLOCK_MONOTONIC) - age) * 1e6
        return CommandResult(0, f"MainPID=7\nExecMainStartTimestampMonotonic={moment:.0f}\n")

    monkeypatch.setattr(host_files, "Systemd", lambda: Systemd(answer))
    checked = run(files=[dict(file) for file in wanted["files"]], _ansible_check_mode=True)
    assert (checked["stale"], path.exists()) == (["a.service"], False)
    assert run(files=[dict(file) for file in wanted["files"]])["stale"] == ["a.service"]
    again = run(files=[dict(file) for file in wanted["files"]])
    assert (again["changed"], again["stale"]) == (False, stale)


def test_functions_return_what_they_would_change(tmp_path: Path) -> None:
    assert [change.path for change in put_directory(tmp_path / "a", 0o755, dry=True)] == [str(tmp_path / "a")]
    (change,) = put_file(tmp_path / "a/file", b"\xff", 0o644, dry=True)
    assert change.after == "\ufffd"
