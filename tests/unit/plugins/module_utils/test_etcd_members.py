"""Replacing a member of an etcd cluster, with an etcdctl that keeps the members of a cluster of three."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.etcd_members import Etcdctl, EtcdError, replace


def url(number: int) -> str:
    return f"http://192.0.2.{number}:2380"


class Cluster:
    """What `docker exec CONTAINER etcdctl` answers."""

    def __init__(self) -> None:
        self.members = [{"ID": 2**63 + n, "name": f"control{n}", "peerURLs": [url(n)]} for n in (1, 2, 3)]
        self.calls: list[list[str]] = []

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        assert [*argv[:4]] == ["docker", "exec", "etcd", "etcdctl"]
        words = [word for word in argv[4:] if not word.startswith(("--endpoints", "--cacert", "--cert", "--key"))]
        self.calls.append(words)
        if words == ["member", "list", "--write-out=json"]:
            return CommandResult(0, json.dumps({"header": {}, "members": self.members}))
        verb, argument = words[1], words[-1]
        if verb == "remove":
            self.members = [one for one in self.members if one["ID"] != int(argument, 16)]
        elif verb == "add":  # without a name until it starts
            self.members.append({"ID": 7, "peerURLs": [argument.removeprefix("--peer-urls=")]})
        else:
            return CommandResult(1, "", f"unknown command {words}")
        return CommandResult(0, "done")

    def ctl(self, tls: str = "") -> Etcdctl:
        return Etcdctl("etcd", ["http://192.0.2.1:2379", "http://192.0.2.2:2379"], tls, self)


def test_a_lost_member_is_replaced_once() -> None:
    cluster = Cluster()
    changed, members = replace(cluster.ctl(), "control3", "control4", url(4), check=False)
    assert changed
    assert [str(member) for member in members] == [
        f"not started ({url(4)})",
        f"control1 ({url(1)})",
        f"control2 ({url(2)})",
    ]
    # A second run, after the new host failed to start.
    assert replace(cluster.ctl(), "control3", "control4", url(4), check=False) == (False, members)


def test_a_host_that_was_installed_again_replaces_itself() -> None:
    cluster = Cluster()
    changed, members = replace(cluster.ctl(), "control3", "control3", url(3), check=False)
    assert changed
    assert [member.name for member in members] == ["", "control1", "control2"]
    assert replace(cluster.ctl(), "control3", "control3", url(3), check=False)[0] is False


def test_a_run_that_broke_off_in_between_goes_on() -> None:
    cluster = Cluster()
    cluster.members.append({"ID": 7, "name": "", "peerURLs": [url(4)]})
    assert replace(cluster.ctl(), "control3", "control4", url(4), check=False)[0]
    assert [words[1] for words in cluster.calls] == ["list", "remove", "list"]


def test_check_mode_changes_nothing() -> None:
    cluster = Cluster()
    changed, members = replace(cluster.ctl(), "control3", "control4", url(4), check=True)
    assert changed
    assert [words[1] for words in cluster.calls] == ["list"]
    assert list(map(str, members)) == [f"not started ({url(4)})", f"control1 ({url(1)})", f"control2 ({url(2)})"]


def test_nothing_to_replace() -> None:
    with pytest.raises(EtcdError, match=r"etcd has no member control9; it has control1 \(http://192.0.2.1:2380\), "):
        replace(Cluster().ctl(), "control9", "control4", url(4), check=False)


def test_the_new_url_is_that_of_another_member() -> None:
    with pytest.raises(EtcdError, match="are two members of etcd"):
        replace(Cluster().ctl(), "control3", "control4", url(1), check=False)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (CommandResult(1, "", "etcdserver: unhealthy cluster"), "unhealthy cluster"),
        (CommandResult(0, "no JSON"), "unexpected output: no JSON"),
        (CommandResult(0, "{}"), "unexpected output"),
        (CommandResult(None), "no answer within 30 s"),
    ],
)
def test_etcd_does_not_answer(result: CommandResult, message: str) -> None:
    ctl = Etcdctl("etcd", ["http://192.0.2.1:2379"], "", lambda argv, timeout: result)
    with pytest.raises(EtcdError, match=message):
        replace(ctl, "control3", "control4", url(4), check=False)


def test_tls() -> None:
    seen: list[str] = []

    def runner(argv: Sequence[str], timeout: float) -> CommandResult:
        seen.extend(argv)
        return CommandResult(0, json.dumps({"members": []}))

    Etcdctl("etcd", ["https://192.0.2.1:2379"], "/tls", runner).members()
    assert {"--cacert=/tls/ca", "--cert=/tls/certificate", "--key=/tls/key"} < set(seen)
