# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand the files of a snapshot on between the hosts of a fleet, by BitTorrent: libtorrent 2.0, of the distribution.

Usage: python3 -m ansible_collections.trtllm.fleet.plugins.module_utils.weights.share PLAN [--run-dir DIR]

Every file is a torrent of its own, offered as soon as it is whole and verified, so the fleet follows the host that
loads from the hub file by file. There is no tracker and no other way to be found: which files a host has, and their
metadata, it tells by HTTP to the addresses of the plan, and to no one else. What arrives goes to its place only when
it has the checksum of the manifest. docs/how-to/weights.md tells more.
"""

from __future__ import annotations

import argparse
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.files import FILE_MODE

from .exchange import (
    ASK_ERRORS,
    INDEX,
    INDEX_LIMIT,
    NEIGHBOURS,
    Index,
    Peer,
    ShareError,
    Told,
    ask,
    cannot_listen,
    neighbours,
    pause,
    retry_pause,
)
from .fetch import ARRIVING, own_part, size_text
from .plan import FETCH_STATUS, RUN_DIR, SHARE_STATUS, PlanError, Share, read_plan, read_status, write_status
from .snapshot import (
    MANIFEST,
    STATE,
    Findings,
    Manifest,
    Mark,
    RemoteFile,
    SnapshotError,
    adopt,
    digest_of,
    look,
    mark,
    read_manifest,
    remember,
)
from .torrents import Engine, checksums_of, is_metadata, metadata_of, metadata_size, name_of

TORRENTS = f"{STATE}/torrents"
LOCK = "lock"  # in ARRIVING; nothing that arrives has such a name

LOOK, IDLE = 0.5, 2.0  # seconds between two looks, while something is missing here and otherwise
TICK = 0.05  # seconds, while something is under way in a thread
REPORT_INTERVAL = 10.0
STALLED = 15.0
RETRY = 10.0
CONNECT = 5.0
LOADING = 8  # files at a time: the end of one, when few peers have what is missing, overlaps with others
ASKERS = 16
ROOM = 64 * 1024 * 1024  # left free on the disk


@dataclass
class Item:
    """A content: the files of the snapshot that have it, and what is done for it.

    ``phase``: missing; asking for metadata; loading; flushing and checking when all has arrived; placing; seeding.
    ``here``: a file is in its place, if only to be verified. ``busy``: it is being hashed, or metadata asked for.
    ``metadata``: of ``handle``, which came from ``source``; ``proven``: of the file itself. ``tried``: hosts whose
    metadata is of no use; ``refused``: that with which something else came.
    """

    files: list[RemoteFile]
    phase: str = "missing"
    busy: bool = False
    handle: Any = None
    metadata: bytes = b""
    source: str = ""
    tried: set[str] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    here: bool = False
    proven: bytes = b""
    mark: Mark | None = None  # of the file that is seeded, or about to be
    corrupt: Mark | None = None  # of a file that has the size only
    done: int = 0
    moved: float = 0  # when ``done`` changed last
    retry: float = 0

    @property
    def file(self) -> RemoteFile:
        return self.files[0]

    @property
    def name(self) -> str:
        return name_of(self.file)


@dataclass
class Status:
    """For who waits on this host, in SHARE_STATUS.

    ``progress``: when a byte was gained last, in the whole fleet as far as known. ``connected``: hosts that answer.
    ``asked``: every host has been asked once; ``offered``: the missing files that one of them has whole.
    """

    message: str = ""
    peer_bytes: int = 0
    sent_bytes: int = 0
    files: int = 0
    connected: int = 0
    progress: float = 0
    asked: bool = False
    offered: list[str] = field(default_factory=list)


class Sharing:
    """One run of the program."""

    def __init__(self, share: Share, directory: Path, manifest: Manifest, run_dir: Path) -> None:
        self.share = share
        self.directory = directory
        self.manifest = manifest
        self.run_dir = run_dir
        self.items: dict[str, Item] = {}
        for file in manifest.files:
            self.items.setdefault(name_of(file), Item([])).files.append(file)
        self.own = {name_of(file) for file in own_part(manifest.files, share)}
        others = [address for address in share.peers if address != share.address]
        # In an order of its own, so that not all ask the same one first.
        self.peers = {address: Peer(address) for address in random.sample(others, len(others))}
        self.status = Status()
        self.engine = Engine(share, directory)
        self.told = Told(share)
        self.hashers = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
        self.askers = ThreadPoolExecutor(ASKERS)
        self.jobs: list[tuple[Future[Any], Callable[[Future[Any]], None]]] = []
        self.chance = random.Random()
        self.receiver: int | None = None
        self.due = self.connected = self.reported = self.hindered = 0.0
        self.reported_bytes = (0, 0)
        self.sought: set[str] = set()
        self.liars: set[str] = set()  # hosts whose description of a file led to something else
        self.had = 0

    def say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def run(self) -> None:
        """Until the process is stopped, or the snapshot removed. Raises ShareError."""
        Thread(target=self.told.serve_forever, daemon=True).start()
        while (self.directory / MANIFEST).exists():
            try:
                self.hear()
                self.collect()
                if time.monotonic() >= self.due:
                    self.due = time.monotonic() + (LOOK if self.missing() else IDLE)
                    self.survey()
                    self.ask()
                    self.load()
                    self.publish()
                    self.tell()
            except OSError as error:
                self.hinder(f"{error}: look at the file system of model_weights_dir.")
                time.sleep(LOOK)
        self.say(f"{self.directory} is not there any more.")

    def stop(self, _signal: int, _frame: Any) -> None:
        """On SIGTERM: at once. What has arrived is found again, and checked, by the next run."""
        os._exit(0)

    def hinder(self, message: str) -> None:
        self.hindered = time.monotonic()
        if message != self.status.message:
            self.say(message)
        self.status.message = message

    # Work in threads

    def submit(self, pool: ThreadPoolExecutor, then: Callable[[Future[Any]], None], work: Any, *arguments: Any) -> None:
        """Do work in a thread, and something with its result in this one."""
        self.jobs.append((pool.submit(work, *arguments), then))

    def collect(self) -> None:
        for job in [job for job in self.jobs if job[0].done()]:
            self.jobs.remove(job)
            future, then = job
            with suppress(FileNotFoundError):  # A file was removed meanwhile: the next survey tells.
                then(future)

    def missing(self) -> list[Item]:
        return [item for item in self.items.values() if not item.here]

    # What is here

    def survey(self) -> None:
        """Share what is whole and verified, verify what is not, and stop sharing what is no longer there."""
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
                self.spread(item, here, found)
                if item.phase != "seeding" or item.mark != found.marks[here]:
                    self.take(item, here, found.marks[here])
                elif self.engine.is_damaged(item.handle):
                    self.forget(item, here)
            for path in doubtful:
                self.examine(item, path, found.marks[path])

    def spread(self, item: Item, here: str, found: Findings) -> None:
        """Give the other files with the same content their places too."""
        for file in item.files:
            if file in found.missing:
                (self.directory / file.path).parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):
                    os.link(self.directory / here, self.directory / file.path)
                    remember(self.directory, {file.path: found.marks[here]})

    def take(self, item: Item, path: str, known: Mark) -> None:
        """Share a good file, however it came here. There is no torrent of an empty one."""
        if item.phase != "missing":
            self.drop(item)
        if not item.file.size:
            return
        metadata = self.torrent_of(item)
        if metadata:
            item.handle = self.engine.add(metadata, path, whole=True)
            item.phase, item.mark, item.metadata = "seeding", known, metadata
        elif not item.busy:

            def then(future: Future[bytes]) -> None:
                item.busy = False
                checksums = future.result()
                if self.is_still(item, path, known):
                    self.keep(item, metadata_of(item.file, checksums))
                    self.due = 0

            item.busy = True
            self.submit(self.hashers, then, checksums_of, self.directory / path, item.file.size)

    def examine(self, item: Item, path: str, known: Mark) -> None:
        """Verify a file that came to its place from elsewhere, and make its torrent."""
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
                self.say(f"{path} has another content than it should.")
                item.corrupt = known
            elif self.is_still(item, path, known):
                self.keep(item, metadata_of(item.file, checksums))
                remember(self.directory, {path: known})
                self.due = 0

        item.busy = True
        self.submit(self.hashers, then, work)

    def is_still(self, item: Item, path: str, known: Mark) -> bool:
        return mark((self.directory / path).lstat(), item.file.digest) == known

    def forget(self, item: Item, path: str) -> None:
        """Have a file that turned out to be damaged verified again; it is replaced if it is."""
        self.say(f"{path} is damaged, and no longer shared.")
        remember(self.directory, {}, bad=[path])
        self.drop(item)
        item.proven = b""
        self.torrent_path(item).unlink(missing_ok=True)

    def torrent_of(self, item: Item) -> bytes:
        """The torrent of a file as it was made before; empty if it was not."""
        if not item.proven:
            with suppress(OSError):
                metadata = self.torrent_path(item).read_bytes()
                item.proven = metadata if is_metadata(item.file, metadata) else b""
        return item.proven

    def torrent_path(self, item: Item) -> Path:
        return self.directory / TORRENTS / f"{item.name}.torrent"

    def keep(self, item: Item, metadata: bytes) -> None:
        """Remember the torrent of a good file, beyond this run if the snapshot can be written."""
        item.proven = metadata
        place = self.torrent_path(item)
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_suffix(".new")
            with open(new, "wb") as target:
                target.write(metadata)
                target.flush()
                os.fsync(target.fileno())
            os.replace(new, place)

    def drop(self, item: Item) -> None:
        """Share it no more."""
        if item.handle is not None:
            self.engine.session.remove_torrent(item.handle)
        item.phase, item.handle, item.metadata, item.mark = "missing", None, b"", None

    # What is missing

    def load(self) -> None:
        """Have peers send what is missing here, some files at a time."""
        if not self.may_receive():
            return
        self.sweep()
        now = time.monotonic()
        arriving = self.directory / ARRIVING
        active = [item for item in self.items.values() if item.phase not in ("missing", "seeding")]
        for item in active:
            if item.phase == "loading":
                self.watch(item, now)
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
        """Whether this process, of all on this and other hosts that have the directory, is the one that writes."""
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
        """Remove what arrived, or was arriving, and is not wanted any more."""
        for path in (self.directory / ARRIVING).iterdir():
            item = self.items.get(path.name)
            if path.name != LOCK and (item is None or item.phase == "seeding"):
                path.unlink()

    def offers(self, item: Item) -> list[str]:
        """The hosts to get the metadata of a file from: those that have it whole, else those that are getting it.

        What this host itself is to fetch from the hub, it takes only from hosts that have it whole.
        """
        useless = item.tried | self.liars
        indexes = {
            peer.address: peer.index for peer in self.peers.values() if peer.index and peer.address not in useless
        }
        whole = [address for address, index in indexes.items() if item.name in index.whole]
        if whole or item.name in self.own:
            return whole
        return [address for address, index in indexes.items() if item.name in index.loading]

    def begin(self, item: Item, active: Iterable[Item]) -> bool:
        """Get the metadata of a file, if a host has it and there is room; says whether it does."""
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
        if shutil.disk_usage(self.directory).free < needed + ROOM:
            self.fail(item, os.strerror(errno.ENOSPC))
            return False
        item.phase = "asking"
        self.get_metadata(item, self.chance.choice(offers))
        return True

    def get_metadata(self, item: Item, address: str) -> None:
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

    def receive(self, item: Item, source: str, metadata: bytes) -> None:
        """Load a file. What there is of it is checked, and kept as far as it is right."""
        self.drop(item)
        item.handle = self.engine.add(metadata, f"{ARRIVING}/{item.name}", whole=False)
        item.phase, item.source, item.metadata = "loading", source, metadata
        item.done, item.moved = 0, time.monotonic()
        self.connect(item)

    def connect(self, item: Item) -> None:
        if item.phase == "loading" and item.handle.status().num_peers < NEIGHBOURS:
            holders = [peer.address for peer in self.peers.values() if peer.index and item.name in peer.index.whole]
            others = [peer.address for peer in self.peers.values() if peer.index and item.name not in peer.index.whole]
            self.engine.connect(item.handle, neighbours(holders, others, self.chance))

    def watch(self, item: Item, now: float) -> None:
        """See whether a file comes on. If it does not, its metadata may be of something that nobody else has."""
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

    def check(self, item: Item) -> None:
        """Compare a file that has arrived with the manifest, and move it to its place if it is right."""
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
                self.fail(item, str(error))
                return
            if right:
                item.phase, item.mark = "placing", known
                handle.rename_file(0, item.file.path)
            else:
                self.say(f"What came as {item.file.path}, as {item.source} describes it, is something else.")
                item.refused.add(item.metadata)
                self.liars.add(item.source)
                self.drop(item)
                path.unlink()

        self.submit(self.hashers, then, work)

    def placed(self, item: Item) -> None:
        item.phase, item.here, item.proven = "seeding", True, item.metadata
        self.keep(item, item.metadata)
        remember(self.directory, {item.file.path: item.mark or []})
        self.say(f"{item.file.path} is here.")

    def fail(self, item: Item, cause: str) -> None:
        """Have it wait until the disk is better. What has arrived is kept."""
        self.drop(item)
        item.retry = time.monotonic() + RETRY
        free = size_text(shutil.disk_usage(self.directory).free)
        self.hinder(
            f"Cannot receive {item.file.path}, {size_text(item.file.size)}: {cause}; {free} are free. "
            "Make room there, or set model_weights_dir to a larger file system. It is tried again by itself."
        )

    # What the engine and the others say

    def hear(self) -> None:
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
                self.check(item)
            elif isinstance(alert, lt.file_renamed_alert) and item.phase == "placing":
                self.placed(item)
            elif isinstance(alert, (lt.file_error_alert, lt.file_rename_failed_alert)):
                if item.phase == "seeding":
                    self.drop(item)
                else:
                    self.fail(item, alert.error.message())

    def ask(self) -> None:
        """Ask the hosts whose turn it is what they have."""
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
                    peer.due = time.monotonic() + retry_pause(peer.failures)
                    return
                # What is said beyond the model's size is no progress.
                if before and before.done_bytes < peer.index.done_bytes <= self.manifest.total_bytes:
                    self.status.progress = time.monotonic()
                if not before or peer.index.whole != before.whole:
                    self.due = 0
                peer.failures = 0
                wait = pause(len(self.peers), len(missing), helping, peer.index.hub, peer.helps(missing))
                peer.due = time.monotonic() + wait * self.chance.uniform(0.8, 1.2)

            peer.busy = True
            self.submit(self.askers, then, ask, self.share, peer.address, INDEX, INDEX_LIMIT)

    def publish(self) -> None:
        """Tell the others what is here."""
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
        self.told.pages = {
            INDEX: index.as_json(),
            **{f"/{item.name}.torrent": item.metadata for item in shared},
        }
        if index.done_bytes > self.had:
            self.status.progress = time.monotonic()
        self.had = index.done_bytes

    def tell(self) -> None:
        """Keep the status file and the journal up to date."""
        now, status = time.monotonic(), self.status
        if now > self.hindered + 2 * RETRY:
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
            self.say(
                f"{status.files} of {len(self.manifest.files)} files are here; {rates[0]}/s from and {rates[1]}/s to "
                f"peers, of which {status.connected} of {len(self.peers)} answer"
            )
            self.reported, self.reported_bytes = now, moved


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan")
    parser.add_argument("--run-dir", type=Path, default=Path(RUN_DIR))
    arguments = parser.parse_args()
    try:
        plan = read_plan(arguments.plan)
        if plan.share is None:
            raise ShareError("The plan does not say how to share.")
        directory = Path(plan.path)
        sharing = Sharing(plan.share, directory, read_manifest(directory), arguments.run_dir)
        signal.signal(signal.SIGTERM, sharing.stop)
        sharing.run()
    except (PlanError, SnapshotError, ShareError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
