"""README's quick start on fresh machines: a lab host outside of the lab's network has a lab of its own inside."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, Run, docker, lab
from ansible_collections.trtllm.fleet.tests.e2e.test_pages import quick_start
from tools import project

PREFIX = "fresh-"
# On a disk: an anonymous volume of a lab host.
FOLDER = "/srv/fleet"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# Ubuntu 22.04 cannot be a control node.
RELEASES = os.environ.get("FRESH_RELEASES", "bookworm,trixie,noble").split(",")


@dataclass(frozen=True)
class Machine:
    """A fresh machine with a copy of the working tree."""

    name: str
    release: str

    def run(self, *commands: str) -> Run:
        """Run commands as a reader would type them, as root. pip trusts what this machine trusts."""
        variables = {"PIP_CERT": "/root/ca-certificates.pem", "LANG": "C.UTF-8"}
        if self.release == "noble":  # Ubuntu's apt sources have no Debian mirror
            variables["LAB_DEBIAN_MIRROR"] = mirror()
        exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        # The machine is a lab host, whose own settings are in its environment.
        script = "\n".join(["set -eux", "unset LAB_GPU LAB_SUDO", f"cd {FOLDER}", *exports, *commands])
        done = subprocess.run(
            ["docker", "exec", self.name, "bash", "-c", script],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return Run(done.returncode, done.stdout)


def mirror() -> str:
    """Return the Debian mirror of this machine's apt sources."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Component: main"]
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout.split()[0]


@pytest.fixture(params=RELEASES)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    environment = {**os.environ, "LAB_PREFIX": PREFIX, "LAB_OS": request.param, "LAB_GPU": "none", "LAB_HOSTS": "1"}
    found = Machine(f"{PREFIX}1", request.param)
    lab("up", "--extra-vars", f"lab_recreate={found.name}", environment=environment)
    # The lab inside has the same addresses.
    docker("network", "disconnect", "trtllm-lab", found.name)
    docker("network", "connect", "bridge", found.name)
    docker("exec", found.name, "mkdir", FOLDER)
    project.copy(tmp_path / "tree")
    docker("cp", f"{tmp_path / 'tree'}/.", f"{found.name}:{FOLDER}")
    docker("cp", CERTIFICATES, f"{found.name}:/root/ca-certificates.pem")
    yield found
    lab("down", environment=environment)


def test_quick_start_and_clean(machine: Machine) -> None:
    run = machine.run(*quick_start())
    assert run.status == 0, run.output[-5000:]
    assert re.search(r"gpu1 +serve-0 .* verified", run.output), run.output[-5000:]
    assert run.output.rstrip().endswith((REPO / "lab/demo.txt").read_text().rstrip())
    run = machine.run("make clean", "docker ps --all --quiet | wc -l", "ls -A")
    assert run.status == 0, run.output
    left = set(run.output.split("ls -A")[-1].split())
    assert not left & {".venv", ".cache", ".lab"}
