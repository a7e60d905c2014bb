# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""host_record: a host is as recorded only if nothing of what the roles own differs and every instance answers."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.gateway import Gateway
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import Haproxy
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import RegisteredHost, Server
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record import convergence
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.convergence import Convergence
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.record import read_record
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.state import HostState, Owned, differences
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.plugins.modules.host_record import apply

VERSION = "collection-1"
INPUTS = {"serving_recipe_use_case": "aa", "model_weights_token": "bb"}
IMAGE = "registry/release@sha256:" + 64 * "1"
UNIT = "trtllm-serve-0.service"
RELEASE = {
    "image": "registry/release:1.2.1",
    "digest": IMAGE.partition("@")[2],
    "served_model": "gpt-oss-120b",
    "instances": [{"name": "serve-0", "unit": UNIT, "base_url": "http://127.0.0.1:8000"}],
}
STATUS = """\
Package: docker.io
Status: hold ok installed
Architecture: amd64
Version: 26.1.5

Package: runc
Status: install ok installed
Version: 1.1
"""
OWNED = Owned(
    files=["/etc/docker/daemon.json", "/etc/apt/removed.list"],
    trees=["/opt/trtllm-fleet/hf"],
    packages=["docker.io"],
    units=["docker.service"],
)


class Host:
    """A host below a directory; ``units`` and ``images`` are the answers of systemctl and Docker."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.units: dict[str, dict[str, str]] = {}
        self.images = {IMAGE: "sha256:" + 64 * "2"}
        self.completes = True
        self.checks: list[Mapping[str, Any]] = []
        self.write("etc/docker/daemon.json", "{}")
        self.write("var/lib/dpkg/status", STATUS)
        self.write("var/lib/trtllm-fleet/packages", "runc\nasked docker.io\n")
        self.write("opt/trtllm-fleet/hf/bin/hf", "#!/bin/sh\n")
        self.write(
            "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n"
        )
        release = root / "etc/trtllm-fleet/releases/abc"
        self.write("etc/trtllm-fleet/releases/abc/release.json", json.dumps(RELEASE))
        self.write(f"etc/trtllm-fleet/releases/abc/{UNIT}", "[Service]\n")
        (root / "etc/systemd/system").mkdir(parents=True)
        (root / "etc/systemd/system" / UNIT).symlink_to(release / UNIT)
        (root / "etc/trtllm-fleet/verified").symlink_to(release)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, argv: Sequence[str], _timeout: float) -> CommandResult:
        names = argv[argv.index("--") + 1 :] if "--" in argv else argv[4:]
        if argv[0] == "systemctl":
            defaults = {"Type": "exec", "LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active"}
            shown = ({**defaults, **self.units.get(name, {})} for name in names)
            return CommandResult(0, "\n\n".join("\n".join(f"{key}={one[key]}" for key in one) for one in shown))
        rows = [
            {"Id": self.images[name], "RepoTags": [], "RepoDigests": [name]} for name in names if name in self.images
        ]
        return CommandResult(0, "\n".join(map(json.dumps, rows)))

    def verify(self, _instance: Any, _release: Any, check: Mapping[str, Any]) -> dict[str, Any]:
        self.checks.append(check)
        completion = {"text": "New York is a city."} if self.completes else None
        return {"ok": self.completes, "completion": completion, "message": "" if self.completes else "no answer"}

    @property
    def convergence(self) -> Convergence:
        return Convergence(
            path=self.root / "var/lib/trtllm-fleet/record.json",
            state=HostState(self.root, self.run),
            releases=HostReleases(self.root / "etc/trtllm-fleet", self.root / "etc/systemd/system"),
            verify=self.verify,
        )

    def compare(
        self,
        collection: str = VERSION,
        inputs: Mapping[str, str] | None = None,
        reason: str = "",
        run: str = "run-1",
        serves: bool = True,
    ) -> dict[str, Any]:
        return self.convergence.compare(run, collection, INPUTS if inputs is None else inputs, {}, reason, serves)

    def record(self, owned: Owned = OWNED, run: str = "run-1") -> dict[str, Any]:
        return self.convergence.record(run, owned)

    def about(self, **options: Any) -> list[str]:
        return [difference["about"] for difference in self.compare(**options)["differences"]]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    assert not host.compare()["known"]
    assert host.record()["unrestored"] == []
    return host


def test_unchanged_host_is_as_recorded(host: Host) -> None:
    found = host.compare()
    assert (found["as_recorded"], found["differences"]) == (True, [])
    assert found["release"] == RELEASE
    assert found["answers"] == {"serve-0": {"text": "New York is a city.", "base_url": "http://127.0.0.1:8000"}}


def test_host_without_a_record(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.compare()["differences"] == [
        {"about": "record", "sentence": "the host has no record of a complete run"}
    ]
    assert not host.compare()["as_recorded"]


def edit(path: str, text: str = "changed") -> Callable[[Host], None]:
    return lambda host: host.write(path, text)


def chmod(path: str) -> Callable[[Host], None]:
    return lambda host: (host.root / path).chmod(0o600)


def remove(path: str) -> Callable[[Host], None]:
    return lambda host: (host.root / path).unlink()


def unit(name: str, **values: str) -> Callable[[Host], None]:
    return lambda host: host.units.update({name: values})


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (edit("etc/docker/daemon.json", '{"debug": true}'), "/etc/docker/daemon.json"),
        (chmod("etc/docker/daemon.json"), "/etc/docker/daemon.json"),
        (remove("etc/docker/daemon.json"), "/etc/docker/daemon.json"),
        (edit("etc/apt/removed.list"), "/etc/apt/removed.list"),
        (edit("etc/trtllm-fleet/releases/abc/added"), "/etc/trtllm-fleet/releases/abc/added"),
        (edit("etc/trtllm-fleet/releases/abc/release.json", "{}"), "/etc/trtllm-fleet/releases/abc/release.json"),
        (remove("etc/trtllm-fleet/verified"), "/etc/trtllm-fleet/verified"),
        (remove(f"etc/systemd/system/{UNIT}"), f"/etc/systemd/system/{UNIT}"),
        (edit(f"etc/systemd/system/{UNIT}.d/own.conf"), f"/etc/systemd/system/{UNIT}.d"),
        (edit("opt/trtllm-fleet/hf/bin/hf", "#!/bin/sh\nexit 1\n"), "/opt/trtllm-fleet/hf"),
        (chmod("opt/trtllm-fleet/hf/bin/hf"), "/opt/trtllm-fleet/hf"),
        (edit("var/lib/dpkg/status", STATUS.replace("hold ok", "install ok")), "docker.io"),
        (edit("var/lib/dpkg/status", STATUS.replace("Version: 1.1", "Version: 1.2")), "runc"),
        (edit("var/lib/dpkg/status", ""), "docker.io"),
        (edit("proc/driver/nvidia/version", ""), "loaded"),
        (edit("proc/driver/nvidia/gpus/0000:01:00.0/information"), "GPUs"),
        (edit("boot/vmlinuz-6.12.0-1"), "kernels"),
        (unit("docker.service", UnitFileState="disabled"), "docker.service"),
        (unit("docker.service", ActiveState="failed"), "docker.service"),
        (unit("docker.service", LoadState="masked"), "docker.service"),
        (unit(UNIT, NeedDaemonReload="yes"), UNIT),
        (unit(UNIT, DropInPaths="/etc/systemd/system/service.d/all.conf"), UNIT),
        (lambda host: host.images.clear(), IMAGE),
    ],
)
def test_change_is_found_and_no_completion_requested(host: Host, change: Callable[[Host], None], about: str) -> None:
    change(host)
    assert about in host.about()
    assert host.checks == []


@pytest.fixture
def gateway(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.write("etc/trtllm-fleet/gateway/head.cfg", "global\n# model @model@, @fingerprint@\nbackend instances\n")
    (tmp_path / "etc/trtllm-fleet/verified").unlink()
    assert (
        Gateway(tmp_path / "etc/trtllm-fleet/gateway", Haproxy(tmp_path / "absent"), runner=host.run).apply("").changed
    )
    host.compare(serves=False)
    host.record()
    return host


def test_a_gateway_needs_no_release(gateway: Host) -> None:
    found = gateway.compare(serves=False)
    assert (found["as_recorded"], found["release"], found["answers"]) == (True, None, {})
    assert gateway.about() == ["release"]


@pytest.mark.parametrize(
    ("path", "about"),
    [
        ("haproxy.cfg", "configuration"),
        ("head.cfg", "/etc/trtllm-fleet/gateway/head.cfg"),
        ("keys.map", "/etc/trtllm-fleet/gateway/keys.map"),
        ("hosts/gpu1.json", "configuration"),
    ],
)
def test_a_change_of_the_gateway_is_found(gateway: Host, path: str, about: str) -> None:
    gateway.write(f"etc/trtllm-fleet/gateway/{path}", "changed")
    assert about in gateway.about(serves=False)


def test_registered_hosts_are_no_difference(gateway: Host) -> None:
    folder = gateway.root / "etc/trtllm-fleet/gateway"
    change = {"gpu1": lambda _old: RegisteredHost({"serve-0": Server("192.0.2.1", 8000, "openai/gpt-oss-120b", 8)})}
    assert Gateway(folder, Haproxy(folder / "absent"), runner=gateway.run).apply("", change).hosts
    assert gateway.compare(serves=False)["as_recorded"]


@pytest.mark.parametrize(
    "change",
    [
        edit("etc/trtllm-fleet/__pycache__/x.pyc"),
        edit("opt/trtllm-fleet/hf/bin/__pycache__/hf.pyc"),
        edit("var/lib/trtllm-fleet/verified/abc.json"),
        edit("var/lib/trtllm-fleet/usage/state.json"),
        edit("etc/other"),
        unit(UNIT, DropInPaths="/usr/lib/systemd/system/service.d/10-timeout.conf"),
    ],
)
def test_what_is_not_owned_or_changes_by_itself_is_no_difference(host: Host, change: Callable[[Host], None]) -> None:
    change(host)
    assert host.compare()["differences"] == []


def test_oneshot_unit_may_be_active_or_not(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.units["docker.service"] = {"Type": "oneshot", "ActiveState": "inactive"}
    host.compare()
    host.record()
    host.units["docker.service"] = {"Type": "oneshot", "ActiveState": "active"}
    assert host.compare()["as_recorded"]


def test_changed_added_and_removed_inputs_are_named(host: Host) -> None:
    inputs = {"serving_recipe_use_case": "other", "serving_recipe_model": "cc"}
    assert host.about(inputs=inputs) == ["model_weights_token", "serving_recipe_model", "serving_recipe_use_case"]


def test_record_of_another_collection_is_not_believed(host: Host) -> None:
    assert host.about(collection="collection-2") == ["record"]


def test_full_run_compares_nothing(host: Host) -> None:
    assert host.compare(reason="site_full is true")["differences"] == [
        {"about": "site_full", "sentence": "site_full is true"}
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "complete": true}', "\0"])
def test_unreadable_record_is_none(host: Host, text: str) -> None:
    host.write("var/lib/trtllm-fleet/record.json", text)
    assert host.about() == ["record"]


def test_a_run_that_does_not_end_leaves_no_complete_record(host: Host) -> None:
    assert not host.compare(reason="all")["as_recorded"]
    assert host.compare()["differences"] == [{"about": "record", "sentence": "the last run did not end well"}]
    assert host.record()["recorded"]
    assert host.compare()["as_recorded"]


def test_a_run_does_not_complete_the_record_that_another_opened(host: Host) -> None:
    host.compare(reason="all", run="run-1")
    host.compare(reason="all", run="run-2")
    assert not host.record(run="run-1")["recorded"]
    assert host.about() == ["record"]


def test_check_mode_writes_nothing(host: Host) -> None:
    path = host.convergence.path
    before = path.read_text()
    checked = replace(host.convergence, check_mode=True)
    assert not checked.compare("run-2", VERSION, INPUTS, {}, "all")["as_recorded"]
    checked.begin_change("run-2", False)
    assert not checked.record("run-2", Owned())["recorded"]
    assert checked.remove()
    assert path.read_text() == before


def test_instance_that_does_not_complete_is_a_difference(host: Host) -> None:
    host.completes = False
    found = host.compare()
    assert found["differences"] == [{"about": "serve-0", "sentence": "no answer"}]
    assert (found["release"], found["answers"]) == (None, {})


def test_later_run_keeps_what_an_earlier_one_owned(host: Host) -> None:
    host.compare(reason="all")
    assert host.record(Owned(files=["/etc/new"]))["unrestored"] == []
    host.write("etc/apt/removed.list", "again")
    assert host.about() == ["/etc/apt/removed.list"]


def test_what_no_role_restored_is_reported(host: Host) -> None:
    host.write("etc/trtllm-fleet/weights.json", "changed by hand")
    assert host.about() == ["/etc/trtllm-fleet/weights.json"]
    # It is a new file, so it has no earlier value.
    assert host.record()["unrestored"] == []
    host.write("etc/trtllm-fleet/weights.json", "changed again")
    assert host.about() == ["/etc/trtllm-fleet/weights.json"]
    result = apply(host.convergence, {"phase": "recorded", "run": "run-1", "owned": {}})
    assert result["unrestored"] == [
        {
            "about": "/etc/trtllm-fleet/weights.json",
            "sentence": "file /etc/trtllm-fleet/weights.json has another content",
        }
    ]
    assert host.compare()["as_recorded"]


def test_change_by_other_inputs_is_not_reported(host: Host) -> None:
    host.compare(inputs={})
    host.write("etc/docker/daemon.json", "written by a role")
    assert host.record()["unrestored"] == []


def test_host_that_cannot_be_compared_runs_the_roles(host: Host) -> None:
    host.write("etc/trtllm-fleet/releases/abc/release.json", "{}")
    host.compare(reason="all")
    host.record()
    (difference,) = host.compare()["differences"]
    assert difference["about"] in ("record", "release")


def test_record_is_for_root_and_has_no_checksum_of_a_secret(host: Host) -> None:
    path = host.convergence.path
    assert path.stat().st_mode & 0o777 == 0o600
    assert "bb" not in json.loads(path.read_text())["inputs"].values()
    first = read_record(path)
    host.compare(reason="all")
    host.record()
    second = read_record(path)
    assert first
    assert second
    assert first.inputs != second.inputs


def test_a_record_that_cannot_be_opened_is_removed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convergence, "write_record", full)
    host.write("etc/docker/daemon.json", "[]")
    assert not host.compare()["as_recorded"]
    assert not (host.root / "var/lib/trtllm-fleet/record.json").exists()


def test_remove(host: Host) -> None:
    assert host.convergence.remove()
    assert not host.convergence.remove()
    assert not os.path.exists(host.convergence.path)


def change(host: Host, run: str = "run-2", same_inputs: bool = False) -> list[str]:
    found = host.convergence.begin_change(run, same_inputs)
    return [one["about"] for one in found["differences"]]


def drift(host: Host) -> list[str]:
    """What a record that holds says of the host, whatever the inputs."""
    known = read_record(host.convergence.path)
    assert known is not None
    assert known.complete
    return [one.about for one in differences(known.items, host.convergence.state.items(known.owned))]


def test_a_change_that_ends_well_is_no_drift_and_drift_before_it_remains(host: Host) -> None:
    host.write("etc/apt/removed.list", "drift before it")
    assert change(host) == ["/etc/apt/removed.list"]
    host.write("etc/docker/daemon.json", '{"debug": true}')
    host.write("etc/trtllm-fleet/releases/def/release.json", json.dumps(RELEASE))
    found = host.record(Owned(files=["/etc/new"]), "run-2")
    assert (found["recorded"], found["unrestored"]) == (True, [])
    assert drift(host) == ["/etc/apt/removed.list"]


def test_drift_that_the_change_replaced_is_gone(host: Host) -> None:
    host.write("etc/apt/removed.list", "drift before it")
    change(host)
    host.write("etc/apt/removed.list", "the playbook's")
    host.record(Owned(), "run-2")
    assert drift(host) == []


def test_after_a_change_the_roles_run_once(host: Host) -> None:
    """A rollout to other variables and back: the record has the variables of before the rollout."""
    change(host)
    host.write("etc/trtllm-fleet/releases/def/release.json", json.dumps(RELEASE))
    host.record(Owned(), "run-2")
    assert [one["sentence"] for one in host.compare(run="run-3")["differences"]] == [
        "another playbook changed the host since"
    ]
    host.record(run="run-3")
    assert host.compare(run="run-4")["as_recorded"]


def test_after_a_change_by_all_roles_with_the_same_inputs_they_do_not_run(host: Host) -> None:
    change(host, same_inputs=True)
    host.write("etc/docker/daemon.json", '{"debug": true}')
    host.record(Owned(), "run-2")
    assert host.compare()["as_recorded"]


def test_a_change_that_does_not_end_leaves_no_complete_record(host: Host) -> None:
    change(host)
    host.write("etc/docker/daemon.json", '{"debug": true}')
    host.record(Owned(), "another run")
    assert host.about() == ["record"]


def test_a_change_repeated_after_an_interrupted_one_is_recorded(host: Host) -> None:
    change(host)
    host.write("etc/docker/daemon.json", '{"debug": true}')
    change(host, "run-3")
    host.record(Owned(), "run-3")
    assert drift(host) == []


def test_roles_after_an_interrupted_change_report_nothing_unrestored(host: Host) -> None:
    change(host)
    host.write("etc/docker/daemon.json", '{"debug": true}')
    host.compare(run="run-3")
    assert host.record(run="run-3")["unrestored"] == []


def test_a_change_without_a_record_writes_none(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert change(host) == []
    assert not host.record(Owned(), "run-2")["recorded"]
    assert not host.convergence.path.exists()


def test_a_run_that_another_playbook_changes_below_does_not_complete(host: Host) -> None:
    host.compare(reason="site_full is true")
    change(host)
    assert not host.record(Owned(), "run-2")["recorded"]
    assert not host.record()["recorded"]
    assert host.about() == ["record"]


@pytest.mark.parametrize(
    ("check", "tokens"), [({}, convergence.TOKENS), ({"expected_text": "York"}, 512), ({"max_tokens": 7}, 7)]
)
def test_a_completion_of_a_look_is_short(monkeypatch: pytest.MonkeyPatch, check: dict[str, Any], tokens: int) -> None:
    """Unless the operator's own check is about the content."""
    asked: list[dict[str, Any]] = []

    class Asked:
        def run(self) -> dict[str, Any]:
            return {"ok": True}

    def make(options: dict[str, Any]) -> Asked:
        asked.append(options)
        return Asked()

    monkeypatch.setattr(convergence, "make_verification", make)
    instance = {"base_url": "http://127.0.0.1:8000", "unit": "trtllm-serve-0.service"}
    assert convergence.verify_instance(instance, {"served_model": "m"}, check) == {"ok": True, "message": ""}
    assert [options["max_tokens"] for options in asked] == [tokens]
