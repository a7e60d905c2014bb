# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure site.yml on bare lab hosts whose long legs have a known duration, beside the critical path.

On each host the download of the weights, the image pull and the installation of the driver each sleep for a given time
first, and the engine loads for a given time. These legs can overlap, except the engine, which needs all others. The
critical path is thus the longest of the three and the engine.

``--hosts`` measures a fleet, too: first without its last host, then with it, whose download takes three times as long.

The last line is one JSON object. The exit status is 1 if a limit is missed. Needs the lab's images (make lab-images),
and removes the hosts that it created.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.fleet import ROOT

PREFIX = "bench-"
# Of one host: the time until it answers, to the critical path. Of the other hosts beside a slow one: the median of
# their times, to the median without it.
COLD_LIMIT, OTHERS_LIMIT = 1.10, 1.15
SLOW = 3

# {weights}, {image} and {driver} are seconds. The driver's sleep is in the dpkg run that installs it, as the build of
# its module is.
SHAPE = r"""
set -e
for unit in trtllm-weights.service trtllm-image-.service; do mkdir -p /etc/systemd/system/$unit.d; done
printf '[Service]\nExecStartPre=/bin/sleep %s\n' {weights} > /etc/systemd/system/trtllm-weights.service.d/slow.conf
printf '[Service]\nExecStartPre=/bin/sleep %s\n' {image} > /etc/systemd/system/trtllm-image-.service.d/slow.conf
cat > /usr/local/sbin/slow-driver <<'EOF'
#!/bin/sh
dpkg-query --show nvidia-persistenced > /dev/null 2>&1 || exit 0
mkdir /run/slow-driver 2> /dev/null || exit 0
sleep {driver}
EOF
chmod 755 /usr/local/sbin/slow-driver
echo 'DPkg::Post-Invoke {{ "/usr/local/sbin/slow-driver"; }};' > /etc/apt/apt.conf.d/99slow-driver
"""


def playbook(name: str, *arguments: str, **environment: str) -> str:
    """Return the output of a playbook. Exits with it if it fails."""
    command = ["ansible-playbook", name, *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "LAB_PREFIX": PREFIX, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout


def cold_run(names: Sequence[str], legs: Mapping[str, float], slow: Sequence[str] = ()) -> dict[str, Any]:
    """Return the timeline of site.yml on bare hosts; hosts in ``slow`` have a longer download."""
    playbook("lab/up.yml", f"--extra-vars=lab_recreate={','.join(names)}", LAB_HOSTS=str(len(names)))
    for name in names:
        seconds = {**legs, "weights": legs["weights"] * (SLOW if name in slow else 1)}
        subprocess.run(
            ["docker", "exec", "--interactive", name, "sh"], input=SHAPE.format(**seconds), text=True, check=True
        )
    # The lab's engine sleeps a fifth of it once more, for its imports.
    load = str(legs["engine"] / 1.2)
    options = {"serving_recipe_environment": {"LAB_ENGINE_LOAD_SECONDS": load}}
    with tempfile.TemporaryDirectory() as folder:
        playbook(
            "site.yml",
            "--inventory=inventory/local",
            f"--extra-vars={json.dumps(options)}",
            TRTLLM_FLEET_TIMELINE_DIRECTORY=folder,
        )
        timeline: dict[str, Any] = json.loads((Path(folder) / "fleet-timeline.json").read_text())
    return timeline


def answered(timeline: Mapping[str, Any], names: Sequence[str]) -> float:
    """Return the median of the seconds until hosts answered."""
    return statistics.median(timeline["hosts"][name]["answered"] for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for leg, seconds in (("driver", 120), ("image", 150), ("weights", 180), ("engine", 30)):
        parser.add_argument(f"--{leg}", type=float, default=seconds, help=f"seconds of the leg (default: {seconds})")
    parser.add_argument("--hosts", type=int, default=0, help="number of hosts of the fleet (default: no fleet)")
    given = vars(parser.parse_args())
    count = given.pop("hosts")
    path = max(given["driver"], given["image"], given["weights"]) + given["engine"]
    names = [f"{PREFIX}{number}" for number in range(1, count + 1)]
    result: dict[str, Any] = {"legs": given, "critical_path": path, "cores": os.cpu_count()}
    missed = []
    try:
        timeline = cold_run([f"{PREFIX}1"], given)
        (host,) = timeline["hosts"].values()
        ratio = host["answered"] / path
        print(f"{'leg':28}{'start s':>9}{'end s':>9}{'waiting s':>11}")
        for leg in host["legs"]:
            print(f"{leg['name']:28}{leg['start']:9.1f}{leg['end']:9.1f}{leg['waited']:11.1f}")
        print(f"one host answered after {host['answered']:.0f} s, {ratio:.2f} times the critical path of {path:.0f} s")
        missed += ["cold"] * (ratio > COLD_LIMIT)
        result |= {"cold": host["answered"], "cold_ratio": round(ratio, 2)}
        if names:
            alone = answered(cold_run(names[:-1], given), names[:-1])
            beside = cold_run(names, given, slow=names[-1:])
            others, last = answered(beside, names[:-1]), answered(beside, names[-1:])
            ratio = others / alone
            print(
                f"{count - 1} hosts: median {alone:.0f} s alone, {others:.0f} s beside a slow one "
                f"({last:.0f} s), {ratio:.2f} times"
            )
            missed += ["others"] * (ratio > OTHERS_LIMIT)
            result |= {"alone": alone, "beside_slow": others, "slow": last, "others_ratio": round(ratio, 2)}
    finally:
        playbook("lab/down.yml")
    print(json.dumps({**result, "missed": missed}))
    sys.exit(bool(missed))
