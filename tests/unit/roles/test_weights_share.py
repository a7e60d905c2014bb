"""Hosts of a fleet hand files on to each other, whatever one of them, the network or the disk does: real libtorrent."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.weights import snapshot
from ansible_collections.trtllm.fleet.tests.unit.weights_fleet import (
    MB,
    PATIENCE,
    Host,
    content_of,
    fleet,
    remote_file,
    start,
)
from ansible_collections.trtllm.fleet.tests.unit.zipapps import weights_program
from roles.model_weights.files.weights import exchange, torrents
from roles.model_weights.files.weights.local_files import ARRIVING

MODEL = "model.safetensors"
# What may come again after an interruption: the pieces that were incomplete.
LOST = 2 * MB
# For tests that have to see the program wait, or count.
QUICK = {"LOOK": 0.2, "IDLE": 0.2, "RETRY": 1, "STALLED": 1}


def model(megabytes: float = 3, *paths: str) -> dict[str, bytes]:
    return {path: content_of(path, round(megabytes * MB)) for path in paths or (MODEL,)}


def name_of(contents: Mapping[str, bytes], path: str = MODEL) -> str:
    """What the hosts call a file."""
    return torrents.name_of(remote_file(path, contents[path]))


def unfinished(host: Host) -> list[str]:
    return [path.name for path in (host.directory / ARRIVING).iterdir() if path.name != "lock"]


def assert_whole(host: Host, contents: Mapping[str, bytes]) -> None:
    """Everything is in its place, and nothing else is left."""
    assert {path: host.content(path) == content for path, content in contents.items()} == dict.fromkeys(contents, True)
    assert snapshot.look(host.directory, host.manifest).verified
    assert snapshot.look(host.directory, host.manifest).extra == []


@contextmanager
def told(host: Host, pages: Mapping[str, bytes]) -> Iterator[Mock]:
    """Serve pages in the place of a host's program; return the mock that has the requests."""
    server = exchange.IndexServer(host.share)
    asked = Mock(side_effect=pages.get)
    server.pages = Mock(get=asked)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()


def test_hosts_follow_one_that_gains_files_one_by_one(tmp_path: Path) -> None:
    contents = {
        "config.json": b"{}" * 600,
        **model(3, MODEL),
        "deep/in/tokenizer.json": b"[]" * 500,
        "empty.json": b"",
        "deep/the-same-config.json": b"{}" * 600,
    }
    with fleet(tmp_path, contents, 5) as (sender, *receivers, late):
        sender.seem_to_load_from_the_hub()
        for host in receivers:
            (host.directory / ARRIVING).mkdir()
            (host.directory / ARRIVING / "of-another-revision").touch()
        start([sender, *receivers])
        for path, content in contents.items():
            sender.give({path: content})
            for host in (sender, *receivers):
                host.wait_for_file(path)
        for host in receivers:
            assert_whole(host, contents)
            host.wait_for(lambda host: unfinished(host) == [])
            host.wait_for(lambda host: len(host.index()["files"]) == 3)  # The empty one needs no peer, and two are one.
        assert sender.stop() == 0
        late.start()
        late.wait_until_complete()
        assert_whole(late, contents)
        late.wait_for(lambda host: host.status()["files"] == 5)


def test_what_a_peer_lies_about_is_never_placed(tmp_path: Path) -> None:
    """Of two liars one serves bytes that fit its metadata, the other one has only told of a file."""
    contents = model(2, "served.safetensors", "told.safetensors")
    wrong = {path: bytes(len(content)) for path, content in contents.items()}
    with fleet(tmp_path, contents, 4) as (honest, serving, telling, receiver):
        file = serving.manifest.files[0]
        serving.give({file.path: wrong[file.path]})
        mark = snapshot.mark((serving.directory / file.path).stat(), file.digest)
        snapshot.remember(serving.directory, {file.path: mark})
        file = telling.manifest.files[1]
        (tmp_path / "wrong").write_bytes(wrong[file.path])
        metadata = torrents.metadata_of(file, torrents.checksums_of(tmp_path / "wrong", file.size))
        name = torrents.name_of(file)
        pages = {"/index.json": exchange.Index(frozenset([name]), frozenset(), 0, False).as_json()}
        with told(telling, {**pages, f"/{name}.torrent": metadata}):
            honest.seem_to_load_from_the_hub()
            start([honest, serving])
            receiver.start(**QUICK)
            receiver.wait_for(
                lambda host: f"arrived with wrong content, by the metadata of {serving.address}" in host.said()
            )
            receiver.wait_for(lambda host: name in host.index()["loading"])
            assert not any((receiver.directory / path).exists() for path in contents)
            honest.give(contents)
            receiver.wait_until_complete()
        assert_whole(receiver, contents)


def test_peers_that_answer_nonsense_or_nothing_hold_nobody_up(tmp_path: Path) -> None:
    """One of them comes to its senses."""
    contents = model()
    with fleet(tmp_path, contents, 4) as (sender, receiver, mad, mute):
        name = name_of(contents)
        index = exchange.Index(frozenset([name]), frozenset(), 0, False).as_json()
        pages = {"/index.json": index, f"/{name}.torrent": b"d4:infode"}
        with socket.create_server((mute.address, mute.share.port + 1)), told(mad, {"/index.json": b"[]"}):
            with told(sender, pages) as asked:
                receiver.start(**QUICK)
                receiver.wait_for(lambda host: call(f"/{name}.torrent") in asked.mock_calls)
                receiver.wait_for(lambda host: host.status()["asked"])
                assert receiver.status()["connected"] == 1
            sender.give(contents)
            sender.start()
            receiver.wait_until_complete()
        assert_whole(receiver, contents)


def test_a_receiver_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    contents = model(8)
    with fleet(tmp_path, contents, 2, max_upload_rate=2 * MB) as (sender, receiver):
        sender.give(contents)
        sender.seem_to_load_from_the_hub()
        start([sender, receiver])
        receiver.wait_for(lambda host: host.arrived() > 3 * MB)
        receiver.stop(signal.SIGKILL)
        arrived = receiver.arrived()
        assert receiver.has() == []
        receiver.start(**QUICK)
        receiver.wait_until_complete()
        assert_whole(receiver, contents)
        assert arrived + receiver.counted()["peer_bytes"] < 8 * MB + LOST


def test_a_file_that_is_damaged_where_it_is_sent_from_does_not_spread(tmp_path: Path) -> None:
    contents = model()
    with fleet(tmp_path, contents, 3) as (sender, receiver, other):
        sender.give(contents)
        sender.start(**QUICK)
        sender.wait_for(lambda host: host.index().get("files"))
        path = sender.directory / MODEL
        before = path.stat()
        with open(path, "r+b") as file:
            file.seek(2 * MB)
            file.write(bytes([contents[MODEL][2 * MB] ^ 1]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert sender.has() == [MODEL]
        other.seem_to_load_from_the_hub()
        start([receiver, other])
        sender.wait_for(lambda host: f"{MODEL} is damaged and no longer shared." in host.said())
        sender.wait_for(lambda host: f"{MODEL} has wrong content." in host.said())
        sender.wait_for(lambda host: host.index()["files"] == [])
        assert receiver.has() == other.has() == []
        other.give(contents)
        for host in (sender, receiver):
            host.wait_until_complete()
            assert_whole(host, contents)


def answer(source: str, host: Host, port: int, question: bytes) -> bytes:
    """Return the answer of a host to a connection from an address; empty if it closes the connection."""
    with socket.create_connection((host.address, port), timeout=60, source_address=(source, 0)) as connection:
        try:
            connection.sendall(question)
            return connection.recv(1000)
        except ConnectionError:
            return b""


def test_strangers_get_no_answer(tmp_path: Path) -> None:
    contents = model()
    with fleet(tmp_path, contents, 2) as (sender, listed):
        sender.give(contents)
        sender.start()
        sender.wait_for(lambda host: host.index().get("files"))
        port = sender.share.port
        metadata = exchange.ask(listed.share, sender.address, f"/{name_of(contents)}.torrent", MB)
        torrent = hashlib.sha1(metadata[len("d4:info") : -len("e")]).digest()
        handshake = b"\x13BitTorrent protocol" + bytes(8) + torrent + b"-XX0000-canary012345"
        request = b"GET /index.json HTTP/1.0\r\n\r\n"
        stranger = "127.0.1.1"
        assert answer(listed.address, sender, port, handshake).startswith(handshake[:20])
        assert answer(listed.address, sender, port + 1, request).startswith(b"HTTP/1.0 200")
        assert answer(stranger, sender, port, handshake) == b""
        assert answer(stranger, sender, port + 1, request) == b""
        for number in (port, port + 1):  # It listens on its own address only.
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((stranger, number))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 80 MB where the models of the host 127.0.0.3 are."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    place = tmp_path / "127.0.0.3/models"
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80000k", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> Path:
    """Also while something else is written."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        while shutil.disk_usage(disk).free:
            with suppress(OSError):
                file.write(bytes(MB))
    return filler


def test_a_full_disk_is_told_and_waited_for(tmp_path: Path, small_disk: Path) -> None:
    contents = model(12)
    with fleet(tmp_path, contents, 2, max_upload_rate=4 * MB) as (sender, receiver):
        sender.give(contents)
        sender.seem_to_load_from_the_hub()
        filler = fill(small_disk)
        sender.start()
        receiver.start(**QUICK)
        full = "Cannot receive model.safetensors, 12 MB: No space left on device; 0 B are free."
        receiver.wait_for(lambda host: host.status().get("message", "").startswith(full))
        assert receiver.arrived() == 0
        filler.unlink()
        receiver.wait_for(lambda host: host.arrived() > 4 * MB)
        filler = fill(small_disk)
        receiver.wait_for(lambda host: host.status()["message"].startswith(full))
        assert 4 * MB < receiver.arrived() < 12 * MB
        filler.unlink()
        receiver.wait_until_complete()
        assert_whole(receiver, contents)
        assert receiver.counted()["peer_bytes"] < 12 * MB + LOST


def test_of_two_hosts_with_one_directory_one_writes(tmp_path: Path) -> None:
    contents = model(3, *(f"{number}.safetensors" for number in range(4)))
    with fleet(tmp_path, contents, 3) as (sender, *receivers):
        shutil.rmtree(receivers[1].directory)
        receivers[1].directory.symlink_to(receivers[0].directory)
        sender.give(contents)
        sender.start()
        for host in receivers:
            host.start(**QUICK)
        for host in receivers:  # One of them may forget what the other one notes at the same moment, and look again.
            host.wait_for(lambda host: len(host.index().get("files", [])) == len(host.has()) == len(contents))
        for host in receivers:
            assert_whole(host, contents)
        received = sorted(host.counted()["peer_bytes"] for host in receivers)
        assert received[0] == 0
        assert received[1] == pytest.approx(12 * MB, rel=0.1)


@pytest.mark.parametrize("behind", [0, 1])
def test_a_port_that_is_taken_is_the_one_thing_said(behind: int, tmp_path: Path) -> None:
    with fleet(tmp_path, model(), 1) as [host]:
        port = host.share.port + behind
        with socket.create_server((host.address, port)):
            host.start()
            assert host.ended() == 1
        [line] = host.said().splitlines()
        assert line.startswith(f"Cannot listen on {host.address} port {port} (")
        assert "Address already in use" in line
        assert line.endswith(
            "set model_weights_share_port to a port that is free, as is the one behind it, and "
            "model_weights_share_interface to an interface of this host."
        )


@pytest.mark.parametrize("cap", ["max_upload_rate", "max_download_rate"])
def test_rate_caps_are_kept(cap: str, tmp_path: Path) -> None:
    """Also between addresses that libtorrent exempts by itself."""
    contents = model(4)
    with fleet(tmp_path, contents, 2, **{cap: 2 * MB}) as (sender, receiver):
        sender.give(contents)
        sender.seem_to_load_from_the_hub()
        start([sender, receiver])
        receiver.wait_for(Host.arrived)
        began = time.monotonic()
        receiver.wait_until_complete()
        assert time.monotonic() - began > 1


def test_when_something_new_is_missing_the_others_are_asked_at_once(tmp_path: Path) -> None:
    """A host that misses nothing asks the others once a minute, and may not know that they have what it loses."""
    contents = model(1)
    with fleet(tmp_path, contents, 2) as (host, other):
        other.start(**QUICK)
        other.wait_for(Host.index)
        host.give(contents)
        host.start(**QUICK)
        other.wait_until_complete()
        other.wait_for(lambda host: host.index()["files"])
        (host.directory / MODEL).unlink()
        began = time.monotonic()
        host.wait_until_complete()
        assert time.monotonic() - began < 30


def test_alerts_that_come_in_a_burst_are_heard(tmp_path: Path) -> None:
    """In a process of its own, as looking at one that is being moved ends it. Its queue moves them while it grows."""
    with fleet(tmp_path, model(), 1) as [host]:
        done = subprocess.run(
            [sys.executable, "-c", BURSTS, str(host.plan)],
            env={**os.environ, "PYTHONPATH": str(weights_program())},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


def test_it_ends_with_the_snapshot(tmp_path: Path) -> None:
    contents = model()
    with fleet(tmp_path, contents, 1) as [host]:
        host.give(contents)
        host.start()
        host.wait_for(lambda host: host.index().get("files"))
        shutil.rmtree(host.directory)
        assert host.ended() == 0
        assert f"{host.directory} no longer exists." in host.said()


BURSTS = """
import sys
from pathlib import Path
from threading import Thread
from weights import plan, torrents

def burst():
    for number in range(400):
        engine.session.post_session_stats()

for repeat in range(50):
    engine = torrents.Engine(plan.read_plan(sys.argv[1]).share, Path())
    thread = Thread(target=burst)
    thread.start()
    heard = 0
    while heard < 400:
        alerts = engine.alerts(10)
        heard += sum(type(alert).__name__ == "session_stats_alert" for alert in alerts)
    thread.join()
print("heard")
"""
INDEX = {"files": ["a"], "loading": ["b"], "done_bytes": 7, "hub": True}


def test_an_index_is_read_as_far_as_it_is_about_the_model() -> None:
    document = {**INDEX, "files": ["a", "other"], "more": 1}
    index = exchange.Index.parse(json.dumps(document).encode(), {"a", "b"})
    assert index == exchange.Index(frozenset("a"), frozenset("b"), 7, True)
    assert json.loads(index.as_json()) == INDEX


@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        {key: value for key, value in INDEX.items() if key != "hub"},
        {**INDEX, "files": 3},
        {**INDEX, "files": [["a"]]},
        {**INDEX, "done_bytes": "many"},
        {**INDEX, "done_bytes": None},
        {**INDEX, "done_bytes": float("inf")},
    ],
)
def test_what_is_no_index_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"not an index|invalid literal"):
        exchange.Index.parse(json.dumps(document).encode(), {"a", "b"})
    with pytest.raises(ValueError, match="not an index"):
        exchange.Index.parse(b"[" * 100_000, {"a", "b"})
