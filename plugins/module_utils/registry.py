# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the size of an image from the manifest in its registry.

Sources: OCI Distribution Specification 1.1, and Docker's token authentication.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
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
TIMEOUT = 10.0  # seconds, of each answer
CERTIFICATES = Path("/etc/docker/certs.d")
# The registry of images without a host name.
DOCKER_HUB = "registry-1.docker.io"


class RegistryError(Exception):
    """The registry does not return the manifest; the message has the reason."""


def split_image(image: str) -> tuple[str, str, str]:
    """Return registry, repository and reference (a digest, else the tag) of an image's name."""
    match = re.fullmatch(r"(?:([^/]*[.:][^/]*|localhost)/)?([^:@]+)(?::([^@]+))?(?:@(.+))?", image)
    if not match:
        raise RegistryError(f"{image} is not the name of an image")
    registry, repository, tag, digest = match.groups()
    if not registry:
        registry, repository = DOCKER_HUB, repository if "/" in repository else f"library/{repository}"
    return registry, repository, digest or tag or "latest"


class Registry:
    """A registry, queried over HTTPS with a login of the operator. ``scheme`` is for tests."""

    def __init__(self, host: str, logins: Sequence[Mapping[str, str]], scheme: str = "https") -> None:
        self._url = f"{scheme}://{host}/v2/"
        login = next((each for each in logins if each["registry"] == host), None)
        basic = base64.b64encode(f"{login['username']}:{login['password']}".encode()).decode() if login else ""
        self._basic = f"Basic {basic}" if basic else ""
        context = ssl.create_default_context()
        for file in sorted((CERTIFICATES / host).glob("*.crt")):
            context.load_verify_locations(file)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
        self._authorization = ""

    def layers_bytes(self, repository: str, reference: str, machine: str) -> int:
        """Return the bytes of all layers, compressed, of the image for a machine. Raises RegistryError."""
        manifest = self._manifest(repository, reference)
        if "manifests" in manifest:
            wanted = {"os": "linux", "architecture": ARCHITECTURES.get(machine, machine)}
            digests = [
                each["digest"]
                for each in manifest["manifests"]
                if all(each.get("platform", {}).get(key) == value for key, value in wanted.items())
            ]
            if not digests:
                raise RegistryError(f"{repository}:{reference} has no image for {machine}")
            manifest = self._manifest(repository, digests[0])
        try:
            return sum(int(layer["size"]) for layer in manifest["layers"])
        except (KeyError, TypeError, ValueError):
            raise RegistryError(f"the manifest of {repository}:{reference} has no sizes") from None

    def _manifest(self, repository: str, reference: str) -> dict[str, Any]:
        url = f"{self._url}{repository}/manifests/{reference}"
        try:
            return self._get(url, self._authorization)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or self._authorization or not challenge:
                raise RegistryError(f"{url}: {error.code} {error.reason}") from None
        self._authorization = self._authorize(challenge)
        try:
            return self._get(url, self._authorization)
        except urllib.error.HTTPError as error:
            raise RegistryError(f"{url}: {error.code} {error.reason}") from None

    def _authorize(self, challenge: str) -> str:
        """Return the header that a registry requires: the login, or a token for it."""
        kind, _space, rest = challenge.partition(" ")
        if kind.lower() != "bearer":
            return self._basic
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = fields.pop("realm", "")
        try:
            answer = self._get(f"{realm}?{urlencode(fields)}", self._basic)
        except urllib.error.HTTPError as error:
            raise RegistryError(f"{realm}: {error.code} {error.reason}") from None
        return f"Bearer {answer.get('token') or answer.get('access_token')}"

    def _get(self, url: str, authorization: str) -> dict[str, Any]:
        headers = {"Accept": ACCEPTED, **({"Authorization": authorization} if authorization else {})}
        try:
            with self._opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError:
            raise
        except (OSError, ValueError) as error:  # no connection, no certificate that is trusted, no JSON
            raise RegistryError(f"{url}: {error}") from None
