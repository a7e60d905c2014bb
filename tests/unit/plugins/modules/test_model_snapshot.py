"""model_snapshot: what it makes of a directory, with real files, links, locks and processes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import files
from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file
from ansible_collections.trtllm.fleet.plugins.module_utils.weights import snapshot, staging
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    LOCK,
    MANIFEST,
    MARKER,
    STATE,
    FileSystem,
    Manifest,
    RemoteFile,
    adopt,
    digest_of,
    file_system,
    locked,
    look,
    mark,
    read_manifest,
    read_marker,
    remember,
    verify,
    write_manifest,
)
from ansible_collections.trtllm.fleet.plugins.modules import model_snapshot
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from ansible_collections.trtllm.fleet.tests.unit.paths import PYTHONPATH

PACKAGE = "ansible_collections.trtllm.fleet.plugins.module_utils.weights"
REPOSITORY = "openai/tiny"
OLD, NEW, THIRD = "a" * 40, "b" * 40, "c" * 40
CONTENTS = {
    "config.json": b"{}",
    "model-1.safetensors": b"first" * 1000,
    "model-2.safetensors": b"second" * 1000,
    "sub/tokenizer.json": b"[]",
}
TOTAL = sum(map(len, CONTENTS.values()))

Contents = Mapping[str, bytes]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do it")


def remote(path: str, content: bytes) -> RemoteFile:
    """As the hub has it: sha256 of large files, git's name of the others."""
    if path.endswith(".safetensors"):
        return RemoteFile(path, len(content), sha256=hashlib.sha256(content).hexdigest())
    return RemoteFile(path, len(content), git_oid=hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())


def manifest_of(contents: Contents | None = None, commit: str = OLD) -> Manifest:
    files = CONTENTS if contents is None else contents
    return Manifest(REPOSITORY, commit, [remote(path, content) for path, content in files.items()])


def fill(directory: Path, contents: Contents | None = None) -> Path:
    """What a download leaves: files that are missing come, whole."""
    for path, content in (CONTENTS if contents is None else contents).items():
        if not (directory / path).exists():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
    return directory


def flip(path: Path) -> None:
    """One bit, in the file that is there."""
    with path.open("r+b") as content:
        first = content.read(1)
        content.seek(0)
        content.write(bytes([first[0] ^ 1]))


def tree(top: Path) -> dict[str, tuple[int, int, int]]:
    """Every name below a directory, with what changes when a file is touched."""
    return {
        str(path.relative_to(top)): (status.st_ino, status.st_mode, status.st_mtime_ns)
        for path in sorted(top.rglob("*"))
        for status in [path.lstat()]
    }


class Host:
    """A host's directory for one repository, and the module on it."""

    def __init__(self, top: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.top = top
        self.repository = top / "models" / REPOSITORY
        self.capsys = capsys

    def path(self, commit: str = OLD) -> Path:
        return self.repository / commit

    def run(self, state: str, commit: str = OLD, check: bool = False, **options: Any) -> dict[str, Any]:
        given = {"path": str(self.path(commit)), "state": state, "_ansible_check_mode": check, **options}
        return run_module(model_snapshot, self.capsys, given)

    def stage(self, contents: Contents | None = None, commit: str = OLD, **options: Any) -> dict[str, Any]:
        return self.run("staged", commit, manifest=manifest_of(contents, commit).as_dict(), **options)

    def has(self, contents: Contents | None = None, commit: str = OLD) -> Path:
        """A verified snapshot."""
        self.stage(contents, commit)
        fill(self.path(commit), contents)
        assert self.run("verified", commit)["verified"]
        return self.path(commit)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Host:
    # Wherever the tests run, it is a disk.
    (tmp_path / "mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(snapshot, "MOUNTS", tmp_path / "mountinfo")
    monkeypatch.setattr(snapshot, "FALLBACK", tmp_path / "fallback")
    top = tmp_path / "srv"
    top.mkdir()
    return Host(top, capsys)


Python = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def python() -> Iterator[Python]:
    """Starts processes that have the collection."""
    started = []

    def start(program: str, *arguments: object) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", f"import sys\nfrom pathlib import Path\n{program}", *map(str, arguments)],
                env={**os.environ, "PYTHONPATH": PYTHONPATH},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


HOLD = f"""
from {PACKAGE}.snapshot import locked
with locked(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.readline()
"""


def hold(python: Python, directory: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until it reads a line."""
    process = python(HOLD, directory)
    assert process.stdout
    assert process.stdout.readline() == "True\n"
    return process


# From nothing to verified


def test_dry_run_on_an_untouched_host_says_what_is_missing_and_makes_nothing(host: Host) -> None:
    for result in (host.stage(check=True), host.run("verified", check=True, manifest=manifest_of().as_dict())):
        assert (result["missing"], result["missing_bytes"]) == (sorted(CONTENTS), TOTAL)
        assert (result["verified"], result["total_bytes"], result["filesystem"]) == (False, TOTAL, "ext4")
    assert tree(host.top) == {}


def test_from_nothing_to_verified_and_again(host: Host) -> None:
    before = os.umask(0o077)
    try:
        staged = host.stage()
    finally:
        os.umask(before)
    assert (staged["changed"], staged["busy"], staged["missing_bytes"]) == (True, False, TOTAL)
    assert staged["diff"]["prepared"] == "write the manifest\n"
    assert {path: mode & 0o777 for path, (_inode, mode, _time) in tree(host.path()).items()} == {
        ".cache": 0o755, STATE: 0o755, LOCK: 0o644, MANIFEST: 0o644,
    }  # fmt: skip
    assert read_manifest(host.path()) == manifest_of()
    assert host.run("staged")["changed"] is False

    fill(host.path())
    assert host.run("verified", check=True)["hashed_bytes"] == TOTAL
    assert not (host.path() / MARKER).exists()
    first = host.run("verified")
    assert (first["changed"], first["verified"], first["hashed_bytes"]) == (False, True, TOTAL)
    for state in ("staged", "verified"):
        again = host.run(state)
        assert (again["changed"], again["verified"], again["hashed_bytes"], again["missing"]) == (False, True, 0, [])
        assert host.run(state, verify="full")["hashed_bytes"] == TOTAL
    assert staged["diff"]["after"] == "files: 0\nbytes: 0\n"
    assert again["diff"]["before"] == f"files: 4\nbytes: {TOTAL}\n"


def test_files_that_came_meanwhile_are_verified_by_staging(host: Host) -> None:
    host.stage()
    fill(host.path(), {path: CONTENTS[path] for path in ("config.json", "model-1.safetensors")})
    flip(host.path() / "model-1.safetensors")
    dry, staged = host.run("staged", check=True), host.run("staged")
    for result in (dry, staged):
        assert (result["corrupt"], result["hashed_bytes"]) == (["model-1.safetensors"], 2 + 5000)
        assert result["missing"] == ["model-1.safetensors", "model-2.safetensors", "sub/tokenizer.json"]
    assert host.run("staged")["hashed_bytes"] == 0


# What can be wrong with it


def truncate(path: Path) -> None:
    os.truncate(path, 100)


def lengthen(path: Path) -> None:
    os.truncate(path, 10**9)  # without a byte on the disk


def replace_by_link(path: Path) -> None:
    outside = path.parents[4] / "outside"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def replace_directory_by_link(path: Path) -> None:
    directory = path.parent / "sub"
    outside = directory.rename(directory.parents[4] / "outside")
    directory.symlink_to(outside)


def add_files(path: Path) -> None:
    (path.parent / "original").mkdir()
    (path.parent / "original/model.bin").touch()
    (path.parent / "sub/model.bin").touch()
    (path.parent / "loop").symlink_to("/")
    os.mkfifo(path.parent / "pipe")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(flip, {"corrupt": ["model-1.safetensors"]}, id="flipped bit"),
        pytest.param(truncate, {"truncated": ["model-1.safetensors"]}, id="truncated"),
        pytest.param(lengthen, {"truncated": ["model-1.safetensors"]}, id="too long and sparse"),
        pytest.param(Path.unlink, {}, id="missing"),
        pytest.param(replace_by_link, {"extra": ["model-1.safetensors"]}, id="link to the same content"),
        pytest.param(replace_by_directory, {"extra": ["model-1.safetensors/"]}, id="directory"),
        pytest.param(
            replace_directory_by_link,
            {"missing": ["sub/tokenizer.json"], "extra": ["sub"]},
            id="link to a directory outside",
        ),
        pytest.param(
            add_files,
            {"missing": [], "extra": ["loop", "original/", "pipe", "sub/model.bin"]},
            id="extra files",
        ),
    ],
)
def test_damage_is_found_and_only_that_is_repaired(
    host: Host, damage: Callable[[Path], None], expected: dict[str, list[str]]
) -> None:
    directory = host.has()
    damage(directory / "model-1.safetensors")
    lists = {"missing": ["model-1.safetensors"], "corrupt": [], "truncated": [], "extra": [], **expected}
    damaged = tree(host.top)

    found = host.run("verified")
    assert {name: found[name] for name in lists} == lists
    assert found.get("failed", False) is bool(lists["missing"])
    dry = host.run("staged", check=True)
    assert {name: dry[name] for name in lists} == lists
    assert {path: value for path, value in tree(host.top).items() if STATE not in path} == {
        path: value for path, value in damaged.items() if STATE not in path
    }

    staged = host.run("staged")
    assert {name: staged[name] for name in lists} == lists
    assert staged["removed"] == dry["removed"] == lists["corrupt"] + lists["truncated"] + lists["extra"]
    intact = CONTENTS.keys() - set(lists["missing"])
    assert {str(path.relative_to(directory)) for path in directory.rglob("*.*") if ".cache" not in path.parts} == intact
    fill(directory)
    assert host.run("verified")["verified"]
    assert {path: (directory / path).read_bytes() for path in CONTENTS} == CONTENTS
    prefix = directory.relative_to(host.top)
    assert {path: damaged[f"{prefix}/{path}"] for path in intact} == {path: tree(directory)[path] for path in intact}
    for outside in host.top.rglob("outside"):
        # Links were removed, not what they led to.
        assert outside.is_dir() or outside.read_bytes() == CONTENTS["model-1.safetensors"]


def test_failure_counts_each_kind_and_names_the_variable(host: Host) -> None:
    contents = {f"model-{number}.safetensors": b"%d" % number for number in range(10)}
    directory = host.has(contents)
    for number in range(5):
        (directory / f"model-{number}.safetensors").unlink()
    truncate(directory / "model-5.safetensors")
    flip(directory / "model-6.safetensors")
    failed = host.run("verified")
    assert (failed["failed"], failed["verified"]) == (True, False)
    assert failed["missing_bytes"] == 7
    assert (
        "Of 10 files, 5 missing: model-0.safetensors, model-1.safetensors, model-2.safetensors and 2 more; "
        "1 truncated: model-5.safetensors; 1 with other content: model-6.safetensors. " in failed["msg"]
    )
    assert "model_weights_dir" in failed["msg"]


def test_a_bit_flipped_behind_our_back_is_found_by_reading_everything(host: Host) -> None:
    directory = host.has()
    file = directory / "model-1.safetensors"
    before = file.stat()
    flip(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert host.run("verified")["verified"]
    assert host.run("verified", verify="full", check=True)["corrupt"] == [file.name]
    found = host.run("verified", verify="full")
    assert (found["failed"], found["corrupt"]) == (True, [file.name])
    # And is known from then on.
    assert host.run("verified")["corrupt"] == [file.name]
    assert host.run("staged")["removed"] == [file.name]


def test_a_file_that_took_the_place_of_another_is_read(host: Host) -> None:
    directory = host.has()
    file = directory / "model-1.safetensors"
    before = file.stat()
    (directory / "new").write_bytes(bytes(5000))
    os.utime(directory / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (directory / "new").replace(file)
    assert host.run("verified")["corrupt"] == [file.name]


@pytest.mark.parametrize("content", ["", "[]", '{"config.json": 1}', "\x00", "[[1]]"])
def test_a_spoilt_marker_is_no_marker(host: Host, content: str) -> None:
    directory = host.has()
    (directory / MARKER).write_text(content)
    assert host.run("verified")["hashed_bytes"] == TOTAL


def test_marks_of_before_that_knew_no_inode_are_not_trusted(host: Host) -> None:
    directory = host.has()
    marks = {path: [size, time, digest] for path, (size, time, _inode, digest) in read_marker(directory).items()}
    (directory / MARKER).write_text(json.dumps(marks))
    assert host.run("verified")["hashed_bytes"] == TOTAL
    assert host.run("verified")["hashed_bytes"] == 0


def test_another_checksum_in_the_manifest_is_noticed(host: Host) -> None:
    host.has()
    result = host.stage({**CONTENTS, "config.json": b"[]"})
    assert (result["corrupt"], result["missing"], result["hashed_bytes"]) == (["config.json"], ["config.json"], 2)


def test_a_verified_snapshot_is_not_read(host: Host) -> None:
    # Terabytes that are not there: reading them would not end.
    files = [RemoteFile(f"model-{number}.safetensors", 10**12, sha256=f"{number:064x}") for number in range(15)]
    write_manifest(host.path(), Manifest(REPOSITORY, OLD, files))
    for file in files:
        (host.path() / file.path).touch()
        os.truncate(host.path() / file.path, file.size)
        remember(host.path(), {file.path: mark((host.path() / file.path).lstat(), file.digest)})
    result = host.run("verified")
    assert (result["verified"], result["hashed_bytes"], result["total_bytes"]) == (True, 0, 15 * 10**12)


def test_git_oid_is_what_git_says(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    # `git hash-object /dev/null`
    empty = RemoteFile("empty", 0, git_oid="e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")
    assert digest_of(tmp_path / "empty", empty) == empty.digest


# Power


def test_good_files_are_on_the_disk_before_they_are_said_to_be(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.stage()
    fill(host.path())
    flip(host.path() / "config.json")
    events: list[int | str] = []
    monkeypatch.setattr(snapshot.os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_ino))
    real_replace = os.replace

    def replace(old: str, new: Path) -> None:
        events.append(new.name)
        real_replace(old, new)

    monkeypatch.setattr(snapshot.os, "replace", replace)
    verify(host.path(), manifest_of())
    good = {(host.path() / path).stat().st_ino for path in CONTENTS if path != "config.json"}
    assert set(events[:3]) == good
    assert events[4:] == ["verified.json", (host.path() / STATE).stat().st_ino]
    events.clear()
    verify(host.path(), manifest_of(), full=True, keep_marks=False)
    assert events == []


@pytest.mark.parametrize(
    ("code", "remembered"), [(errno.EIO, False), (errno.ENOSPC, False), (errno.EINVAL, True), (errno.EROFS, True)]
)
def test_what_cannot_be_brought_to_the_disk_is_not_good(
    host: Host, monkeypatch: pytest.MonkeyPatch, code: int, remembered: bool
) -> None:
    host.stage()
    inode = (fill(host.path()) / "model-1.safetensors").stat().st_ino
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == inode:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(snapshot.os, "fsync", fail)
    result = host.run("verified")
    assert result.get("verified", False) is remembered
    assert ("model-1.safetensors" in read_marker(host.path())) is remembered
    if not remembered:
        assert "model-1.safetensors" in result["msg"]
        assert "model_weights_dir" in result["msg"]


# What arrives


def test_what_arrives_is_moved_to_its_place_if_it_is_right(tmp_path: Path) -> None:
    file = remote("sub/model.safetensors", b"weights")
    arrived = tmp_path / STATE / "peers/x"
    arrived.parent.mkdir(parents=True)
    for wrong in (b"WEIGHTS", b"weight"):
        arrived.write_bytes(wrong)
        assert not adopt(tmp_path, file, arrived)
        assert not (tmp_path / "sub").exists()
    arrived.write_bytes(b"weights")
    assert adopt(tmp_path, file, arrived)
    assert not arrived.exists()
    found = verify(tmp_path, Manifest(REPOSITORY, OLD, [file]))
    assert (found.good, found.hashed_bytes) == ([file], 0)


def test_files_that_arrive_at_one_time_are_all_remembered(tmp_path: Path) -> None:
    files = [remote(f"{number}.safetensors", b"%d" % number) for number in range(30)]
    arrived = fill(tmp_path / STATE / "peers", {file.path: b"%d" % number for number, file in enumerate(files)})
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda file: adopt(tmp_path, file, arrived / file.path), files))
    assert look(tmp_path, Manifest(REPOSITORY, OLD, files)).verified


# What need not be downloaded


def failing(error: OSError) -> Callable[..., None]:
    """A function that raises this, whatever it is called with."""

    def fail(*_args: Any, **_options: Any) -> None:
        raise error

    return fail


def inodes(directory: Path, paths: Any = None) -> list[int]:
    return [(directory / path).stat().st_ino for path in sorted(paths or CONTENTS)]


def test_another_revision_needs_only_what_differs(host: Host) -> None:
    old = host.has()
    contents = {**CONTENTS, "model-1.safetensors": b"other" * 1000, "model-3.safetensors": b"third"}
    # Under another name it is still the same file.
    contents["deep/er/model.safetensors"] = contents.pop("model-2.safetensors")
    same = {"config.json", "sub/tokenizer.json", "deep/er/model.safetensors"}
    dry = host.stage(contents, NEW, check=True)
    assert not host.path(NEW).exists()
    staged = host.stage(contents, NEW)
    for result in (dry, staged):
        assert set(result["reused"]) == same
        assert result["missing"] == ["model-1.safetensors", "model-3.safetensors"]
        assert (result["missing_bytes"], result["hashed_bytes"]) == (5005, 0)
    assert f"link deep/er/model.safetensors from {old}/model-2.safetensors\n" in staged["diff"]["prepared"]
    assert staged["diff"]["after"] == "files: 3\nbytes: 6004\n"
    assert inodes(host.path(NEW), same) == inodes(
        old, ["config.json", "model-2.safetensors", "sub/tokenizer.json"][::1]
    )
    assert host.run("staged", NEW)["changed"] is False
    fill(host.path(NEW), contents)
    assert host.run("verified", NEW)["hashed_bytes"] == 5005
    assert host.run("verified")["verified"]


def test_a_neighbour_with_a_spoilt_file_is_not_believed(host: Host) -> None:
    old = host.has()
    flip(old / "model-1.safetensors")
    truncate(old / "model-2.safetensors")
    staged = host.stage(commit=NEW)
    assert staged["missing"] == ["model-1.safetensors", "model-2.safetensors"]
    assert staged["hashed_bytes"] == 5000


def test_a_file_is_repaired_from_a_neighbour(host: Host) -> None:
    host.has()
    new = host.has(commit=NEW)
    (new / "model-1.safetensors").unlink()
    (new / "model-1.safetensors").write_bytes(bytes(5000))
    staged = host.run("staged", NEW)
    assert (staged["corrupt"], staged["reused"], staged["missing"], staged["verified"]) == (
        ["model-1.safetensors"], ["model-1.safetensors"], [], True,
    )  # fmt: skip
    assert host.run("verified", NEW)["hashed_bytes"] == 0


@pytest.mark.parametrize(
    ("mode", "linked"), [pytest.param(0o644, True, id="ours alone"), pytest.param(0o664, False, id="a group's")]
)
def test_a_source_is_linked_to_if_nobody_else_can_write_it(host: Host, mode: int, linked: bool) -> None:
    source = fill(host.top / "bundle", {**CONTENTS, "model-1.safetensors": bytes(5000)})
    for path in CONTENTS:
        (source / path).chmod(mode)
    kept = tree(source)
    dry = host.stage(sources=[str(source)], check=True)
    assert (dry["hashed_bytes"], dry["missing"]) == (0, []), "nothing is read: it may be a whole model"
    staged = host.stage(sources=[str(source), "/nowhere"])
    assert staged["missing"] == ["model-1.safetensors"]
    assert set(staged["reused"]) == CONTENTS.keys() - {"model-1.safetensors"}
    assert ("link" if linked else "copy") in staged["diff"]["prepared"]
    assert (inodes(source, staged["reused"]) == inodes(host.path(), staged["reused"])) is linked
    assert tree(source) == kept
    # What was hashed in the source, or while it was copied, is not hashed again.
    fill(host.path())
    assert host.run("verified")["hashed_bytes"] == 5000
    assert {(host.path() / path).stat().st_mode & 0o777 for path in CONTENTS} == {0o644}


def test_another_file_system_is_copied_from_and_that_needs_room(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == host.top.stat().st_dev:
        pytest.skip("no second file system")
    with tempfile.TemporaryDirectory(dir=memory) as source:
        fill(Path(source))
        with monkeypatch.context() as full:
            room(full, TOTAL - 1)
            assert "(4 files)" in host.stage(sources=[source], margin=1)["msg"]
        staged = host.stage(sources=[source])
        assert (staged["verified"], staged["missing"]) == (True, [])
        assert f"copy config.json from {source}/config.json\n" in staged["diff"]["prepared"]


def test_a_source_may_be_a_hub_cache(host: Host) -> None:
    blobs = fill(host.top / "blobs", {"x": CONTENTS["model-1.safetensors"]})
    (host.top / "snapshots").mkdir()
    (host.top / "snapshots/model-1.safetensors").symlink_to(blobs / "x")
    assert host.stage(sources=[str(host.top / "snapshots")])["reused"] == ["model-1.safetensors"]
    placed = host.path() / "model-1.safetensors"
    assert placed.is_file()
    assert not placed.is_symlink()


def test_what_cannot_be_linked_is_copied(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    old = host.has()

    def fail(*_paths: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(staging.os, "link", fail)
    (host.path(NEW) / STATE / "copies").mkdir(parents=True)
    (host.path(NEW) / STATE / "copies/left by a run that was killed").touch()
    staged = host.stage(commit=NEW)
    assert (staged["missing"], staged["verified"]) == ([], True)
    assert not set(inodes(old)) & set(inodes(host.path(NEW)))
    assert sorted(path.name for path in (host.path(NEW) / STATE).iterdir()) == [
        "lock",
        "manifest.json",
        "verified.json",
    ]


def test_a_source_that_changes_while_it_is_copied_is_not_taken(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    source = fill(host.top / "bundle")
    (source / "model-1.safetensors").chmod(0o666)
    copyfile = shutil.copyfile

    def copy(old: Path, new: Path) -> None:
        flip(old)
        copyfile(old, new)

    monkeypatch.setattr(staging.shutil, "copyfile", copy)
    staged = host.stage(sources=[str(source)])
    assert (staged["missing"], staged["verified"]) == (["model-1.safetensors"], False)
    assert not (host.path() / "model-1.safetensors").exists()


# Older snapshots


@pytest.fixture
def three(host: Host) -> Host:
    """Verified one after the other."""
    for age, commit in enumerate((THIRD, NEW, OLD)):
        host.has({**CONTENTS, "config.json": commit.encode()}, commit)
        os.utime(host.path(commit) / MANIFEST, (1000 + age, 1000 + age))
    return host


@pytest.mark.parametrize(("keep", "gone"), [(None, []), (2, []), (1, [THIRD]), (0, [NEW, THIRD])])
def test_so_many_others_stay_when_one_is_verified(three: Host, keep: int | None, gone: list[str]) -> None:
    expected = [str(three.path(commit)) for commit in gone]
    dry = three.run("verified", keep=keep, check=True)
    assert (dry["removed"], dry["changed"]) == (expected, bool(gone))
    assert len(list(three.repository.iterdir())) == 3
    result = three.run("verified", keep=keep)
    assert (result["removed"], result["changed"]) == (expected, bool(gone))
    assert {path.name for path in three.repository.iterdir()} == {OLD, NEW, THIRD} - set(gone)
    assert three.run("verified", keep=keep)["changed"] is False


def test_what_is_served_stays(three: Host) -> None:
    unit = three.top / "trtllm-serve-0.service"
    unit.write_text(f"ExecStart=docker run --volume {three.path(THIRD)}:/model:ro")
    # The release of this unit was removed by hand.
    (three.top / "trtllm-serve-1.service").symlink_to(three.top / "removed")
    served = [str(three.top / "trtllm-*.service")]
    assert three.run("verified", keep=0, keep_named_in=served)["removed"] == [str(three.path(NEW))]


@pytest.mark.parametrize("kind", ["nfs4", "ceph", "fuse.glusterfs"])
def test_what_other_hosts_may_serve_stays(three: Host, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(staging, "file_system", lambda _path: FileSystem("/srv", kind, False, 0))
    assert three.run("verified", keep=0)["removed"] == []
    assert len(list(three.repository.iterdir())) == 3


def test_last_used_is_last_verified(three: Host) -> None:
    three.run("verified", THIRD)
    assert three.run("verified", OLD, keep=1)["removed"] == [str(three.path(NEW))]


def test_nothing_goes_while_the_new_one_is_not_good(three: Host) -> None:
    flip(three.path(OLD) / "model-1.safetensors")
    assert three.run("verified", OLD, keep=0)["failed"]
    assert len(list(three.repository.iterdir())) == 3


def test_unfinished_busy_and_strange_directories_stay(three: Host, python: Python) -> None:
    (three.path(NEW) / "config.json").unlink()
    fill(three.repository / ("d" * 40))
    (three.repository / ("e" * 40)).symlink_to(three.path(NEW))
    holder = hold(python, three.path(THIRD))
    assert three.run("verified", keep=0)["removed"] == []
    holder.communicate("\n")
    assert three.run("verified", keep=0)["removed"] == [str(three.path(THIRD))]


def test_keep_is_a_number_of_snapshots(host: Host) -> None:
    assert "keep" in host.run("verified", keep=-1)["msg"]


# Removal


def test_a_snapshot_is_removed_with_its_empty_parent(host: Host) -> None:
    host.has()
    host.has(commit=NEW)
    dry = host.run("absent", check=True)
    assert (dry["changed"], dry["removed"]) == (True, [str(host.path())])
    assert host.path().exists()
    assert host.run("absent")["removed"] == [str(host.path())]
    assert host.run("absent")["changed"] is False
    assert [path.name for path in host.repository.iterdir()] == [NEW]
    host.run("absent", NEW)
    assert not host.repository.exists()
    assert host.repository.parent.exists()


@pytest.mark.parametrize(
    ("kind", "read_only", "shared"), [("ext4", False, False), ("nfs4", False, True), ("ext4", True, True)]
)
def test_who_removes_is_told_whether_others_may_serve(
    host: Host, monkeypatch: pytest.MonkeyPatch, kind: str, read_only: bool, shared: bool
) -> None:
    monkeypatch.setattr(model_snapshot, "file_system", lambda _path: FileSystem("/srv", kind, read_only, 0))
    assert host.run("absent")["shared"] is shared


def test_a_removal_that_broke_off_is_done_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.has()
    with monkeypatch.context() as broken:
        broken.setattr(staging.shutil, "rmtree", failing(OSError(errno.EIO, "broken")))
        assert "model_weights_dir" in host.run("absent")["msg"]
    assert host.run("absent")["changed"]
    assert not host.path().exists()


def link_cache_outside(path: Path) -> None:
    (path / ".cache").rename(path.parents[3] / "outside")
    (path / ".cache").symlink_to(path.parents[3] / "outside")


def link_elsewhere(path: Path) -> None:
    path.rename(path.parents[3] / "outside")
    path.symlink_to(path.parents[3] / "outside")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: shutil.rmtree(path / STATE), id="not ours"),
        pytest.param(link_cache_outside, id="working files elsewhere"),
        pytest.param(link_elsewhere, id="a link"),
    ],
)
def test_what_is_not_a_snapshot_of_ours_is_not_removed(host: Host, damage: Callable[[Path], None]) -> None:
    damage(host.has())
    before = tree(host.top)
    assert "Remove it by hand" in host.run("absent")["msg"]
    assert tree(host.top) == before


def test_a_directory_not_named_after_the_commit_is_not_touched(host: Host) -> None:
    fill(host.top / "home", {"diary": b""})
    before = tree(host.top)
    for state in ("staged", "verified"):
        result = host.run(state, path=str(host.top / "home"), manifest=manifest_of().as_dict())
        assert "its last part has to be the commit" in result["msg"]
    write_manifest(host.top / "home", manifest_of())
    shutil.rmtree(host.top / "home/.cache/trtllm-fleet")
    (host.top / "home/.cache").rmdir()
    (host.top / "home" / STATE).mkdir(parents=True)
    assert "not named after a commit" in host.run("absent", path=str(host.top / "home"))["msg"]
    assert before.keys() < tree(host.top).keys()


@pytest.mark.parametrize(
    "document",
    [
        {"repository": REPOSITORY, "commit": "main", "files": []},
        {"repository": REPOSITORY, "commit": OLD},
        {"repository": REPOSITORY, "commit": OLD, "files": ["config.json"]},
        {"repository": REPOSITORY, "commit": OLD, "files": [{"path": "../x", "size": 1, "git_oid": "0" * 40}]},
        {"repository": REPOSITORY, "commit": OLD, "files": [{"path": ".cache/x", "size": 1, "git_oid": "0" * 40}]},
        {"repository": REPOSITORY, "commit": OLD, "files": [{"path": "x", "size": 1, "sha256": "0" * 40}]},
        {"repository": REPOSITORY, "commit": OLD, "files": [{"path": "x", "size": "1", "sha256": "0" * 64}]},
    ],
)
def test_a_manifest_that_is_none_is_refused(host: Host, document: dict[str, Any]) -> None:
    assert "not a manifest" in host.run("staged", manifest=document)["msg"]
    write_file(host.path() / MANIFEST, json.dumps(document))
    assert str(host.path() / MANIFEST) in host.run("staged")["msg"]


# Modes


def test_everybody_may_read_a_verified_snapshot(host: Host) -> None:
    directory = host.has()
    (directory / "config.json").chmod(0o600)
    (directory / "model-1.safetensors").chmod(0o666)
    (directory / "sub").chmod(0o700)
    directory.chmod(0o777)
    dry = host.run("verified", check=True)
    assert (directory / "config.json").stat().st_mode & 0o777 == 0o600
    result = host.run("verified")
    assert dry["diff"]["prepared"].splitlines() == result["diff"]["prepared"].splitlines()
    assert [line.split()[-1] for line in result["diff"]["prepared"].splitlines()] == [
        str(directory), f"{directory}/sub", f"{directory}/config.json", f"{directory}/model-1.safetensors"
    ]  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in (directory, directory / "sub")} == {0o755}
    assert {(directory / path).stat().st_mode & 0o777 for path in CONTENTS} == {0o644}
    assert host.run("verified")["changed"] is False


@root_only
def test_files_belong_to_whom_our_own_belong_to(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = host.has()
    os.chown(directory / "config.json", 1234, 1234)
    with monkeypatch.context() as squashed:
        # An NFS server that maps root to another user.
        squashed.setattr(staging.os, "chown", failing(PermissionError(errno.EPERM, "no")))
        assert host.run("verified")["changed"] is False
    assert host.run("verified")["changed"] is True
    status = (directory / "config.json").stat()
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


# Places


@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_a_place_that_does_not_last_is_refused_with_the_variable(host: Host, kind: str) -> None:
    snapshot.MOUNTS.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:1 / {host.top} rw - {kind} none rw\n")
    for check in (True, False):
        refused = host.stage(check=check)
        assert f"{kind} at {host.top}" in refused["msg"]
        assert "ext4" in refused["msg"]
        assert "model_weights_dir" in refused["msg"]
    assert tree(host.top) == {}
    # There is no reason not to serve what is complete.
    fill(host.path())
    assert host.stage()["verified"]


@pytest.fixture
def read_only(host: Host) -> Iterator[Callable[[], None]]:
    """Makes the host's directory read-only, as an export or a disc is: not even root may write."""
    mounted = []

    def mount() -> None:
        done = subprocess.run(
            ["mount", "--bind", "-o", "ro", host.top, host.top], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mount: {done.stderr}")
        mounted.append(host.top)

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)


@root_only
def test_a_read_only_snapshot_is_fine_if_it_is_complete(host: Host, read_only: Callable[[], None]) -> None:
    host.stage()
    fill(host.path(), {**CONTENTS, "extra": b""})
    read_only()
    before = tree(host.top)
    for hashed in (TOTAL, 0):
        staged = host.run("staged")
        assert (staged["changed"], staged["verified"], staged["hashed_bytes"]) == (False, True, hashed)
        assert (staged["extra"], staged["removed"]) == (["extra"], [])
    assert (host.run("verified")["hashed_bytes"], host.run("verified", check=True)["hashed_bytes"]) == (0, 0)
    assert tree(host.top) == before
    assert [path.suffix for path in snapshot.FALLBACK.iterdir()] == [".json"]


@root_only
@pytest.mark.parametrize("check", [True, False])
def test_a_read_only_snapshot_that_is_not_complete_is_one_clear_error(
    host: Host, read_only: Callable[[], None], check: bool
) -> None:
    host.stage()
    fill(host.path(), {"config.json": b"{}", "model-1.safetensors": bytes(5000)})
    read_only()
    for result in (host.run("staged", check=check), host.stage(commit=NEW, check=check)):
        assert "is read-only" in result["msg"]
        assert "model_weights_dir" in result["msg"]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_an_export_that_only_refuses_to_be_written_counts_as_read_only(
    host: Host, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    directory = host.has()
    (directory / MARKER).unlink()
    real_open, real_mkstemp = os.open, files.tempfile.mkstemp

    def refuse(path: Any) -> None:
        if str(path).startswith(str(host.top)):
            raise OSError(code, os.strerror(code), path)

    def open_(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            refuse(path)
        return real_open(path, flags, *arguments, **options)

    def mkstemp(prefix: str, dir: Path) -> tuple[int, str]:
        refuse(dir)
        return real_mkstemp(prefix=prefix, dir=dir)

    monkeypatch.setattr(snapshot.os, "access", lambda path, _mode: not str(path).startswith(str(host.top)))
    monkeypatch.setattr(snapshot.os, "open", open_)
    monkeypatch.setattr(files.tempfile, "mkstemp", mkstemp)
    assert host.run("staged")["hashed_bytes"] == TOTAL
    assert host.run("staged", check=True)["hashed_bytes"] == host.run("staged")["hashed_bytes"] == 0
    assert host.run("verified", keep=0)["verified"]
    (directory / "config.json").unlink()
    assert "is read-only" in host.run("staged")["msg"]


def room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(staging, "file_system", lambda _path: FileSystem("/srv", "xfs", False, free))


@pytest.mark.parametrize(
    ("free", "margin", "fits"),
    [(TOTAL, 1.0, True), (TOTAL, 1.1, False), (TOTAL - 1, 1.0, False), (2 * TOTAL, 2.0, True)],
)
def test_room_is_looked_for_before_anything_is_touched(
    host: Host, monkeypatch: pytest.MonkeyPatch, free: int, margin: float, fits: bool
) -> None:
    room(monkeypatch, free)
    for check in (True, False):
        result = host.stage(margin=margin, check=check)
        assert result.get("failed", False) is not fits
        if not fits:
            assert "(4 files)" in result["msg"]
            assert "xfs at /srv" in result["msg"]
            assert "model_weights_dir" in result["msg"]
    assert (host.path() / MANIFEST).exists() is fits


def test_what_others_will_take_of_the_file_system_counts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, TOTAL + 2**30)
    images = str(host.top / "docker/images")
    assert f" and 1.0 GiB for {images} are needed, but" in host.stage(margin=1, reserved={images: 2**30 + 1})["msg"]
    assert "failed" not in host.stage(margin=1, reserved={images: 2**30, "/proc/images": 2**40})


MEBIBYTE = os.urandom(2**20)
# Our own files, which lie in the cache too, and what a file system adds.
SLACK = 2**17


def test_what_has_come_already_counts_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"model.safetensors": MEBIBYTE * 4}
    host.stage(large)
    unfinished = fill(host.path() / ".cache/huggingface/download", {"x.incomplete": MEBIBYTE}) / "x.incomplete"
    kept = host.path() / STATE / "partial/x"
    kept.parent.mkdir()
    os.link(unfinished, kept)
    os.sync()
    room(monkeypatch, 3 * 2**20 + SLACK)
    assert host.run("staged", margin=1)["missing"] == ["model.safetensors"]
    room(monkeypatch, 3 * 2**20 - SLACK)
    assert "4.0 MiB are missing" in host.run("staged", margin=1)["msg"]


def test_what_goes_makes_room_unless_it_has_another_name(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.stage({"model.safetensors": MEBIBYTE * 4})
    fill(host.path(), {"original/model.bin": MEBIBYTE, "shared": MEBIBYTE})
    os.link(host.path() / "shared", host.top / "name")
    os.sync()
    room(monkeypatch, 3 * 2**20 - SLACK)
    assert "are needed, but" in host.run("staged", margin=1)["msg"]
    assert (host.path() / "original").exists()
    room(monkeypatch, 3 * 2**20 + SLACK)
    assert host.run("staged", margin=1)["removed"] == ["original/", "shared"]


def test_links_need_no_room(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.has()
    room(monkeypatch, 0)
    assert host.stage(commit=NEW)["verified"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("models/x", ("/data/big disk", "xfs"), id="below a mount, not there yet"),
        pytest.param("stacked", ("/data/big disk/stacked", "nfs4"), id="the last of two mounts"),
        pytest.param("../big disk 2", ("/", "ext4"), id="a name that begins alike"),
    ],
)
def test_file_system_is_that_of_the_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, expected: tuple[str, str]
) -> None:
    data = tmp_path / "data/big disk"
    (data / "stacked").mkdir(parents=True)
    (tmp_path / "data/big disk 2").mkdir()
    mounts = tmp_path / "mountinfo"
    escaped = str(data).replace(" ", "\\040")
    mounts.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        f"30 22 8:2 / {escaped} rw,relatime shared:2 master:3 - xfs /dev/sdb1 rw\n"
        f"31 30 8:3 / {escaped}/stacked rw - tmpfs none rw\n"
        f"32 31 0:9 / {escaped}/stacked rw - nfs4 server:/export rw\n"
    )
    monkeypatch.setattr(snapshot, "MOUNTS", mounts)
    found = file_system(data / path)
    assert (found.mount_point.replace(str(tmp_path), ""), found.type) == expected
    assert found.free_bytes > 0
    assert not found.read_only


def test_file_system_of_this_machine() -> None:
    assert (file_system(Path("/proc/self/nothing")).mount_point, file_system(Path("/proc")).type) == ("/proc", "proc")


# One writer


def test_a_snapshot_that_another_process_writes_is_not_touched(host: Host, python: Python) -> None:
    host.stage()
    fill(host.path(), {"config.json": b"{}", "model-1.safetensors": b"short", "extra": b""})
    holder = hold(python, host.path())
    before = tree(host.top)
    for check in (True, False):
        result = host.run("staged", check=check)
        assert (result["busy"], result["changed"], result["hashed_bytes"]) == (True, False, 0)
        assert result["missing"] == ["model-1.safetensors", "model-2.safetensors", "sub/tokenizer.json"]
        assert result["removed"] == []
    assert "another process writes it" in host.run("absent")["msg"]
    assert tree(host.top) == before
    # A process that dies holds no lock.
    holder.kill()
    holder.communicate()
    result = host.run("staged")
    assert (result["busy"], result["removed"]) == (False, ["model-1.safetensors", "extra"])


def test_dry_run_makes_no_lock_and_frees_none(host: Host, python: Python) -> None:
    host.stage()
    (host.path() / LOCK).unlink()
    assert host.run("staged", check=True)["busy"] is False
    assert not (host.path() / LOCK).exists()
    hold(python, host.path())
    assert [host.run("staged", check=True)["busy"] for _time in range(2)] == [True, True]


def test_the_lock_can_be_waited_for(tmp_path: Path, python: Python, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "LOCK_INTERVAL", 0.01)
    holder = hold(python, tmp_path)
    with locked(tmp_path) as mine:
        assert not mine
    waits = []

    def waiting() -> None:
        waits.append(time.monotonic())
        if len(waits) == 3:
            holder.communicate("\n")

    with locked(tmp_path, waiting) as mine:
        assert mine
    assert len(waits) >= 3


def test_a_lock_that_was_removed_by_who_held_it_is_made_anew(
    tmp_path: Path, python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / OLD
    lockf = snapshot.fcntl.lockf
    calls: list[int] = []

    def remove_once(descriptor: int, command: int) -> None:
        if not calls:
            # Another process does, after this one has opened the file.
            shutil.rmtree(directory)
        calls.append(descriptor)
        lockf(descriptor, command)

    monkeypatch.setattr(snapshot.fcntl, "lockf", remove_once)
    with locked(directory) as mine:
        assert mine
        assert len(calls) == 2
        other = python(HOLD, directory)
        assert other.communicate("\n")[0] == "False\n"


COUNT = f"""
from {PACKAGE}.snapshot import locked
counter = Path(sys.argv[1]) / "counter"
for _time in range(50):
    with locked(counter.parent, lambda: None) as mine:
        counter.write_text(str(int(counter.read_text()) + mine))
"""


def test_processes_that_race_for_the_lock_have_it_one_after_the_other(tmp_path: Path, python: Python) -> None:
    (tmp_path / "counter").write_text("0")
    program = f"import {PACKAGE}.snapshot as snapshot\nsnapshot.LOCK_INTERVAL = 0.001\n{COUNT}"
    racers = [python(program, tmp_path) for _number in range(4)]
    for racer in racers:
        racer.communicate()
        assert racer.returncode == 0
    assert (tmp_path / "counter").read_text() == "200"


STAGE = f"""
from {PACKAGE} import snapshot, staging
snapshot.MOUNTS = Path(sys.argv[2])
directory = Path(sys.argv[1])
sys.stdin.readline()
manifest = snapshot.read_manifest(directory.parent / "{OLD}")
manifest = snapshot.Manifest(manifest.repository, directory.name, manifest.files)
outcome = staging.stage(directory, manifest, [], staging.SpaceNeeds(), False, False)
verified = staging.verify_snapshot(directory, manifest, None, [], False, False) if not outcome.busy else outcome
print(outcome.busy, len(verified.missing))
"""


def test_two_processes_that_stage_one_snapshot_do_not_spoil_it(host: Host, python: Python) -> None:
    contents = {f"model-{number:02}.safetensors": b"%d" % number * 1000 for number in range(40)}
    host.has(contents)
    racers = [python(STAGE, host.path(NEW), snapshot.MOUNTS) for _number in range(3)]
    said = [racer.communicate("\n")[0].split() for racer in racers]
    assert all(racer.returncode == 0 for racer in racers)
    assert ["False", "0"] in said
    assert all(missing == "0" for busy, missing in said if busy == "False")
    result = host.run("verified", NEW)
    assert (result["verified"], result["hashed_bytes"]) == (True, 0)
