# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfer the weights of a model: the programs of a host's units, in one zipapp.

Usage: python3 weights.pyz fetch PLAN [--run-dir DIR]
       python3 weights.pyz share PLAN [--run-dir DIR]
       PYTHON-OF-THE-HUB'S-CLIENT weights.pyz client < JOB
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import fetch, hub_client, share
from .status import RUN_DIR


def main() -> int:
    parser = argparse.ArgumentParser()
    programs = parser.add_subparsers(dest="program", required=True)
    programs.add_parser("client")
    for name in ("fetch", "share"):
        options = programs.add_parser(name)
        options.add_argument("plan")
        options.add_argument("--run-dir", type=Path, default=Path(RUN_DIR))
    arguments = parser.parse_args()
    if arguments.program == "client":
        return hub_client.main()
    program = fetch.main if arguments.program == "fetch" else share.main
    return program(arguments.plan, arguments.run_dir)
