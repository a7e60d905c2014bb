# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read images from their registry.

Sources: OCI Distribution Specification 1.1, and Docker's token authentication.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ACCEPTED = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
# Architectures in an image index by machine name of uname.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
TIMEOUT = 10.0  # seconds, of each answer and of each wait for more of it
ATTEMPTS = 8  # to go on with a blob, without a byte of it
PAUSE = 2.0  # seconds before the second attempt; twice as much before the third
CHUNK = 1 << 20
# Statuses of a server that may answer later: Request Timeout, Too Many Requests, and its own errors.
TEMPORARY = {408, 429, *range(500, 600)}
CERTIFICATES = Path("/etc/docker/certs.d")
# The registry of images without a host name, and its other names.
DOCKER_HUB = "registry-1.docker.io"
DOCKER_HUB_NAMES = {DOCKER_HUB, "docker.io", "index.docker.io", "https://index.docker.io/v1/"}


class RegistryError(Exception):
    """The registry does not return a manifest or a blob; the message has the reason."""


@dataclass(frozen=True)
class Blob:
    """A part of an image: its digest, and its size in bytes as the registry sends it."""

    digest: str
    size: int


@dataclass(frozen=True)
class Image:
    """An image for one architecture.

    ``digest``: that of its tag in the registry, which may be an index. ``config``: the blob whose digest Docker's image
    store takes for the ID of the image.
    """

    digest: str
    config: Blob
    layers: tuple[Blob, ...]

    @property
    def layers_bytes(self) -> int:
        """The size of all layers, compressed."""
        return sum(layer.size for layer in self.layers)


def split_image(image: str) -> tuple[str, str, str]:
    """Return registry, repository and reference (a digest, else the tag) of an image's name. Raises RegistryError."""
    match = re.fullmatch(r"(?:([^/]*[.:][^/]*|localhost)/)?([^:@]+)(?::([^@]+))?(?:@(.+))?", image)
    if not match:
        raise RegistryError(f"{image} is not the name of an image")
    registry, repository, tag, digest = match.groups()
    if not registry or registry in DOCKER_HUB_NAMES:
        registry, repository = DOCKER_HUB, repository if "/" in repository else f"library/{repository}"
    return registry, repository, digest or tag or "latest"


class Registry:
    """A registry, queried over HTTPS with a login of the operator. ``scheme`` is for tests."""

    def __init__(self, host: str, logins: Sequence[Mapping[str, str]], scheme: str = "https") -> None:
        self._url = f"{scheme}://{host}/v2/"
        names = DOCKER_HUB_NAMES if host == DOCKER_HUB else {host}
        login = next((each for each in logins if each["registry"] in names), None)
        basic = base64.b64encode(f"{login['username']}:{login['password']}".encode()).decode() if login else ""
        self._basic = f"Basic {basic}" if basic else ""
        context = ssl.create_default_context()
        for file in sorted((CERTIFICATES / host).glob("*.crt")):
            context.load_verify_locations(file)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
        self._authorization = ""

    def image(self, repository: str, reference: str, machine: str) -> Image:
        """Return the image for a machine, as uname names it. Raises RegistryError."""
        content = self._manifest(repository, reference)
        digest, manifest = f"sha256:{hashlib.sha256(content).hexdigest()}", self._parse(content, reference)
        if "manifests" in manifest:
            wanted = {"os": "linux", "architecture": ARCHITECTURES.get(machine, machine)}
            digests = [
                each["digest"]
                for each in manifest["manifests"]
                if all(each.get("platform", {}).get(key) == value for key, value in wanted.items())
            ]
            if not digests:
                raise RegistryError(f"{repository}:{reference} has no image for {machine}")
            manifest = self._parse(self._manifest(repository, digests[0]), digests[0])
        try:
            config, *layers = (
                Blob(str(blob["digest"]), int(blob["size"])) for blob in [manifest["config"], *manifest["layers"]]
            )
        except (KeyError, TypeError, ValueError):
            raise RegistryError(f"the manifest of {repository}:{reference} has no sizes") from None
        return Image(digest, config, tuple(layers))

    def read(self, repository: str, blob: Blob, start: int = 0) -> Iterator[bytes]:
        """Yield a blob from a byte on. Goes on where a connection breaks. Raises RegistryError."""
        url, attempt = f"{self._url}{repository}/blobs/{blob.digest}", 0
        while start < blob.size:
            reason = "the answer ended too early"
            try:
                with self._open(url, {"Range": f"bytes={start}-"} if start else {}) as answer:
                    position = start if answer.status == 206 else 0  # a server may send all of it
                    while chunk := answer.read(min(CHUNK, (start if position < start else blob.size) - position)):
                        position += len(chunk)
                        if position > start:
                            start, attempt = position, 0
                            yield chunk
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
            if start < blob.size:
                attempt += 1
                if attempt == ATTEMPTS:
                    raise RegistryError(f"{url}, byte {start} of {blob.size}: {reason}")
                time.sleep(PAUSE * (attempt - 1))

    def _manifest(self, repository: str, reference: str) -> bytes:
        return self._get(f"{self._url}{repository}/manifests/{reference}", {"Accept": ACCEPTED})

    @staticmethod
    def _parse(content: bytes, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads(content))
        except (TypeError, ValueError):
            raise RegistryError(f"{name} is not a JSON object") from None

    def _get(self, url: str, headers: Mapping[str, str]) -> bytes:
        try:
            with self._open(url, headers) as answer:
                return bytes(answer.read())
        except (OSError, http.client.HTTPException) as error:  # no connection, or no certificate that is trusted
            raise RegistryError(f"{url}: {error}") from None

    def _open(self, url: str, headers: Mapping[str, str]) -> Any:
        """Return the answer, logged in where the registry requires it.

        Raises:
            RegistryError: The registry refuses.
            OSError: It may answer later.
        """
        try:
            return self._request(url, headers, self._authorization)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code in TEMPORARY:
                raise
            if error.code != 401 or not challenge:
                raise RegistryError(f"{url}: {error.code} {error.reason}") from None
        self._authorization = self._authorize(challenge)  # a token ends after minutes
        try:
            return self._request(url, headers, self._authorization)
        except urllib.error.HTTPError as error:
            raise RegistryError(f"{url}: {error.code} {error.reason}") from None

    def _authorize(self, challenge: str) -> str:
        """Return the header that a registry requires: the login, or a token for it. Raises RegistryError, OSError."""
        kind, _space, rest = challenge.partition(" ")
        if kind.lower() != "bearer":
            return self._basic
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = fields.pop("realm", "")
        try:
            with self._request(f"{realm}?{urlencode(fields)}", {}, self._basic) as answer:
                given = self._parse(answer.read(), realm)
        except urllib.error.HTTPError as error:
            raise RegistryError(f"{realm}: {error.code} {error.reason}") from None
        return f"Bearer {given.get('token') or given.get('access_token')}"

    def _request(self, url: str, headers: Mapping[str, str], authorization: str) -> Any:
        request = urllib.request.Request(url, headers=dict(headers))
        if authorization:  # not for the storage that the registry redirects to, which has another login in the URL
            request.add_unredirected_header("Authorization", authorization)
        return self._opener.open(request, timeout=TIMEOUT)
