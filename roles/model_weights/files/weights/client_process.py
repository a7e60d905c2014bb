# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the hub's client as a process, watch its progress, limit its rate, and kill it when it hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import Manifest, RemoteFile

from .diagnosis import FetchError, requested_wait
from .local_files import LocalFiles
from .plan import DownloadPlan

# In the run directory.
JOB = "weights-client.json"
LOG = "weights-client.log"
# Seconds between two checks. What the client begins and gives up between them is lost.
TICK = 0.1


class RateLimit:
    """A cap in bytes per second. Bytes that were not used are carried over for half a second."""

    def __init__(self, rate: int, now: float, seen: int) -> None:
        self.rate, self.now, self.seen = rate, now, seen
        self.budget = 0.0

    def exceeded(self, now: float, seen: int) -> bool:
        self.budget = min(self.rate / 2, self.budget + self.rate * (now - self.now)) - max(0, seen - self.seen)
        self.now, self.seen = now, seen
        return self.budget < 0


class ClientProcess:
    """Runs of the hub's client. ``report`` is called while one runs; ``hub_bytes`` is the sum of all runs."""

    def __init__(
        self, plan: DownloadPlan, manifest: Manifest, local: LocalFiles, run_dir: Path, report: Callable[[], None]
    ) -> None:
        self.plan = plan
        self.manifest = manifest
        self.local = local
        self.run_dir = run_dir
        self.report = report
        self.hub_bytes = 0

    def run(self, wanted: Sequence[RemoteFile], without_xet: bool) -> tuple[bool, list[str]]:
        """Run the client once; return whether it hung and was killed, and its output. Raises FetchError."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        job, log = self.run_dir / JOB, self.run_dir / LOG
        job.write_text(json.dumps(self.job(wanted)), encoding="utf-8")
        python = f"{self.plan.client}/bin/python"
        if not os.path.exists(python):
            raise FetchError(f"The hub's client is not in {self.plan.client}: run the tag model_weights_install.")
        with open(job, "rb") as source, open(log, "wb") as target:
            client = subprocess.Popen(
                # The zipapp that this process runs.
                [python, "-I", sys.argv[0], "client"],
                stdin=source,
                stdout=target,
                stderr=subprocess.STDOUT,
                env=self.environment(without_xet),
                # A group of its own, to be stopped and killed as a whole.
                start_new_session=True,
            )
        try:
            with open(log, encoding="utf-8", errors="replace") as output:
                return self.watch(client, output, wanted)
        finally:
            # On any other signal the client removes its unfinished files, which the next run continues.
            if client.poll() is None:
                os.killpg(client.pid, signal.SIGKILL)
                client.wait()

    def job(self, wanted: Sequence[RemoteFile]) -> dict[str, Any]:
        """Return the input of the client: files to download, and unfinished ones to complete."""
        kept = self.local.unfinished.sizes()
        begun = {file.sha256: file for file in reversed(wanted) if file.sha256 and file.sha256 in kept}
        return {
            "repository": self.manifest.repository,
            "commit": self.manifest.commit,
            "directory": self.plan.path,
            "workers": self.plan.workers,
            "files": [file.path for file in wanted if file not in begun.values()],
            "partials": [
                {**file.as_dict(), "partial": str(self.local.unfinished.kept / sha256)}
                for sha256, file in begun.items()
            ],
        }

    def environment(self, without_xet: bool) -> dict[str, str]:
        """Return the client's environment; it inherits nothing."""
        hub = self.plan.hub
        # In model_weights_dir: the snapshot is <model_weights_dir>/models/<owner>/<name>/<commit>.
        home = self.local.directory.parents[3] / ".hub"
        settings = {
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1" if without_xet else "",
            # Xet's cache would take as much disk as the model, and is read once. What Xet buffers (by default a
            # sixteenth of the memory) is lost when it hangs and is killed.
            "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0",
            "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_SIZE": "512mb",
            "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_PERFILE_SIZE": "128mb",
            "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT": "1gb",
            "HF_TOKEN_PATH": hub.token_file,
            "SSL_CERT_FILE": hub.ca_file,
            "HTTPS_PROXY": hub.proxy,
            "HTTP_PROXY": hub.proxy,
            "NO_PROXY": hub.no_proxy,
        }
        return {name: value for name, value in settings.items() if value}

    def watch(
        self, client: subprocess.Popen[bytes], log: TextIO, wanted: Sequence[RemoteFile]
    ) -> tuple[bool, list[str]]:
        """Wait for the client while it makes progress; return as ``run`` does."""
        moved = time.monotonic()
        had, brought = self.local.held_bytes(wanted), self.hub_bytes
        before: object = None
        limit = RateLimit(self.plan.max_rate, moved, had) if self.plan.max_rate else None
        lines: list[str] = []
        while True:
            with suppress(subprocess.TimeoutExpired):
                client.wait(TICK)
            ended = client.returncode is not None
            self.local.unfinished.keep()
            now, held = time.monotonic(), self.local.held_bytes(wanted)
            self.hub_bytes = brought + max(0, held - had)
            said = log.readlines()
            lines += said
            if ended:
                return False, lines
            self.report()
            signs = (held, self.local.unfinished.marks())
            if signs != before:
                before, moved = signs, max(moved, now)
            requested = requested_wait(said)
            if requested:
                # The client waits, possibly for longer than the timeout.
                moved = now + requested
            if limit:
                # The client has no rate limit. While it is stopped, little more than a receive buffer arrives.
                exceeded = limit.exceeded(now, held)
                os.killpg(client.pid, signal.SIGSTOP if exceeded else signal.SIGCONT)
                moved = max(moved, now) if exceeded else moved
            if now - moved > self.plan.stall_timeout:
                return True, lines
