"""Put the verified release back in the place of one on trial, and leave nothing of the trial.

Run by trtllm-trial.service: when a trial ends, when its timer has not been renewed, and at the boot after it began.
  python3 restore_verified.py ROOT UNITS     (/etc/trtllm-fleet /etc/systemd/system)
What of it was done already is not done again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Files named as the releases that were written for a trial.
WRITTEN = "trials"
SERVICE, TIMER = "trtllm-trial.service", "trtllm-trial.timer"


def put_back(root: Path, units: Path) -> None:
    """Have the host run the verified release and no other, as module host_release has it.

    Raises OSError, and CalledProcessError for a systemctl that did not do it.
    """
    verified, releases = Path(os.readlink(root / "verified")), root / "releases"
    wanted = sorted(verified.glob("*.service"))
    if not wanted:
        raise FileNotFoundError(f"{verified} has no unit to run")
    links = {path.name: Path(os.readlink(path)) for path in units.glob("*.service") if path.is_symlink()}
    others = sorted(name for name, file in links.items() if file.parent.parent == releases and file.parent != verified)
    if others:
        systemctl("disable", "--now", *others)
    systemctl("enable", "--quiet", *map(str, wanted))
    names = [path.name for path in wanted]
    if others:
        # systemd may have given up what was tried, which has the same names. It knows nothing of what never ran.
        subprocess.run(["systemctl", "reset-failed", *others, *names], stderr=subprocess.DEVNULL, check=False)
    systemctl("start", "--no-block", *names)


def forget(root: Path, units: Path) -> None:
    """Remove the releases that were only tried, and what put the verified one back. Raises as ``put_back`` does."""
    history = root / "history.json"
    proven = {entry["release"] for entry in json.loads(history.read_text())} if history.exists() else set()
    proven.add(Path(os.readlink(root / "verified")).name)
    for note in (root / WRITTEN).glob("*"):
        if note.name not in proven:
            shutil.rmtree(root / "releases" / note.name, ignore_errors=True)
    shutil.rmtree(root / WRITTEN, ignore_errors=True)
    systemctl("disable", "--quiet", SERVICE)
    systemctl("stop", TIMER)
    for name in (TIMER, SERVICE):
        (units / name).unlink(missing_ok=True)
    systemctl("daemon-reload")


def systemctl(*argv: str) -> None:
    subprocess.run(["systemctl", *argv], check=True)


def main() -> None:
    root, units = map(Path, sys.argv[1:])
    put_back(root, units)
    print("The verified release runs again.", flush=True)
    forget(root, units)


if __name__ == "__main__":
    main()
