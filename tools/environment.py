# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual environments below .cache, for programs whose packages do not fit .venv."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def prepared(name: str, packages: Sequence[str], pins: Path | None = None) -> Path:
    """Return the environment ``.cache/NAME``. Creates it with packages of a package index if it is missing or old.

    ``pins``: a file of pip's constraints.
    """
    folder = ROOT / ".cache" / name
    stamp = folder / ".made"
    wanted = "\n".join([sys.version, *packages, pins.read_text(encoding="utf-8") if pins else ""])
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *(["--constraint", str(pins)] if pins else []), *packages], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return folder


def pinned(name: str) -> Path:
    """Return the environment ``.cache/NAME`` with the packages of tools/NAME.txt, as `prepared` does."""
    lines = (ROOT / f"tools/{name}.txt").read_text(encoding="utf-8").splitlines()
    return prepared(name, [line for line in lines if not line.startswith("#")])
