"""Test filter signed_bundles with OpenSSH's ssh-keygen."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.filter.signed_bundles import signed_bundles
from ansible_collections.trtllm.fleet.plugins.plugin_utils.signature import NAMESPACE

CONTENT = b'{"format": 3}\n'


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def key(folder: Path, name: str) -> Path:
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def sign(path: Path, content: bytes = CONTENT, namespace: str = NAMESPACE) -> str:
    command = ["ssh-keygen", "-Y", "sign", "-f", str(path), "-n", namespace]
    return encoded(subprocess.run(command, input=content, check=True, capture_output=True).stdout)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return key(tmp_path, "mine")


@pytest.fixture
def allowed(tmp_path: Path, mine: Path) -> str:
    path = tmp_path / "allowed_signers"
    path.write_text(f"operator@example.com {mine.with_suffix('.pub').read_text()}")
    return str(path)


def test_a_signed_bundle(mine: Path, allowed: str) -> None:
    indices = [encoded(CONTENT), encoded(b"another")]
    assert signed_bundles(indices, [sign(mine)], allowed) == [hashlib.sha256(CONTENT).hexdigest()]
    assert len(signed_bundles(indices, [sign(mine, b"another"), sign(mine)], allowed)) == 2


def test_signatures_that_do_not_count(tmp_path: Path, mine: Path, allowed: str) -> None:
    """Of another key, of other content, for another purpose, and arbitrary text."""
    other = sign(key(tmp_path, "other"))
    given = [other, sign(mine, b"another"), sign(mine, namespace="file"), encoded(b"no signature"), encoded(b"")]
    for signature in given:
        assert signed_bundles([encoded(CONTENT)], [signature], allowed) == []
    assert signed_bundles([encoded(CONTENT)], [], allowed) == []


def test_a_file_of_signers_that_is_missing(tmp_path: Path, mine: Path) -> None:
    with pytest.raises(AnsibleFilterError, match=r"bundle_allowed_signers: .*absent: No such file"):
        signed_bundles([encoded(CONTENT)], [sign(mine)], str(tmp_path / "absent"))
