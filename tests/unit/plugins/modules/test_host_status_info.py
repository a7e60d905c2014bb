"""host_status_info: one look at a host, by a real file system, scripted commands and real sockets of instances."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import host_status as looks
from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.record import Record, write_record
from ansible_collections.trtllm.fleet.plugins.module_utils.host_record.state import HostState, Owned
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import HostReleases
from ansible_collections.trtllm.fleet.plugins.module_utils.host_status import HostStatus, connections_by_port
from ansible_collections.trtllm.fleet.plugins.modules import host_status_info
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module
from ansible_collections.trtllm.fleet.tests.unit.paths import CAPTURES, FIXTURES

UNIT = "trtllm-serve-0.service"
DIGEST = "sha256:e35ea1320d51e7c066134a52391d50eb294b7a75c37c1a736f68132956832174"
OTHER = "sha256:ecd753748ce64e7e2f824cee331a14e241d7529c3cb1b1b6ae19e07ab06e40f7"
IMAGE = "registry/release"
KERNEL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
RUNS = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "ExecMainPID": "4711",
    "NRestarts": "0",
    "StartLimitBurst": "5",
    "StateChangeTimestampMonotonic": "60000000",
    "UnitFileState": "enabled",
    "DropInPaths": "",
    "NeedDaemonReload": "no",
}
# As /proc/net/tcp has it: a listener, two established connections, one that waits, and our own to another's port.
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 804DD50A:{port:04X} 834DD50A:CD8E 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 31 18 -1
   2: 804DD50A:{port:04X} 834DD50A:CD7C 06 00000000:00000000 03:000008AF 00000000     0        0 0 3 0
   3: 0100007F:CFF2 0100007F:{port:04X} 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 20 4 31 18 -1
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 0000000000000000FFFF0000804DD50A:{port:04X} 0000000000000000FFFF0000834DD50A:CD8F 01 00000000:00000000 00:0 0
"""


class Engine(BaseHTTPRequestHandler):
    """An instance; the server's ``answers`` are status and body by path."""

    def do_GET(self) -> None:
        status, body = self.server.answers[self.path]  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def engine() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.answers = {  # type: ignore[attr-defined]
        "/health": (200, ""),
        "/v1/models": (200, json.dumps({"data": [{"id": "gpt-oss-120b"}]})),
    }
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def inspect(template: str, name: str, reference: str, image: str) -> str:
    """Return what Docker makes of the template for a container like that of a real host."""
    (document,) = json.loads((FIXTURES / "inspect_h100x1.json").read_text())
    document.update({"Name": f"/{name}", "Image": image, "Config": {**document["Config"], "Image": reference}})

    def field(match: re.Match[str]) -> str:
        return json.dumps(reduce(lambda value, key: value[key], match[1].split("."), document))

    return re.sub(r"{{json \.([\w.]+)}}", field, template)


# In the status, of a unit that shows RUNS.
STATE = {
    "active": "active",
    "sub": "running",
    "start_limit_reached": False,
    "last_log_line": None,
    "restarts": 0,
    "since": "1970-01-12T13:46:00+00:00",
}


class Machine:
    """A host with one verified release of one instance, and commands that answer what a test says."""

    def __init__(self, path: Path, port: int) -> None:
        self.root, self.units, self.net = path / "fleet", path / "system", path / "net"
        self.record, self.state = path / "record.json", HostState(path, self)
        for directory in (self.units, self.net):
            directory.mkdir()
        self.port = port
        self.module_file = path / "version"
        self.module_file.write_text(KERNEL)
        (self.net / "tcp").write_text(TCP.format(port=port))
        (self.net / "tcp6").write_text(TCP6.format(port=port))
        self.unit = dict(RUNS)
        self.containers = {"trtllm-serve-0": (f"{IMAGE}@{DIGEST}", "sha256:image")}
        self.digests = [f"{IMAGE}@{DIGEST}"]
        self.smi = CommandResult(0, (CAPTURES / "h200x1.xml").read_text())
        self.broken: dict[str, CommandResult | OSError] = {}
        self.calls: list[str] = []
        self.booted = True
        self.journal = ""

    def serve(self) -> str:
        """Have a verified release on the host; its name."""
        description = {
            "name": "gpt-oss-120b-h200x1-low_latency",
            "model": "openai/gpt-oss-120b",
            "served_model": "gpt-oss-120b",
            "image": f"{IMAGE}:1.2.1",
            "digest": DIGEST,
            "instances": [
                {
                    "name": "serve-0",
                    "unit": UNIT,
                    "container": "trtllm-serve-0",
                    "port": self.port,
                    "gpus": [0],
                    "base_url": f"http://127.0.0.1:{self.port}",
                }
            ],
        }
        files = {"engine.yaml": "tp: 1\n", UNIT: "run\n", "release.json": json.dumps(description)}
        releases = HostReleases(self.root, self.units, runner=lambda argv, timeout: CommandResult(0))
        name = releases.stage(files).name
        releases.mark_verified(name, 5)
        (self.units / UNIT).symlink_to(releases.path(name) / UNIT)
        return name

    def __call__(self, argv: Sequence[str], timeout: float) -> CommandResult:
        self.calls.append(" ".join(argv[:3]))
        broken = self.broken.get(os.path.basename(argv[0]))
        if isinstance(broken, OSError):
            raise broken
        if broken:
            return broken
        if argv[0] == "systemctl":
            units = argv[argv.index("--") + 1 :]
            return CommandResult(0, "\n".join("".join(f"{k}={v}\n" for k, v in self.unit.items()) for unit in units))
        if argv[0] == "journalctl":
            assert list(argv[-2:]) == [f"_SYSTEMD_UNIT={UNIT}", "_PID=4711"]
            return CommandResult(0, self.journal)
        if argv[:2] == ("docker", "container"):
            names = [name for name in argv[4:] if name in self.containers]
            rows = [inspect(argv[3].removeprefix("--format="), name, *self.containers[name]) for name in names]
            absent = len(names) < len(argv[4:])
            return CommandResult(int(absent), "\n".join(rows), "Error: No such container: x" if absent else "")
        if argv[:2] == ("docker", "image"):
            return CommandResult(0, json.dumps(self.digests))
        assert list(argv) == ["/usr/bin/nvidia-smi", "-q", "-x"]
        return self.smi

    def gather(self) -> dict[str, Any]:
        return HostStatus(
            self.root,
            "/usr/bin/nvidia-smi",
            self.booted,
            self,
            self.units,
            self.root / "no bus",
            self.module_file,
            self.net,
            self.root / "healed",
            self.record,
            self.state,
            clock=lambda: 1_000_000.0,
            monotonic=lambda: 100.0,
        ).gather()

    def end_run(self, run: str = "") -> None:
        """Write the record of a run; with ``run``, of one that has not ended."""
        owned = Owned(files=["/etc/a"], units=[UNIT, "docker.service"])
        write_record(self.record, Record(run, "collection", "", {}, owned, self.state.items(owned)))

    def drift(self) -> dict[str, str]:
        return {found["about"]: found["sentence"] for found in self.gather()["drift"]}


@pytest.fixture
def machine(tmp_path: Path, engine: ThreadingHTTPServer) -> Machine:
    return Machine(tmp_path, engine.server_port)


def test_a_host_that_serves(machine: Machine) -> None:
    name = machine.serve()
    found = machine.gather()
    verified_at = found["release"].pop("verified_at")
    assert verified_at.endswith("+00:00")
    (gpu,) = found.pop("gpus")
    assert (gpu["index"], gpu["product_name"], gpu["temperature"]) == (0, "NVIDIA H200", 41)
    assert found == {
        "time": "1970-01-12T13:46:40+00:00",
        "release": {
            "name": name,
            "previous": "",
            "number": 1,
            "recipe": "gpt-oss-120b-h200x1-low_latency",
            "model": "openai/gpt-oss-120b",
            "revision": None,
            "image": f"{IMAGE}:1.2.1",
            "digest": DIGEST,
            "overrides": {},
            "served_model": "gpt-oss-120b",
        },
        "units": [
            {
                "name": UNIT,
                "release": name,
                **STATE,
            }
        ],
        "instances": [
            {
                "name": "serve-0",
                "unit": UNIT,
                "container": "trtllm-serve-0",
                "port": machine.port,
                "gpus": [0],
                "served_model": None,
                "healthy": True,
                "answer": "HTTP 200",
                "models": ["gpt-oss-120b"],
                "healed": None,
                "connections": 2,
                "image": f"{IMAGE}@{DIGEST}",
                "image_of_release": True,
            }
        ],
        "components": [],
        "drained_by": None,
        "driver": {
            "installed": True,
            "state": "ok",
            "message": "",
            "version": "580.159.04",
            "cuda_version": "13.0",
            "kernel_module": "580.159.04",
        },
        "fabric": None,
        "nvswitches": 0,
        "missing": [],
        "acceptance": None,
        "health": None,
        "recorded": False,
        "drift": [],
        "problems": [],
    }
    assert sorted(machine.calls) == [
        "/usr/bin/nvidia-smi -q -x",
        "docker container inspect",
        "systemctl show " + f"--property={','.join(looks.PROPERTIES)}",
    ], "each asked once"


def test_a_bare_host(machine: Machine) -> None:
    machine.booted = False
    found = machine.gather()
    assert [found[key] for key in ("release", "units", "instances", "drift", "problems")] == [None, [], [], [], []]
    assert machine.calls == ["/usr/bin/nvidia-smi -q -x"]


# --- components of Dynamo ---------------------------------------------------------------------------------------------


def deploy_component(machine: Machine, name: str, linked: bool = True, **description: Any) -> str:
    """Have a verified component of Dynamo on the host; the name of its release."""
    unit = f"trtllm-dynamo-{name}.service"
    folder = machine.root / "dynamo" / name
    releases = HostReleases(folder, machine.units, runner=lambda argv, timeout: CommandResult(0))
    release = str(releases.stage({unit: "run\n", "release.json": json.dumps(description)}).name)
    releases.mark_verified(release, 5)
    if linked:
        (machine.units / unit).symlink_to(releases.path(release) / unit)
    return release


def test_components_of_dynamo(machine: Machine) -> None:
    url = f"http://127.0.0.1:{machine.port}"
    shared = {"image": "tensorrtllm-runtime:1.3.1", "namespace": "fleet-1"}
    release = deploy_component(machine, "decode-0", kind="decode", health=url, gpus=[4, 5], shared=shared)
    deploy_component(machine, "etcd", kind="etcd", health=None, shared={})
    deploy_component(machine, "frontend", linked=False, kind="frontend", health="http://127.0.0.1:1", shared={})
    (machine.root / "dynamo/unfinished").mkdir()
    found = machine.gather()
    decode, etcd, frontend, unfinished = found["components"]
    assert decode == {
        "name": "decode-0",
        "kind": "decode",
        "unit": "trtllm-dynamo-decode-0.service",
        "release": release,
        "of_release": True,
        "image": "tensorrtllm-runtime:1.3.1",
        "namespace": "fleet-1",
        "gpus": [4, 5],
        **STATE,
        "healthy": True,
        "answer": "HTTP 200",
        "healed": None,
    }
    assert (etcd["healthy"], etcd["answer"], etcd["namespace"]) == (None, None, None)
    assert (frontend["of_release"], frontend["healthy"]) == (False, False)
    assert (unfinished["kind"], unfinished["release"], unfinished["of_release"]) == (None, "", False)
    assert found["drained_by"] is None
    marks = {"": "operator", "by: operator\n": "operator", "by: rollout\nMore.\n": "rollout", "by: repair\n": "repair"}
    for text, by in {**marks, "by: another\n": "operator"}.items():
        (machine.root / "dynamo/drained").write_text(text)
        assert machine.gather()["drained_by"] == by


def test_a_gpu_that_a_drained_host_lost_is_missing(machine: Machine) -> None:
    (gpu,) = machine.gather()["gpus"]
    (machine.root / "dynamo").mkdir(parents=True)
    mark = machine.root / "dynamo/drained"
    mark.write_text(f"by: repair\ngpus: {gpu['address']} 0000:91:00.0\nMore.\n")
    assert machine.gather()["missing"] == ["0000:91:00.0"]
    mark.write_text("by: repair\ngpus: \n")
    assert machine.gather()["missing"] == []


def test_a_component_that_does_not_name_its_authority(machine: Machine) -> None:
    """Releases of before 2026-11-28 do not."""
    deploy_component(machine, "frontend", kind="frontend", health="https://127.0.0.1:1", shared={})
    (frontend,) = machine.gather()["components"]
    assert frontend["healthy"] is None


def test_a_component_with_an_unusable_authority(machine: Machine) -> None:
    deploy_component(machine, "frontend", kind="frontend", health="https://127.0.0.1:1", ca_file="/no/ca", shared={})
    (frontend,) = machine.gather()["components"]
    assert frontend["healthy"] is False
    assert "/no/ca" in frontend["answer"]


# --- drift ------------------------------------------------------------------------------------------------------------


def test_drift_is_what_differs_from_the_record(machine: Machine) -> None:
    machine.serve()
    assert (machine.gather()["recorded"], machine.drift()) == (False, {})
    machine.end_run()
    assert (machine.gather()["recorded"], machine.drift()) == (True, {})
    file = machine.state.root / "etc/a"
    file.parent.mkdir()
    file.write_text("new")
    assert list(machine.drift()) == ["/etc/a"]
    assert machine.drift()["/etc/a"].endswith("; recorded: missing")


def test_a_host_that_cannot_be_compared_is_a_problem(machine: Machine) -> None:
    machine.serve()
    machine.end_run()
    (machine.state.root / "etc").write_text("a file in place of a directory")
    found = machine.gather()
    assert (found["recorded"], found["drift"]) == (False, [])
    assert "the host cannot be compared with its record" in found["problems"][0]


def test_no_drift_is_known_while_a_run_changes_the_host(machine: Machine) -> None:
    machine.serve()
    machine.end_run("run-1")
    machine.unit["UnitFileState"] = "disabled"
    assert (machine.gather()["recorded"], machine.drift()) == (False, {})


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"UnitFileState": "linked"}, {UNIT, "docker.service"}),
        ({"LoadState": "masked", "ActiveState": "inactive"}, {UNIT, "docker.service"}),
        ({"DropInPaths": "/etc/systemd/system/a.d/x.conf"}, {UNIT, "docker.service"}),
        ({"DropInPaths": "/usr/lib/systemd/system/service.d/10-timeout.conf"}, set()),
        ({"NeedDaemonReload": "yes"}, {UNIT, "docker.service"}),
        # The state of the instances says whether they run.
        ({"ActiveState": "failed"}, {"docker.service"}),
        ({"ActiveState": "activating"}, {"docker.service"}),
    ],
)
def test_drift_of_units(machine: Machine, changes: dict[str, str], names: set[str]) -> None:
    machine.serve()
    machine.end_run()
    machine.unit.update(changes)
    assert set(machine.drift()) == names


def test_images_of_containers(machine: Machine) -> None:
    def found() -> tuple[str | None, bool | None]:
        (instance,) = machine.gather()["instances"]
        return instance["image"], instance["image_of_release"]

    machine.serve()
    machine.containers["trtllm-serve-0"] = (f"{IMAGE}@{OTHER}", "sha256:image")
    assert found() == (f"{IMAGE}@{OTHER}", False)
    machine.containers["trtllm-serve-0"] = (f"{IMAGE}:1.2.1", "sha256:image")
    assert found() == (f"{IMAGE}:1.2.1", True), "by tag, and the right one"
    machine.digests = [f"{IMAGE}@{OTHER}"]
    assert found() == (f"{IMAGE}:1.2.1", False)
    machine.containers = {}
    assert found() == (None, None)
    assert machine.gather()["problems"] == []


# --- what does not answer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "answer"),
    [
        ({"/health": (503, "loading")}, "HTTP 503 from /health"),
        ({"/v1/models": (500, "")}, "HTTP 500 from /v1/models"),
        ({"/v1/models": (200, "hello")}, "not a JSON object: hello"),
        ({"/v1/models": (200, '{"data": [{}]}')}, "the list of models or the URL is invalid: KeyError('id')"),
    ],
)
def test_instances_that_do_not_answer_well(
    machine: Machine, engine: ThreadingHTTPServer, answers: dict[str, tuple[int, str]], answer: str
) -> None:
    machine.serve()
    engine.answers.update(answers)  # type: ignore[attr-defined]
    (instance,) = machine.gather()["instances"]
    assert (instance["healthy"], instance["answer"], instance["models"]) == (False, answer, [])


def test_a_port_that_nobody_listens_on(machine: Machine, engine: ThreadingHTTPServer) -> None:
    engine.shutdown()
    engine.server_close()
    machine.serve()
    assert machine.gather()["instances"][0]["answer"] == "connection refused"


def test_commands_that_fail_hide_nothing_else(machine: Machine) -> None:
    machine.serve()
    machine.broken = {
        "systemctl": CommandResult(None),
        "docker": FileNotFoundError(2, "No such file or directory"),
        "nvidia-smi": CommandResult(None),
    }
    found = machine.gather()
    assert found["problems"] == [
        "systemctl gave no answer within 20 s",
        "docker: No such file or directory",
    ]
    assert (found["units"][0]["active"], found["units"][0]["since"]) == ("unknown", None)
    assert (found["instances"][0]["healthy"], found["driver"]["state"]) == (True, "timeout")
    machine.broken = {
        "systemctl": CommandResult(1, "", "Failed to connect to bus"),
        "docker": CommandResult(1, "", "Cannot connect to the Docker daemon"),
    }
    assert machine.gather()["problems"] == [
        "systemctl: Failed to connect to bus",
        "docker: Cannot connect to the Docker daemon",
    ]


def test_connections_are_counted_by_the_local_port() -> None:
    assert connections_by_port(TCP.format(port=8000) + TCP6.format(port=8000)) == {8000: 2, 0xCFF2: 1}
    assert connections_by_port("") == {}


def test_module(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(host_status_info, "BOOTED", tmp_path / "not booted")
    assert run_module(host_status_info, capsys, {"root": str(machine.root)})["release"] is None
    machine.serve()
    (machine.root / "history.json").write_text("no JSON")
    failed = run_module(host_status_info, capsys, {"root": str(machine.root)})
    assert failed["failed"]
    assert "history.json cannot be read" in failed["msg"]


# --- healing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("journal", "words"),
    [
        ("loading\nRuntimeError: no memory\n\nTrace ends\n", "RuntimeError: no memory"),
        ("loading\n  killed \n", "killed"),
        ("Error: " + "x" * 1000, "Error: " + "x" * 293),
        ("", None),
    ],
)
def test_a_failed_unit_has_last_words(machine: Machine, journal: str, words: str | None) -> None:
    machine.serve()
    machine.unit.update(ActiveState="failed", SubState="failed")
    machine.journal = journal
    (unit,) = machine.gather()["units"]
    assert (unit["active"], unit["last_log_line"]) == ("failed", words)


@pytest.mark.parametrize(
    ("active", "restarts", "limit", "start_limit_reached"),
    [("failed", 5, 5, True), ("failed", 4, 5, False), ("failed", 4, 0, False), ("activating", 9, 5, False)],
)
def test_a_unit_that_was_started_too_often(
    machine: Machine, active: str, restarts: int, limit: int, start_limit_reached: bool
) -> None:
    machine.serve()
    machine.unit.update(ActiveState=active, NRestarts=str(restarts), StartLimitBurst=str(limit))
    (unit,) = machine.gather()["units"]
    assert unit["start_limit_reached"] is start_limit_reached


def test_what_a_watch_noted_is_told(machine: Machine) -> None:
    machine.serve()
    noted = {"times": 2, "at": "1970-01-12T13:00:00+00:00", "reason": "POST /x was not answered within 600 s"}
    path = machine.root / "healed" / f"{UNIT}.json"
    path.parent.mkdir()
    path.write_text(json.dumps(noted))
    found = machine.gather()
    assert (found["instances"][0]["healed"], found["problems"]) == (noted, [])
    path.write_text('{"times": 2')
    found = machine.gather()
    assert found["instances"][0]["healed"] is None
    (problem,) = found["problems"]
    assert str(path) in problem
