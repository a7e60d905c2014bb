"""One host with access control: TLS for etcd, a password for NATS, HTTPS for the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import lab
from ansible_collections.trtllm.fleet.tests.e2e.dynamo_fleet import (
    CERTIFICATES,
    PLAYBOOK,
    PREFIX,
    Dynamo,
    all_on,
    certify,
    changed,
    said,
    secured,
)

HOST = f"{PREFIX}1"
NAMES = {HOST: ["IP:127.0.0.1"]}
PASSWORD = 'open "sesame" $HOME %n'
SECURED = {
    **secured(PASSWORD),
    "dynamo_listen_address": "127.0.0.1",
    "dynamo_frontend_certificate_file": f"{CERTIFICATES}/certificate.pem",
    "dynamo_frontend_key_file": f"{CERTIFICATES}/key.pem",
    "dynamo_frontend_ca_file": f"{CERTIFICATES}/ca.pem",
}
BARE = "ls /etc/trtllm-fleet /var/lib/trtllm-fleet 2>/dev/null"
TO_NATS = """python3 -c '
import socket
nats = socket.create_connection(("127.0.0.1", 4222), 5)
nats.recv(4096)
nats.sendall(b"CONNECT {}\\r\\nPING\\r\\n")
print(nats.recv(4096).decode())'
"""


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    dynamo = Dynamo(1, tmp_path_factory.mktemp("secured"), all_on(HOST), gpu="b200x2", variables=dict(SECURED))
    lab("up", "--extra-vars", f"lab_recreate={HOST}", environment=dynamo.environment)
    certify(dynamo.folder, NAMES)
    yield dynamo
    lab("down", environment=dynamo.environment)


def test_unsupported_option_is_rejected(dynamo: Dynamo) -> None:
    run = dynamo.play(dynamo_nats_tls=True)
    assert run.status != 0
    assert "does not support TLS for NATS" in said(run)
    assert "dynamo_nats_tls to false" in said(run)
    assert dynamo.shell(HOST, BARE, check=False) == ""


def test_missing_key_file_is_rejected(dynamo: Dynamo) -> None:
    run = dynamo.play(dynamo_tls_key_file="/etc/ssl/none.pem")
    assert run.status != 0
    assert "dynamo_tls_key_file: /etc/ssl/none.pem on this host is not a file" in said(run)
    assert dynamo.shell(HOST, BARE, check=False) == ""


def test_deployment_without_access_control(dynamo: Dynamo) -> None:
    dynamo.variables.clear()
    dynamo.deploy()
    dynamo.variables.update(SECURED)


def test_access_control_is_enabled_on_all_components_at_once(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    run = dynamo.deploy("--diff")
    assert "https://127.0.0.1:8000" in run.output
    assert PASSWORD not in run.output
    after = dynamo.runs()
    assert before.keys() == after.keys()
    assert [part for part in before if before[part] == after[part]] == []
    assert "dynamo : Start the new release]" not in run.output


def test_failure_output_has_no_secret(dynamo: Dynamo) -> None:
    before = dynamo.release(HOST, "decode-0")
    run = dynamo.play("-vvv", "--diff", dynamo_decode_environment={"LAB_ENGINE_FAULT": "die"})
    assert run.status != 0
    assert "The previous release runs again" in said(run)
    assert "sesame" not in run.output
    assert dynamo.release(HOST, "decode-0") == before


def test_unauthenticated_clients_are_rejected(dynamo: Dynamo) -> None:
    files = f"--cert {CERTIFICATES}/certificate.pem --key {CERTIFICATES}/key.pem"
    etcd = f"curl --silent --max-time 5 --cacert {CERTIFICATES}/ca.pem %s https://127.0.0.1:2379/health"
    assert '"true"' in dynamo.shell(HOST, etcd % files)
    assert dynamo.shell(HOST, etcd % "", check=False) == ""
    assert "Authorization Violation" in dynamo.shell(HOST, TO_NATS)
    assert dynamo.shell(HOST, "curl --silent --max-time 5 http://127.0.0.1:8000/health", check=False) == ""


def test_password_is_readable_by_root_only(dynamo: Dynamo) -> None:
    places = "/etc /var/lib/trtllm-fleet /var/lib/docker/containers /run /tmp"
    search = f"grep --recursive --no-messages --files-with-matches sesame {places}"
    found = dynamo.shell(HOST, search, check=False).split()  # grep fails for files that disappear
    assert {path.rpartition("/")[2] for path in found} == {"nats.conf", "password.sh"}
    assert set(dynamo.shell(HOST, f"stat --format '%a %U %G' {' '.join(found)}").splitlines()) == {"640 root root"}
    assert "sesame" not in dynamo.shell(HOST, "docker inspect $(docker ps --quiet)")
    assert dynamo.shell(HOST, "journalctl --quiet --grep sesame", check=False) == ""


@pytest.mark.parametrize("playbook", [PLAYBOOK, "tests/e2e/dynamo_role.yml"], ids=["playbook", "role"])
def test_second_run_changes_nothing(dynamo: Dynamo, playbook: str) -> None:
    before = dynamo.runs()
    assert set(changed(dynamo.deploy(playbook=playbook)).values()) == {0}
    assert dynamo.runs() == before


def test_renewed_certificates_are_used(dynamo: Dynamo) -> None:
    before = dynamo.runs()
    certify(dynamo.folder, NAMES)
    dynamo.deploy()
    after = dynamo.runs()
    assert before.keys() == after.keys()
    assert [part for part in before if before[part] == after[part]] == []
    assert set(changed(dynamo.deploy()).values()) == {0}


def test_dead_worker_is_removed_at_once(dynamo: Dynamo) -> None:
    assert dynamo.forgets_the_dead(HOST)
