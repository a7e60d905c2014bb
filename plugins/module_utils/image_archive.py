# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Save a container image from a registry to a file for ``docker load``, with skopeo. Docker is not needed."""

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

# Names of architectures in registries, by those of the kernel.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
RETRIES = 3

# skopeo with arguments, to its standard output.
Skopeo = Callable[..., bytes]


class ImageError(Exception):
    """The image is not available; the message gives the cause."""


@dataclass(frozen=True)
class Image:
    """An image for one architecture. ``digest`` is that of its tag in the registry, ``id`` is Docker's."""

    digest: str
    id: str
    layers_bytes: int


def client_configuration(logins: Iterable[Mapping[str, str]]) -> str:
    """Build a Docker client configuration, from ``registry``, ``username`` and ``password`` of each login."""
    auths = {
        login["registry"]: {"auth": base64.b64encode(f"{login['username']}:{login['password']}".encode()).decode()}
        for login in logins
    }
    return json.dumps({"auths": auths})


def program(path: str, authfile: str) -> Skopeo:
    """Return a function that runs skopeo with the logins of a file."""

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
    """Return the last error of skopeo."""
    said = (
        re.findall(r'level=fatal msg="((?:[^"\\]|\\.)*)"', errors)
        or errors.strip().splitlines()[-1:]
        or ["skopeo fails"]
    )
    return str(said[-1].replace('\\"', '"'))


def look_up(name: str, machine: str, skopeo: Skopeo) -> Image:
    """Query the registry for the image of a machine. Raises ImageError."""
    raw = skopeo("inspect", "--raw", f"docker://{name}")
    digest, manifest = f"sha256:{hashlib.sha256(raw).hexdigest()}", json.loads(raw)
    if "manifests" in manifest:
        repository = re.sub(r":[^:/]+$", "", name)
        manifest = json.loads(skopeo("inspect", "--raw", f"docker://{repository}@{choose(name, manifest, machine)}"))
    layers = sum(layer["size"] for layer in manifest["layers"])
    return Image(digest, manifest["config"]["digest"], layers)


def choose(name: str, index: Mapping[str, Any], machine: str) -> str:
    """Select the image for a machine in an index, and return its digest. Raises ImageError."""
    wanted = ("linux", ARCHITECTURES.get(machine, machine))
    for entry in index["manifests"]:
        platform = entry.get("platform", {})
        if (platform.get("os"), platform.get("architecture")) == wanted:
            return str(entry["digest"])
    raise ImageError(f"{name} has no image for {machine}")


def holds(path: Path, name: str, image: Image) -> bool:
    """Return True if the archive has this image under this name, with the registry that Docker would add."""
    with suppress(OSError, tarfile.TarError, KeyError, ValueError), tarfile.open(path) as archive:
        content = archive.extractfile("manifest.json")
        (entry,) = json.load(content) if content else [{}]
        (tag,) = entry["RepoTags"]
        return entry["Config"] == f"{image.id.partition(':')[2]}.json" and f"/{tag}".endswith(f"/{name}")
    return False


def fetch(path: Path, name: str, skopeo: Skopeo) -> None:
    """Write the image to the archive atomically. Raises ImageError and OSError."""
    new = path.with_name(f"{path.name}.new")
    # skopeo neither adds to an archive nor resumes an incomplete one.
    new.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    skopeo("copy", f"docker://{name}", f"docker-archive:{new}:{name}")
    os.replace(new, path)
