"""A separate lab host, deployed to a verified endpoint once for all tests."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import Dynamo
    from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load

REPO = Path(__file__).resolve().parents[2]
HOST = "faults-1"
LAB = {**os.environ, "LAB_PREFIX": "faults-", "LAB_HOSTS": "1"}
UNIT = "trtllm-serve-0.service"
CONTAINER = UNIT.removesuffix(".service")
CHAT = {"model": "openai/gpt-oss-120b", "messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 8}


@dataclass(frozen=True)
class Run:
    """Result of an ansible-playbook run: exit status and output."""

    status: int
    output: str


def docker(*arguments: str, check: bool = True) -> str:
    """Return the output of a docker command on the lab's machine."""
    return subprocess.run(["docker", *arguments], text=True, stdout=subprocess.PIPE, check=check).stdout


def begin(
    command: Sequence[str], environment: Mapping[str, str], own_session: bool = False, directory: Path = REPO
) -> subprocess.Popen[str]:
    """Start a command in the repository. own_session: signals to its process group do not reach the tests."""
    # Of tests that run in the background it would inherit that Ctrl-C is ignored.
    terminal = ["env", "--default-signal=INT"] if own_session else []
    return subprocess.Popen(
        [*terminal, *command],
        cwd=directory,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=own_session,
    )


def finish(process: subprocess.Popen[str], seconds: float | None = None) -> Run:
    """Wait for the end of a started command."""
    output = process.communicate(timeout=seconds)[0]
    return Run(process.returncode, output)


def address(host: str) -> str:
    """Return the address of a host, which it keeps while it is off."""
    networks = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", host))
    return str(networks["trtllm-lab"]["IPAMConfig"]["IPv4Address"])


def wait_for(condition: Callable[[], Any], seconds: float) -> bool:
    """Return True if the condition holds within some seconds; an error counts as False."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return True
        except (OSError, ValueError, subprocess.CalledProcessError):
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)


@dataclass(frozen=True)
class Fleet:
    """The host under test, seen by an operator and by a client."""

    host: str
    environment: Mapping[str, str] = field(default_factory=lambda: LAB)

    def playbook(self, name: str, *arguments: str, **variables: Any) -> Run:
        return finish(self.start(name, *arguments, **variables))

    def start(self, name: str, *arguments: str, **variables: Any) -> subprocess.Popen[str]:
        """Start a run of a playbook."""
        command = ["ansible-playbook", name, "-i", "inventory/local", *arguments]
        if variables:
            command += ["--extra-vars", json.dumps(variables)]
        return begin(command, self.environment)

    def shell(self, script: str, check: bool = True) -> str:
        """Return the output of a shell script on the host."""
        return docker("exec", self.host, "sh", "-c", script, check=check)

    def container(self) -> str:
        """Return the id of the server's container; empty without one."""
        return self.shell(f"docker inspect --format '{{{{.Id}}}}' {CONTAINER} 2>/dev/null", check=False).strip()

    def release(self) -> str:
        """Return the release directory that the unit links to."""
        return self.shell(f"dirname $(readlink /etc/systemd/system/{UNIT})").strip()

    def chat(self, port: int = 8000) -> int:
        """Return the HTTP status of a chat completion; 0 without a connection."""
        body = json.dumps(CHAT)
        status = self.shell(
            "curl --silent --max-time 20 --output /dev/null --write-out '%{http_code}' "
            f"--header 'Content-Type: application/json' --data '{body}' http://127.0.0.1:{port}/v1/chat/completions",
            check=False,
        )
        return int(status)


def lab(playbook: str, *arguments: str, environment: Mapping[str, str] = LAB) -> None:
    subprocess.run(["ansible-playbook", f"lab/{playbook}.yml", *arguments], cwd=REPO, env=environment, check=True)


@pytest.fixture(scope="session")
def untouched() -> Iterator[Fleet]:
    """Return a bare host: no driver, no Docker."""
    lab("up", "--extra-vars", f"lab_recreate={HOST}")
    yield Fleet(HOST)
    lab("down")


@pytest.fixture(scope="session")
def fleet(untouched: Fleet) -> Fleet:
    """Return the same host with a verified endpoint."""
    run = untouched.playbook("site.yml")
    assert run.status == 0, run.output
    assert untouched.chat() == 200
    return untouched


@dataclass(frozen=True)
class Hub:
    """The lab's hub: its faults and its request log."""

    def call(self, method: str, path: str, body: Any = None) -> str:
        data = [] if body is None else ["--data", json.dumps(body)]
        curl = ["curl", "--silent", "--fail", "--request", method, *data, f"http://127.0.0.1:8090/_lab/{path}"]
        return docker("exec", "trtllm-lab-origin", *curl)

    def fault(self, **fault: Any) -> None:
        self.call("POST", "faults", fault)

    def clear_faults(self) -> None:
        self.call("DELETE", "faults")

    def clear_log(self) -> None:
        self.call("DELETE", "requests")

    def fetched(self) -> dict[str, int]:
        """Return the bytes sent of each file since the log was emptied, by file name."""
        sent: dict[str, int] = {}
        for request in json.loads(self.call("GET", "requests")):
            if request["method"] == "GET" and "/resolve" in request["path"]:
                name = request["path"].partition("?")[0].rsplit("/", 1)[-1]
                sent[name] = sent.get(name, 0) + request["bytes"]
        return sent


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    """Return a deployment of disaggregated serving on four hosts behind two gateways; most modules have their own."""
    from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import two_sides  # it imports this module

    with two_sides(tmp_path_factory.mktemp("dynamo")) as dynamo:
        yield dynamo


@pytest.fixture
def load(dynamo: Dynamo) -> Iterator[Load]:
    """Return a load through the gateways of the deployment, of which no request may fail."""
    from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import unbroken_load

    with unbroken_load(dynamo) as load:
        yield load


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Return the hub; remove its faults after the test."""
    hub = Hub()
    yield hub
    hub.clear_faults()
