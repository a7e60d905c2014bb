# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sources of apt."""

from __future__ import annotations

import re
from collections.abc import Sequence

ARCHITECTURES = ("amd64", "arm64")


def is_source_of(text: str, url: str, architectures: Sequence[str] = ARCHITECTURES) -> bool:
    """Return whether the text of a source names a repository, also if its vendor's instructions made it.

    They may write the architecture as a variable.
    """
    architecture = f"(?:{'|'.join(architectures)}|[$][(]ARCH[)])"
    parts = re.split("|".join(architectures), url.rstrip("/"))
    return re.search(architecture.join(map(re.escape, parts)), text) is not None
