"""A running lab hub, and the fetch program with the real client in separate processes."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.weights import snapshot
from ansible_collections.trtllm.fleet.tests.unit.zipapps import weights_program
from lab.origin.hub import build_repositories, server

NAME = "lab/model"
GATED = "lab/gated"
PUBLIC = "lab/public"
DRAFT = "lab/draft"
TOKEN = "hf_granted_canary"
MB = 1_000_000
# About 50 MB, 40 of them in two shards: the client holds a quarter of a MB of each of two concurrent files.
SHAPE = build_repositories.SHAPES["gpt-oss-120b"]._replace(width=48)
TINY = build_repositories.Shape(layers=2, experts=16, shards=2, width=1)
LARGE = "model-00000-of-00014.safetensors"
LAST = "model-00014-of-00014.safetensors"
# Timeout of a program, on a machine that may pause for minutes.
TIMEOUT = 600
# How much of the model may be sent in total when the download is interrupted. The model is small, and the sockets of a
# busy machine hold megabytes: the limit of 5 percent is for the models of tests/e2e.
AGAIN = 1.15
# Seconds without a byte until the client is killed. On a busy machine its start takes several.
PATIENT = 20


def build(directory: Path) -> Path:
    """Build the repositories under a directory."""
    build_repositories.build_repository(directory / NAME, SHAPE, "model", gated=False)
    for name in (GATED, PUBLIC, DRAFT):
        build_repositories.build_repository(directory / name, TINY, "tiny", gated=name == GATED)
    return directory


class LabHub:
    """Hub in a thread, with repositories under a directory."""

    def __init__(self, directory: Path, context: ssl.SSLContext | None = None) -> None:
        self.directory = directory
        self.server = server.HubServer(directory, tokens=[TOKEN])
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.url = self.url.replace("http:", "https:")
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def heal(self) -> None:
        self.server.hub.set_faults(None)
        self.server.hub.requests.clear()

    def fault(self, **fault: Any) -> None:
        self.server.hub.set_faults(server.Fault(**fault))

    def manifest(self, name: str = NAME) -> snapshot.Manifest:
        repository = self.server.hub.repositories[name]
        commit = repository.refs["main"]
        files = [
            snapshot.RemoteFile(file.path, file.size, file.sha256, None if file.sha256 else file.git_oid)
            for file in repository.commits[commit].values()
            if not file.path.startswith(("original/", "metal/"))
        ]
        return snapshot.Manifest(name, commit, files)

    def content(self, path: str, name: str = NAME) -> bytes:
        return (self.directory / name / "main" / path).read_bytes()

    def served(self, path: str = "") -> int:
        """Return the bytes sent of all files, or of those whose path has this ending."""
        entries = list(self.server.hub.requests)
        return sum(
            e["bytes"]
            for e in entries
            if e["method"] == "GET" and "/resolve" in e["path"] and e["path"].partition("?")[0].endswith(path)
        )


class Host:
    """Host with a snapshot directory, its manifest and its plan."""

    def __init__(self, root: Path, hub: LabHub, name: str = NAME, **plan: Any) -> None:
        self.manifest = hub.manifest(name)
        self.directory = root / "srv/models" / name / self.manifest.commit
        self.run_dir = root / "run"
        self.plan_file = root / "weights.json"
        self.directory.mkdir(parents=True)
        snapshot.write_manifest(self.directory, self.manifest)
        self.plan = {
            "path": str(self.directory),
            "hub": {"url": hub.url, "token_file": "", "ca_file": "", "proxy": "", "no_proxy": ""},
            "client": sys.prefix,
            "workers": 2,
            "stall_timeout": PATIENT,
            "attempts": 3,
            "max_rate": 0,
            "share": None,
            **plan,
        }

    @property
    def status(self) -> dict[str, Any]:
        path = self.run_dir / "weights.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    @property
    def unfinished(self) -> list[Path]:
        return list((self.directory / ".cache/trtllm-fleet/partial").glob("*"))

    def start(self) -> subprocess.Popen[str]:
        self.plan_file.write_text(json.dumps(self.plan))
        return subprocess.Popen(
            [sys.executable, str(weights_program()), "fetch", str(self.plan_file), "--run-dir", str(self.run_dir)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def fetch(self) -> subprocess.CompletedProcess[str]:
        with self.start() as process:
            try:
                output, errors = process.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def interrupt(self, hub: LabHub, served: int, with_signal: signal.Signals) -> int:
        """Start the program, signal it after the hub has sent this many bytes, and return its status."""
        with self.start() as process:
            while hub.served() < served and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(with_signal)
            process.communicate()
        return process.returncode

    def clients(self) -> list[int]:
        """Return the client processes of this host."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if process.joinpath("environ").read_bytes().find(f"HF_HOME={self.directory.parents[3]}/".encode()) >= 0:
                    found.append(int(process.name))
            except OSError:
                continue
        return found

    def assert_no_client(self) -> None:
        """Check that the client ends with its parent, with a delay by the kernel."""
        end = time.monotonic() + 60
        while self.clients():
            assert time.monotonic() < end, self.clients()
            time.sleep(0.05)

    def assert_whole(self) -> None:
        """Check that all files equal the hub's and are recorded as verified, and no unfinished file remains."""
        files = {self.directory / file.path: file for file in self.manifest.files}
        assert snapshot.digests_of(files) == {path: file.digest for path, file in files.items()}
        assert snapshot.look(self.directory, self.manifest).verified
        assert self.unfinished == []
        assert list((self.directory / ".cache").rglob("*.incomplete")) == []
