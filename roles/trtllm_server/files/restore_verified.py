# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restore the verified release and remove the temporary one. Can be repeated after a failure.

trtllm-restore.service runs it at the end of a temporary release: by Ansible, by its timer or at the next boot.
  python3 restore_verified.pyz ROOT UNITS     (/etc/trtllm-fleet /etc/systemd/system)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.directory import ReleaseError
from ansible_collections.trtllm.fleet.plugins.module_utils.host_release.releases import TEMPORARY, HostReleases

SERVICE, TIMER = "trtllm-restore.service", "trtllm-restore.timer"


def remove_temporary(releases: HostReleases, root: Path, units: Path) -> None:
    """Remove unverified temporary releases and the restore units.

    Raises OSError, ReleaseError, and CalledProcessError if systemctl fails.
    """
    verified = {releases.verified(), *(entry["release"] for entry in releases.history())}
    for mark in (root / TEMPORARY).glob("*"):
        if mark.name not in verified:
            shutil.rmtree(releases.path(mark.name), ignore_errors=True)
    systemctl("disable", "--quiet", SERVICE)
    systemctl("stop", TIMER)
    for name in (TIMER, SERVICE):
        (units / name).unlink(missing_ok=True)
    systemctl("daemon-reload")
    # Last: as long as it exists, a playbook that starts a release runs this program before.
    shutil.rmtree(root / TEMPORARY, ignore_errors=True)


def systemctl(*argv: str) -> None:
    subprocess.run(["systemctl", *argv], check=True)


def main() -> str | None:
    root, units = map(Path, sys.argv[1:])
    releases = HostReleases(root, units)
    try:
        releases.start(releases.verified(), restart=False)
        print("The verified release runs again.", flush=True)
        remove_temporary(releases, root, units)
    except ReleaseError as error:
        return str(error)
    return None
