# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answer each request at once, or with a stream of ``max_tokens`` tokens at an interval.

A program for a host: python3 -c TEXT PORT SECONDS. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
WHOLE = json.dumps({"object": "text_completion", "choices": [{"index": 0, "text": "a"}], "usage": USAGE}).encode()
WHOLE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(WHOLE)


def chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


async def request(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    body: dict[str, Any] = json.loads(await reader.readexactly(int(length[1]))) if length else {}
    return body


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while not (asked := await request(reader)).get("stream"):
            writer.write(WHOLE_HEAD + WHOLE)
            await writer.drain()
        writer.write(HEAD)
        for token in range(asked.get("max_tokens", 1)):
            writer.write(chunk(json.dumps({"choices": [{"index": 0, "delta": {"content": f"{token} "}}]})))
            await asyncio.sleep(float(sys.argv[2]))
        writer.write(chunk("[DONE]") + b"0\r\n\r\n")
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass  # the client has disconnected, or the program ends
    finally:
        writer.close()


async def main() -> None:
    # The end of a server as a context would wait for connections that clients keep open.
    await asyncio.start_server(answer, port=int(sys.argv[1]), backlog=4096)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
