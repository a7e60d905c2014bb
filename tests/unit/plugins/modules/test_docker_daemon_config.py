"""docker_daemon_config: the three-way merge as a table, and the module against real files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import docker_daemon
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.modules import docker_daemon_config
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

CDI = {"features": {"cdi": True}}

# name: (in the file, ours so far, wanted) -> (in the file, ours)
RECONCILE: dict[str, tuple[Any, Any, Any, Any, Any]] = {
    "first time": ({}, {}, CDI, CDI, CDI),
    "again": (CDI, CDI, CDI, CDI, CDI),
    "foreign keys stay": (
        {"features": {"containerd-snapshotter": True}, "mtu": 1400},
        {},
        CDI,
        {"features": {"containerd-snapshotter": True, "cdi": True}, "mtu": 1400},
        CDI,
    ),
    "what was there before is not ours": (CDI, {}, CDI, CDI, {}),
    "single value of others is overridden": ({"mtu": 1400}, {}, {"mtu": 9000}, {"mtu": 9000}, {"mtu": 9000}),
    "true is not 1": ({"icc": 1}, {}, {"icc": True}, {"icc": True}, {"icc": True}),
    "no longer wanted": (CDI | {"mtu": 1400}, CDI, {}, {"mtu": 1400}, {}),
    "no longer wanted, beside a foreign key": (
        {"features": {"cdi": True, "buildkit": True}},
        CDI,
        {},
        {"features": {"buildkit": True}},
        {},
    ),
    "no longer wanted, but changed by others": ({"mtu": 1400}, {"mtu": 9000}, {}, {"mtu": 1400}, {}),
    "no longer wanted, and gone already": ({}, {"mtu": 9000}, {}, {}, {}),
    "changed by others and still wanted": ({"mtu": 1}, {"mtu": 9000}, {"mtu": 9000}, {"mtu": 9000}, {"mtu": 9000}),
    "removed by others and still wanted": ({}, CDI, CDI, CDI, CDI),
    "list: union in order": ({"dns": ["a", "b"]}, {}, {"dns": ["b", "c"]}, {"dns": ["a", "b", "c"]}, {"dns": ["c"]}),
    "list: our item goes, theirs stays": (
        {"dns": ["a", "b", "c"]},
        {"dns": ["b", "c"]},
        {"dns": ["c"]},
        {"dns": ["a", "c"]},
        {"dns": ["c"]},
    ),
    "list: no longer wanted": ({"dns": ["a", "b"]}, {"dns": ["b"]}, {}, {"dns": ["a"]}, {}),
    "list: all of it ours and no longer wanted": ({"dns": ["b"]}, {"dns": ["b"]}, {}, {}, {}),
    "list of mappings": (
        {"default-address-pools": [{"base": "10.0.0.0/16", "size": 24}]},
        {},
        {"default-address-pools": [{"size": 24, "base": "10.0.0.0/16"}, {"base": "10.1.0.0/16", "size": 24}]},
        {"default-address-pools": [{"base": "10.0.0.0/16", "size": 24}, {"base": "10.1.0.0/16", "size": 24}]},
        {"default-address-pools": [{"base": "10.1.0.0/16", "size": 24}]},
    ),
    "a mapping replaces a single value": ({"log-opts": "x"}, {}, {"log-opts": {}}, {"log-opts": {}}, {"log-opts": {}}),
    "an empty mapping of ours stays ours": (
        {"log-opts": {}},
        {"log-opts": {}},
        {"log-opts": {}},
        {"log-opts": {}},
        {"log-opts": {}},
    ),
    "an empty mapping of ours goes": ({"log-opts": {}}, {"log-opts": {}}, {}, {}, {}),
}


@pytest.mark.parametrize("case", RECONCILE.values(), ids=list(RECONCILE))
def test_reconcile(case: tuple[Any, Any, Any, Any, Any]) -> None:
    existing, owned, wanted, content, share = case
    before = json.dumps([existing, owned, wanted])
    assert docker_daemon.reconcile(existing, owned, wanted) == (content, share)
    assert json.dumps([existing, owned, wanted]) == before, "its inputs are not touched"
    assert docker_daemon.reconcile(content, share, wanted) == (content, share), "a second run changes nothing"


def test_fragments_merge() -> None:
    merged = docker_daemon.merge_fragments(
        {
            "docker_engine": {"log-opts": {"max-file": "3"}, "dns": ["a"], "mtu": 1500},
            "toolkit": {"log-opts": {"max-size": "1g"}, "dns": ["b", "a"], "mtu": 1500, "features": {"cdi": True}},
        }
    )
    assert merged == {
        "log-opts": {"max-size": "1g", "max-file": "3"},
        "dns": ["a", "b"],
        "mtu": 1500,
        "features": {"cdi": True},
    }


@pytest.mark.parametrize(("one", "other"), [("10m", "1g"), ({}, "1g"), (["10m"], "10m"), (True, 1)])
def test_owners_have_to_agree(one: Any, other: Any) -> None:
    with pytest.raises(docker_daemon.DaemonConfigError) as error:
        docker_daemon.merge_fragments({"engine": {"log-opts": {"size": one}}, "site": {"log-opts": {"size": other}}})
    told = f"engine sets log-opts.size to {json.dumps(one)} and site sets it to {json.dumps(other)};"
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "mtu": 1400,\n}\n', "/etc/docker/daemon.json is not valid JSON: "),
        ('{"mtu": 1400', "line 1, column "),
        ("[]", "holds a list, expected a mapping"),
        ('"x"', "holds a single value, expected a mapping"),
    ],
)
def test_unreadable_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(docker_daemon.DaemonConfigError) as error:
        docker_daemon.parse(text, "/etc/docker/daemon.json")
    assert message in str(error.value)


def test_unreadable_file_shows_the_place() -> None:
    with pytest.raises(docker_daemon.DaemonConfigError, match=r"at line 2, column 3: 'mtu: 1400'\. Correct it"):
        docker_daemon.parse("{\n  mtu: 1400\n}\n", "/etc/docker/daemon.json")


@pytest.mark.parametrize("text", ["", " \n", "{}", "\n{\n}\n"])
def test_empty_file_is_an_empty_mapping(text: str) -> None:
    assert docker_daemon.parse(text, "x") == {}


def test_layout_is_no_change() -> None:
    text = '{"b":1,\t"features":{"cdi":true},"a":2}'
    plan = docker_daemon.make_plan(text, None, "x", {"a": 2, "features": {"cdi": True}}, ("daemon.json", "state"))
    assert (plan.config_changed, plan.after, plan.record["ours"]) == (False, text, {})


def systemctl(tmp_path: Path, execstart: str, environment: str = "") -> CommandResult:
    options = tmp_path / "docker"
    options.write_text(f'# DOCKER_OPTS="--mtu 1"\n{environment}\n')
    return CommandResult(
        0,
        f"ExecStart={{ path=/usr/sbin/dockerd ; argv[]=/usr/sbin/dockerd {execstart} ; ignore_errors=no ; pid=0 }}\n"
        'Environment=GREETING=hello "MORE=--debug --icc=false"\n'
        "EnvironmentFiles=/nonexistent/docker (ignore_errors=yes)\n"
        f"EnvironmentFiles={options} (ignore_errors=yes)\n"
        "FragmentPath=/lib/systemd/system/docker.service\n"
        "DropInPaths=/etc/systemd/system/docker.service.d/override.conf\n",
    )


@pytest.mark.parametrize(
    ("execstart", "environment", "config", "conflicts"),
    [
        ("-H fd:// --containerd=/run/c.sock $DOCKER_OPTS", "", {"features": {"cdi": True}}, {}),
        ("-H fd://", "", {"hosts": ["fd://"]}, {"hosts": "-H"}),
        ("--host=fd://", "", {"hosts": ["fd://"]}, {"hosts": "--host=fd://"}),
        (
            "--insecure-registry r:5000",
            "",
            {"insecure-registries": ["r"]},
            {"insecure-registries": "--insecure-registry"},
        ),
        (
            "$DOCKER_OPTS",
            'DOCKER_OPTS="--dns 1.1.1.1 --mtu=1400"',
            {"dns": [], "mtu": 1},
            {"dns": "--dns", "mtu": "--mtu=1400"},
        ),
        ("${MORE}", "", {"debug": True, "icc": True}, {"debug": "--debug", "icc": "--icc=false"}),
        ("-D -l info", "", {"debug": True, "log-level": "warn"}, {"debug": "-D", "log-level": "-l"}),
        ("--add-runtime x=/y", "", {"runtimes": {"x": {"path": "/y"}}}, {}),
    ],
)
def test_flags_of_the_unit(
    tmp_path: Path, execstart: str, environment: str, config: dict[str, Any], conflicts: dict[str, str]
) -> None:
    shown = systemctl(tmp_path, execstart, environment)
    flags, files = docker_daemon.unit_flags("/bin/systemctl", lambda *rest: shown)
    assert docker_daemon.find_conflicts(config, flags) == conflicts
    assert files == [
        "/lib/systemd/system/docker.service",
        "/etc/systemd/system/docker.service.d/override.conf",
        str(tmp_path / "docker"),
    ]


@pytest.mark.parametrize(
    "shown", [CommandResult(0, "ExecStart=\nFragmentPath=\n"), CommandResult(1, "", "not booted"), CommandResult(None)]
)
def test_no_unit_has_no_flags(shown: CommandResult) -> None:
    assert docker_daemon.unit_flags("/bin/systemctl", lambda *rest: shown) == ([], [])
    assert docker_daemon.unit_flags(None, lambda *rest: CommandResult(0)) == ([], [])


class Host:
    """The module against files under ``root``, with dockerd and systemctl answering from this object."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = root / "etc" / "docker" / "daemon.json"
        self.record = root / "var" / "daemon.json.state"
        self.root = root
        self.flags = "-H fd://"
        self.dockerd: CommandResult | None = CommandResult(0, "", "configuration OK\n")
        self.judged: list[Any] = []
        self.capsys = capsys
        find = docker_daemon_config.AnsibleModule.get_bin_path
        monkeypatch.setattr(docker_daemon_config, "run", self.run)
        monkeypatch.setattr(
            docker_daemon_config.AnsibleModule,
            "get_bin_path",
            lambda module, name, *rest: self.programs()[name] if name in self.programs() else find(module, name, *rest),
        )

    def programs(self) -> dict[str, str | None]:
        return {"systemctl": "systemctl", "dockerd": "dockerd" if self.dockerd else None}

    def run(self, argv: Sequence[str], timeout: float) -> CommandResult:
        assert timeout > 0
        if argv[0] == "systemctl":
            return CommandResult(
                0, f"ExecStart={{ argv[]=/usr/bin/dockerd {self.flags} ; }}\nFragmentPath=/lib/docker.service\n"
            )
        assert argv[:3] == ["dockerd", "--validate", "--config-file"]
        self.judged.append(json.loads(Path(argv[3]).read_text()))
        assert self.dockerd
        return CommandResult(self.dockerd.rc, "", self.dockerd.stderr.replace("FILE", argv[3]))

    def apply(self, name: str, config: dict[str, Any], check: bool = False, **options: str) -> dict[str, Any]:
        arguments = {
            "name": name,
            "config": config,
            "path": str(self.file),
            "state_file": str(self.record),
            **options,
            "_ansible_check_mode": check,
            "_ansible_diff": True,
        }
        return run_module(docker_daemon_config, self.capsys, arguments)

    def write(self, text: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text)

    def content(self) -> Any:
        return json.loads(self.file.read_text())

    def files(self) -> dict[str, tuple[int, int, bytes]]:
        return {
            str(path): (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in self.root.rglob("*")
        }


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Host:
    return Host(tmp_path, monkeypatch, capsys)


def test_untouched_host(host: Host) -> None:
    result = host.apply("cdi", CDI)
    assert (result["changed"], result["validated"]) == (True, True)
    assert result["config"] == CDI == host.content()
    assert result["diff"]["before"] == ""
    assert result["diff"]["after"] == host.file.read_text()
    assert host.judged == [CDI]
    assert host.file.stat().st_mode & 0o777 == 0o644
    before = host.files()
    again = host.apply("cdi", CDI)
    assert not again["changed"]
    assert host.files() == before


def test_owners_come_and_go(host: Host) -> None:
    host.write('{"mtu": 1400, "features": {"buildkit": true}}')
    host.apply("cdi", CDI)
    host.apply("site", {"debug": True, "dns": ["a"]})
    host.apply("other", CDI | {"dns": ["a", "b"]})
    assert host.content() == {
        "mtu": 1400,
        "features": {"buildkit": True, "cdi": True},
        "debug": True,
        "dns": ["a", "b"],
    }
    host.apply("site", {})
    assert host.content() == {"mtu": 1400, "features": {"buildkit": True, "cdi": True}, "dns": ["a", "b"]}
    assert not host.apply("cdi", {})["changed"], "another owner still asks for it"
    assert host.apply("other", {})["changed"]
    assert host.content() == {"mtu": 1400, "features": {"buildkit": True}}


def test_nothing_asked_for_writes_nothing(host: Host) -> None:
    assert not host.apply("docker_engine", {})["changed"]
    assert host.files() == {}


def test_what_was_there_before_is_no_change_and_stays(host: Host) -> None:
    host.write(json.dumps(CDI))
    assert not host.apply("cdi", CDI)["changed"]
    assert not host.apply("cdi", {})["changed"]
    assert host.content() == CDI


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, [], id="equal to its settings"),
        pytest.param({"mtu": 1}, [], id="something of others"),
        pytest.param({"features": {"cdi": False}}, ["features"], id="a value"),
        pytest.param({"dns": []}, ["dns"], id="an item of a list"),
        pytest.param({"dns": ["b", "a"]}, [], id="one more item"),
    ],
)
def test_what_was_changed_by_hand_since(change: dict[str, Any], expected: list[str]) -> None:
    paths = ("daemon.json", "state")
    plan = docker_daemon.make_plan('{"mtu": 9}', None, "x", {**CDI, "dns": ["a"]}, paths)
    edited = json.dumps({**plan.config, **change})
    assert docker_daemon.changed_keys(edited, json.dumps(plan.record), paths) == expected
    assert docker_daemon.changed_keys(edited, None, paths) == []


def test_another_owner_is_in_the_way(host: Host) -> None:
    host.apply("engine", {"mtu": 1400})
    before = host.files()
    result = host.apply("site", {"mtu": 9000})
    assert "engine sets mtu to 1400 and site sets it to 9000" in result["msg"]
    assert host.files() == before


@pytest.mark.parametrize(
    "text",
    [
        '{"mtu":1400,\t"dns":["a"],"log-opts":{"max-size":"1m","x":1},"features":{"buildkit":true},"labels":"x"}',
        "{}",
        "",
        None,
    ],
)
def test_file_is_as_others_left_it_when_all_is_taken_back(host: Host, text: str | None) -> None:
    if text is not None:
        host.write(text)
    host.apply("cdi", CDI)
    host.apply("site", {"mtu": 9000, "dns": ["b"], "log-opts": {"max-size": "1g"}, "labels": {"a": 1}})
    assert host.apply("site", {"mtu": 1500})["changed"]
    assert host.apply("site", {})["changed"]
    host.apply("cdi", {})
    assert (host.file.read_text() if host.file.exists() else None) == text
    assert not host.record.exists()
    assert not host.apply("cdi", {})["changed"]


def test_what_others_changed_since_stays_when_all_is_taken_back(host: Host) -> None:
    host.write('{"mtu": 1400, "icc": true}')
    host.apply("site", {"mtu": 9000, "icc": False})
    host.write('{"mtu": 1300, "icc": false, "debug": true}')
    host.apply("site", {})
    assert host.content() == {"mtu": 1300, "icc": True, "debug": True}
    assert not host.record.exists()


def test_mode_and_link_stay(host: Host) -> None:
    real = host.root / "real.json"
    real.write_text("{}")
    real.chmod(0o600)
    host.file.parent.mkdir(parents=True)
    host.file.symlink_to(real)
    host.apply("cdi", CDI)
    assert host.file.is_symlink()
    assert json.loads(real.read_text()) == CDI
    assert real.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("existing", [None, "", '{"mtu": 1400}'])
def test_check_mode_leaves_the_file_system_as_it_was(host: Host, existing: str | None) -> None:
    if existing is not None:
        host.write(existing)
    before = host.files()
    result = host.apply("cdi", CDI, check=True)
    assert (result["changed"], result["validated"]) == (True, True)
    assert '"cdi": true' in result["diff"]["after"]
    assert host.files() == before


@pytest.mark.parametrize(
    ("existing", "flags", "dockerd", "message"),
    [
        ("{,}", "", CommandResult(0), "is not valid JSON"),
        (
            "{}",
            "--feature cdi=true",
            CommandResult(0),
            "features (set by cdi) is also the flag --feature of docker.service",
        ),
        ('{"hosts": []}', "-H fd://", CommandResult(0), "daemon.json) is also the flag -H of docker.service"),
        ("{}", "", CommandResult(1, "", "unable to configure with FILE: don't match: featurs"), "don't match: featurs"),
        ("{}", "", CommandResult(None), "no answer in 60 s"),
    ],
)
def test_what_docker_would_not_start_with_is_refused(
    host: Host, existing: str, flags: str, dockerd: CommandResult, message: str
) -> None:
    host.write(existing)
    host.flags, host.dockerd = flags, dockerd
    before = host.files()
    result = host.apply("cdi", CDI)
    assert result["failed"]
    assert message in result["msg"]
    assert str(host.file) in result["msg"] or "/lib/docker.service" in result["msg"]
    assert host.files() == before


@pytest.mark.parametrize(
    "dockerd", [None, CommandResult(125, "", "Status: unknown flag: --validate\nSee 'dockerd --help'.")]
)
def test_docker_that_cannot_validate(host: Host, dockerd: CommandResult | None) -> None:
    host.dockerd = dockerd
    result = host.apply("cdi", CDI)
    assert (result["changed"], result["validated"]) == (True, False)


def test_a_write_that_fails_leaves_nothing_behind(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write('{"mtu": 1400}')

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = host.apply("cdi", CDI)
    assert "No space left on device" in result["msg"]
    assert host.file.read_text() == '{"mtu": 1400}'
    assert not list(host.root.rglob(".daemon*"))


def test_a_restart_is_needed_until_it_was_made(host: Host) -> None:
    """A run may be interrupted before its handlers."""
    restart = host.root / "run/restart"
    assert host.apply("cdi", CDI, check=True, restart_file=str(restart))["changed"]
    assert not restart.exists()
    assert host.apply("cdi", CDI, restart_file=str(restart))["changed"]
    for check in (True, False):
        again = host.apply("cdi", CDI, check, restart_file=str(restart))
        assert (again["changed"], again["diff"]["before"]) == (True, again["diff"]["after"])
    restart.unlink()
    assert not host.apply("cdi", CDI, restart_file=str(restart))["changed"]
    assert not restart.exists()
