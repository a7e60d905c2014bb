# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client for the runtime API of the gateway's HAProxy, and the state of its servers that a reload keeps.

Standard library only. Role gateway copies this file to the gateway. There trtllm-gateway.service runs it before each
reload, and an operator may run it: ``python3 haproxy.py CONFIG SOCKET FILE`` (haproxy.cfg admin.sock servers.state).
"""

from __future__ import annotations

import csv
import io
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

# Each model has a backend; this is the beginning of its name.
BACKEND = "model:"
SOCKET_TIMEOUT = 5.0  # seconds
SECTION = re.compile(r"^backend (\S+)$(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
SERVER = re.compile(r"^ +server (\S+) (\S+):(\d+) .*\bweight (\d+)", re.MULTILINE)


class GatewayError(Exception):
    """The gateway cannot reach the state; the message gives the reason."""


class NotRunning(GatewayError):
    """HAProxy does not listen at the socket."""


class Haproxy:
    """A running HAProxy. Methods raise NotRunning, or GatewayError if it does not answer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, command: str) -> str:
        """Return the answer to one command of the runtime API, or to several joined by semicolons."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SOCKET_TIMEOUT)
            answer = b""
            try:
                connection.connect(str(self._path))
                connection.sendall(f"{command}\n".encode())
                while part := connection.recv(65536):
                    answer += part
            except (FileNotFoundError, ConnectionRefusedError) as error:
                raise NotRunning(f"HAProxy does not listen at {self._path}: {error.strerror}") from None
            except OSError as error:
                # A HAProxy that runs without an answer goes on sending requests.
                raise GatewayError(f"HAProxy does not answer at {self._path}: {error}") from None
        return answer.decode(errors="replace")

    def fingerprint(self) -> str:
        """Return the fingerprint of the running configuration; empty if another program wrote it."""
        found = re.search(r"^description: (.*)$", self.ask("show info"), re.MULTILINE | re.IGNORECASE)
        return found[1].strip() if found else ""

    def server_states(self) -> str:
        """Return the states of all servers in the format of HAProxy's state file."""
        return self.ask("show servers state")

    def weights(self) -> dict[str, int]:
        """Return the weight that was set for each server, by BACKEND/SERVER."""
        lines = self.server_states().splitlines()
        columns = next((line[1:].split() for line in lines if line.startswith("#")), [])
        rows = [dict(zip(columns, line.split())) for line in lines[2:] if line.strip()]
        return {f"{row['be_name']}/{row['srv_name']}": int(row["srv_uweight"]) for row in rows}

    def statistics(self) -> dict[str, dict[str, str]]:
        """Return the statistics of each server by name, with the column names of HAProxy's documentation."""
        rows = csv.DictReader(io.StringIO(self.ask("show stat").lstrip("# ")))
        return {
            row["svname"]: dict(row)
            for row in rows
            if row["pxname"].startswith(BACKEND) and row["svname"] not in ("BACKEND", "FRONTEND")
        }

    def set_weights(self, wanted: Mapping[str, int]) -> None:
        """Set the weights of servers, by BACKEND/SERVER. Raises GatewayError if HAProxy rejects one."""
        for name, weight in wanted.items():
            answer = self.ask(f"set weight {name} {weight}").strip()
            if answer:
                raise GatewayError(f"HAProxy does not set the weight of {name} to {weight}: {answer}")


def is_up(row: Mapping[str, str]) -> bool:
    """Return True if HAProxy's check of the server of these statistics passes."""
    # HAProxy puts a star before the last result while the next check runs.
    return row.get("status") == "UP" and row.get("check_status", "").removeprefix("* ") == "L7OK"


def state_text(row: Mapping[str, str]) -> str:
    """Return a server's state for a message."""
    if not row:
        return "is not there"
    return " ".join(
        filter(None, ("is", row["status"], row.get("check_status"), row.get("check_code"), row.get("last_chk")))
    )


def kept_states(states: str, config: str) -> str:
    """Return the states of the servers that the configuration has at the same address and port.

    HAProxy prefers the address and port of the state file, so a server that moved is left out. The weight is the
    configuration's. A server without a state starts as up.
    """
    servers = {
        (backend, name): (address.strip("[]"), port, weight)
        for backend, lines in SECTION.findall(config)
        for name, address, port, weight in SERVER.findall(lines)
    }
    version, header, *rows = states.strip().splitlines()
    columns = header.removeprefix("# ").split()
    lines = [version, header]
    for row in rows:
        server = dict(zip(columns, row.split()))
        address, port, weight = servers.get((server["be_name"], server["srv_name"]), ("", "", ""))
        if (server["srv_addr"], server["srv_port"]) == (address, port):
            server["srv_uweight"] = server["srv_iweight"] = weight
            lines.append(" ".join(server.values()))
    return "\n".join(lines) + "\n"


def main(config: str, path: str, file: str) -> None:
    """Write the state file for the process that a reload starts."""
    # A file of an earlier reload is worse than none.
    Path(file).unlink(missing_ok=True)
    text = kept_states(Haproxy(Path(path)).server_states(), Path(config).read_text())
    new = Path(f"{file}.new")
    new.write_text(text)
    new.replace(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
