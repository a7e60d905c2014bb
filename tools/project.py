# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of this project as the next commit has them: what git tracks and what it does not ignore."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tools.environment import ROOT


def names() -> list[str]:
    """Return the paths of the files, relative to the project."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, text=True)
    return [name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]


def copy(folder: Path) -> None:
    """Copy the files, links as links."""
    for name in names():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
