"""A bundle on disk."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.bundle import read_bundle
from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    Manifest,
    RemoteFile,
    verify,
    write_manifest,
)

COMMIT = "57476bbab104d89489bd206f997f9da1c2927ce2"
MODEL = "openai/gpt-oss-120b"
IMAGE = "example.com/release:1.2.1"
PLATFORM = {"distribution": "Debian", "release": "trixie", "architecture": "x86_64"}
CONTENTS: dict[str, Any] = {
    "platform": PLATFORM,
    "weights": {"hub": "https://hub.example.com", "revision": "main"},
    "images": [{"name": IMAGE, "digest": "sha256:0"}],
    "packages_key": "a key",
    "packages": [
        {"name": "docker.io", "version": "26.1.5+dfsg1-9", "architecture": "amd64"},
        {"name": "nvidia-driver-cuda", "version": "580.159.04-1", "architecture": "amd64"},
    ],
}


class Later:
    """The clock of a later run."""

    @staticmethod
    def now(_zone: object) -> Later:
        return Later()

    def strftime(self, _form: str) -> str:
        return "2099-01-01T00:00:00Z"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_snapshot(folder: Path, model: str, commit: str) -> Path:
    """Write a verified snapshot of a model into a bundle; return it."""
    snapshot = folder / "models" / model / commit
    snapshot.mkdir(parents=True)
    small = b'{"model_type": "gpt_oss"}\n'
    git_oid = hashlib.sha1(b"blob %d\0" % len(small) + small).hexdigest()
    files = [
        RemoteFile(".gitattributes", 0, git_oid="e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
        RemoteFile("config.json", len(small), git_oid=git_oid),
        RemoteFile("model.safetensors", 5, sha256=sha256(b"large")),
    ]
    for name, content in ((".gitattributes", b""), ("config.json", small), ("model.safetensors", b"large")):
        (snapshot / name).write_bytes(content)
    manifest = Manifest(model, commit, files)
    write_manifest(snapshot, manifest)
    assert verify(snapshot, manifest).verified
    return snapshot


def write_parts(folder: Path) -> Path:
    """Write everything that a bundle has, and more; return the snapshot in it."""
    snapshot = write_snapshot(folder, MODEL, COMMIT)
    for name in (
        "encodings/o200k_base.tiktoken",
        "images/release.tar",
        "packages/Packages",
        "packages/a_1_all.deb",
        "packages.txt",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    (folder / "notes of the courier").touch()
    return snapshot


def encoded(directory: Path) -> str:
    """As slurp returns it."""
    return base64.b64encode((directory / "bundle.json").read_bytes()).decode()


def digest(directory: Path) -> str:
    return sha256((directory / "bundle.json").read_bytes())


def bundle_of(directory: Path) -> dict[str, Any]:
    return read_bundle(encoded(directory))
