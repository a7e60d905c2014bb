# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role docker_engine: which images of Docker are those of this collection."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

PROGRAM = ROOT / "roles/docker_engine/files/list-unmanaged"


@pytest.mark.parametrize(
    ("noted", "unmanaged"),
    [
        ("registry.example:5000/a/b:1", ["image registry.example:5000/a/b:<none>"]),
        (f"registry.example:5000/a/b@sha256:{'5' * 64}", ["image registry.example:5000/a/b:1"]),
        (f"registry.example:5000/a/b:4@sha256:{'5' * 64}", ["image registry.example:5000/a/b:1"]),
        (
            "registryyexample:5000/a/b:1",
            ["image registry.example:5000/a/b:1", "image registry.example:5000/a/b:<none>"],
        ),
    ],
    ids=["tag", "digest", "tag and digest", "other registry"],
)
def test_an_image_counts_by_the_name_that_was_pulled(tmp_path: Path, noted: str, unmanaged: list[str]) -> None:
    docker = tmp_path / "docker"
    for program in (docker, tmp_path / "ctr"):
        program.write_text("#!/bin/sh\n[ \"$1\" != image ] || printf 'registry.example:5000/a/b:%s\\n' 1 '<none>'\n")
        program.chmod(0o755)
    (tmp_path / "packages").write_text("docker.io\n")
    (tmp_path / "images").write_text(f"{noted}\n")
    # The program checks for the package's file.
    script = PROGRAM.read_text().replace("/usr/bin/docker", str(docker))
    done = subprocess.run(
        ["sh", "-c", script, "list-unmanaged", tmp_path / "packages", tmp_path / "images", tmp_path / "root"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        text=True,
        capture_output=True,
        check=False,
    )
    # The last grep finds nothing if all is managed.
    assert done.stderr == ""
    assert done.stdout.splitlines() == unmanaged
