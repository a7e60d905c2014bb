"""A failed worker's unit ends its lease in etcd and no other; run as by the unit, from its release."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.unit.fake_openai import Answer, FakeOpenAI, reply
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

PROGRAM = ROOT / "roles/dynamo/files/end_lease.py"
# As etcd's gateway writes them; values of 1.4.2, and a component has several keys.
WORKERS = {
    "6874360018827299340": ["10.0.0.1:9250/5f66a203e4594a0c/generate"],
    "6874360018827299338": ["10.0.0.1:9150/5f66a203e4594a0a/generate", "10.0.0.1:9150/5f66a203e4594a0a/worker_kv"],
    "21": ["10.0.0.1:92501/15/generate"],
    "22": ["110.0.0.1:9250/16/generate"],
    "23": ["10.0.0.12:9250/17/generate"],
}
KEYS = [
    {"key": "", "value": base64.b64encode(json.dumps({"transport": {"tcp": tcp}}).encode()).decode(), "lease": lease}
    for lease, addresses in WORKERS.items()
    for tcp in addresses
]
DEAD = "http://127.0.0.1:1"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return Path(shutil.copy(PROGRAM, tmp_path)).parent


def end(release: Path, port: int, *endpoints: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "ETCD_ENDPOINTS": ",".join(endpoints),
        "DYN_TCP_RPC_HOST": "10.0.0.1",
        "DYN_TCP_RPC_PORT": port,
        "A": "b=c",
    }
    (release / "environment").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    proxied = {"http_proxy": DEAD, "https_proxy": DEAD}
    command = [sys.executable, str(release / PROGRAM.name)]
    return subprocess.run(command, env=proxied, text=True, capture_output=True, timeout=60, check=False)


def etcd(listed: Answer | None = None) -> FakeOpenAI:
    return FakeOpenAI(
        {"/v3/kv/range": [listed or reply(200, {"kvs": KEYS})], "/v3/lease/revoke": [reply(200, {"header": {}})]}
    )


def revoked(fake: FakeOpenAI) -> list[str]:
    return [request.body["ID"] for request in fake.requests if request.path == "/v3/lease/revoke"]


@pytest.mark.parametrize(("port", "lease"), [(9250, "6874360018827299340"), (9150, "6874360018827299338")])
def test_its_own_lease_is_ended_and_no_other(release: Path, port: int, lease: str) -> None:
    with etcd() as fake:
        ended = end(release, port, fake.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"Ended the lease {int(lease):x} in {fake.url}.\n"
    assert revoked(fake) == [lease]
    asked = {name: base64.b64decode(value).decode() for name, value in fake.requests[0].body.items()}
    assert asked == {"key": "v1/instances/", "range_end": "v1/instances0"}


@pytest.mark.parametrize("listed", [{}, {"kvs": KEYS[1:]}], ids=["no worker", "other workers"])
def test_a_worker_that_ended_normally_has_no_lease(release: Path, listed: dict[str, object]) -> None:
    with etcd(reply(200, listed)) as fake:
        ended = end(release, 9250, fake.url)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert revoked(fake) == []


def test_one_healthy_member_of_etcd_is_enough(release: Path) -> None:
    with etcd(reply(503, b"no leader")) as unhealthy, etcd() as fake:
        ended = end(release, 9250, DEAD, unhealthy.url, fake.url)
    assert ended.returncode == 0
    assert [line.split(": ")[0] for line in ended.stderr.splitlines()] == [DEAD, unhealthy.url]
    assert revoked(fake) == ["6874360018827299340"]


def test_without_etcd_it_fails_with_the_reason(release: Path) -> None:
    ended = end(release, 9250, DEAD)
    assert (ended.returncode, ended.stdout) == (75, "")
    assert DEAD in ended.stderr
    assert "refused" in ended.stderr


def test_another_server_at_the_port_of_etcd(release: Path) -> None:
    with etcd(reply(200, b"<html>")) as fake:
        ended = end(release, 9250, fake.url)
    assert ended.returncode == 75
    assert "Traceback" not in ended.stderr
    assert revoked(fake) == []
