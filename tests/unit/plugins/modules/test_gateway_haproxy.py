"""The states of HAProxy's servers that a reload keeps."""

from __future__ import annotations

import socketserver
import tempfile
import threading
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway import haproxy

COLUMNS = (
    "be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight"
    " srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state"
    " bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr"
    " srv_agent_addr srv_agent_port"
)


def row(
    name: str, address: str = "192.0.2.1", port: int = 8000, weights: str = "100 100", backend: str = "model:m"
) -> str:
    return f"5 {backend} 1 {name} {address} 0 0 {weights} 58 8 2 0 6 0 0 0 - {port} - 0 0 - - 0"


def server(name: str, address: str = "192.0.2.1:8000", weight: int = 100) -> str:
    return f"  server {name} {address} maxconn 720 weight {weight}\n"


def state(*rows: str) -> str:
    return "\n".join(["1", f"# {COLUMNS}", *rows, ""])


@pytest.mark.parametrize(
    ("before", "config", "after"),
    [
        pytest.param(row("a.b"), server("a.b"), row("a.b"), id="down stays down"),
        pytest.param(row("a.b"), server("a.b", "192.0.2.1:9000"), None, id="another port"),
        pytest.param(row("a.b"), server("a.b", "192.0.2.9:8000"), None, id="another address"),
        pytest.param(row("a.b"), server("a.c"), None, id="forgotten"),
        pytest.param(row("a.b"), "", None, id="no server left"),
        pytest.param(
            row("a.b", weights="0 100"), server("a.b", weight=100), row("a.b"), id="weight of the configuration"
        ),
        pytest.param(row("a.b"), server("a.b", weight=0), row("a.b", weights="0 0"), id="drained"),
        pytest.param(
            row("a.b", "2001:db8::1"), server("a.b", "[2001:db8::1]:8000"), row("a.b", "2001:db8::1"), id="v6"
        ),
    ],
)
def test_state_of_servers_that_are_where_they_were_is_kept(before: str, config: str, after: str | None) -> None:
    kept = haproxy.kept_states(state(before), f"backend model:m\n  balance leastconn\n{config}")
    assert kept == state(*([after] if after else []))


def test_state_is_of_the_server_of_a_model() -> None:
    """An instance that serves another model starts without the state of the old one."""
    before = [
        row("a.b"),
        row("a.c"),
        row("a.d", backend="model:n"),
        row("<HTTPCLIENT>", "-", 0, backend="<HTTPCLIENT>"),
    ]
    config = (
        f"backend keys\n  stick-table type string\n\n# Comment.\nbackend model:m\n{server('a.b', weight=0)}\n"
        f"backend model:n\n  # Comment.\n{server('a.c')}{server('a.d')}"
    )
    assert haproxy.kept_states(state(*before), config) == state(
        row("a.b", weights="0 0"), row("a.d", backend="model:n")
    )


def test_file_is_written_from_the_socket_and_none_is_left_without(tmp_path: Path) -> None:
    config, file = tmp_path / "haproxy.cfg", tmp_path / "servers.state"
    config.write_text(f"backend model:m\n{server('a.b')}")
    file.write_text("of an earlier reload")
    # The path of a socket has 108 bytes at most.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        path = f"{short}/sock"
        with pytest.raises(haproxy.NotRunning, match="No such file"):
            haproxy.main(str(config), path, str(file))
        assert not file.exists()

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                assert self.rfile.readline() == b"show servers state\n"
                self.wfile.write((state(row("a.b")) + "\n").encode())

        with socketserver.ThreadingUnixStreamServer(path, Connection) as listener:
            threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
            haproxy.main(str(config), path, str(file))
            listener.shutdown()
    assert file.read_text() == state(row("a.b"))
