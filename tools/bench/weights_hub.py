# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the lab's hub to the benchmark's hosts: ``python -m tools.bench.weights_hub DIRECTORY ADDRESS PORT``.

Prints a line when it accepts requests.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lab.origin.hub.server import HubServer


class ReachableHub(HubServer):
    """Hub on a reachable address; the lab's listens on loopback, behind a web server with TLS."""

    def server_bind(self) -> None:
        self.server_address = (sys.argv[2], int(sys.argv[3]))
        super().server_bind()


if __name__ == "__main__":
    hub = ReachableHub(Path(sys.argv[1]))
    print("ready", flush=True)
    hub.serve_forever()
