"""A proxy in front of an engine that plants a defect into a share of its answers.

Runs on the canary's host: defective_canary.py PORT ENGINE_PORT DEFECT SHARE. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

HARMONY = "<|channel|>analysis<|message|>"


def spoil(chunk: dict[str, Any], defect: str, number: int) -> dict[str, Any] | None:
    """Return an answer, or the event of a stream with this number, with a defect; None leaves an event out."""
    for choice in chunk.get("choices", []):
        part = choice.get("message") or choice.get("delta") or {}
        content = part.get("content") or ""
        if defect == "raw_harmony" and content:
            part["content"] = HARMONY + content
        elif defect == "tool_calls":
            part["tool_calls"] = [{"index": 0, "id": "1", "function": {"name": "weather", "arguments": '{"city":'}}]
        elif defect == "garbage" and content:
            part["content"] = "".join(
                random.choices([chr(code) for code in range(0x21, 0x2FF)], k=max(40, len(content)))
            )
        elif defect == "cut" and "message" in choice:
            part["content"] = content[: len(content) // 2]
            choice["finish_reason"] = "stop"
        elif defect == "cut" and choice.get("finish_reason"):
            choice["finish_reason"] = "stop"
        elif defect == "cut" and number > 8:
            return None
    if defect == "model":
        chunk["model"] = "another"
    if defect == "cut" and chunk.get("usage"):
        chunk["usage"]["completion_tokens"] = chunk["usage"]["completion_tokens"] // 2
    return chunk


def slowed(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines as if each had taken 30 percent longer, however fast they are taken."""
    began = time.monotonic()
    arrived: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def read() -> None:
        for line in lines:
            arrived.put((time.monotonic() - began, line))
        arrived.put((0.0, b""))

    threading.Thread(target=read, daemon=True).start()
    while (found := arrived.get())[1]:
        time.sleep(max(0.0, began + found[0] * 1.3 - time.monotonic()))
        yield found[1]


class Server(ThreadingHTTPServer):
    request_queue_size = 128


class Proxy(BaseHTTPRequestHandler):
    """Forward each request to the engine."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        defect = DEFECT if random.random() < SHARE else ""
        if defect == "hang":
            time.sleep(600)
        engine = http.client.HTTPConnection("127.0.0.1", ENGINE, timeout=120)
        engine.request("POST", self.path, body, {"Content-Type": "application/json"})
        answer = engine.getresponse()
        kind = answer.getheader("Content-Type") or ""
        self.send_response(answer.status)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        number = 0
        if "text/event-stream" not in kind:
            content = json.loads(answer.read())
            self.write(json.dumps(spoil(content, defect, 0) if defect else content).encode())
        else:
            for line in slowed(answer) if defect == "slow" else answer:
                if line.startswith(b"data: {") and defect:
                    number += 1
                    spoiled = spoil(json.loads(line[6:]), defect, number)
                    line = b"data: " + json.dumps(spoiled).encode() + b"\n" if spoiled else b": left out\n"
                self.write(line)
        self.wfile.write(b"0\r\n\r\n")

    def write(self, part: bytes) -> None:
        self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    PORT, ENGINE, DEFECT, SHARE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    Server(("0.0.0.0", PORT), Proxy).serve_forever()
