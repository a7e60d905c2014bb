# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the registration of hosts at a gateway: one after another, and all together.

Both cases use a HAProxy of this machine that is checked and reloaded as on a gateway. It serves no requests and checks
no instances. Ansible is not included; it adds about a second for each host that registers separately.

The last line is one JSON object. The exit status is 1 unless all together is faster.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.command import CommandResult, run
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.gateway import Gateway
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.haproxy import Haproxy
from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import RegisteredHost, Server, present

HEAD = """global
  description @fingerprint@
  stats socket {socket} mode 600 level admin expose-fd listeners
defaults
  mode http
  timeout connect 3s
  timeout client 60s
  timeout server 60s
frontend api
  bind unix@{listener}
  # For each model:
  default_backend @backend@
  # End of model.
# For each model:
backend @backend@
  balance leastconn
  @servers@
# End of model.
"""


class Proxy:
    """HAProxy in a directory, reloaded as by systemd."""

    def __init__(self, root: Path) -> None:
        self.root, self.reloads = root, 0
        self.haproxy = Haproxy(root / "sock")
        self.gateway = Gateway(root, self.haproxy, runner=self.command)
        (root / "head.cfg").write_text(HEAD.format(socket=root / "sock", listener=root / "api"))

    def command(self, argv: Sequence[str], timeout: float) -> CommandResult:
        if argv[0] != "systemctl":
            return run(argv, timeout)
        self.reloads += 1
        os.kill(self.process.pid, signal.SIGUSR2)
        return CommandResult(0)

    @contextmanager
    def running(self) -> Iterator[None]:
        self.gateway.apply("")
        self.process = subprocess.Popen(("haproxy", "-W", "-q", "-f", str(self.root / "haproxy.cfg")))
        try:
            while not (self.root / "sock").exists():
                time.sleep(0.05)
                if self.process.poll() is not None:
                    raise RuntimeError(f"haproxy ended with exit status {self.process.returncode}")
            yield
        finally:
            self.process.terminate()
            self.process.wait()

    def register(self, numbers: Iterable[int]) -> None:
        self.gateway.apply("", {f"gpu{number}": functools.partial(registered, number) for number in numbers})


def registered(number: int, old: RegisteredHost | None) -> RegisteredHost:
    """Return the gateway's registration of a host."""
    return present(old, {"serve-0": Server(f"192.0.2.{1 + number % 250}", 8000 + number, "m", 64)})


def measure(hosts: int, together: bool) -> tuple[float, int]:
    """Register hosts at a new gateway; return the seconds and the number of reloads."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        proxy = Proxy(Path(root))
        with proxy.running():
            began = time.perf_counter()
            for numbers in [range(hosts)] if together else [[number] for number in range(hosts)]:
                proxy.register(numbers)
            seconds = time.perf_counter() - began
            if len(proxy.haproxy.weights()) != hosts:
                raise RuntimeError(f"HAProxy has {len(proxy.haproxy.weights())} of {hosts} hosts")
    return seconds, proxy.reloads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=100, help="number of hosts (default: 100)")
    given = parser.parse_args()
    if not shutil.which("haproxy"):
        parser.error("haproxy is not installed; this benchmark needs it. Run apt-get install haproxy")
    singly, singly_reloads = measure(given.hosts, together=False)
    together, together_reloads = measure(given.hosts, together=True)
    figures = {
        "hosts": given.hosts,
        "one_by_one_seconds": round(singly, 3),
        "one_by_one_reloads": singly_reloads,
        "together_seconds": round(together, 3),
        "together_reloads": together_reloads,
        "ratio": round(singly / together, 1),
    }
    print(json.dumps(figures, sort_keys=True))
    raise SystemExit(together >= singly)
