"""GPU hosts of the lab behind gateways, seen by an operator during rollouts and by clients."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ansible_collections.trtllm.fleet.tests.e2e.conftest import REPO, Run, address, begin, docker, finish, lab
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.schemas import valid

# The lab's key, in inventory/local.
KEY = "lab-key-0123456789abcdef"
MODEL = "openai/gpt-oss-120b"
# The lab's engines load in seconds and share two cores with everything else, so thresholds on their times are wide.
LAB = {"rollout_bake_seconds": 20, "rollout_canary_max_latency_ratio": 20, "rollout_max_slowdown": 10}
# Two releases that differ in one option.
ONE = {"serving_recipe_engine_options": {"max_num_tokens": 8192}}
TWO = {"serving_recipe_engine_options": {"max_num_tokens": 4096}}
# A newer Docker package: the distribution's with another version.
NEWER = """
set -e
rm -rf /srv/newer && mkdir /srv/newer && cd /srv/newer
rm -f /etc/apt/sources.list.d/newer.list
apt-get download -q docker.io >&2 && dpkg-deb -R docker.io_*.deb t && rm docker.io_*.deb
sed -i 's/^Version: .*/&+newer/' t/DEBIAN/control
dpkg-deb -b t newer.deb >&2 && rm -r t
{ dpkg-deb -f newer.deb; echo Filename: ./newer.deb; echo Size: $(stat -c %s newer.deb)
  echo SHA256: $(sha256sum < newer.deb | cut -c 1-64); } > Packages
echo 'deb [trusted=yes] file:/srv/newer ./' > /etc/apt/sources.list.d/newer.list
apt-get update -q -o Dir::Etc::SourceList=sources.list.d/newer.list -o Dir::Etc::SourceParts=- >&2
dpkg-deb -f newer.deb Version
"""


def until(process: subprocess.Popen[str], words: str) -> str:
    """Read the output of a playbook until these words appear."""
    seen = ""
    assert process.stdout
    for line in process.stdout:
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"{words!r} was never printed:\n{seen}")


def publish(name: str, text: str) -> None:
    """Print a page of results, and write it to the folder ROLLOUT_DOCUMENTS if set."""
    print(f"\n{text}")
    if folder := os.environ.get("ROLLOUT_DOCUMENTS"):
        Path(folder, name).write_text(text)


@dataclass(frozen=True)
class Fleet:
    """Hosts PREFIX1 … are GPU hosts, those after them gateways."""

    prefix: str
    gpus: int
    gateways: int

    @property
    def environment(self) -> Mapping[str, str]:
        kinds = ",".join(["h200x8"] * self.gpus + ["none"] * self.gateways)
        number = str(self.gpus + self.gateways)
        # Molecule sets colours for Ansible's output.
        plain = {"ANSIBLE_FORCE_COLOR": "false", "ANSIBLE_NOCOLOR": "true"}
        return {**os.environ, **plain, "LAB_PREFIX": self.prefix, "LAB_HOSTS": number, "LAB_GPU": kinds}

    def up(self) -> None:
        lab("up", environment=self.environment)

    def down(self) -> None:
        lab("down", environment=self.environment)

    @contextmanager
    def serving(self, **variables: Any) -> Iterator[Self]:
        """Deploy the hosts and put them in service; remove them afterwards."""
        self.up()
        run = self.play("site", **variables)
        assert run.status == 0, run.output
        assert self.in_service() == self.all_instances
        yield self
        self.down()

    @property
    def gpu_names(self) -> list[str]:
        return [f"{self.prefix}{number + 1}" for number in range(self.gpus)]

    @property
    def gateway_names(self) -> list[str]:
        return [f"{self.prefix}{self.gpus + number + 1}" for number in range(self.gateways)]

    def command(self, name: str, *arguments: str, **variables: Any) -> list[str]:
        return [
            "ansible-playbook",
            f"playbooks/{name}.yml",
            "-i",
            "inventory/local",
            *arguments,
            "--extra-vars",
            json.dumps({**LAB, **variables}),
        ]

    def start(self, name: str, *arguments: str, **variables: Any) -> subprocess.Popen[str]:
        """Start a playbook in the background."""
        return begin(self.command(name, *arguments, **variables), self.environment)

    def play(self, name: str, *arguments: str, **variables: Any) -> Run:
        return finish(self.start(name, *arguments, **variables))

    def play_file(self, path: Path) -> Run:
        """Run a playbook of a test."""
        command = ["ansible-playbook", str(path), "-i", "inventory/local"]
        done = subprocess.run(command, cwd=REPO, env=self.environment, text=True, stdout=subprocess.PIPE, check=False)
        return Run(done.returncode, done.stdout)

    def shell(self, host: str, script: str, check: bool = True) -> str:
        return docker("exec", host, "sh", "-c", script, check=check).strip()

    def address(self, host: str) -> str:
        return address(host)

    def load(self, rate: float, **options: Any) -> Load:
        """Return clients of all gateways, with a total rate in requests/s."""
        urls = [f"https://{self.address(name)}/v1" for name in self.gateway_names]
        return Load(urls, KEY, MODEL, rate, **options)

    def rollout_result(self) -> dict[str, Any]:
        """Return what the last rollout or rollback wrote."""
        written: dict[str, Any] = json.loads((REPO / "fleet-rollout.json").read_text())
        return valid(written)

    def release(self, host: str) -> dict[str, Any]:
        """Return the running release of a host."""
        served: dict[str, Any] = json.loads(self.shell(host, "cat /etc/trtllm-fleet/verified/release.json"))
        return served

    def options(self) -> list[int]:
        """Return the running value on each host of the option that differs between ONE and TWO."""
        return [self.release(host)["engine_options"]["max_num_tokens"] for host in self.gpu_names]

    def now(self) -> dict[str, Any]:
        """Return the release that all hosts run, ONE or TWO."""
        return TWO if self.options() == [4096] * self.gpus else ONE

    def another(self) -> dict[str, Any]:
        return ONE if self.now() == TWO else TWO

    def releases(self) -> list[str]:
        """Return the name of the running release by host."""
        return [self.shell(host, "readlink /etc/trtllm-fleet/verified").rpartition("/")[2] for host in self.gpu_names]

    def in_service(self) -> dict[str, list[str]]:
        """Return for each gateway the instances in service and up."""
        return {name: sorted(self._in_service(name)) for name in self.gateway_names}

    def backend(self, gateway: str) -> dict[str, dict[str, str]]:
        """Return HAProxy's statistics of each instance."""
        program = (
            "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/trtllm-gateway/admin.sock');"
            " s.sendall(b'show stat\\n'); print(s.makefile().read())"
        )
        rows = csv.DictReader(self.shell(gateway, f'python3 -c "{program}"').splitlines())
        return {
            row["svname"]: row for row in rows if row["# pxname"].startswith("model:") and row["svname"] != "BACKEND"
        }

    def _in_service(self, gateway: str) -> list[str]:
        command = ["ansible", "-i", "inventory/local", gateway, "--become", "-m", "trtllm.fleet.gateway_info"]
        environment = {**self.environment, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
        done = subprocess.run(command, cwd=REPO, env=environment, text=True, stdout=subprocess.PIPE, check=True)
        hosts = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])[0]["hosts"]
        return [
            f"{host}.{name}"
            for host, instances in hosts.items()
            for name, one in instances.items()
            if one["up"] and not one["drained"]
        ]

    @property
    def all_instances(self) -> dict[str, list[str]]:
        return {name: [f"{host}.serve-0" for host in self.gpu_names] for name in self.gateway_names}
