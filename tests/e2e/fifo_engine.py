"""A scripted engine in the standard library that admits requests in order and hangs while a file exists.

  python3 fifo_engine.py PORT SLOTS TOKEN_SECONDS FAULT_FILE
While FAULT_FILE exists it hangs: /health is 200, headers of streams are sent, and no further byte. If the file contains
refuse, each completion gets a 400; if it contains unmetered, /metrics is empty and all else works. A request without
tokens gets a 400 too. The engine ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

HEAD = "HTTP/1.1 {}\r\nContent-Type: {}\r\nConnection: close\r\n"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
ANSWER = {
    "id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "object": "chat.completion",
    "created": 1795452525,
    "model": "openai/gpt-oss-120b",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "a", "reasoning_content": None, "tool_calls": []},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "disaggregated_params": None,
        }
    ],
    "usage": USAGE,
}
CHUNK = {**ANSWER, "object": "chat.completion.chunk", "usage": None}


class Engine:
    def __init__(self, slots: int, token_seconds: float, fault: Path) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.token_seconds = token_seconds
        self.fault = fault
        self.iteration = 0
        self.unread: list[dict[str, int]] = []

    def says(self, word: str) -> bool:
        return self.fault.exists() and self.fault.read_text() == word

    async def token(self) -> None:
        await asyncio.sleep(self.token_seconds)
        while self.fault.exists() and not self.says("unmetered"):
            await asyncio.sleep(0.2)
        self.iteration += 1
        self.unread = [*self.unread[-999:], {"iter": self.iteration}]

    async def complete(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        tokens, streamed = asked.get("max_tokens", 10000), asked.get("stream", False)
        if tokens < 1 or self.says("refuse"):
            writer.write(whole("{}", "400 Bad Request"))
            return
        if streamed:
            writer.write(f"{HEAD.format('200 OK', 'text/event-stream')}\r\n".encode())
            await writer.drain()
        async with self.slots:
            for _token in range(tokens):
                await self.token()
                if streamed:
                    writer.write(f"data: {json.dumps(CHUNK)}\n\n".encode())
                    await writer.drain()
        writer.write(b"data: [DONE]\n\n" if streamed else whole(json.dumps(ANSWER)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        method, path, _version = head.split("\r\n")[0].split()
        length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if method == "get":
            unread, self.unread = self.unread, [] if path == "/metrics" else self.unread
            metrics = [] if self.says("unmetered") else unread
            writer.write(whole(json.dumps(metrics) if path == "/metrics" else ""))
        else:
            # Stop work for a disconnected client.
            done = asyncio.ensure_future(self.complete(json.loads(body), writer))
            await asyncio.wait([done, gone := asyncio.ensure_future(reader.read())], return_when="FIRST_COMPLETED")
            done.cancel()
            gone.cancel()
        writer.close()


def whole(text: str, status: str = "200 OK") -> bytes:
    return f"{HEAD.format(status, 'application/json')}Content-Length: {len(text)}\r\n\r\n{text}".encode()


async def main(port: str, slots: str, token_seconds: str, fault: str) -> None:
    engine = Engine(int(slots), float(token_seconds), Path(fault))
    server = await asyncio.start_server(engine.serve, "", int(port))
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
