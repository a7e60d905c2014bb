"""Lab hosts with Dynamo components, seen by an operator and by a client."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.trtllm.fleet.tests.e2e.conftest import Fleet, Run, address, docker, finish, lab, wait_for
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_load import MODEL, ask
from ansible_collections.trtllm.fleet.tests.e2e.fleet_load import Load
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY

PREFIX = "dyn-"
PLAYBOOK = "playbooks/dynamo.yml"
MARK = "/etc/trtllm-fleet/dynamo/drained"
KINDS = ("control", "frontend", "prefill", "decode")
# The guide's configurations of the workers.
GUIDE = {f"dynamo_{kind}_recipe_name": f"dynamo_guide_{kind}" for kind in ("prefill", "decode")}
# The component's process, not docker's with the same words.
PROCESSES = {
    "prefill": "^python3 -m dynamo.trtllm.*--disaggregation-mode prefill",
    "decode": "^python3 -m dynamo.trtllm.*--disaggregation-mode decode",
    "frontend": "^python3 -m dynamo.frontend",
    "nats": "^/nats-server",
    "etcd": "^/usr/local/bin/etcd",
}


def all_on(host: str) -> dict[str, list[str]]:
    """Return the places of the components with one host for all."""
    return {kind: [host] for kind in KINDS}


@dataclass
class Dynamo:
    """Hosts with components.

    places: host names by kind of component; folder: directory of the inventory; gateways: hosts with a gateway.
    """

    count: int
    folder: Path
    places: dict[str, list[str]]
    gpu: str = "b200x1"
    variables: dict[str, Any] = field(default_factory=dict)
    gateways: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        return [f"{PREFIX}{number}" for number in range(1, self.count + 1)]

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "LAB_PREFIX": PREFIX, "LAB_HOSTS": str(self.count), "LAB_GPU": self.gpu}

    @property
    def hosts(self) -> dict[str, Fleet]:
        return {name: Fleet(name, self.environment) for name in self.names}

    def play(self, *arguments: str, **given: Any) -> Run:
        """Run the playbook, with the options of start."""
        run = finish(self.start(*arguments, **given))
        (self.folder / "output").write_text(run.output)  # to read after a failed test
        return run

    def start(
        self,
        *arguments: str,
        playbook: str = PLAYBOOK,
        only: Sequence[str] = (),
        withdrawn: Sequence[str] = (),
        **variables: Any,
    ) -> subprocess.Popen[str]:
        """Start a run of the playbook. withdrawn: hosts without a component. only: hosts of --limit."""
        placed = {name for hosts in self.places.values() for name in hosts}
        # Variables of hosts, because those of a group are outranked by the group_vars of the lab's inventory.
        variables_of_hosts = {"dynamo_listen_address": "{{ ansible_host }}", **self.variables}
        inventory: dict[str, Any] = {
            "dynamo": {
                "hosts": {name: dict(variables_of_hosts) for name in sorted({*placed, *withdrawn})},
                "children": {
                    f"dynamo_{kind}": {"hosts": {name: {} for name in self.places.get(kind, [])}} for kind in KINDS
                },
            }
        }
        if self.gateways:
            inventory["gateway"] = {"hosts": {name: {} for name in self.gateways}}
        groups = self.folder / "groups.yml"
        groups.write_text(yaml.safe_dump(inventory, sort_keys=False))
        limit = ["--limit", ",".join(only)] if only else []
        return self.hosts[self.names[0]].start(playbook, "-i", str(groups), *limit, *arguments, **variables)

    def deploy(self, *arguments: str, **given: Any) -> Run:
        """Run the playbook, which has to succeed."""
        run = self.play(*arguments, **given)
        assert run.status == 0, run.output
        return run

    def address(self, name: str) -> str:
        return address(name)

    def apis(self) -> list[str]:
        """Return the base URLs of the frontends."""
        return [f"http://{self.address(name)}:8000" for name in self.places["frontend"]]

    def shell(self, name: str, script: str, check: bool = True) -> str:
        return self.hosts[name].shell(script, check)

    def release(self, name: str, part: str) -> str:
        """Return the directory of the release that the component's unit belongs to."""
        return self.shell(name, f"dirname $(readlink /etc/systemd/system/trtllm-dynamo-{part}.service)").strip()

    def kill(self, name: str, kind: str) -> None:
        """Send SIGKILL to the processes of a component on a host, which must exist."""
        self.shell(name, f"pkill --signal KILL --full '{PROCESSES[kind]}'")

    def forgets_the_dead(self, name: str) -> bool:
        """Return True if, after SIGKILL to the host's decode worker, its unit revoked the old lease in etcd."""
        journal = "journalctl --unit trtllm-dynamo-decode-0 --output cat | grep --count '^Ended the lease'"

        def ended() -> int:
            return int(self.shell(name, journal, check=False))

        before = ended()
        self.kill(name, "decode")
        return wait_for(lambda: ended() == before + 1, 30)

    def instances(self, api: str) -> dict[str, set[str]]:
        """Return the addresses of the workers that a frontend lists, by component; raises as ask does."""
        found: dict[str, set[str]] = {"prefill": set(), "backend": set()}
        for item in ask(f"{api}/health", timeout=10)["instances"]:
            if item["endpoint"] == "generate":
                found[item["component"]].add(f"{item['transport']}#{item['instance_id']}")
        return found

    def complete(self) -> bool:
        """Return True if each frontend lists each worker once; raises as ask does."""
        expected = {"prefill": len(self.places["prefill"]), "backend": len(self.places["decode"])}
        return all({kind: len(found) for kind, found in self.instances(api).items()} == expected for api in self.apis())

    def runs(self) -> dict[str, str]:
        """Return the invocation of each running component by "host component"; a new one means a restart."""
        found = {}
        for name in self.names:
            shown = self.shell(
                name,
                "for unit in $(systemctl list-units --no-legend --plain 'trtllm-dynamo-*.service' | cut -d' ' -f1); do"
                " echo $unit $(systemctl show $unit --property=InvocationID --value)"
                " $(docker inspect --format '{{.State.StartedAt}}' ${unit%.service}); done",
                check=False,
            )
            for line in shown.splitlines():
                unit, *invocation = line.split()
                found[f"{name} {unit.removeprefix('trtllm-dynamo-').removesuffix('.service')}"] = " ".join(invocation)
        return found


@contextmanager
def two_sides(
    folder: Path, image: str = "", releases: Sequence[str] = (), gateways: Sequence[str] = ("dyn-1", "dyn-2")
) -> Iterator[Dynamo]:
    """Deploy hosts with two workers of each kind, and two frontends on the hosts of the gateways.

    image: the first image, by default the lab's; releases: of Dynamo, which the registry then has besides the lab's.
    """
    places = {
        "control": ["dyn-1"],
        "frontend": ["dyn-1", "dyn-2"],
        "prefill": ["dyn-1", "dyn-3"],
        "decode": ["dyn-2", "dyn-4"],
    }
    dynamo = Dynamo(4, folder, places, gateways=gateways)
    dynamo.variables = {"dynamo_image": image} if image else {}
    options = {"lab_recreate": ",".join(dynamo.names)} | ({"lab_dynamo_releases": [*releases]} if releases else {})
    lab("up", "--extra-vars", json.dumps(options), environment=dynamo.environment)
    dynamo.deploy()
    yield dynamo
    lab("down", environment=dynamo.environment)


CERTIFICATES = "/etc/ssl/dynamo"


def certify(folder: Path, addresses: Mapping[str, Sequence[str]]) -> None:
    """Install server and client certificates of one CA on hosts, with keys for root's group.

    A second call renews them from the same CA.

    addresses: by host, the addresses of its certificate as in subjectAltName.
    """

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    request = ["req", "-newkey", "rsa:2048", "-nodes"]
    authority = ["-x509", "-days", "2", "-subj", "/CN=fleet", "-addext", "keyUsage=critical,keyCertSign"]
    if not (folder / "ca.key").exists():
        openssl(*request, *authority, "-keyout", "ca.key", "-out", "ca.pem")
    for host, names in addresses.items():
        openssl(*request, "-subj", f"/CN={host}", "-keyout", "key.pem", "-out", "request.pem")
        extensions = f"subjectAltName={','.join(names)}\nextendedKeyUsage=serverAuth,clientAuth\n"
        (folder / "extensions").write_text(extensions)
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "extensions"]
        openssl("x509", "-req", "-in", "request.pem", "-out", "certificate.pem", *signed)
        docker("exec", host, "mkdir", "-p", CERTIFICATES)
        for name in ("ca.pem", "certificate.pem", "key.pem"):
            docker("cp", str(folder / name), f"{host}:{CERTIFICATES}/{name}")
        docker("exec", host, "sh", "-c", f"cd {CERTIFICATES} && chown root:root * && chmod 640 key.pem")


def secured(password: str) -> dict[str, Any]:
    """Return variables for etcd with TLS and NATS with a password; the lab's Dynamo has no TLS to NATS."""
    return {
        "dynamo_tls_ca_file": f"{CERTIFICATES}/ca.pem",
        "dynamo_tls_certificate_file": f"{CERTIFICATES}/certificate.pem",
        "dynamo_tls_key_file": f"{CERTIFICATES}/key.pem",
        "dynamo_nats_tls": False,
        "dynamo_nats_password": password,
    }


@contextmanager
def unbroken_load(dynamo: Dynamo) -> Iterator[Load]:
    """Run a load through all gateways, of which no request may fail."""
    urls = [f"https://{dynamo.address(name)}/v1" for name in dynamo.gateways]
    with Load(urls, KEY, MODEL, 4, long_every=25, long_tokens=2000) as load:
        assert wait_for(lambda: len(load.requests) > 4, 60)
        yield load
        load.wait(5)
    assert load.failure is None
    assert load.errors() == {}
    assert len(load.requests) > 20


def changed(run: Run) -> dict[str, int]:
    """Return the number of changed tasks by host, from the recap."""
    return {host: int(count) for host, count in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", run.output, re.M)}


def said(run: Run) -> str:
    """Return the output as one line, because Ansible folds long lines."""
    return " ".join(run.output.split())


def record(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Append a measurement to a file in .cache, for the table in the documents."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
