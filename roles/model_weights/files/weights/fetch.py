# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Complete a snapshot: from the hub, by its own client, or by waiting while other hosts send the files.

The client is started again until nothing is missing, and killed when it hangs. Its unfinished files are kept by
checksum, and the next run completes them, so a run that is killed loses only its time.
Standard output is for the journal; the last line on standard error is the cause of a failure.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    Findings,
    Manifest,
    RemoteFile,
    SnapshotError,
    few,
    file_system,
    locked,
    read_manifest,
    verify,
)

from .client_process import ClientProcess
from .diagnosis import FetchError, Trouble, diagnose, disk_is_full, requested_wait
from .local_files import LocalFiles
from .plan import DownloadPlan, PlanError, SharePlan, own_part, peer_timeout, read_plan
from .status import FETCH_STATUS, SHARE_STATUS, FetchStatus, Speed, read_status, size_text, time_text, write_status

TICK = 1.0  # seconds between two updates of the status
OFFER_TICK = 0.1
REPORT_INTERVAL = 10.0
# Seconds that the share program may need to query every host of the fleet once.
QUERY_TIMEOUT = 60.0
# Stalls after which the client does without Xet, the storage of large files on some hubs.
XET_STALLS = 2
ALONE = (
    "No other host answers. If this persists, open ports {} and {} between the hosts, and read "
    "journalctl --unit=trtllm-weights-share there."
)
KEPT = "What has arrived is kept, and the next run goes on from there."
STOPPED = 128 + signal.SIGTERM


def retry_delay(failures: int, stall_timeout: float, requested: float) -> float:
    """Return the seconds until the next run of the client.

    They are 5, 10, 20 … 300 at a stall timeout of a minute, or more if the hub requested more.
    """
    return max(requested, min(stall_timeout / 12 * 2**failures, stall_timeout * 5))


def has_content(path: str) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) > 0


class Fetch:
    """One run of the program, which reports to the journal and to the status file."""

    def __init__(self, plan: DownloadPlan, manifest: Manifest, run_dir: Path) -> None:
        self.plan = plan
        self.manifest = manifest
        self.directory = Path(plan.path)
        self.run_dir = run_dir
        self.local = LocalFiles(self.directory)
        self.client = ClientProcess(plan, manifest, self.local, run_dir, lambda: self.report("hub"))
        self.speed = Speed()
        self.status = FetchStatus(total_bytes=manifest.total_bytes, files=len(manifest.files))
        self.written = self.reported = 0.0

    # Reports

    def log(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def report(self, state: str, message: str = "") -> None:
        """Update the status file and the journal. It limits its own rate, so callers need not."""
        now = time.monotonic()
        if state == self.status.state and message == self.status.message and now < self.written + TICK:
            return
        status = self.status
        status.state, status.message = state, message
        status.files_done = status.files - len(self.local.missing(self.manifest.files))
        status.done_bytes = self.local.held_bytes(self.manifest.files, arriving=True)
        status.hub_bytes = self.client.hub_bytes
        self.speed.add(now, status.done_bytes)
        status.rate = self.speed.rate
        status.seconds_left = (status.total_bytes - status.done_bytes) // status.rate if status.rate else None
        write_status(str(self.run_dir / FETCH_STATUS), asdict(status))
        self.written = now
        if now >= self.reported + REPORT_INTERVAL and state in ("hub", "peers"):
            self.reported = now
            left = "" if status.seconds_left is None else f", {time_text(status.seconds_left)} left"
            percent = 100 * status.done_bytes // max(1, status.total_bytes)
            self.log(
                f"{percent} percent, {size_text(status.done_bytes)} of {size_text(status.total_bytes)}, "
                f"{size_text(status.rate)}/s from {'the hub' if state == 'hub' else 'peers'}{left}"
            )

    def sleep(self, seconds: float, state: str, message: str) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.report(state, message)
            time.sleep(min(TICK, max(0, end - time.monotonic())))

    # The run

    def run(self) -> None:
        """Complete and verify the snapshot. Raises FetchError, and OSError of the snapshot's file system."""
        with locked(self.directory, self.wait_for_lock):
            self.local.unfinished.collect(self.local.missing(self.manifest.files))
            self.local.clear_places(self.manifest.files)
            self.complete()
            for again in (True, False):
                found = self.verify()
                if not found.wanted:
                    break
                self.repair(found, again)
            self.local.unfinished.collect([])
            self.report("done")
        self.log(f"All {self.status.files} files, {size_text(self.status.total_bytes)}, are present and verified.")

    def wait_for_lock(self) -> None:
        message = "Another process, on this host or another one, writes this snapshot."
        if self.status.message != message:
            self.log(message)
        self.report("waiting", message)

    def complete(self) -> None:
        """Download the missing files, or wait for the fleet to send them."""
        share, files = self.plan.share, self.manifest.files
        own = own_part(files, share)
        if share is not None and self.local.missing(own):
            offered = self.offered()
            own = [file for file in own if file.path not in offered]
        try:
            self.from_hub(own)
        except FetchError as error:
            if share is None:
                raise
            self.log(f"{error} The fleet may have the files.")
        if share is not None:
            self.from_peers(share)
            self.from_hub(files)

    def verify(self) -> Findings:
        # In a thread, so that the status is updated while it hashes.
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(verify, self.directory, self.manifest)
            while not wait([future], timeout=TICK).done:
                self.report("verifying")
        return future.result()

    def repair(self, found: Findings, again: bool) -> None:
        """Remove corrupt files, which must not be served, and download them once more."""
        names = few([file.path for file in found.wanted])
        for file in found.corrupt:
            (self.directory / file.path).unlink()
        if not again:
            raise FetchError(
                f"{self.plan.hub.url} sends other content than it announces for {names}: set model_weights_hub_url to "
                "another hub. If it stays so, suspect the memory or the disk (model_weights_dir) of the host."
            )
        self.log(f"Corrupt or incomplete, fetched again: {names}")
        self.from_hub(found.wanted)

    # Peers

    def offered(self) -> set[str]:
        """Return the paths of missing files that the fleet has; a seed need not download these."""
        began = time.monotonic()
        end = began + QUERY_TIMEOUT
        while time.monotonic() < end:
            status = read_status(str(self.run_dir / SHARE_STATUS))
            if status.get("asked") and status["updated"] > began:
                return set(status["offered"])
            self.report("peers")
            time.sleep(OFFER_TICK)
        return set()

    def from_peers(self, share: SharePlan) -> None:
        """Wait while the fleet sends missing files, until none is missing or no byte has come for too long."""
        moved, had = time.monotonic(), -1
        while self.local.missing(self.manifest.files):
            status = read_status(str(self.run_dir / SHARE_STATUS))
            alone = not status.get("connected")
            self.report("peers", ALONE.format(share.port, share.port + 1) if alone else "")
            if self.status.done_bytes != had:
                moved, had = time.monotonic(), self.status.done_bytes
            moved = max(moved, status.get("progress", 0))
            limit = peer_timeout(share, alone)
            if time.monotonic() - moved > limit:
                self.log(f"The fleet has brought nothing for {time_text(round(limit))}: the rest comes from the hub.")
                return
            time.sleep(TICK)

    # The hub

    def from_hub(self, files: Sequence[RemoteFile]) -> None:
        """Run the client until all files are present. Raises FetchError when further runs do not help."""
        if not self.plan.hub.url and (missing := self.local.missing(files)):
            raise FetchError(
                f"No host of the play has {few([file.path for file in missing])}, and no hub is configured: "
                "add a host that has all files, or complete the bundle (bundle_dir) on one."
            )
        failures = stalls = 0
        while True:
            wanted = self.local.missing(files)
            if not wanted:
                return
            before = self.local.held_bytes(wanted)
            stalled, lines = self.client.run(wanted, without_xet=stalls >= XET_STALLS)
            self.local.unfinished.collect(self.local.missing(self.manifest.files))
            if not self.local.missing(wanted):
                continue
            trouble = self.trouble(lines)
            stalls += stalled
            failures = 0 if self.local.held_bytes(wanted) > before else failures + 1
            if trouble.final:
                raise FetchError(trouble.message)
            if failures >= self.plan.attempts:
                raise FetchError(f"{failures} attempts have brought nothing. {trouble.message} {KEPT}")
            seconds = retry_delay(failures, self.plan.stall_timeout, requested_wait(lines))
            cause = f"No byte for {self.plan.stall_timeout} s. " if stalled else ""
            self.log(f"{cause}{trouble.message} Again in {time_text(round(seconds))}.")
            self.sleep(seconds, "hub", trouble.message)

    def trouble(self, lines: Sequence[str]) -> Trouble:
        if disk_is_full(lines):
            return self.no_space()
        return diagnose(lines, self.plan, self.manifest, with_token=has_content(self.plan.hub.token_file))

    def no_space(self) -> Trouble:
        needed = self.manifest.total_bytes - self.local.held_bytes(self.manifest.files)
        place = file_system(self.directory)
        return Trouble(
            f"The disk is full: {size_text(needed)} are still missing, and {place.mount_point} has "
            f"{size_text(place.free_bytes)} left. Free space there, or set model_weights_dir to a larger one. {KEPT}",
            final=True,
        )

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        """End at once on SIGTERM, while hashing too. The client ends with its parent."""
        self.report("failed", f"Stopped. {KEPT}")
        os._exit(STOPPED)

    def fail(self, message: str) -> int:
        self.report("failed", message)
        sys.stderr.write(f"{message}\n")
        return 1


def main(plan_file: str, run_dir: Path) -> int:
    try:
        plan = read_plan(plan_file)
        fetch = Fetch(plan, read_manifest(Path(plan.path)), run_dir)
    except (PlanError, SnapshotError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    signal.signal(signal.SIGTERM, fetch.stop)
    try:
        fetch.run()
    except FetchError as error:
        return fetch.fail(str(error))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return fetch.fail(fetch.no_space().message)
        return fetch.fail(f"{error}: correct model_weights_dir, or check its file system.")
    return 0
