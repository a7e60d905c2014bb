"""port_check: ports that answer, that nothing listens at, and that a firewall drops."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.trtllm.fleet.plugins.module_utils import tcp_ports
from ansible_collections.trtllm.fleet.plugins.modules import port_check


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server


@pytest.fixture
def dropped(listener: socket.socket) -> Iterator[str]:
    """Return a port whose queue is full, so that the kernel drops further connections as a firewall does."""
    address = listener.getsockname()
    with socket.create_connection(address):
        yield named(address)


def named(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def run(capsys: pytest.CaptureFixture[str], **given: object) -> dict[str, object]:
    with patch_module_args({"timeout": 0.5, **given}), pytest.raises(SystemExit):
        port_check.main()
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_port_that_is_open(listener: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, ports=[named(listener.getsockname())])
    assert (result["changed"], result["blocked"]) == (False, {})


def test_port_without_a_listener_is_not_blocked(listener: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    address = listener.getsockname()
    listener.close()
    assert run(capsys, ports=[named(address)])["blocked"] == {}


def test_dropped_connection_is_blocked(dropped: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, ports=[dropped], hint="Open port 9250.")
    assert result["failed"] is True
    assert result["msg"] == f"A firewall may block {dropped} (no answer in 0.5 s). Open port 9250."
    assert result["blocked"] == {dropped: "no answer in 0.5 s"}


def test_rejected_connection_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall that answers "administratively prohibited", as firewalld does, is EHOSTUNREACH."""

    def rejected(target: tuple[str, int], timeout: float) -> socket.socket:
        raise OSError(113, os.strerror(113))

    monkeypatch.setattr(tcp_ports.socket, "create_connection", rejected)
    assert tcp_ports.blocked_ports(["[2001:db8::14]:9250"], 1) == {"[2001:db8::14]:9250": "No route to host"}


def test_no_port_needs_no_connection() -> None:
    assert tcp_ports.blocked_ports([], 1) == {}


@pytest.mark.parametrize("port", ["9250", "192.0.2.14", "192.0.2.14:", "192.0.2.14:0", "192.0.2.14:65536", ":9250"])
def test_malformed_port_is_rejected(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, ports=[port])
    assert result["msg"] == f"ports: {port!r} is not ADDRESS:PORT with a port from 1 to 65535."
