# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download the wheels of a lock for a Python of another version.

Usage: PYTHONPATH=collections python3 lab/wheels.py VERSION LOCK DIRECTORY STAMP
Such as 3.13 aiperf-0.13.0.txt wheels wheels/.aiperf
STAMP is an empty file that the program writes when all wheels are there.

pip download has --python-version, but evaluates the markers of a lock for the Python that runs pip.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from ansible_collections.trtllm.fleet.tools.lock import applies

MACHINE = os.uname().machine
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def requirements(lock: str, version: str) -> Iterator[str]:
    """Yield the requirements of a lock with their hashes, for a Python version such as ``3.13``."""
    for line in lock.replace("\\\n", "").splitlines():
        requirement, *hashes = line.partition("#")[0].split(" --hash=")
        if not requirement.strip():
            continue
        parsed = Requirement(requirement)
        if parsed.marker is None or applies(parsed.marker, version, MACHINE):
            parsed.marker = None
            yield " ".join([str(parsed), *(f"--hash={digest.strip()}" for digest in hashes)])


def main() -> None:
    version, lock, directory, stamp = sys.argv[1:]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--require-hashes"]
    command += [f"--python-version={version}", f"--dest={directory}"]
    command += [f"--platform={platform}_{MACHINE}" for platform in PLATFORMS]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirements(Path(lock).read_text(encoding="utf-8"), version)))
        file.flush()
        done = subprocess.run([*command, f"--requirement={file.name}"], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    Path(stamp).touch()


if __name__ == "__main__":
    main()
