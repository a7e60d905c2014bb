"""Hosts of a fleet on this machine, each with its own loopback address and the real share program."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.weights import snapshot
from ansible_collections.trtllm.fleet.tests.unit.zipapps import weights_program
from roles.model_weights.files.weights.exchange import ASK_ERRORS, INDEX, INDEX_LIMIT, ask
from roles.model_weights.files.weights.plan import SharePlan
from roles.model_weights.files.weights.status import FETCH_STATUS, SHARE_STATUS

COMMIT = "b5c939de8f754692c1647ca79fbf85e8c1e70f8a"
MB = 1_000_000
# Long enough for a machine that pauses.
PATIENCE = 120


def content_of(path: str, size: int) -> bytes:
    return random.Random(path).randbytes(size)


def remote_file(path: str, content: bytes) -> snapshot.RemoteFile:
    """Describe a file as the hub does: a large one by its SHA-256, another by git's name."""
    if path.endswith(".safetensors"):
        return snapshot.RemoteFile(path, len(content), sha256=hashlib.sha256(content).hexdigest())
    git_oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return snapshot.RemoteFile(path, len(content), git_oid=git_oid)


def free_port() -> int:
    """Return a port that is free, as is the next one, and is outside the range of outgoing connections."""
    while True:
        port = random.randrange(10_000, 30_000)
        try:
            for number in (port, port + 1):
                socket.create_server(("", number)).close()
        except OSError:
            continue
        return port


def until(what: Callable[[], Any], describe: Callable[[], str] = lambda: "") -> Any:
    """Return the first true result of a function that is called again and again."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        result = what()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(describe())


class Host:
    """Host of the fleet: ``options`` are those of the plan's share section."""

    def __init__(self, root: Path, address: str, manifest: snapshot.Manifest, **options: Any) -> None:
        self.address = address
        self.manifest = manifest
        self.directory = root / address / "models/lab/model" / COMMIT
        self.run_dir = root / address / "run"
        self.plan = root / address / "weights.json"
        self.log = root / address / "log"
        self.process: subprocess.Popen[bytes] | None = None
        defaults = {"seeds": 1, "rank": -1, "fallback": 120, "max_upload_rate": 0, "max_download_rate": 0}
        self.share = SharePlan(address=address, **{**defaults, **options})
        snapshot.write_manifest(self.directory, manifest)
        self.run_dir.mkdir()
        hub = dict.fromkeys(("url", "token_file", "ca_file", "proxy", "no_proxy"), "")
        plan = {"path": str(self.directory), "hub": hub, "client": "", "workers": 1, "stall_timeout": 60}
        self.plan.write_text(json.dumps({**plan, "attempts": 1, "max_rate": 0, "share": asdict(self.share)}))

    def give(self, contents: dict[str, bytes]) -> None:
        """Put complete files in their places, as the hub's client does."""
        for path, content in contents.items():
            new = self.directory / snapshot.STATE / "new"
            new.write_bytes(content)
            (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(new, self.directory / path)

    def seem_to_load_from_the_hub(self) -> None:
        """Write the status of a fetch program; other hosts query such a host more often."""
        status = {"state": "hub", "updated": time.monotonic() + PATIENCE}
        (self.run_dir / FETCH_STATUS).write_text(json.dumps(status))

    def start(self, **constants: float) -> None:
        """Run the program with other values for some of its constants."""
        changes = "".join(f"share.{name} = {value}; " for name, value in constants.items())
        code = f"from weights import share, __main__; {changes}raise SystemExit(__main__.main())"
        program = ("-c", code) if constants else (str(weights_program()),)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, "share", str(self.plan), "--run-dir", str(self.run_dir)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(weights_program())} if constants else None,
            )

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the program and return its exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for the program to end and return its exit status."""
        assert self.process
        return self.process.wait(PATIENCE)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def status(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.run_dir / SHARE_STATUS).read_text()))
        except FileNotFoundError:
            return {}

    def has(self) -> list[str]:
        """Return the files that are in their places and verified."""
        return [file.path for file in snapshot.look(self.directory, self.manifest).good]

    def wait_for(self, what: Callable[[Host], Any]) -> Any:
        return until(
            lambda: what(self), lambda: f"{self.address}: {self.status()}, has {self.has()}, said:\n{self.said()}"
        )

    def wait_for_file(self, path: str) -> None:
        self.wait_for(lambda host: path in host.has())

    def wait_until_complete(self) -> None:
        self.wait_for(lambda host: len(host.has()) == len(self.manifest.files))

    def next_status(self) -> dict[str, Any]:
        before = self.status()
        self.wait_for(lambda host: host.status() != before)
        return self.status()

    def counted(self) -> dict[str, Any]:
        """Return its status, with all bytes that moved before: libtorrent counts them after a status was written."""
        self.next_status()
        return self.next_status()

    def index(self) -> dict[str, Any]:
        """Return its index; empty while it does not answer."""
        try:
            return dict(json.loads(ask(self.share, self.address, INDEX, INDEX_LIMIT)))
        except ASK_ERRORS:
            return {}

    def content(self, path: str) -> bytes:
        return (self.directory / path).read_bytes()

    def arrived(self) -> int:
        """Return the bytes of unfinished files."""
        return sum(path.stat().st_blocks * 512 for path in (self.directory / snapshot.STATE / "peers").glob("*"))


@contextmanager
def fleet(root: Path, contents: dict[str, bytes], count: int, **options: Any) -> Iterator[list[Host]]:
    """Create hosts whose programs do not run yet; kill these programs at the end."""
    manifest = snapshot.Manifest("lab/model", COMMIT, [remote_file(path, data) for path, data in contents.items()])
    addresses = [f"127.0.0.{number}" for number in range(2, count + 2)]
    options = {"port": free_port(), "peers": addresses, **options}
    hosts = [Host(root, address, manifest, **options) for address in addresses]
    try:
        yield hosts
    finally:
        for host in hosts:
            host.stop(signal.SIGKILL)


def start(hosts: Iterable[Host]) -> None:
    for host in hosts:
        host.start()
