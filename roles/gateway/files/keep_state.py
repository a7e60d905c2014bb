"""Write what HAProxy knows of its servers to a file, for the process that a reload starts.

Run by trtllm-gateway.service before each reload, by hand too:
  python3 keep_state.py CONFIG SOCKET FILE     (haproxy.cfg admin.sock servers.state)
HAProxy prefers an address and port of the file to those of its configuration, so a server that moved is left out. Its
weight follows the configuration, where the notes of the hosts have put it. Without a file all servers start as up.
"""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

BACKEND = "instances"
TIMEOUT = 5.0  # seconds
SERVER = re.compile(r"^ +server (\S+) (\S+):(\d+) .*\bweight (\d+)", re.MULTILINE)


def ask(path: str, command: str) -> str:
    """Return HAProxy's answer to a command of its runtime API. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(path)
        connection.sendall(f"{command}\n".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer.decode()


def kept(state: str, config: str) -> str:
    """Return the state of those servers that the configuration has at the same address and port."""
    servers = {name: (address.strip("[]"), port, weight) for name, address, port, weight in SERVER.findall(config)}
    version, header, *rows = state.strip().splitlines()
    columns = header.removeprefix("# ").split()
    lines = [version, header]
    for row in rows:
        server = dict(zip(columns, row.split()))
        address, port, weight = servers.get(server["srv_name"], ("", "", ""))
        if (server["srv_addr"], server["srv_port"]) == (address, port):
            server["srv_uweight"] = server["srv_iweight"] = weight
            lines.append(" ".join(server.values()))
    return "\n".join(lines) + "\n"


def main(config: str, path: str, file: str) -> None:
    # One of an earlier reload is worse than none.
    Path(file).unlink(missing_ok=True)
    text = kept(ask(path, f"show servers state {BACKEND}"), Path(config).read_text())
    new = Path(f"{file}.new")
    new.write_text(text)
    new.replace(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
