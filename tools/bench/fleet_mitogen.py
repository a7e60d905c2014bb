# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual environment with Mitogen for Ansible, for the benchmark of unchanged runs.

It has the ansible-core of requirements.txt, so that only the strategy differs. ``ansible`` brings the inventory plugin
of the lab and the callback of ansible.cfg; the collection itself needs nothing else on the control node.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# The newest release on 2026-11-26. It has no upper limit for ansible-core.
MITOGEN = "0.3.54"
PACKAGES = (f"mitogen=={MITOGEN}", "ansible", "ansible-core", "requests")
# The play of the roles has strategy free where there are as many forks as hosts, the other plays the default.
STRATEGY, SITE_STRATEGY = "mitogen_linear", "mitogen_free"


def prepared(root: Path) -> Path:
    """Return the environment below .cache. Creates it with packages of a package index if it is missing or old."""
    folder, pins = root / ".cache/mitogen", root / "requirements.txt"
    stamp = folder / ".made"
    wanted = "\n".join([sys.version, *PACKAGES, pins.read_text(encoding="utf-8")])
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--constraint", str(pins), *PACKAGES], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return folder


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables that make ansible-playbook run with Mitogen."""
    plugins = next(folder.glob("lib/python*/site-packages/ansible_mitogen/plugins/strategy"))
    return {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_STRATEGY_PLUGINS": str(plugins),
        "ANSIBLE_STRATEGY": STRATEGY,
    }


def version(folder: Path) -> str:
    """Return the version of ansible-core in the environment."""
    command = [str(folder / "bin/python"), "-c", "from ansible.release import __version__; print(__version__)"]
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout.strip()
