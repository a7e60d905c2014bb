# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the operating system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.facts import Facts, at
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.requirements import Wanted, result


def check_platform(facts: Facts, wanted: Wanted) -> Iterator[Check]:
    """Check that the architecture and the distribution are tested ones."""
    elsewhere = "Exclude the host with --limit"
    if wanted.architectures:
        known = " or ".join(wanted.architectures)
        yield result("architecture", facts.architecture in wanted.architectures, facts.architecture, known, elsewhere)
    if wanted.distributions is not None:
        supported = {name: [str(version) for version in versions] for name, versions in wanted.distributions.items()}
        known = "; ".join(f"{name} {', '.join(versions)}" for name, versions in supported.items())
        found = f"{facts.distribution or 'no /etc/os-release'} {facts.version}".strip()
        yield result("distribution", facts.version in supported.get(facts.distribution, []), found, known, elsewhere)


def check_systemd(root: Path) -> Iterator[Check]:
    """Check that systemd is the init system, as sd_booted(3) does."""
    booted = at(root, "/run/systemd/system").is_dir()
    yield result("systemd", booted, "systemd" if booted else "another init", "systemd as PID 1", "Boot it with systemd")


def check_docker(root: Path) -> Iterator[Check]:
    """Check that Docker is not a snap: a snap sees neither the GPUs nor most directories of the host."""
    snaps = [path for path in ("/snap/docker", "/var/snap/docker") if at(root, path).exists()]
    hint = "Run snap remove --purge docker; role docker_engine then installs a package"
    yield result(
        "docker", not snaps, f"Docker from a snap ({snaps[0]})" if snaps else "no snap", "no Docker snap", hint
    )
