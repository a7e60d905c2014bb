# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the verification of a snapshot in memory, beside ``sha256sum`` and ``openssl`` on all cores.

docs/test-results/benchmarks.md explains the figures.
The last line is one JSON object; the exit status is 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.weights.snapshot import (
    MARKER,
    Manifest,
    RemoteFile,
    verify,
    write_manifest,
)

ROOT = Path(__file__).resolve().parents[2]
RIVALS = {"sha256sum": ["sha256sum"], "openssl": ["openssl", "dgst", "-r", "-sha256"]}
# Relative to the faster of the two programs.
LOWEST_RATIO = 0.8
LONGEST_RERUN = 1.0  # seconds
BLOCK = 2**20


def make(directory: Path, count: int, size: int) -> Manifest:
    """Create a snapshot with this number of files and total bytes, and its manifest."""
    for number in range(count):
        with (directory / f"model-{number:05}.safetensors").open("wb") as content:
            for start in range(0, size // count, BLOCK):
                content.write(os.urandom(min(BLOCK, size // count - start)))
            os.fsync(content.fileno())
    files = [
        RemoteFile(Path(name).name, size // count, sha256=digest)
        for digest, name in (line.split(maxsplit=1) for line in rival("sha256sum", directory).splitlines())
    ]
    manifest = Manifest("bench/hashing", directory.name, sorted(files, key=lambda file: file.path))
    write_manifest(directory, manifest)
    return manifest


def cores() -> int:
    return len(os.sched_getaffinity(0))


def rival(name: str, directory: Path) -> str:
    """Return the output of a program for all files, with a process on each core."""
    paths = "\0".join(map(str, directory.glob("model-*")))
    command = ["xargs", "--null", "--max-args=1", f"--max-procs={cores()}", *RIVALS[name]]
    return subprocess.run(command, input=paths, check=True, capture_output=True, text=True).stdout


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def ours(directory: Path, manifest: Manifest) -> None:
    """Verify all files, as after a download."""
    (directory / MARKER).unlink(missing_ok=True)
    found = verify(directory, manifest)
    if not found.verified or found.hashed_bytes != manifest.total_bytes:
        sys.exit("what is measured is not a verification")


def rerun(directory: Path) -> None:
    """Run the module as the host does, with the start of its Python."""
    arguments = {"ANSIBLE_MODULE_ARGS": {"path": str(directory), "state": "verified"}}
    module = "ansible_collections.trtllm.fleet.plugins.modules.model_snapshot"
    answer = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(arguments),
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        check=True,
        capture_output=True,
        text=True,
    )
    result = json.loads(answer.stdout)
    if not result["verified"] or result["hashed_bytes"]:
        sys.exit("what is measured is not a re-run")


def figures(directory: Path, count: int, size: int, rounds: int) -> dict[str, Any]:
    """Measure all methods in turn, ``rounds`` times; return the best of each, because other load only adds time."""
    manifest = make(directory, count, size)
    rivals = [name for name, command in RIVALS.items() if shutil.which(command[0])]
    times: dict[str, list[float]] = {}
    for _round in range(rounds):
        times.setdefault("ours", []).append(seconds(lambda: ours(directory, manifest)))
        times.setdefault("rerun", []).append(seconds(lambda: rerun(directory)))
        for name in rivals:
            times.setdefault(name, []).append(seconds(partial(rival, name, directory)))
    best = {name: min(measured) for name, measured in times.items()}
    return {
        "cores": cores(),
        "files": count,
        "bytes": manifest.total_bytes,
        "mb_per_second": {name: round(manifest.total_bytes / 1e6 / best[name]) for name in ("ours", *rivals)},
        "ratios": {name: round(best[name] / best["ours"], 2) for name in rivals},
        "rerun_seconds": round(best["rerun"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=15, help="number of files (default: 15)")
    parser.add_argument("--size", type=float, default=2, help="total size in GiB (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements by each method (default: 5)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-hashing-") as top:
        directory = Path(top, "0" * 40)
        directory.mkdir()
        result = figures(directory, given.files, int(given.size * 2**30), given.rounds)
    for name, speed in result["mb_per_second"].items():
        print(f"{name:12} {speed:8} MB/s")
    print(f"{'re-run':12} {result['rerun_seconds']:8.2f} s")
    print(json.dumps({"benchmark": "hashing", **result, "lowest_ratio": LOWEST_RATIO, "longest_rerun": LONGEST_RERUN}))
    sys.exit(min(result["ratios"].values()) < LOWEST_RATIO or result["rerun_seconds"] >= LONGEST_RERUN)
