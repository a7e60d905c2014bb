# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lock in a file on a host, which a run of Ansible holds until it expires, and renews."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file

# Purposes of a run that holds the lock.
ROLLOUT, ROLLBACK, MAINTENANCE = "rollout", "rollback", "maintenance"


@dataclass(frozen=True)
class Lock:
    """Content of the lock file. Times are in seconds since the epoch.

    ``owner`` identifies the run, ``holder`` describes it in messages. ``rollout`` names the rollout or rollback, also
    for a run that takes the lock over; ``back`` tells which of them it is. It is empty for maintenance, unless that
    interrupts an unfinished rollout.
    """

    owner: str
    holder: str
    began: float
    expires: float
    rollout: str
    back: bool = False


class Held(Exception):
    """The lock of another run."""

    def __init__(self, lock: Lock) -> None:
        began, expires = (time.strftime("%F %T UTC", time.gmtime(value)) for value in (lock.began, lock.expires))
        super().__init__(
            f"{lock.holder} holds the rollout lock since {began}; without a renewal it expires at {expires}. "
            "Wait until then, or set rollout_take_over to true if that run has ended"
        )
        self.lock = lock


class LockFile:
    """The file of a lock. Methods raise OSError."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    def read(self) -> Lock | None:
        """Return the lock; None without a file or with invalid content."""
        try:
            lock = Lock(**json.loads(self._path.read_text()))
            time.gmtime(float(lock.began)), time.gmtime(float(lock.expires))
            return lock
        except (FileNotFoundError, ValueError, TypeError, OverflowError):
            return None

    def refuse(self, owner: str, instead_of: str = "") -> None:
        """Raise Held unless the lock is free, expired, or that of ``owner`` or ``instead_of``."""
        lock = self.read()
        if lock is not None and lock.owner not in (owner, instead_of) and lock.expires > self._clock():
            raise Held(lock)

    def hold(
        self, owner: str, holder: str, seconds: float, instead_of: str = "", purpose: str = ROLLOUT
    ) -> tuple[bool, Lock]:
        """Take or renew the lock for some seconds. Raises Held as ``refuse`` does.

        A run continues the rollout of a lock that was not released. Only a rollback continues a rollback. Maintenance
        keeps what was not finished.

        Returns whether it was taken, False for a renewal, and the lock.
        """
        with self._exclusive():
            self.refuse(owner, instead_of)
            now, lock = self._clock(), self.read()
            renewed = lock is not None and lock.owner == owner
            began = lock.began if lock is not None and renewed else now
            rollout, back = (lock.rollout, lock.back) if lock is not None else ("", False)
            continued = renewed or purpose == MAINTENANCE or (rollout and (purpose == ROLLBACK or not back))
            if not continued:
                rollout, back = time.strftime("%FT%TZ", time.gmtime(now)), purpose == ROLLBACK
            held = Lock(owner, holder, began, now + seconds, rollout, back)
            write_file(self._path, json.dumps(asdict(held)) + "\n")
            return not renewed, held

    def release(self, owner: str, purpose: str = ROLLOUT) -> bool:
        """Remove the lock of ``owner``. Returns False if it is not the owner's.

        After maintenance, an unfinished rollout leaves an expired lock with its name.
        """
        if not self._path.exists():
            return False
        with self._exclusive():
            lock = self.read()
            if lock is None or lock.owner != owner:
                return False
            if purpose == MAINTENANCE and lock.rollout:
                write_file(self._path, json.dumps(asdict(replace(lock, owner="", expires=lock.began))) + "\n")
            else:
                self._path.unlink()
            return True

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_name(f".{self._path.name}.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield
