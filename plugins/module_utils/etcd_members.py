# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Members of an etcd cluster: replace one that is lost for good."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner, output

# etcdctl gives up after 5 s by itself; docker adds some.
TIMEOUT = 30.0


class EtcdError(Exception):
    """etcd does not answer, or rejects a change."""


@dataclass(frozen=True, order=True)
class Member:
    """A member of a cluster. It has no name until it has started once."""

    name: str
    peer_urls: tuple[str, ...]
    id: int

    def __str__(self) -> str:
        return f"{self.name or 'not started'} ({', '.join(self.peer_urls)})"


@dataclass(frozen=True)
class Etcdctl:
    """etcdctl in a running container of a member, at the client URLs of members that run."""

    container: str
    endpoints: Sequence[str]
    tls_directory: str  # in the container, with ca, certificate and key; or empty
    runner: Runner

    def call(self, *arguments: str) -> str:
        """Return the output. Raises EtcdError."""
        argv = ["docker", "exec", self.container, "etcdctl", f"--endpoints={','.join(self.endpoints)}"]
        if self.tls_directory:
            files = {"cacert": "ca", "cert": "certificate", "key": "key"}
            argv += [f"--{option}={self.tls_directory}/{file}" for option, file in files.items()]
        return output([*argv, *arguments], TIMEOUT, self.runner, EtcdError)

    def members(self) -> list[Member]:
        """Return the members, sorted by name. Raises EtcdError."""
        text = self.call("member", "list", "--write-out=json")
        try:
            found = [
                Member(one.get("name", ""), tuple(one["peerURLs"]), one["ID"]) for one in json.loads(text)["members"]
            ]
        except (ValueError, LookupError, TypeError):
            raise EtcdError(f"etcdctl member list: unexpected output: {text[:200]}") from None
        return sorted(found)

    def remove(self, member: Member) -> None:
        self.call("member", "remove", f"{member.id:x}")

    def add(self, name: str, peer_url: str) -> None:
        self.call("member", "add", name, f"--peer-urls={peer_url}")


@dataclass(frozen=True)
class Replacement:
    """What has to happen so that a new member can start in place of a lost one."""

    removed: Member | None
    added: bool


def plan(members: Sequence[Member], lost: str, peer_url: str) -> Replacement:
    """Plan to replace member ``lost`` by one that was never started, at ``peer_url``.

    Nothing is left to do when the new one is a member that has not started. A member of the same name, or at the same
    URL, that has started is the lost one: its data is gone. Raises EtcdError if there is nothing to replace.
    """
    waiting = any(not member.name and peer_url in member.peer_urls for member in members)
    gone = [member for member in members if member.name and (member.name == lost or peer_url in member.peer_urls)]
    if len(gone) > 1:
        raise EtcdError(f"{lost} and {peer_url} are two members of etcd: {' and '.join(map(str, gone))}")
    if not gone and not waiting:
        raise EtcdError(f"etcd has no member {lost}; it has {', '.join(map(str, members))}")
    return Replacement(gone[0] if gone else None, not waiting)


def replace(etcdctl: Etcdctl, lost: str, name: str, peer_url: str, check: bool) -> tuple[bool, list[Member]]:
    """Remove member ``lost`` and add ``name``; return whether anything changed, and the members afterwards.

    With ``check`` nothing changes, and the members are the expected ones. Raises EtcdError.
    """
    members = etcdctl.members()
    wanted = plan(members, lost, peer_url)
    changed = bool(wanted.removed or wanted.added)
    if check:
        # etcd sets the number of a member, so a new one has none before.
        new = [Member("", (peer_url,), 0)] if wanted.added else []
        members = sorted([*(member for member in members if member != wanted.removed), *new])
    if check or not changed:
        return changed, members
    if wanted.removed:
        etcdctl.remove(wanted.removed)
    if wanted.added:
        etcdctl.add(name, peer_url)
    return True, etcdctl.members()
