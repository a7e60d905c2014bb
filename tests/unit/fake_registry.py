"""A registry with one image, whose answers can end too early."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REPOSITORY = "nvidia/release"
BLOBS = f"/v2/{REPOSITORY}/blobs/"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class FakeRegistry(ThreadingHTTPServer):
    """budget: bytes of blobs until connections break, None for no end; sent: bytes of blobs that were sent.

    token: what blobs need, "" for nothing; storage: True to redirect to URLs that must not get it; ranges: False to
    ignore the header Range; longest: bytes after which each connection breaks.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.budget: int | None = None
        self.sent = 0
        self.token = ""
        self.tokens = 0
        self.storage = False
        self.ranges = True
        self.longest = 1 << 30
        self.blobs: dict[str, bytes] = {}
        self.manifest = b""
        self.publish(b"first")

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def publish(self, seed: bytes) -> None:
        """Replace the image by one of a layer that both have, an own one and a layer that is there twice."""
        common, own = (
            gzip.compress(hashlib.shake_256(text).digest(size), mtime=0)
            for text, size in ((b"c", 300_000), (seed, 700_000))
        )
        config = json.dumps({"seed": seed.decode()}).encode()
        self.blobs = {digest(blob): blob for blob in (config, common, own)}
        described = [{"digest": digest(blob), "size": len(blob)} for blob in (common, own, common)]
        self.manifest = json.dumps(
            {"config": {"digest": digest(config), "size": len(config)}, "layers": described}
        ).encode()

    @property
    def bytes(self) -> int:
        return sum(map(len, self.blobs.values()))


class Handler(BaseHTTPRequestHandler):
    server: FakeRegistry

    def do_GET(self) -> None:
        registry, authorization = self.server, self.headers.get("Authorization", "")
        if self.path.startswith("/token"):
            registry.tokens += 1
            registry.token = f"token{registry.tokens}"
            self.answer(200, json.dumps({"token": registry.token}).encode())
        elif self.path.startswith("/storage/"):
            assert not authorization, "the storage has its own login"
            self.blob(self.path.rpartition("/")[2])
        elif self.path.startswith(f"/v2/{REPOSITORY}/manifests/"):
            self.answer(200, registry.manifest)
        elif registry.token and authorization != f"Bearer {registry.token}":
            realm = f'Bearer realm="http://{registry.host}/token",service="registry"'
            self.answer(401, b"", {"WWW-Authenticate": realm})
        elif registry.storage:
            storage = f"http://localhost:{registry.server_port}/storage/"
            self.answer(307, b"", {"Location": f"{storage}{self.path.removeprefix(BLOBS)}"})
        else:
            self.blob(self.path.removeprefix(BLOBS))

    def blob(self, name: str) -> None:
        registry, content = self.server, self.server.blobs[name]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if registry.ranges else None
        if asked:
            content = content[int(asked[1]) :]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if registry.budget is not None:
            content = content[: registry.budget]
            registry.budget -= len(content)
        content = content[: registry.longest]
        registry.sent += len(content)
        self.wfile.write(content)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        thread = threading.Thread(target=registry.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join()
