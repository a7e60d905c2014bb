# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The size of an image from a scripted registry, with and without a login."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils import registry as module
from ansible_collections.trtllm.fleet.plugins.module_utils.registry import Registry, RegistryError, split_image

BASIC = "Basic " + base64.b64encode(b"$oauthtoken:secret").decode()
DIGEST = f"sha256:{'c' * 64}"


def manifest(*sizes: int) -> dict[str, Any]:
    return {"config": {"digest": DIGEST, "size": 1}, "layers": [{"digest": DIGEST, "size": size} for size in sizes]}


def digest(manifest: Any) -> str:
    return f"sha256:{hashlib.sha256(json.dumps(manifest).encode()).hexdigest()}"


AMD, ARM = manifest(30, 12), manifest(7)
INDEX = {
    "manifests": [
        {"digest": digest(AMD), "platform": {"os": "linux", "architecture": "amd64"}},
        {"digest": digest(ARM), "platform": {"os": "linux", "architecture": "arm64"}},
        {"digest": digest("an attestation"), "platform": None},
    ]
}
OTHER = f"sha256:{'d' * 64}"
MANIFESTS: dict[str, Any] = {
    "1.2.1": INDEX,
    digest(AMD): AMD,
    digest(ARM): ARM,
    "single": manifest(5),
    "old": {"schemaVersion": 1, "fsLayers": []},
    "no-manifests": {"manifests": None},
    "no-digest": {"manifests": [{"platform": {"os": "linux", "architecture": "amd64"}}]},
    "sha512": {**manifest(1), "layers": [{"digest": f"sha512:{'a' * 128}", "size": 1}]},
    "path": {**manifest(1), "layers": [{"digest": "sha256:../../etc/passwd", "size": 1}]},
    "negative": manifest(-1),
    "list": [],
    OTHER: manifest(1),
}


BROKEN = ("old", "no-manifests", "no-digest", "sha512", "path", "negative", "list")


class Handler(BaseHTTPRequestHandler):
    """A registry that needs the login, or a token that its realm gives for the login."""

    server: Server

    def do_GET(self) -> None:
        authorization, reference = self.headers.get("Authorization", ""), self.path.rpartition("/")[2]
        realm = f"http://127.0.0.1:{self.server.server_port}/token"
        if self.path.startswith("/token?"):
            assert "service=registry" in self.path
            assert "scope=repository%3Anvidia%2Frelease%3Apull" in self.path
            return self.answer(200 if authorization == BASIC else 401, {"token": "t0ken"})
        if self.server.busy:
            self.server.busy -= 1
            return self.answer(503, {})
        if self.path.startswith("/v2/moved/"):
            return self.move(self.path.replace("moved", "nvidia/release"))
        if self.path.startswith("/v2/elsewhere/"):
            return self.move(f"http://localhost:{self.server.server_port}/v2/storage")
        if self.path == "/v2/storage":
            return self.answer(401, {}, f'Bearer realm="{realm}",service="evil"')
        if self.server.kind == "basic" and authorization != BASIC:
            return self.answer(401, {}, 'Basic realm="registry"')
        if self.server.kind == "bearer" and authorization != "Bearer t0ken":
            named = {
                "quoted": f'"{realm}"',
                "bare": realm,
                "none": "",
                "relative": '"/token"',
                "file": '"file:///etc/passwd"',
            }
            challenge = (
                f'Bearer realm={named[self.server.realm]},service="registry",scope="repository:nvidia/release:pull"'
            )
            return self.answer(401, {}, challenge)
        assert self.path.startswith("/v2/nvidia/release/manifests/")
        return self.answer(200 if reference in MANIFESTS else 404, MANIFESTS.get(reference, {}))

    def move(self, place: str) -> None:
        if self.headers.get("Authorization", "") != BASIC:
            self.answer(401, {}, 'Basic realm="registry"')
        else:
            self.send_response(302)
            self.send_header("Location", place)
            self.end_headers()

    def answer(self, status: int, body: Any, challenge: str = "") -> None:
        self.send_response(status)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """busy: requests that are answered with 503 first."""

    kind = "none"
    realm = "quoted"
    busy = 0


@pytest.fixture(name="server")
def fixture_server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def registry(server: Server, login: bool = True) -> Registry:
    host = f"127.0.0.1:{server.server_port}"
    logins = [{"registry": host, "username": "$oauthtoken", "password": "secret"}] if login else []
    return Registry(host, logins, scheme="http")


@pytest.mark.parametrize("kind", ["none", "basic", "bearer"])
@pytest.mark.parametrize(("machine", "size"), [("x86_64", 42), ("aarch64", 7)])
def test_the_layers_of_the_machine_are_added_up(server: Server, kind: str, machine: str, size: int) -> None:
    server.kind = kind
    assert registry(server).image("nvidia/release", "1.2.1", machine).layers_bytes == size


def test_an_image_for_one_machine_only(server: Server) -> None:
    assert registry(server).image("nvidia/release", "single", "x86_64").layers_bytes == 5


@pytest.mark.parametrize(
    ("reference", "machine", "said"),
    [
        ("0.1", "x86_64", "404 Not Found"),
        ("1.2.1", "riscv64", "has no image for riscv64"),
        *((name, "x86_64", "has no SHA-256 digests and sizes") for name in BROKEN),
        (OTHER, "x86_64", "has the digest sha256:"),
    ],
)
def test_what_the_registry_does_not_have(server: Server, reference: str, machine: str, said: str) -> None:
    with pytest.raises(RegistryError, match=said):
        registry(server).image("nvidia/release", reference, machine)


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_without_a_login_the_refusal_has_no_secret(server: Server, kind: str) -> None:
    server.kind = kind
    with pytest.raises(RegistryError, match="401 Unauthorized") as refused:
        registry(server, login=False).image("nvidia/release", "1.2.1", "x86_64")
    assert "secret" not in str(refused.value)


def test_a_registry_that_is_not_there() -> None:
    with pytest.raises(RegistryError, match="refused"):
        Registry("127.0.0.1:9", [], scheme="http").image("nvidia/release", "1.2.1", "x86_64")


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.1", ("nvcr.io", "nvidia/tensorrt-llm/release", "1.2.1")),
        ("registry.example.com:5000/release:1.2.1", ("registry.example.com:5000", "release", "1.2.1")),
        ("localhost/release", ("localhost", "release", "latest")),
        ("nvcr.io/a/b:1@sha256:ab", ("nvcr.io", "a/b", "sha256:ab")),
        ("nats:2.10", ("registry-1.docker.io", "library/nats", "2.10")),
        ("docker.io/nats:2.10", ("registry-1.docker.io", "library/nats", "2.10")),
        ("bitnami/etcd:3", ("registry-1.docker.io", "bitnami/etcd", "3")),
    ],
)
def test_names(image: str, parts: tuple[str, str, str]) -> None:
    assert split_image(image) == parts


def test_a_realm_without_quotes(server: Server) -> None:
    server.kind, server.realm = "bearer", "bare"
    assert registry(server).image("nvidia/release", "single", "x86_64").layers_bytes == 5


@pytest.mark.parametrize("realm", ["none", "relative", "file"])
def test_a_realm_that_is_no_url_is_refused(server: Server, realm: str) -> None:
    server.kind, server.realm = "bearer", realm
    with pytest.raises(RegistryError, match="for a token, which is not a URL of HTTPS"):
        registry(server).image("nvidia/release", "single", "x86_64")


def test_a_redirect_on_the_same_server_keeps_the_login(server: Server) -> None:
    server.kind = "basic"
    assert registry(server).image("moved", "single", "x86_64").layers_bytes == 5


def test_another_server_is_not_told_the_login(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever realm it names: the realm here would take the login."""
    server.kind = "basic"
    asked: list[str] = []
    answered = Handler.do_GET

    def note(handler: Handler) -> None:
        asked.append(handler.path.partition("?")[0])
        answered(handler)

    monkeypatch.setattr(Handler, "do_GET", note)
    with pytest.raises(RegistryError, match="401 Unauthorized"):
        registry(server).image("elsewhere", "single", "x86_64")
    assert asked[-1] == "/v2/storage"
    assert "/token" not in asked


@pytest.mark.parametrize(("attempts", "answered"), [(1, False), (3, True)])
def test_a_registry_that_is_busy_is_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, attempts: int, answered: bool
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    server.busy = 2
    asked = Registry(f"127.0.0.1:{server.server_port}", [], scheme="http", attempts=attempts)
    if answered:
        assert asked.image("nvidia/release", "single", "x86_64").layers_bytes == 5
        return
    with pytest.raises(RegistryError, match="503"):
        asked.image("nvidia/release", "single", "x86_64")
