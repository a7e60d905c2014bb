# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lock that one run of Ansible holds for a while, in a file on a host, and renews as it goes on."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.files import write_file


@dataclass(frozen=True)
class Lock:
    """``owner`` tells one run from all others, ``holder`` tells a person who. Times in seconds since the epoch.

    ``rollout``: the name of what is under way. Who takes over what another did not finish goes on under its name.
    """

    owner: str
    holder: str
    began: float
    expires: float
    rollout: str


class Held(Exception):
    """Somebody else holds it."""

    def __init__(self, lock: Lock) -> None:
        began, expires = (time.strftime("%F %T UTC", time.gmtime(value)) for value in (lock.began, lock.expires))
        super().__init__(f"{lock.holder} holds it since {began}, until {expires} if it does not go on")
        self.lock = lock


class LockFile:
    """The lock in one file. Methods raise OSError for a file system that does not let them."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    def read(self) -> Lock | None:
        """Who holds it; None where nobody does, or where the file does not say."""
        try:
            lock = Lock(**json.loads(self._path.read_text()))
            time.gmtime(float(lock.began)), time.gmtime(float(lock.expires))
            return lock
        except (FileNotFoundError, ValueError, TypeError, OverflowError):
            return None

    def refuse(self, owner: str, instead_of: str = "") -> None:
        """Raise Held unless it is free, run out, or that of ``owner`` or ``instead_of``."""
        lock = self.read()
        if lock is not None and lock.owner not in (owner, instead_of) and lock.expires > self._clock():
            raise Held(lock)

    def hold(self, owner: str, holder: str, seconds: float, instead_of: str = "") -> tuple[bool, str]:
        """Take or renew it for some seconds. Raises Held as ``refuse`` does.

        The answer is whether it was taken, False where ``owner`` held it already, and the name of the rollout.
        """
        with self._alone():
            self.refuse(owner, instead_of)
            now, lock = self._clock(), self.read()
            ours = lock is not None and lock.owner == owner
            began = lock.began if lock is not None and ours else now
            rollout = lock.rollout if lock is not None else time.strftime("%FT%TZ", time.gmtime(now))
            write_file(self._path, json.dumps(asdict(Lock(owner, holder, began, now + seconds, rollout))) + "\n")
            return not ours, rollout

    def release(self, owner: str) -> bool:
        """Give it back. The answer is whether ``owner`` held it."""
        if not self._path.exists():
            return False
        with self._alone():
            lock = self.read()
            if lock is None or lock.owner != owner:
                return False
            self._path.unlink()
            return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_name(f".{self._path.name}.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield
