"""A scripted role host_health: answers with the content of a file, or with nothing while there is none.

python3 scripted_health.py PORT FILE     (FILE has a line for each instance that is unfit: NAME REASON)
Ends with its standard input.
"""

from __future__ import annotations

import socketserver
import sys
import threading
from pathlib import Path


class Client(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        name = self.rfile.readline().decode().strip()
        path = Path(sys.argv[2])
        if not path.exists():
            return
        unfit = dict(line.split(" ", 1) for line in path.read_text().splitlines())
        self.wfile.write(f"down #{unfit[name]}\n".encode() if name in unfit else b"up\n")


if __name__ == "__main__":
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    server = socketserver.ThreadingTCPServer(("127.0.0.1", int(sys.argv[1])), Client)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
