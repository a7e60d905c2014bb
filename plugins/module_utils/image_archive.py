# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container image from a registry in a file that ``docker load`` takes. skopeo fetches it; no Docker is needed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

# What registries call the machines that the kernel calls so.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
RETRIES = 3

# skopeo with arguments, to its standard output.
Skopeo = Callable[..., bytes]


class ImageError(Exception):
    """The image cannot be had; the message says why, and which variable to change."""


@dataclass(frozen=True)
class Image:
    """An image for one architecture: ``digest`` is what its tag stands for, ``id`` is what Docker calls the image."""

    digest: str
    id: str
    layers_bytes: int


def client_configuration(logins: Iterable[Mapping[str, str]]) -> str:
    """A Docker client configuration, from ``registry``, ``username`` and ``password`` of each."""
    auths = {
        login["registry"]: {"auth": base64.b64encode(f"{login['username']}:{login['password']}".encode()).decode()}
        for login in logins
    }
    return json.dumps({"auths": auths})


def program(path: str, authfile: str) -> Skopeo:
    """skopeo, which logs in as the file says."""

    def skopeo(command: str, *arguments: str) -> bytes:
        done = subprocess.run(
            [path, command, "--authfile", authfile, "--retry-times", str(RETRIES), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise ImageError(explain(done.stderr.decode(errors="replace")))
        return done.stdout

    return skopeo


def explain(errors: str) -> str:
    """The last thing that skopeo said, and what to change."""
    said = (
        re.findall(r'level=fatal msg="((?:[^"\\]|\\.)*)"', errors)
        or errors.strip().splitlines()[-1:]
        or ["skopeo fails"]
    )
    cause = said[-1].replace('\\"', '"')
    return f"{cause}. Look at serving_recipe_image, docker_engine_registry_logins and the way to the registry."


def look_up(name: str, machine: str, skopeo: Skopeo) -> Image:
    """The image that the registry has for a machine. Raises ImageError."""
    raw = skopeo("inspect", "--raw", f"docker://{name}")
    digest, manifest = f"sha256:{hashlib.sha256(raw).hexdigest()}", json.loads(raw)
    if "manifests" in manifest:
        repository = re.sub(r":[^:/]+$", "", name)
        manifest = json.loads(skopeo("inspect", "--raw", f"docker://{repository}@{choose(name, manifest, machine)}"))
    layers = sum(layer["size"] for layer in manifest["layers"])
    return Image(digest, manifest["config"]["digest"], layers)


def choose(name: str, index: Mapping[str, Any], machine: str) -> str:
    """Digest of the image for a machine in an index of several. Raises ImageError."""
    wanted = ("linux", ARCHITECTURES.get(machine, machine))
    for entry in index["manifests"]:
        platform = entry.get("platform", {})
        if (platform.get("os"), platform.get("architecture")) == wanted:
            return str(entry["digest"])
    raise ImageError(f"There is no {name} for {machine}: set serving_recipe_image to an image that has one.")


def holds(path: Path, name: str, image: Image) -> bool:
    """Whether the archive is of this image, under this name, which it has with the registry that Docker would add."""
    with suppress(OSError, tarfile.TarError, KeyError, ValueError), tarfile.open(path) as archive:
        content = archive.extractfile("manifest.json")
        (entry,) = json.load(content) if content else [{}]
        (tag,) = entry["RepoTags"]
        return entry["Config"] == f"{image.id.partition(':')[2]}.json" and f"/{tag}".endswith(f"/{name}")
    return False


def fetch(path: Path, name: str, skopeo: Skopeo) -> None:
    """Put the image into the archive, which is there whole or not at all. Raises ImageError and OSError."""
    new = path.with_name(f"{path.name}.new")
    # skopeo adds to no archive, and has no use for the beginning of one.
    new.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    skopeo("copy", f"docker://{name}", f"docker-archive:{new}:{name}")
    os.replace(new, path)
