"""A gateway's proxy alone, with both HAProxy versions: the instances are test programs."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.tests.e2e.conftest import wait_for
from ansible_collections.trtllm.fleet.tests.e2e.rollout_fleet import KEY, MODEL, Fleet
from ansible_collections.trtllm.fleet.tests.e2e.test_gateway import UNIT, ask, journal, now
from tools.bench.gateway import INSTANCE, running
from tools.bench.token_times import VERSIONS, figures, token_times

FLEET = Fleet("alone-", gpus=0, gateways=2)
PORT = 8000
TOKENS, TOKEN_SECONDS = 40, 0.05
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Are you there?"}], "stream": True}
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Return two gateways, each with an instance on its own host that sends a token every 50 ms."""
    FLEET.up()
    run = FLEET.play("gateway")
    assert run.status == 0, run.output
    with ExitStack() as stack:
        for name in FLEET.gateway_names:
            program = INSTANCE.read_text()
            stack.enter_context(running(name, "python3", "-c", program, str(PORT), str(TOKEN_SECONDS)))
        register(FLEET, hosts=[host("gpu1", "127.0.0.1")], timeout=60)
        yield FLEET
    FLEET.down()


@pytest.fixture(params=[0, 1], ids=["gateway 1", "gateway 2"])
def gateway(fleet: Fleet, request: pytest.FixtureRequest) -> str:
    """Return each gateway; their hosts have different HAProxy versions."""
    return fleet.gateway_names[request.param]


def register(fleet: Fleet, **options: Any) -> None:
    """Run module gateway_host on all gateways."""
    command = ["ansible", "-i", "inventory/local", "gateway", "--become", "-m", "trtllm.fleet.gateway_host", "-a"]
    subprocess.run([*command, json.dumps(options)], env=fleet.environment, check=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_tokens_arrive_one_by_one(fleet: Fleet, gateway: str, version: str) -> None:
    """Without option http-no-delay the first takes 200 ms more, and five arrive at a time."""
    address, body = fleet.address(gateway), {**CHAT, "max_tokens": TOKENS}
    # In turns, because other tests may keep the machine busy.
    streams = [
        (
            token_times(f"http://{address}:{PORT}/v1/chat/completions", "http1", body, HEADERS),
            token_times(f"https://{address}/v1/chat/completions", version, body, HEADERS),
        )
        for _turn in range(3)
    ]
    direct, through = (figures(ways) for ways in zip(*streams, strict=True))
    assert through["first_token_ms_p50"] < direct["first_token_ms_p50"] + 100
    assert through["gap_ms_p50"] > 1000 * TOKEN_SECONDS / 2
    assert through["gap_ms_p95"] < direct["gap_ms_p95"] + 100


def test_long_requests_without_a_key_leave_the_log_readable(fleet: Fleet, gateway: str) -> None:
    """A line that HAProxy truncates is not valid JSON, and a log of mostly such lines ends a rollout."""
    address, began = fleet.address(gateway), now(fleet, gateway)
    body = json.dumps({**CHAT, "max_tokens": 1, "stream": False}).encode()
    assert ask(address, "POST", "/v1/chat/completions", body).status == 200
    for target in ("/" + 9000 * "a", "/" + 4500 * "\xc3\xa4", "/" + 9000 * '"', "/" + 9000 * "\\"):
        for _turn in range(5):
            assert ask(address, "GET", target, headers={}).status in (400, 401)
    assert ask(address, 9000 * "A", "/", headers={}).status in (400, 401)
    lines = [line for line in journal(fleet, gateway, began) if line.startswith("{")]
    assert len([json.loads(line) for line in lines]) > 15
    assert max(map(len, lines)) < 2500
    command = [
        "ansible",
        "-i",
        "inventory/local",
        gateway,
        "--become",
        "-m",
        "trtllm.fleet.gateway_info",
        "-a",
        "seconds=60",
    ]
    told = subprocess.run(command, env=fleet.environment, text=True, stdout=subprocess.PIPE, check=False)
    assert told.returncode == 0, told.stdout


# --- instances --------------------------------------------------------------------------------------------------------

# Accept connections and never respond.
SILENT = "import socket, sys; s = socket.create_server(('127.0.0.1', 8002), backlog=99); sys.stdin.read()"


def server(address: str, port: int) -> dict[str, Any]:
    return {"name": "serve-0", "address": address, "port": port, "model": MODEL, "max_requests": 100}


def host(name: str, address: str, port: int = PORT) -> dict[str, Any]:
    return {"name": name, "servers": [server(address, port)]}


def states(fleet: Fleet, gateway: str) -> dict[str, str]:
    """Return HAProxy's state of each instance."""
    return {name: row["status"] for name, row in fleet.backend(gateway).items()}


def until(fleet: Fleet, gateway: str, name: str, state: str) -> None:
    reached = wait_for(lambda: states(fleet, gateway).get(name, "").startswith(state), 60)
    assert reached, states(fleet, gateway)


@pytest.fixture
def forgotten(fleet: Fleet) -> Iterator[None]:
    """Remove the test's registrations."""
    yield
    names = [f"gpu{number}" for number in range(2, 32)]
    register(fleet, hosts=[{"name": name} for name in names], state="absent")


@pytest.mark.usefixtures("forgotten")
def test_down_instance_stays_down_after_a_reload(fleet: Fleet, gateway: str) -> None:
    with running(gateway, "python3", "-c", SILENT):
        register(fleet, hosts=[host("gpu2", "127.0.0.1", 8002)])
        until(fleet, gateway, "gpu2.serve-0", "DOWN")
        # First by hand, and then for another host.
        fleet.shell(gateway, f"systemctl reload {UNIT}")
        time.sleep(2)
        assert (states(fleet, gateway)["gpu1.serve-0"], states(fleet, gateway)["gpu2.serve-0"][:4]) == ("UP", "DOWN")
        register(fleet, hosts=[host("gpu3", "192.0.2.1")])
        assert states(fleet, gateway)["gpu2.serve-0"].startswith("DOWN")
        # At another port it is another instance.
        register(fleet, hosts=[host("gpu2", "127.0.0.1", PORT)], timeout=30)
        assert states(fleet, gateway)["gpu2.serve-0"] == "UP"


@pytest.mark.usefixtures("forgotten")
def test_names_need_dns_at_registration_only(fleet: Fleet, gateway: str) -> None:
    fleet.shell(gateway, "cp /etc/hosts /run/hosts; cp /etc/resolv.conf /run/resolv.conf")
    command = ["ansible", "-i", "inventory/local", gateway, "--become", "-m", "trtllm.fleet.gateway_host", "-a"]

    def ask_module(*hosts: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        line = [*command, json.dumps({"hosts": hosts})]
        return subprocess.run(line, env=fleet.environment, text=True, stdout=subprocess.PIPE, check=False)

    try:
        fleet.shell(gateway, "echo '127.0.0.1 named.example' >> /etc/hosts")
        assert ask_module(host("gpu2", "named.example")).returncode == 0
        # No name resolves without a DNS server.
        fleet.shell(gateway, "cat /run/hosts > /etc/hosts; echo 'nameserver 127.0.0.9' > /etc/resolv.conf")
        done = ask_module(host("gpu3", "127.0.0.1"), host("gpu4", "unknown.example"), host("gpu2", "named.example"))
        assert done.returncode != 0
        assert "'unknown.example' does not resolve" in done.stdout
        # An entry by hand, or from before names were resolved.
        note = {"model": MODEL, "servers": {"serve-0": {"address": "old.example", "port": 1, "max_requests": 1}}}
        fleet.shell(gateway, f"echo '{json.dumps(note)}' > /etc/trtllm-fleet/gateway/hosts/gpu5.json")
        assert ask_module(host("gpu6", "127.0.0.1")).returncode == 0
        # As at a boot with late DNS.
        fleet.shell(gateway, f"systemctl restart {UNIT}")
        for name in ("gpu1", "gpu2", "gpu3", "gpu6"):
            until(fleet, gateway, f"{name}.serve-0", "UP")
        found = states(fleet, gateway)
        assert "gpu4.serve-0" not in found
        assert found["gpu5.serve-0"].startswith("MAINT")
    finally:
        fleet.shell(gateway, "cat /run/hosts > /etc/hosts; cat /run/resolv.conf > /etc/resolv.conf")


def test_gateway_has_no_start_limit(fleet: Fleet, gateway: str) -> None:
    """It restarts every second; systemd's limit of five starts in ten seconds would end it."""
    config = "/etc/trtllm-fleet/gateway/haproxy.cfg"
    fleet.shell(gateway, f"mv {config} /run/haproxy.cfg; systemctl restart {UNIT} || true", check=False)
    time.sleep(12)
    fleet.shell(gateway, f"mv /run/haproxy.cfg {config}")
    loop = f"until systemctl is-active {UNIT} && test -S /run/trtllm-gateway/admin.sock; do sleep 1; done"
    fleet.shell(gateway, f"timeout 30 sh -c '{loop}'")
    until(fleet, gateway, "gpu1.serve-0", "UP")


def hold(address: str, end: float) -> None:
    """Keep a connection of a client without a key open, with a request every few seconds."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # The gateway accepts only some of them.
    with suppress(OSError), context.wrap_socket(socket.create_connection((address, 443), 5)) as client:
        while time.monotonic() < end:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: gateway\r\n\r\n")
            client.recv(1000)
            time.sleep(3)


def test_clients_that_hold_all_connections_take_no_instance_down(fleet: Fleet) -> None:
    """The checks of instances connect to a frontend of the same process."""
    run = fleet.play("gateway", gateway_max_connections=100)
    assert run.status == 0, run.output
    try:
        for name in fleet.gateway_names:
            until(fleet, name, "gpu1.serve-0", "UP")
            end = time.monotonic() + 20
            with ThreadPoolExecutor(130) as pool:
                for _client in range(130):
                    pool.submit(hold, fleet.address(name), end)
                time.sleep(15)
                assert states(fleet, name)["gpu1.serve-0"].startswith("UP")
    finally:
        run = fleet.play("gateway")
    assert run.status == 0, run.output


def test_virtual_ip_is_of_one_gateway_that_runs(fleet: Fleet) -> None:
    network = fleet.address(fleet.gateway_names[0]).rpartition(".")[0]
    one, two = f"{network}.250", f"{network}.251"
    config = "/etc/trtllm-fleet/gateway/keepalived.conf"

    def holders(address: str) -> list[str]:
        return [name for name in fleet.gateway_names if f" {address}/" in fleet.shell(name, "ip -4 address")]

    run = fleet.play("gateway", gateway_virtual_ip=f"{one}/24")
    assert run.status == 0, run.output
    try:
        assert wait_for(lambda: len(holders(one)) == 1, 30)
        (holder,) = holders(one)
        (other,) = {*fleet.gateway_names} - {holder}
        fleet.shell(holder, f"systemctl stop {UNIT}")
        assert wait_for(lambda: holders(one) == [other], 30)
        fleet.shell(holder, f"systemctl start {UNIT}")

        # A run that was interrupted before the reload.
        for name in fleet.gateway_names:
            fleet.shell(name, f"sed -i s/{one}/{two}/ {config}")
        run = fleet.play("gateway", gateway_virtual_ip=f"{two}/24")
        assert run.status == 0, run.output
        assert wait_for(lambda: (holders(one), len(holders(two))) == ([], 1), 30)
        run = fleet.play("gateway", gateway_virtual_ip=f"{two}/24")
        assert re.findall(r"changed=(\d+)", run.output) == ["0", "0"], run.output
    finally:
        remove = "systemctl disable --now trtllm-gateway-address.service"
        for name in fleet.gateway_names:
            fleet.shell(name, remove, check=False)


def run_role(fleet: Fleet, directory: Path, entry_point: str, hosts: Mapping[str, object]) -> str:
    """Return Ansible's output of a registration of hosts by name."""
    inventory = directory / "registered.yml"
    inventory.write_text(json.dumps({"registered": {"hosts": hosts}}))
    playbook = "tests/e2e/gateway_registration.yml"
    command = ["ansible-playbook", playbook, "-i", "inventory/local", "-i", str(inventory)]
    command += ["--extra-vars", f"entry_point={entry_point}"]
    return subprocess.run(command, env=fleet.environment, text=True, stdout=subprocess.PIPE, check=False).stdout


@pytest.mark.usefixtures("forgotten")
def test_large_batch_does_not_exceed_the_limits_of_sshd(fleet: Fleet, tmp_path: Path) -> None:
    """Many hosts delegate to each gateway at a time; its sshd rejects sessions above its limits."""
    hosts = {f"gpu{number}": {"trtllm_server_listen_address": f"192.0.2.{number}"} for number in range(2, 32)}
    file = "/etc/ssh/sshd_config.d/hardened.conf"
    for name in fleet.gateway_names:
        fleet.shell(name, f"printf 'MaxSessions 10\nMaxStartups 10:100:11\n' > {file} && systemctl restart ssh")
    try:
        output = run_role(fleet, tmp_path, "host", hosts)
    finally:
        for name in fleet.gateway_names:
            fleet.shell(name, f"rm {file} && systemctl restart ssh")
    done = re.findall(r"^gpu\d+ .*unreachable=0 .*failed=0", output, re.MULTILINE)
    assert len(done) == len(hosts), output


@pytest.mark.usefixtures("forgotten")
def test_hosts_are_registered_together_except_faulty_ones(fleet: Fleet, tmp_path: Path) -> None:
    hosts = {
        "gpu2": {"trtllm_server_listen_address": "192.0.2.2"},
        "gpu3": {"trtllm_server_listen_address": "192.0.2.3", "fails": True},
        "gpu4": {"trtllm_server_listen_address": "unknown.invalid"},
        "gpu5": {"trtllm_server_listen_address": "192.0.2.5"},
    }
    before = [fleet.shell(name, f"journalctl -u {UNIT} | grep -c 'Reloading HAProxy'") for name in fleet.gateway_names]
    output = run_role(fleet, tmp_path, "hosts", hosts)
    recap = dict(re.findall(r"^(gpu\d) .*(failed=\d)", output, re.MULTILINE))
    assert recap == {"gpu2": "failed=0", "gpu3": "failed=1", "gpu4": "failed=1", "gpu5": "failed=0"}, output
    for name in fleet.gateway_names:
        assert {"gpu2.serve-0", "gpu5.serve-0"} < states(fleet, name).keys()
        assert not {"gpu3.serve-0", "gpu4.serve-0"} & states(fleet, name).keys()
    after = [fleet.shell(name, f"journalctl -u {UNIT} | grep -c 'Reloading HAProxy'") for name in fleet.gateway_names]
    assert [int(new) - int(old) for new, old in zip(after, before, strict=True)] == [1, 1]


# --- keys -------------------------------------------------------------------------------------------------------------


def test_requests_of_a_key_are_counted_over_gateways_and_reloads(fleet: Fleet) -> None:
    """HAProxy reads a limit's file when it starts, so a reload applies it."""
    one, two = fleet.gateway_names
    body = json.dumps({**CHAT, "max_tokens": 1, "stream": False}).encode()
    path = "/etc/trtllm-fleet/gateway/requests_per_minute.map"

    def statuses(gateway: str, number: int) -> list[int]:
        return [ask(fleet.address(gateway), "POST", "/v1/chat/completions", body).status for _turn in range(number)]

    # Requests of other tests count too.
    time.sleep(60)
    for name in (one, two):
        fleet.shell(name, f"cp {path} /run/limit.map; echo 'lab 10' >> {path}; systemctl reload {UNIT}")
    try:
        time.sleep(8)
        assert statuses(one, 8) == [200] * 8
        time.sleep(2)
        assert statuses(two, 6) == [200] * 2 + [429] * 4
        time.sleep(8)
        fleet.shell(one, f"systemctl reload {UNIT}")
        time.sleep(2)
        assert statuses(one, 2) == [429] * 2
    finally:
        for name in (one, two):
            fleet.shell(name, f"cp /run/limit.map {path}; systemctl reload {UNIT}")
