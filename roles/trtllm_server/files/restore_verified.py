"""Restore the verified release and remove the temporary one. Can be repeated after a failure.

trtllm-restore.service runs it at the end of a temporary release: by Ansible, by its timer or at the next boot.
  python3 restore_verified.py ROOT UNITS     (/etc/trtllm-fleet /etc/systemd/system)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Directory of empty files, each named as a temporary release.
TEMPORARY = "temporary"
SERVICE, TIMER = "trtllm-restore.service", "trtllm-restore.timer"


def start_verified(root: Path, units: Path) -> None:
    """Start the units of the verified release and stop those of all others, as module host_release does.

    Raises OSError, and CalledProcessError if systemctl fails.
    """
    verified, releases = Path(os.readlink(root / "verified")), root / "releases"
    wanted = sorted(verified.glob("*.service"))
    if not wanted:
        raise FileNotFoundError(f"{verified} has no unit to start")
    links = {path.name: Path(os.readlink(path)) for path in units.glob("*.service") if path.is_symlink()}
    others = sorted(name for name, file in links.items() if file.parent.parent == releases and file.parent != verified)
    if others:
        systemctl("disable", "--now", *others)
    systemctl("enable", "--quiet", *map(str, wanted))
    names = [path.name for path in wanted]
    if others:
        # Units of the same name may have reached their start limit. systemctl fails for a unit that never ran.
        subprocess.run(["systemctl", "reset-failed", *others, *names], stderr=subprocess.DEVNULL, check=False)
    systemctl("start", "--no-block", *names)


def remove_temporary(root: Path, units: Path) -> None:
    """Remove unverified temporary releases and the restore units. Raises as ``start_verified`` does."""
    history = root / "history.json"
    verified = {entry["release"] for entry in json.loads(history.read_text())} if history.exists() else set()
    verified.add(Path(os.readlink(root / "verified")).name)
    for mark in (root / TEMPORARY).glob("*"):
        if mark.name not in verified:
            shutil.rmtree(root / "releases" / mark.name, ignore_errors=True)
    shutil.rmtree(root / TEMPORARY, ignore_errors=True)
    systemctl("disable", "--quiet", SERVICE)
    systemctl("stop", TIMER)
    for name in (TIMER, SERVICE):
        (units / name).unlink(missing_ok=True)
    systemctl("daemon-reload")


def systemctl(*argv: str) -> None:
    subprocess.run(["systemctl", *argv], check=True)


def main() -> None:
    root, units = map(Path, sys.argv[1:])
    start_verified(root, units)
    print("The verified release runs again.", flush=True)
    remove_temporary(root, units)


if __name__ == "__main__":
    main()
