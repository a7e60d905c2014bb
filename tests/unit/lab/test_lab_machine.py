# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A packed lab has what the roles install from the distribution, as its machine has no network."""

from __future__ import annotations

import re

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

# Those that install packages of the distribution by name.
ROLES = ("gateway", "model_weights", "python_program", "registry_mirror")


def packages(role: str) -> set[str]:
    """Return the packages that a role names in its lists of packages."""
    lines = [
        line
        for path in (ROOT / "roles" / role).glob("*/*.yml")
        if path.parent.name in ("defaults", "tasks", "vars")
        for line in path.read_text().splitlines()
        if "packages" in line or "python3-" in line
    ]
    names = (
        name.strip(" '\"") for line in lines for names in re.findall(r"\[(.*?)]", line) for name in names.split(",")
    )
    return {name for name in names if re.fullmatch(r"[a-z][a-z0-9.+-]+", name)}


def test_packed_lab_has_the_packages_of_the_roles() -> None:
    wanted = set().union(*map(packages, ROLES))
    assert wanted >= {"haproxy", "nginx", "python3-libtorrent", "python3-venv"}
    packed = set((ROOT / "lab/machine").read_text().split())
    assert wanted - packed == set()
