# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Complete a snapshot: from the hub, by its own client, or by waiting while the fleet's hosts bring it.

Usage: python3 -m ansible_collections.trtllm.fleet.plugins.module_utils.weights.fetch PLAN [--run-dir DIR]

The client is run again until nothing is missing, and killed when it hangs. What it leaves unfinished is kept in
UNFINISHED, by checksum, and finished by the next run; so a run that is killed, by whatever, costs nothing but its time.
Standard output is for the journal; the last line on standard error is the cause of a failure.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from . import resume
from .plan import (
    FETCH_STATUS,
    RUN_DIR,
    SHARE_STATUS,
    FetchStatus,
    Plan,
    PlanError,
    Share,
    read_plan,
    read_status,
    write_status,
)
from .snapshot import (
    STATE,
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

UNFINISHED = f"{STATE}/partial"
ARRIVING = f"{STATE}/peers"
# The client's own. It names unfinished files after their checksum on the hub: sha256 for large ones.
CLIENT_FILES = ".cache/huggingface/download"
CLIENT_UNFINISHED = re.compile(r".*\.([0-9a-f]{64})\.[0-9a-f]+\.incomplete")
# In the run directory.
CLIENT_JOB = "weights-client.json"
CLIENT_LOG = "weights-client.log"

TICK = 1.0
# The client is looked at more often: what it has begun and gives up between two looks is lost.
CLIENT_TICK = 0.1
REPORT_INTERVAL = 10.0
# What the share program may need to ask every host of the fleet what it has.
ASKING = 60.0
SPEED_WINDOW = 20.0
# Stalls after which the client goes without Xet, the storage that large files come from if the hub has it.
XET_STALLS = 2
LINE_LIMIT = 300
NOBODY = (
    "No other host answers. Where that does not change, open ports {} and {} between the hosts, and read "
    "journalctl --unit=trtllm-weights-share there."
)
KEPT = "What has arrived is kept, and the next run goes on from there."
STOPPED = 128 + signal.SIGTERM


class FetchError(Exception):
    """The message that an operator gets: cause, and the variable to change."""


@dataclass(frozen=True)
class Trouble:
    """Why the client did not get everything. No other attempt mends what is ``final``."""

    message: str
    final: bool = False


# What the client says, whether that is final, and what it means. Of all lines, the newest that says anything counts.
TROUBLES: Sequence[tuple[str, bool, str]] = (
    (
        r"requires approval|gated repo",
        True,
        "{repository} is gated: ask for access at {page}, {token_remedy}.",
    ),
    (
        r"Invalid credentials in Authorization|Invalid user token",
        True,
        "{hub} refuses the hub token: correct model_weights_token.",
    ),
    (
        r"(Model|Repository) .*not found|\b401\b",
        True,
        "{hub} has no repository {repository}, or a private one: correct serving_recipe_model, {token_remedy}.",
    ),
    (
        r"\b403\b",
        True,
        "{hub} refuses access to {repository}: ask for it at {page}, {token_remedy}.",
    ),
    (
        r"Revision not found",
        True,
        "{repository} has no commit {commit} any more: set model_weights_revision to one that it has.",
    ),
    (
        r"File not found in|Entry not found for",
        True,
        "{hub} lacks files of {repository} at {commit}: set model_weights_hub_url to another hub.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSL: ",
        True,
        "TLS with {hub} fails: set model_weights_ca_file for a private CA, or correct model_weights_hub_url ({line}).",
    ),
    (
        r"ProxyError|\b407\b",
        False,
        "The proxy does not let the host through to {hub}: correct model_weights_proxy ({line}).",
    ),
    (
        r"Name or service not known|name resolution|No address associated",
        False,
        "The host cannot resolve the name in {hub}: correct model_weights_hub_url, model_weights_proxy, or its DNS.",
    ),
    (
        r"Rate limited|\b429\b",
        False,
        "{hub} limits the rate of requests: try later, {token_remedy}.",
    ),
    (
        r"error|refused|timed out|reset|cannot be accessed",
        False,
        "{hub} cannot be reached, or breaks off ({line}): correct model_weights_hub_url, model_weights_proxy, "
        "or the way there.",
    ),
)


def diagnose(lines: Sequence[str], plan: Plan, manifest: Manifest, with_token: bool) -> Trouble:
    """What the lines that the client wrote say about why it failed."""
    facts = {
        "hub": plan.hub.url,
        "page": f"{plan.hub.url}/{manifest.repository}",
        "repository": manifest.repository,
        "commit": manifest.commit,
        "token_remedy": "or set model_weights_token" + (" to one that has access" if with_token else ""),
    }
    for line in reversed(lines):
        for pattern, final, message in TROUBLES:
            if re.search(pattern, line, re.IGNORECASE):
                return Trouble(message.format(line=line.strip()[:LINE_LIMIT], **facts), final)
    message = "{hub} sends nothing: correct model_weights_hub_url, model_weights_proxy, or the way there."
    return Trouble(message.format(**facts))


def disk_is_full(lines: Iterable[str]) -> bool:
    """Whether the client says so."""
    return any(os.strerror(code) in line for line in lines for code in (errno.ENOSPC, errno.EDQUOT))


def asked_wait(lines: Iterable[str]) -> float:
    """Seconds that the hub asked to wait, by the last of the lines that tells; 0 if none does."""
    waits = [match for line in lines for match in re.findall(r"Rate limited\. Waiting ([\d.]+)s", line)]
    return float(waits[-1]) if waits else 0


def back_off(failures: int, stall_timeout: float, asked: float) -> float:
    """Seconds until the next run of the client: 5, 10, 20 … 300 at a stall timeout of a minute, or what was asked."""
    return max(asked, min(stall_timeout / 12 * 2**failures, stall_timeout * 5))


def own_part(files: Sequence[RemoteFile], share: Share | None) -> list[RemoteFile]:
    """The files that this host fetches from the hub, whoever else has them: all, its part as a seed, or none."""
    if share is None:
        return list(files)
    if not 0 <= share.rank < share.seeds:
        return []
    return sorted(files, key=lambda file: (-file.size, file.path))[share.rank :: share.seeds]


def has_content(path: str) -> bool:
    """Whether there is such a file, and something in it."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def patience(share: Share, alone: bool) -> float:
    """Seconds without a byte gained in the fleet until this host goes to the hub: first one host, then twice as many.

    So a fleet whose seed has died has one new one, and one that lost half its hosts does not wait for each of those.
    A host that no other answers has nothing from it when another one goes first.
    """
    behind = 0 if alone else max(0, share.rank - share.seeds + 1)
    return share.fallback * (1 + behind.bit_length())


class Speed:
    """Bytes per second over the last seconds."""

    def __init__(self) -> None:
        self.samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, done: int) -> None:
        self.samples.append((now, done))
        while self.samples[0][0] < now - SPEED_WINDOW:
            self.samples.popleft()

    @property
    def rate(self) -> int:
        (start, had), (end, has) = self.samples[0], self.samples[-1]
        return max(0, round((has - had) / (end - start))) if end > start else 0


class Cap:
    """Whether a rate is exceeded; what was not used for half a second may be used later."""

    def __init__(self, rate: int, now: float, seen: int) -> None:
        self.rate, self.now, self.seen = rate, now, seen
        self.budget = 0.0

    def exceeded(self, now: float, seen: int) -> bool:
        self.budget = min(self.rate / 2, self.budget + self.rate * (now - self.now)) - max(0, seen - self.seen)
        self.now, self.seen = now, seen
        return self.budget < 0


def size_text(count: float) -> str:
    """12.3 GB, or with smaller units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def time_text(seconds: int) -> str:
    """75 s, 12 min or 3 h 5 min."""
    if seconds < 120:
        return f"{seconds} s"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def occupied(status: os.stat_result) -> int:
    """Bytes that a file really has: one with holes has less than its size."""
    return min(status.st_size, status.st_blocks * 512)


def is_whole(directory: Path, file: RemoteFile) -> bool:
    """Whether the file is there with its size."""
    try:
        status = os.lstat(directory / file.path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size


class Unfinished:
    """The client's unfinished files, under names that outlive it: one for each checksum, the one with most in it."""

    def __init__(self, directory: Path) -> None:
        self.kept = directory / UNFINISHED
        self.clients = directory / CLIENT_FILES

    def statuses(self) -> Iterator[tuple[Path, os.stat_result]]:
        """All files, the kept ones first. They may go while they are looked at."""
        for path in [*self.kept.glob("*"), *self.clients.rglob("*.incomplete")]:
            with suppress(FileNotFoundError):
                yield path, path.stat()

    def found(self) -> Iterator[tuple[str, Path, os.stat_result]]:
        """Checksum, path and status of the large ones; small ones are not worth it."""
        for path, status in self.statuses():
            match = CLIENT_UNFINISHED.fullmatch(path.name)
            if path.parent == self.kept or match:
                yield match[1] if match else path.name, path, status

    def sizes(self) -> dict[str, int]:
        """Bytes by checksum."""
        sizes: dict[str, int] = {}
        for sha256, _path, status in self.found():
            sizes[sha256] = max(sizes.get(sha256, 0), occupied(status))
        return sizes

    def marks(self) -> frozenset[tuple[int, int, int]]:
        """Another value whenever anything has been written."""
        return frozenset((status.st_ino, status.st_size, status.st_mtime_ns) for _path, status in self.statuses())

    def keep(self) -> None:
        """Give the client's files a second name; it unlinks the first when it fails."""
        self.kept.mkdir(parents=True, exist_ok=True)
        for sha256, path, _status in self.found():
            # A file system without hard links keeps what a killed client leaves, and loses what it unlinks itself.
            with suppress(OSError):
                os.link(path, self.kept / sha256)

    def adopt(self, path: Path, sha256: str) -> None:
        """Keep a file under a checksum that its beginning may be of, unless there is more already."""
        kept = self.kept / sha256
        if not kept.exists() or occupied(kept.stat()) < occupied(path.stat()):
            self.kept.mkdir(parents=True, exist_ok=True)
            os.replace(path, kept)

    def collect(self, wanted: Iterable[RemoteFile]) -> None:
        """After the client is gone: keep what is of use for the wanted files, remove everything else of it."""
        for sha256, path, _status in list(self.found()):
            self.adopt(path, sha256)
        useful = {file.sha256 for file in wanted}
        for path in self.kept.glob("*"):
            if path.name not in useful:
                path.unlink()
        # A lock that its client did not live to remove blocks the next one, where the file system has no better locks.
        for pattern in ("*.incomplete", "*.lock"):
            for path in self.clients.rglob(pattern):
                path.unlink()


class Fetch:
    """One run of the program. What it has to say goes to the journal and to the status file."""

    def __init__(self, plan: Plan, manifest: Manifest, run_dir: Path) -> None:
        self.plan = plan
        self.manifest = manifest
        self.directory = Path(plan.path)
        self.run_dir = run_dir
        self.unfinished = Unfinished(self.directory)
        self.speed = Speed()
        self.status = FetchStatus(total_bytes=manifest.total_bytes, files=len(manifest.files))
        self.written = self.reported = 0.0
        self.client: subprocess.Popen[bytes] | None = None

    # What there is

    def missing(self, files: Iterable[RemoteFile]) -> list[RemoteFile]:
        return [file for file in files if not is_whole(self.directory, file)]

    def held(self, files: Iterable[RemoteFile], arriving: bool = False) -> int:
        """Bytes of the files that are here, of unfinished ones too, and with ``arriving`` of those from peers."""
        sizes = self.unfinished.sizes()
        total = 0
        for file in files:
            if is_whole(self.directory, file):
                total += file.size
                continue
            held = sizes.get(file.sha256 or "", 0)
            if arriving:
                with suppress(FileNotFoundError):
                    held = max(held, occupied((self.directory / ARRIVING / (file.sha256 or str(file.git_oid))).stat()))
            total += min(held, file.size)
        return total

    # What is said of it

    def say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def tell(self, state: str, message: str = "") -> None:
        """Keep the status file and the journal up to date; called often, does so at its own pace."""
        now = time.monotonic()
        if state == self.status.state and message == self.status.message and now < self.written + TICK:
            return
        status = self.status
        status.state, status.message = state, message
        status.files_done = status.files - len(self.missing(self.manifest.files))
        status.done_bytes = self.held(self.manifest.files, arriving=True)
        self.speed.add(now, status.done_bytes)
        status.rate = self.speed.rate
        status.seconds_left = (status.total_bytes - status.done_bytes) // status.rate if status.rate else None
        write_status(str(self.run_dir / FETCH_STATUS), asdict(status))
        self.written = now
        if now >= self.reported + REPORT_INTERVAL and state in ("hub", "peers"):
            self.reported = now
            left = "" if status.seconds_left is None else f", {time_text(status.seconds_left)} left"
            percent = 100 * status.done_bytes // max(1, status.total_bytes)
            self.say(
                f"{percent} percent, {size_text(status.done_bytes)} of {size_text(status.total_bytes)}, "
                f"{size_text(status.rate)}/s from {'the hub' if state == 'hub' else 'peers'}{left}"
            )

    def sleep(self, seconds: float, state: str, message: str) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tell(state, message)
            time.sleep(min(TICK, max(0, end - time.monotonic())))

    # The run

    def run(self) -> None:
        """Raises FetchError, and OSError of the snapshot's file system."""
        with locked(self.directory, self.wait_for_lock):
            self.unfinished.collect(self.missing(self.manifest.files))
            self.clear()
            self.complete()
            for again in (True, False):
                found = self.verify()
                if not found.wanted:
                    break
                self.repair(found, again)
            self.unfinished.collect([])
            self.tell("done")
        self.say(f"All {self.status.files} files, {size_text(self.status.total_bytes)}, are there and verified.")

    def wait_for_lock(self) -> None:
        message = "Another process, on this host or another one, writes this snapshot."
        if self.status.message != message:
            self.say(message)
        self.tell("waiting", message)

    def clear(self) -> None:
        """Take away what lies in the places of missing files: the client may take it for the file, whatever it is.

        It may be a beginning of it.
        """
        for file in self.missing(self.manifest.files):
            place = self.directory / file.path
            if file.sha256 and place.is_file() and not place.is_symlink():
                self.unfinished.adopt(place, file.sha256)
            with suppress(FileNotFoundError, NotADirectoryError):
                place.unlink()

    def complete(self) -> None:
        """Fetch what is missing, or let the fleet bring it."""
        share, files = self.plan.share, self.manifest.files
        own = own_part(files, share)
        if share is not None and self.missing(own):
            offered = self.offered()
            own = [file for file in own if file.path not in offered]
        try:
            self.from_hub(own)
        except FetchError as error:
            if share is None:
                raise
            self.say(f"{error} The fleet may have the files.")
        if share is not None:
            self.from_peers(share)
            self.from_hub(files)

    def verify(self) -> Findings:
        # In a thread, so that the status goes on meanwhile.
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(verify, self.directory, self.manifest)
            while not wait([future], timeout=TICK).done:
                self.tell("verifying")
        return future.result()

    def repair(self, found: Findings, again: bool) -> None:
        """Fetch once more what is not as the hub has it, and remove it in any case: it must not be served."""
        names = few([file.path for file in found.wanted])
        for file in found.corrupt:
            (self.directory / file.path).unlink()
        if not again:
            raise FetchError(
                f"{self.plan.hub.url} sends other content than it announces for {names}: set model_weights_hub_url to "
                "another hub. If it stays so, suspect the memory or the disk (model_weights_dir) of the host."
            )
        self.say(f"Not as the hub has it, fetched again: {names}")
        self.from_hub(found.wanted)

    # Peers

    def offered(self) -> set[str]:
        """Paths of the missing files that the fleet has already; a seed has no need to fetch these from the hub."""
        began = time.monotonic()
        end = began + ASKING
        while time.monotonic() < end:
            news = read_status(str(self.run_dir / SHARE_STATUS))
            if news.get("asked") and news["updated"] > began:
                return set(news["offered"])
            self.tell("peers")
            time.sleep(CLIENT_TICK)
        return set()

    def from_peers(self, share: Share) -> None:
        """Wait while the fleet brings what is missing; return when all is there, or no byte has come for too long."""
        moved, had = time.monotonic(), -1
        while self.missing(self.manifest.files):
            told = read_status(str(self.run_dir / SHARE_STATUS))
            alone = not told.get("connected")
            self.tell("peers", NOBODY.format(share.port, share.port + 1) if alone else "")
            if self.status.done_bytes != had:
                moved, had = time.monotonic(), self.status.done_bytes
            moved = max(moved, told.get("progress", 0))
            limit = patience(share, alone)
            if time.monotonic() - moved > limit:
                self.say(f"The fleet has brought nothing for {time_text(round(limit))}: the rest comes from the hub.")
                return
            time.sleep(TICK)

    # The hub

    def from_hub(self, files: Sequence[RemoteFile]) -> None:
        """Run the client until it has brought everything. Raises FetchError when it is of no use to go on."""
        if not self.plan.hub.url and (missing := self.missing(files)):
            raise FetchError(
                f"No host of the play has {few([file.path for file in missing])}, and there is no hub to ask: "
                "add a host that has all files, or complete the bundle (bundle_dir) on one."
            )
        failures = stalls = 0
        while True:
            wanted = self.missing(files)
            if not wanted:
                return
            before = self.held(wanted)
            stalled, lines = self.run_client(wanted, without_xet=stalls >= XET_STALLS)
            self.unfinished.collect(self.missing(self.manifest.files))
            if not self.missing(wanted):
                continue
            trouble = self.trouble(lines)
            stalls += stalled
            failures = 0 if self.held(wanted) > before else failures + 1
            if trouble.final:
                raise FetchError(trouble.message)
            if failures >= self.plan.attempts:
                raise FetchError(f"{failures} attempts have brought nothing. {trouble.message} {KEPT}")
            seconds = back_off(failures, self.plan.stall_timeout, asked_wait(lines))
            cause = f"No byte for {self.plan.stall_timeout} s. " if stalled else ""
            self.say(f"{cause}{trouble.message} Again in {time_text(round(seconds))}.")
            self.sleep(seconds, "hub", trouble.message)

    def trouble(self, lines: Sequence[str]) -> Trouble:
        if disk_is_full(lines):
            return self.no_space()
        with_token = has_content(self.plan.hub.token_file)
        return diagnose(lines, self.plan, self.manifest, with_token)

    def no_space(self) -> Trouble:
        needed = self.manifest.total_bytes - self.held(self.manifest.files)
        place = file_system(self.directory)
        return Trouble(
            f"The disk is full: {size_text(needed)} are still missing, and {place.mount_point} has "
            f"{size_text(place.free_bytes)} left. Make room there, or set model_weights_dir to a larger one. {KEPT}",
            final=True,
        )

    def run_client(self, wanted: Sequence[RemoteFile], without_xet: bool) -> tuple[bool, list[str]]:
        """One run of the client: whether it hung and was killed, and the lines that it wrote."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        job, log = self.run_dir / CLIENT_JOB, self.run_dir / CLIENT_LOG
        job.write_text(json.dumps(self.job(wanted)), encoding="utf-8")
        python = f"{self.plan.client}/bin/python"
        if not os.path.exists(python):
            raise FetchError(f"The hub's client is not in {self.plan.client}: run the tag model_weights_install.")
        with open(job, "rb") as source, open(log, "wb") as target:
            client = subprocess.Popen(
                [python, "-I", resume.__file__],
                stdin=source,
                stdout=target,
                stderr=subprocess.STDOUT,
                env=self.environment(without_xet),
                # A group of its own, to be stopped and killed as a whole.
                start_new_session=True,
            )
        self.client = client
        try:
            with open(log, encoding="utf-8", errors="replace") as output:
                return self.watch(client, output, wanted)
        finally:
            self.kill_client()

    def kill_client(self) -> None:
        # Killed, as it would clean up on any other signal: its unfinished files are what the next run goes on from.
        if self.client is not None and self.client.poll() is None:
            os.killpg(self.client.pid, signal.SIGKILL)
            self.client.wait()

    def job(self, wanted: Sequence[RemoteFile]) -> dict[str, Any]:
        """What the client is to do."""
        kept = self.unfinished.sizes()
        begun = {file.sha256: file for file in reversed(wanted) if file.sha256 and file.sha256 in kept}
        return {
            "repository": self.manifest.repository,
            "commit": self.manifest.commit,
            "directory": self.plan.path,
            "workers": self.plan.workers,
            "files": [file.path for file in wanted if file not in begun.values()],
            "partials": [
                {**file.as_dict(), "partial": str(self.unfinished.kept / sha256)} for sha256, file in begun.items()
            ],
        }

    def environment(self, without_xet: bool) -> dict[str, str]:
        """The client's; nothing is handed on from ours."""
        hub = self.plan.hub
        # Below model_weights_dir: <it>/models/<owner>/<name>/<commit> is the snapshot.
        home = self.directory.parents[3] / ".hub"
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
            # Xet's cache, beside the model and of its order, has no second reader. What it buffers, a sixteenth of the
            # memory by itself, is lost when it hangs and is killed.
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
        """Wait for the client, as long as something comes; the same result as of ``run_client``."""
        moved = time.monotonic()
        had, brought = self.held(wanted), self.status.hub_bytes
        before: object = None
        cap = Cap(self.plan.max_rate, moved, had) if self.plan.max_rate else None
        lines: list[str] = []
        while True:
            with suppress(subprocess.TimeoutExpired):
                client.wait(CLIENT_TICK)
            ended = client.returncode is not None
            self.unfinished.keep()
            now, held = time.monotonic(), self.held(wanted)
            self.status.hub_bytes = brought + max(0, held - had)
            said = log.readlines()
            lines += said
            if ended:
                return False, lines
            self.tell("hub")
            signs = (held, self.unfinished.marks())
            if signs != before:
                before, moved = signs, max(moved, now)
            asked = asked_wait(said)
            if asked:
                # The client waits, maybe for longer than the timeout.
                moved = now + asked
            if cap:
                # The client has no option for it. While it is stopped, little more than a receive buffer comes in.
                exceeded = cap.exceeded(now, held)
                os.killpg(client.pid, signal.SIGSTOP if exceeded else signal.SIGCONT)
                moved = max(moved, now) if exceeded else moved
            if now - moved > self.plan.stall_timeout:
                return True, lines

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        """On SIGTERM: at once, also in the middle of hashing. The client goes with its parent."""
        self.tell("failed", f"Stopped. {KEPT}")
        os._exit(STOPPED)

    def fail(self, message: str) -> int:
        self.tell("failed", message)
        sys.stderr.write(f"{message}\n")
        return 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan")
    parser.add_argument("--run-dir", type=Path, default=Path(RUN_DIR))
    arguments = parser.parse_args()
    try:
        plan = read_plan(arguments.plan)
        fetch = Fetch(plan, read_manifest(Path(plan.path)), arguments.run_dir)
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
        return fetch.fail(f"{error}: correct model_weights_dir, or look at its file system.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
