# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checksum of the collection, so that hosts converge again after any change of a role or a plugin."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Of editors, Python and Ansible.
IGNORED = ("~", ".pyc", ".retry", ".swp")
CONTENT = ("playbooks", "plugins", "roles")


def collection_checksum(root: Path = ROOT) -> str:
    """Return a checksum of all files that a run uses. It takes some 20 ms, so compute it once in a run."""
    digest = hashlib.sha256()
    for top in CONTENT:
        for folder, folders, files in os.walk(root / top):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(name for name in files if not name.startswith(".") and not name.endswith(IGNORED)):
                path = Path(folder, name)
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(root)}\0{content}\n".encode())
    return digest.hexdigest()
