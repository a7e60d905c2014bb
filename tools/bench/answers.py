# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of modules, recorded on a lab host, for the stand-in connection of ``make bench-thousand``."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path

# The file with the answers by module, or while recording the directory with one file for each module.
FILE = "BENCH_ANSWERS"
# From the end of the program that Ansible sends, whose start is the same for all modules.
MODULE = re.compile(rb"^module_fqn='([a-z_.]+)',$", re.MULTILINE)

# Arguments that name the control node.
IDENTITY = {"holder", "owner"}


def module_of(program: bytes) -> str:
    """Return the full name of the module in a program that Ansible sends. Raises ValueError if there is none."""
    found = MODULE.search(program)
    if not found:
        raise ValueError(f"The program sent has no module name: {program[:80]!r}")
    return found[1].decode()


def store(program: bytes, output: bytes) -> None:
    """Write the answer of a module to the directory; a second answer of the same module replaces the first."""
    text = output.decode()
    # sudo and login shells may print lines before it.
    answer = json.loads(text[text.index("{") :])
    given = (answer.get("invocation") or {}).get("module_args") or {}
    given |= dict.fromkeys(IDENTITY & given.keys(), "")
    (Path(os.environ[FILE]) / f"{module_of(program)}.json").write_text(json.dumps(answer))


@cache
def answers() -> dict[str, bytes]:
    """Return the output of each recorded module. Cached, so call it once before Ansible forks."""
    recorded = json.loads(Path(os.environ[FILE]).read_text())
    return {module: json.dumps(answer).encode() for module, answer in recorded.items()}
