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
from urllib.parse import urlencode, urlsplit

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
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PAUSE = 2.0  # seconds before the second attempt; twice as much before the third
LONGEST_PAUSE = 60.0  # seconds, where a registry names them (Retry-After)
CHUNK = 1 << 20
# Statuses of a server that may answer later: Request Timeout, Too Many Requests, and its own errors.
TEMPORARY = {408, 429, *range(500, 600)}
CERTIFICATES = Path("/etc/docker/certs.d")
# The registry of images without a host name, and its other names.
DOCKER_HUB = "registry-1.docker.io"
DOCKER_HUB_NAMES = {DOCKER_HUB, "docker.io", "index.docker.io", "https://index.docker.io/v1/"}
# What a broken connection raises.
BROKEN = (OSError, http.client.HTTPException)


class RegistryError(Exception):
    """The registry does not return a manifest or a blob; the message has the reason."""


@dataclass(frozen=True)
class Blob:
    """A part of an image: its digest (SHA-256), and its size in bytes as the registry sends it."""

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


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Keeps the login for the same server. Storage that a registry redirects to has another one in its URL."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> Any:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        login = req.unredirected_hdrs.get("Authorization")
        if request is not None and login and _server(newurl) == _server(req.full_url):
            request.add_unredirected_header("Authorization", login)
        return request


class Registry:
    """A registry, queried over HTTPS with a login of the operator.

    ``scheme``: for tests. ``attempts``: those without a byte of the answer after which it is given up; ``timeout``:
    seconds to wait for an answer, and for more of it. Raises RegistryError if a certificate in Docker's directory of
    the registry cannot be used.
    """

    def __init__(
        self,
        host: str,
        logins: Sequence[Mapping[str, str]],
        scheme: str = "https",
        attempts: int = 1,
        timeout: float = 10.0,
    ) -> None:
        self._url = f"{scheme}://{host}/v2/"
        self._attempts, self._timeout = attempts, timeout
        names = DOCKER_HUB_NAMES if host == DOCKER_HUB else {host}
        login = next((each for each in logins if each["registry"] in names), None)
        basic = base64.b64encode(f"{login['username']}:{login['password']}".encode()).decode() if login else ""
        self._basic = f"Basic {basic}" if basic else ""
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_context(host)), _Redirects)
        self._authorization = ""

    def image(self, repository: str, reference: str, machine: str) -> Image:
        """Return the image for a machine, as uname names it. Raises RegistryError."""
        name = f"{repository}:{reference}"
        try:
            digest, manifest = self._manifest(repository, reference)
            if "manifests" in manifest:
                wanted = {"os": "linux", "architecture": ARCHITECTURES.get(machine, machine)}
                digests = [
                    str(each["digest"])
                    for each in manifest["manifests"]
                    if all((each.get("platform") or {}).get(key) == value for key, value in wanted.items())
                ]
                if not digests:
                    raise RegistryError(f"{name} has no image for {machine}")
                _digest, manifest = self._manifest(repository, digests[0])
            config, *layers = (_blob(blob) for blob in [manifest["config"], *manifest["layers"]])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise RegistryError(f"the manifest of {name} has no SHA-256 digests and sizes of its layers") from None
        return Image(digest, config, tuple(layers))

    def read(self, repository: str, blob: Blob, start: int = 0) -> Iterator[bytes]:
        """Yield a blob from a byte on. Goes on where a connection breaks. Raises RegistryError."""
        url, attempt = f"{self._url}{repository}/blobs/{blob.digest}", 0
        while start < blob.size:
            problem: Exception = http.client.HTTPException("the answer ended too early")
            try:
                with self._open(url, {"Range": f"bytes={start}-"} if start else {}) as answer:
                    position = start if answer.status == 206 else 0  # a server may send all of it
                    # read1, because read would lose what it has when a connection breaks.
                    while chunk := answer.read1(min(CHUNK, (start if position < start else blob.size) - position)):
                        position += len(chunk)
                        if position > start:
                            start, attempt = position, 0
                            yield chunk
            except BROKEN as error:
                problem = error
            if start < blob.size:
                attempt += 1
                self._pause(f"{url}, byte {start} of {blob.size}", problem, attempt)

    def _manifest(self, repository: str, reference: str) -> tuple[str, dict[str, Any]]:
        """Return the digest and the content of a manifest. Raises RegistryError and ValueError."""
        url, attempt = f"{self._url}{repository}/manifests/{reference}", 0
        while True:
            try:
                with self._open(url, {"Accept": ACCEPTED}) as answer:
                    content = bytes(answer.read())
                    break
            except BROKEN as error:  # no connection, or no certificate that is trusted
                attempt += 1
                self._pause(url, error, attempt)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if DIGEST.fullmatch(reference) and digest != reference:
            raise RegistryError(f"{url} has the digest {digest}")
        return digest, dict(json.loads(content))

    def _pause(self, what: str, problem: Exception, attempt: int) -> None:
        """Wait before the next attempt. Raises RegistryError after the last one."""
        if attempt >= self._attempts:
            raise RegistryError(f"{what}: {problem or type(problem).__name__}") from None
        named = problem.headers.get("Retry-After", "") if isinstance(problem, urllib.error.HTTPError) else ""
        time.sleep(min(float(named), LONGEST_PAUSE) if named.isdecimal() else PAUSE * (attempt - 1))

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
            # Another server that the registry redirects to is not told the login.
            if error.code != 401 or not challenge or _server(error.url) != _server(url):
                raise _refusal(error) from None
        self._authorization = self._authorize(challenge)  # a token ends after minutes
        try:
            return self._request(url, headers, self._authorization)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None

    def _authorize(self, challenge: str) -> str:
        """Return the header that a registry requires: the login, or a token for it. Raises RegistryError, OSError."""
        kind, _space, rest = challenge.partition(" ")
        if kind.lower() != "bearer":
            return self._basic
        fields = {name: quoted or bare for name, quoted, bare in re.findall(r'(\w+)=(?:"([^"]*)"|([^\s,"]+))', rest)}
        realm = fields.pop("realm", "")
        scheme, server = _server(realm)
        if not server or scheme not in ("https", _server(self._url)[0]):
            raise RegistryError(f"{self._url} names {realm!r} for a token, which is not a URL of HTTPS")
        try:
            with self._request(f"{realm}?{urlencode(fields)}", {}, self._basic) as answer:
                given = json.loads(answer.read())
                return f"Bearer {given.get('token') or given['access_token']}"
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (AttributeError, KeyError, TypeError, ValueError):
            raise RegistryError(f"{realm} returns no token") from None

    def _request(self, url: str, headers: Mapping[str, str], authorization: str) -> Any:
        request = urllib.request.Request(url, headers=dict(headers))
        if authorization:
            request.add_unredirected_header("Authorization", authorization)
        return self._opener.open(request, timeout=self._timeout)


def _context(host: str) -> ssl.SSLContext:
    """Return the authorities and the client certificate that Docker has for a registry. Raises RegistryError."""
    context, folder = ssl.create_default_context(), CERTIFICATES / host
    try:
        for file in sorted(folder.glob("*.crt")):
            context.load_verify_locations(file)
        for file in sorted(folder.glob("*.cert")):
            context.load_cert_chain(file, file.with_suffix(".key"))
    except OSError as error:
        raise RegistryError(f"a certificate in {folder} cannot be used: {error}") from None
    return context


def _refusal(error: urllib.error.HTTPError) -> Exception:
    """Return what an error means: the error itself if the server may answer later."""
    return error if error.code in TEMPORARY else RegistryError(f"{error.url}: {error.code} {error.reason}")


def _server(url: str) -> tuple[str, str]:
    """Return scheme, and host with port, of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _blob(given: Mapping[str, Any]) -> Blob:
    """Return a blob of a manifest. Raises KeyError, TypeError, ValueError."""
    digest, size = given["digest"], given["size"]
    if not DIGEST.fullmatch(digest) or not isinstance(size, int) or size < 0:
        raise ValueError(f"{digest} of {size} bytes")
    return Blob(digest, size)
