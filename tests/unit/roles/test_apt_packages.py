# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role apt_packages: the note of the packages that it holds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

# What apt-mark 2.6 prints with the locales de and C.
APT_MARK = """#!/bin/sh
[ "$LC_ALL" = C ] && echo "docker.io set on hold." || echo "docker.io auf Halten gesetzt."
"""


def test_holds_are_noted_in_any_language_of_the_host(tmp_path: Path) -> None:
    program = tmp_path / "apt-mark"
    program.write_text(APT_MARK)
    program.chmod(0o755)
    variables = yaml.safe_load((ROOT / "roles/apt_packages/vars/main.yml").read_text())
    note = tmp_path / "state/packages"
    script = variables["__apt_packages_hold_and_note"]
    script = script.replace("{{ __apt_packages_note | dirname }}", str(note.parent))
    script = script.replace("{{ __apt_packages_note }}", str(note))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LC_ALL": "", "LANGUAGE": "de"}
    subprocess.run(["sh", "-ec", script, "sh", "docker.io"], env=environment, check=True)
    assert note.read_text() == "held docker.io\n"
