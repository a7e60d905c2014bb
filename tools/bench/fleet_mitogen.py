# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A virtual environment with Mitogen for Ansible, for the benchmark of unchanged runs.

It has the ansible-core of requirements.txt, so that only the strategy differs. ``ansible`` brings the inventory plugin
of the lab and the callback of ansible.cfg; the collection itself needs nothing else on the control node.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools.environment import ROOT, prepared

# The newest release on 2026-11-26. It has no upper limit for ansible-core.
MITOGEN = "0.3.54"
PACKAGES = (f"mitogen=={MITOGEN}", "ansible", "ansible-core", "requests")
# The play of the roles has strategy free where there are as many forks as hosts, the other plays the default.
STRATEGY, SITE_STRATEGY = "mitogen_linear", "mitogen_free"


def mitogen() -> Path:
    """Return the environment with Mitogen."""
    return prepared("mitogen", PACKAGES, ROOT / "requirements.txt")


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
