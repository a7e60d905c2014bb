# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Share the files of a snapshot between the hosts of a fleet by BitTorrent, with the distribution's libtorrent 2.0.

Every file is its own torrent, offered as soon as it is complete and verified, so the fleet follows the host that
downloads from the hub file by file. There is no tracker and no discovery: each host serves the list of its files, and
their metadata, by HTTP to the addresses of the plan only. A file that arrives is moved to its place only when it has
the checksum of the manifest. See docs/how-to/weights.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.files import FILE_MODE
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    MANIFEST,
    Findings,
    Manifest,
    Mark,
    SnapshotError,
    adopt,
    digest_of,
    look,
    mark,
    read_manifest,
    remember,
)

from .exchange import (
    ASK_ERRORS,
    INDEX,
    INDEX_LIMIT,
    NEIGHBOURS,
    Index,
    IndexServer,
    Peer,
    ShareError,
    ask,
    cannot_listen,
    neighbours,
    query_interval,
    retry_interval,
)
from .local_files import ARRIVING
from .plan import PlanError, SharePlan, own_part, read_plan
from .shared_file import SharedFile, TorrentStore
from .status import FETCH_STATUS, SHARE_STATUS, ShareStatus, read_status, size_text, write_status
from .torrents import Engine, checksums_of, is_metadata, metadata_of, metadata_size, name_of

LOCK = "lock"  # in ARRIVING; no file that arrives has this name

LOOK, IDLE = 0.5, 2.0  # seconds between two surveys, while files are missing here and otherwise
TICK = 0.05  # seconds, while a thread works
REPORT_INTERVAL = 10.0
STALLED = 15.0
RETRY = 10.0
CONNECT = 5.0
LOADING = 8  # files at a time: near the end of a file few peers have the missing pieces, so others overlap
ASKERS = 16
RESERVE = 64 * 1024 * 1024  # bytes left free on the disk


class Sharing:
    """One run of the program."""

    def __init__(self, share: SharePlan, directory: Path, manifest: Manifest, run_dir: Path) -> None:
        self.share = share
        self.directory = directory
        self.manifest = manifest
        self.run_dir = run_dir
        self.items: dict[str, SharedFile] = {}
        for file in manifest.files:
            self.items.setdefault(name_of(file), SharedFile([])).files.append(file)
        self.own = {name_of(file) for file in own_part(manifest.files, share)}
        others = [address for address in share.peers if address != share.address]
        # In random order, so that not all hosts query the same one first.
        self.peers = {address: Peer(address) for address in random.sample(others, len(others))}
        self.status = ShareStatus()
        self.torrents = TorrentStore(directory)
        self.engine = Engine(share, directory)
        self.server = IndexServer(share)
        self.hashers = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
        self.askers = ThreadPoolExecutor(ASKERS)
        self.jobs: list[tuple[Future[Any], Callable[[Future[Any]], None]]] = []
        self.chance = random.Random()
        self.receiver: int | None = None
        self.due = self.connected = self.reported = self.problem_time = 0.0
        self.reported_bytes = (0, 0)
        self.sought: set[str] = set()
        self.liars: set[str] = set()  # hosts whose metadata led to wrong content
        self.had = 0

    def log(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def run(self) -> None:
        """Share until the process is stopped or the snapshot removed. Raises ShareError."""
        Thread(target=self.server.serve_forever, daemon=True).start()
        while (self.directory / MANIFEST).exists():
            try:
                self.handle_alerts()
                self.finish_jobs()
                if time.monotonic() >= self.due:
                    self.due = time.monotonic() + (LOOK if self.missing() else IDLE)
                    self.survey()
                    self.query_peers()
                    self.receive_missing()
                    self.publish()
                    self.report()
            except OSError as error:
                self.report_problem(f"{error}: check the file system of model_weights_dir.")
                time.sleep(LOOK)
        self.log(f"{self.directory} no longer exists.")

    def stop(self, _signal: int, _frame: Any) -> None:
        """End at once on SIGTERM. The next run finds and checks the pieces that have arrived."""
        os._exit(0)

    def report_problem(self, message: str) -> None:
        self.problem_time = time.monotonic()
        if message != self.status.message:
            self.log(message)
        self.status.message = message

    # Work in threads

    def submit(self, pool: ThreadPoolExecutor, then: Callable[[Future[Any]], None], work: Any, *arguments: Any) -> None:
        """Run ``work`` in a thread, and later ``then`` with its result in this one."""
        self.jobs.append((pool.submit(work, *arguments), then))

    def finish_jobs(self) -> None:
        for job in [job for job in self.jobs if job[0].done()]:
            self.jobs.remove(job)
            future, then = job
            with suppress(FileNotFoundError):  # A file was removed since; the next survey finds out.
                then(future)

    def missing(self) -> list[SharedFile]:
        return [item for item in self.items.values() if not item.here]

    # Complete files

    def survey(self) -> None:
        """Share complete and verified files, verify others, and stop sharing removed ones."""
        found = look(self.directory, self.manifest)
        good = {file.path for file in found.good}
        unknown = {file.path for file in found.unknown}
        for item in self.items.values():
            if item.phase == "placing":
                continue
            here = next((file.path for file in item.files if file.path in good), None)
            doubtful = [
                file.path for file in item.files if file.path in unknown and found.marks[file.path] != item.corrupt
            ]
            item.here = here is not None or bool(doubtful)
            if here is None:
                if item.phase == "seeding":
                    self.drop(item)
            else:
                self.link_copies(item, here, found)
                if item.phase != "seeding" or item.mark != found.marks[here]:
                    self.seed(item, here, found.marks[here])
                elif self.engine.is_damaged(item.handle):
                    self.reject(item, here)
            for path in doubtful:
                self.verify_file(item, path, found.marks[path])

    def link_copies(self, item: SharedFile, here: str, found: Findings) -> None:
        """Link missing files with the same content."""
        for file in item.files:
            if file in found.missing:
                (self.directory / file.path).parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):
                    os.link(self.directory / here, self.directory / file.path)
                    remember(self.directory, {file.path: found.marks[here]})

    def seed(self, item: SharedFile, path: str, known: Mark) -> None:
        """Share a verified file, whatever its origin. An empty file has no torrent."""
        if item.phase != "missing":
            self.drop(item)
        if not item.file.size:
            return
        metadata = self.torrents.load(item)
        if metadata:
            item.handle = self.engine.add(metadata, path, complete=True)
            item.phase, item.mark, item.metadata = "seeding", known, metadata
        elif not item.busy:

            def then(future: Future[bytes]) -> None:
                item.busy = False
                checksums = future.result()
                if self.is_still(item, path, known):
                    self.torrents.save(item, metadata_of(item.file, checksums))
                    self.due = 0

            item.busy = True
            self.submit(self.hashers, then, checksums_of, self.directory / path, item.file.size)

    def verify_file(self, item: SharedFile, path: str, known: Mark) -> None:
        """Verify a file that another program put in its place, and make its torrent."""
        if item.busy:
            return

        def work() -> tuple[str, bytes]:
            with ThreadPoolExecutor(1) as other:
                checksums = other.submit(checksums_of, self.directory / path, item.file.size)
                return digest_of(self.directory / path, item.file, durable=True), checksums.result()

        def then(future: Future[tuple[str, bytes]]) -> None:
            item.busy = False
            digest, checksums = future.result()
            if digest != item.file.digest:
                self.log(f"{path} has wrong content.")
                item.corrupt = known
            elif self.is_still(item, path, known):
                self.torrents.save(item, metadata_of(item.file, checksums))
                remember(self.directory, {path: known})
                self.due = 0

        item.busy = True
        self.submit(self.hashers, then, work)

    def is_still(self, item: SharedFile, path: str, known: Mark) -> bool:
        return mark((self.directory / path).lstat(), item.file.digest) == known

    def reject(self, item: SharedFile, path: str) -> None:
        """Stop sharing a damaged file. The next survey verifies it again, and it is then replaced."""
        self.log(f"{path} is damaged and no longer shared.")
        remember(self.directory, {}, bad=[path])
        self.drop(item)
        self.torrents.remove(item)

    def drop(self, item: SharedFile) -> None:
        """Stop sharing or receiving a file."""
        if item.handle is not None:
            self.engine.session.remove_torrent(item.handle)
        item.phase, item.handle, item.metadata, item.mark = "missing", None, b"", None

    # Missing files

    def receive_missing(self) -> None:
        """Receive missing files from peers, LOADING files at a time."""
        if not self.may_receive():
            return
        self.sweep()
        now = time.monotonic()
        arriving = self.directory / ARRIVING
        active = [item for item in self.items.values() if item.phase not in ("missing", "seeding")]
        for item in active:
            if item.phase == "loading":
                self.check_progress(item, now)
        wanted = [item for item in self.missing() if item.phase == "missing" and not item.busy]
        for item in sorted(wanted, key=lambda item: not (arriving / item.name).exists()):
            if not item.file.size:
                (arriving / item.name).touch()
                adopt(self.directory, item.file, arriving / item.name)
            elif len(active) < LOADING and now >= item.retry and self.begin(item, active):
                active.append(item)
        if now >= self.connected + CONNECT:
            self.connected = now
            for item in active:
                self.connect(item)

    def may_receive(self) -> bool:
        """Return True if this process holds the lock: of all with the directory, on any host, one writes."""
        if self.receiver is None and self.missing():
            (self.directory / ARRIVING).mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.directory / ARRIVING / LOCK, os.O_RDWR | os.O_CREAT, FILE_MODE)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
            else:
                self.receiver = descriptor
        return self.receiver is not None

    def sweep(self) -> None:
        """Remove files that arrived in part and are no longer wanted."""
        for path in (self.directory / ARRIVING).iterdir():
            item = self.items.get(path.name)
            if path.name != LOCK and (item is None or item.phase == "seeding"):
                path.unlink()

    def offers(self, item: SharedFile) -> list[str]:
        """Return the hosts to get the metadata of a file from: those with the complete file, else those receiving it.

        A file that this host downloads from the hub is taken from a host with the complete file only.
        """
        useless = item.tried | self.liars
        indexes = {
            peer.address: peer.index for peer in self.peers.values() if peer.index and peer.address not in useless
        }
        whole = [address for address, index in indexes.items() if item.name in index.whole]
        if whole or item.name in self.own:
            return whole
        return [address for address, index in indexes.items() if item.name in index.loading]

    def begin(self, item: SharedFile, active: Iterable[SharedFile]) -> bool:
        """Query the metadata of a file if a host has it and the disk has space; return True if so."""
        offers = self.offers(item)
        if not offers:
            if item.tried:
                item.tried.clear()
                item.retry = time.monotonic() + RETRY
            return False
        there = 0
        with suppress(FileNotFoundError):
            there = (self.directory / ARRIVING / item.name).stat().st_blocks * 512
        needed = item.file.size - there + sum(other.file.size - other.done for other in active)
        if shutil.disk_usage(self.directory).free < needed + RESERVE:
            self.postpone(item, os.strerror(errno.ENOSPC))
            return False
        item.phase = "asking"
        self.get_metadata(item, self.chance.choice(offers))
        return True

    def get_metadata(self, item: SharedFile, address: str) -> None:
        def then(future: Future[bytes]) -> None:
            item.busy = False
            try:
                metadata = future.result()
            except ASK_ERRORS:
                metadata = b""
            if not is_metadata(item.file, metadata) or metadata in item.refused or metadata == item.metadata:
                item.tried.add(address)
                if item.phase == "asking":
                    item.phase = "missing"
            elif item.phase in ("asking", "loading"):
                self.receive(item, address, metadata)

        item.busy = True
        self.submit(self.askers, then, ask, self.share, address, f"/{item.name}.torrent", metadata_size(item.file))

    def receive(self, item: SharedFile, source: str, metadata: bytes) -> None:
        """Receive a file. libtorrent checks the pieces that are present and keeps the right ones."""
        self.drop(item)
        item.handle = self.engine.add(metadata, f"{ARRIVING}/{item.name}", complete=False)
        item.phase, item.source, item.metadata = "loading", source, metadata
        item.done, item.moved = 0, time.monotonic()
        self.connect(item)

    def connect(self, item: SharedFile) -> None:
        if item.phase == "loading" and item.handle.status().num_peers < NEIGHBOURS:
            holders = [peer.address for peer in self.peers.values() if peer.index and item.name in peer.index.whole]
            others = [peer.address for peer in self.peers.values() if peer.index and item.name not in peer.index.whole]
            self.engine.connect(item.handle, neighbours(holders, others, self.chance))

    def check_progress(self, item: SharedFile, now: float) -> None:
        """Query other metadata of a file that makes no progress, as no other host may have that content."""
        done = item.handle.status().total_done
        if done != item.done:
            item.done, item.moved = done, now
        elif now > item.moved + STALLED and not item.busy:
            item.moved = now
            item.tried.add(item.source)
            offers = self.offers(item)
            if offers:
                self.get_metadata(item, self.chance.choice(offers))
            else:
                item.tried.clear()

    def verify_arrived(self, item: SharedFile) -> None:
        """Verify a file that has arrived, and move it to its place if its content is right."""
        item.phase = "checking"
        handle, path = item.handle, self.directory / ARRIVING / item.name

        def work() -> tuple[Mark, bool]:
            known = mark(path.lstat(), item.file.digest)
            return known, digest_of(path, item.file, durable=True) == item.file.digest

        def then(future: Future[tuple[Mark, bool]]) -> None:
            if item.handle != handle:
                return
            try:
                known, right = future.result()
            except OSError as error:
                self.postpone(item, str(error))
                return
            if right:
                item.phase, item.mark = "placing", known
                handle.rename_file(0, item.file.path)
            else:
                self.log(f"{item.file.path} arrived with wrong content, by the metadata of {item.source}.")
                item.refused.add(item.metadata)
                self.liars.add(item.source)
                self.drop(item)
                path.unlink()

        self.submit(self.hashers, then, work)

    def placed(self, item: SharedFile) -> None:
        item.phase, item.here = "seeding", True
        self.torrents.save(item, item.metadata)
        remember(self.directory, {item.file.path: item.mark or []})
        self.log(f"{item.file.path} is complete.")

    def postpone(self, item: SharedFile, cause: str) -> None:
        """Retry a file later. The pieces that have arrived are kept."""
        self.drop(item)
        item.retry = time.monotonic() + RETRY
        free = size_text(shutil.disk_usage(self.directory).free)
        self.report_problem(
            f"Cannot receive {item.file.path}, {size_text(item.file.size)}: {cause}; {free} are free. "
            "Free space there, or set model_weights_dir to a larger file system. The transfer is retried automatically."
        )

    # libtorrent and peers

    def handle_alerts(self) -> None:
        lt = self.engine.lt
        rest = TICK if self.jobs else min(LOOK, self.due - time.monotonic())
        for alert in self.engine.alerts(max(0, rest)):
            if isinstance(alert, lt.listen_failed_alert):
                raise ShareError(cannot_listen(self.share, self.share.port, alert.message()))
            if isinstance(alert, lt.session_stats_alert):
                self.status.peer_bytes = alert.values["net.recv_payload_bytes"]
                self.status.sent_bytes = alert.values["net.sent_payload_bytes"]
            if not isinstance(alert, lt.torrent_alert):
                continue
            item = next((item for item in self.items.values() if item.handle == alert.handle), None)
            if item is None:
                continue
            if isinstance(alert, lt.torrent_finished_alert) and item.phase == "loading":
                item.phase, item.done = "flushing", item.file.size
                item.handle.flush_cache()
            elif isinstance(alert, lt.cache_flushed_alert) and item.phase == "flushing":
                self.verify_arrived(item)
            elif isinstance(alert, lt.file_renamed_alert) and item.phase == "placing":
                self.placed(item)
            elif isinstance(alert, (lt.file_error_alert, lt.file_rename_failed_alert)):
                if item.phase == "seeding":
                    self.drop(item)
                else:
                    self.postpone(item, alert.error.message())

    def query_peers(self) -> None:
        """Query the index of the hosts whose next query is due."""
        now = time.monotonic()
        missing = {item.name for item in self.missing()}
        if not missing <= self.sought:
            for peer in self.peers.values():
                peer.due = 0
        self.sought = missing
        helping = sum(peer.helps(missing) for peer in self.peers.values())
        for peer in self.peers.values():
            if peer.busy or now < peer.due:
                continue

            def then(future: Future[bytes], peer: Peer = peer) -> None:
                before, peer.busy, peer.asked = peer.index, False, True
                try:
                    peer.index = Index.parse(future.result(), self.items.keys())
                except ASK_ERRORS:
                    peer.index = None
                    peer.failures += 1
                    peer.due = time.monotonic() + retry_interval(peer.failures)
                    return
                # A value beyond the model's size is not progress.
                if before and before.done_bytes < peer.index.done_bytes <= self.manifest.total_bytes:
                    self.status.progress = time.monotonic()
                if not before or peer.index.whole != before.whole:
                    self.due = 0
                peer.failures = 0
                wait = query_interval(len(self.peers), len(missing), helping, peer.index.hub, peer.helps(missing))
                peer.due = time.monotonic() + wait * self.chance.uniform(0.8, 1.2)

            peer.busy = True
            self.submit(self.askers, then, ask, self.share, peer.address, INDEX, INDEX_LIMIT)

    def publish(self) -> None:
        """Update the index that other hosts query."""
        fetched = read_status(str(self.run_dir / FETCH_STATUS))
        shared = [item for item in self.items.values() if item.handle is not None]
        whole = [item for item in shared if item.phase == "seeding"]
        here = sum(item.file.size if item.phase == "seeding" else item.done for item in shared)
        index = Index(
            whole=frozenset(item.name for item in whole),
            loading=frozenset(item.name for item in shared if item not in whole),
            done_bytes=max(here, fetched.get("done_bytes", 0)),
            hub=fetched.get("state") == "hub",
        )
        self.server.pages = {
            INDEX: index.as_json(),
            **{f"/{item.name}.torrent": item.metadata for item in shared},
        }
        if index.done_bytes > self.had:
            self.status.progress = time.monotonic()
        self.had = index.done_bytes

    def report(self) -> None:
        """Update the status file and the journal."""
        now, status = time.monotonic(), self.status
        if now > self.problem_time + 2 * RETRY:
            status.message = ""
        answering = [peer.index for peer in self.peers.values() if peer.index]
        offered = frozenset().union(*(index.whole for index in answering))
        status.files = sum(len(item.files) for item in self.items.values() if item.here)
        status.connected = len(answering)
        status.asked = all(peer.asked for peer in self.peers.values())
        status.offered = [
            file.path for name, item in self.items.items() for file in item.files if not item.here and name in offered
        ]
        write_status(str(self.run_dir / SHARE_STATUS), asdict(status))
        self.engine.session.post_session_stats()
        moved = (status.peer_bytes, status.sent_bytes)
        if now >= self.reported + REPORT_INTERVAL and moved != self.reported_bytes:
            seconds = now - self.reported
            rates = [size_text((new - old) / seconds) for new, old in zip(moved, self.reported_bytes)]
            self.log(
                f"{status.files} of {len(self.manifest.files)} files are complete; {rates[0]}/s from and {rates[1]}/s "
                f"to peers, of which {status.connected} of {len(self.peers)} answer"
            )
            self.reported, self.reported_bytes = now, moved


def main(plan_file: str, run_dir: Path) -> int:
    try:
        plan = read_plan(plan_file)
        if plan.share is None:
            raise ShareError("The plan has no section share.")
        directory = Path(plan.path)
        sharing = Sharing(plan.share, directory, read_manifest(directory), run_dir)
        signal.signal(signal.SIGTERM, sharing.stop)
        sharing.run()
    except (PlanError, SnapshotError, ShareError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
