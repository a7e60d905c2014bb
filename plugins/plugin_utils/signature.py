# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verify signatures of OpenSSH on the control node: ssh-keygen(1), -Y."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

# Of the signatures of bundles, so that one of something else is not one of a bundle.
NAMESPACE = "trtllm.fleet.bundle"
TIMEOUT = 30.0  # seconds


class SignatureError(Exception):
    """Signatures cannot be verified; the message names the cause."""


def signer(content: bytes, signature: bytes, allowed_signers: Path) -> str:
    """Return who signed the content, as the file of allowed signers names them; empty without a valid one.

    Raises SignatureError if the file cannot be read or ssh-keygen is missing.
    """
    try:
        allowed_signers.read_bytes()
    except OSError as error:
        raise SignatureError(f"bundle_allowed_signers: {error.filename}: {error.strerror}") from None
    with tempfile.NamedTemporaryFile() as file:
        file.write(signature)
        file.flush()
        given = ("-f", str(allowed_signers), "-s", file.name)
        # In lines, by a key that the file has.
        for principal in _run(*given, "-Y", "find-principals").decode().splitlines():
            if _run(*given, "-Y", "verify", "-I", principal, "-n", NAMESPACE, content=content):
                return principal
    return ""


def _run(*arguments: str, content: bytes = b"") -> bytes:
    """Return the output of ssh-keygen; empty if it fails. Raises SignatureError."""
    try:
        done = subprocess.run(
            ["ssh-keygen", *arguments], input=content, capture_output=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SignatureError(f"bundle_allowed_signers needs ssh-keygen of OpenSSH 8.2 or later: {error}") from None
    return b"" if done.returncode else done.stdout
