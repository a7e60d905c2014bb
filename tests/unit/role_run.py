"""Run a playbook on this machine, with programs of the test in place of those of the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT


def run_playbook(
    programs: Path,
    playbook: Path,
    host: str,
    *options: str,
    collections: Path = ROOT / "collections",
    **variables: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a playbook for one host, which is this machine. Return the status, and errors within the output.

    ``programs``: a folder whose programs come before those of PATH. ``options``: of ansible-playbook. ``collections``:
    the folder with this collection, or with one whose modules are of the test.
    """
    given = {"ansible_python_interpreter": sys.executable, **variables}
    arguments = [f"--inventory={host},", "--connection=local", f"--extra-vars={json.dumps(given)}"]
    return subprocess.run(
        ["ansible-playbook", str(playbook), *arguments, *options],
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(collections),
            "PATH": f"{programs}:{os.environ['PATH']}",
        },
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
