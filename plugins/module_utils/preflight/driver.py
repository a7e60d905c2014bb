# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the driver, installed or to be installed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.apt_mirror import PackagesError
from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check
from ansible_collections.trtllm.fleet.plugins.module_utils.command import Runner
from ansible_collections.trtllm.fleet.plugins.module_utils.gpu import MELLANOX, PCI_DEVICES
from ansible_collections.trtllm.fleet.plugins.module_utils.kernel import has_headers
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.facts import Facts, at
from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.requirements import (
    COMMAND_SECONDS,
    Archive,
    Find,
    Wanted,
    result,
)

# The variable's name and vendor GUID: UEFI specification, "Globally Defined Variables".
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# Role nvidia_driver writes this file when it installs a driver, and may replace that driver.
DRIVER_MARKER = "/var/lib/trtllm-fleet/nvidia_driver"
RUN_UNINSTALLER = "/usr/bin/nvidia-uninstall"


def cuda_directory(distribution: str, version: str, architecture: str) -> tuple[str, str]:
    """Return the platform and the architecture in NVIDIA's CUDA repository: ``debian13``, ``sbsa``."""
    release = version.split(".")[0] if distribution == "debian" else version.replace(".", "")
    return f"{distribution}{release}", "sbsa" if architecture == "aarch64" else architecture


def directory_of(facts: Facts) -> tuple[str, str]:
    """Return the directory of a host in NVIDIA's CUDA repository."""
    return cuda_directory(facts.distribution, facts.version, facts.architecture)


def driver_to_install(facts: Facts, wanted: Wanted) -> str | None:
    """Return the requested version, or the default of the platform; None without either."""
    platform, architecture = directory_of(facts)
    defaults = (wanted.driver_platforms or {}).get(platform, {}).get("versions", {})
    return wanted.driver_version or defaults.get(architecture)


def package_names(rows: Sequence[Mapping[str, Any]], version: str) -> list[str]:
    """Return the names of a version's packages: those of the first row whose ``until`` is not an older branch."""
    branch = version.split(".")[0]
    row = next(row for row in rows if int(branch) <= int(row.get("until", branch)))
    return [name.replace("{branch}", branch) for name in row["names"]]


def version_key(version: str) -> tuple[int, ...]:
    """Return a version as numbers that compare."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def check_driver(
    gpu: Mapping[str, Any], wanted: Wanted, facts: Facts, root: Path, runner: Runner, find: Find, archive: Archive
) -> Iterator[Check]:
    """Check that the installed or planned driver is new enough, and that a planned one can be installed."""
    driver = gpu["driver"]
    state, version = driver["state"], driver["version"] or ""
    floor = wanted.driver_floor or "0"
    ours = at(root, DRIVER_MARKER).exists()
    installing = bool(wanted.driver_version) and (
        state != "ok" or (version != wanted.driver_version and (wanted.driver_replace or ours))
    )
    found = f"driver {version}" if state == "ok" else f"no working driver ({driver['message']})"
    expected = f"a working driver {wanted.driver_floor or ''}".rstrip() + (" or newer" if wanted.driver_floor else "")
    other_image = "serving_recipe_image to a release that runs with it"
    if state in ("timeout", "no_devices"):
        yield Check(
            "driver",
            "fail",
            found,
            expected,
            "Search the kernel log for errors of the GPUs",
        )
    elif installing:
        planned = wanted.driver_version or ""
        new_enough = version_key(planned) >= version_key(floor)
        found = f"{found}, nvidia_driver_version {planned} to be installed"
        yield result(
            "driver", new_enough, found, expected, f"Set nvidia_driver_version to {floor} or newer, or {other_image}"
        )
    elif state != "ok":
        yield Check("driver", "fail", found, expected, "Install a driver, or run role nvidia_driver")
    else:
        hint = f"Set nvidia_driver_replace to true and nvidia_driver_version to {floor} or newer, or {other_image}"
        yield result("driver", version_key(version) >= version_key(floor), found, expected, hint)
    if installing:
        yield from _check_installable(gpu, wanted, root, runner, find)
        yield from _check_packages(gpu, wanted, facts, root, archive)


def _check_installable(
    gpu: Mapping[str, Any], wanted: Wanted, root: Path, runner: Runner, find: Find
) -> Iterator[Check]:
    """Check for obstacles to a driver from packages: other installers, Secure Boot, a needed reboot."""
    state, version = gpu["driver"]["state"], gpu["driver"]["version"]
    uninstaller = at(root, RUN_UNINSTALLER)
    dpkg = find("dpkg")
    packaged = not uninstaller.exists() or (
        dpkg is not None and runner([dpkg, "--search", RUN_UNINSTALLER], COMMAND_SECONDS).rc == 0
    )
    yield result(
        "driver_installer",
        packaged,
        "packages only" if packaged else f"a driver from a .run file ({RUN_UNINSTALLER})",
        "no driver beside the packages",
        f"Run {RUN_UNINSTALLER}; its files would mix with those of nvidia_driver_version {wanted.driver_version}",
    )

    secure = _secure_boot(at(root, SECURE_BOOT))
    yield result(
        "secure_boot",
        not secure,
        "on" if secure else "off",
        "off",
        "The kernel rejects modules built by DKMS. Turn Secure Boot off in the firmware, or install a signed driver",
    )

    if state in ("mismatch", "failed"):
        reason = gpu["driver"]["message"]
    elif version and version != wanted.driver_version:
        reason = f"the kernel module {version} is loaded"
    elif _nouveau(gpu, root):
        reason = "nouveau drives a GPU"
    else:
        return
    yield result(
        "reboot",
        wanted.reboot_allowed,
        f"a reboot is needed: {reason}",
        "consent to a reboot",
        "Set nvidia_driver_reboot_allowed to true, or reboot the host after the driver is installed",
    )


def _check_packages(
    gpu: Mapping[str, Any], wanted: Wanted, facts: Facts, root: Path, archive: Archive
) -> Iterator[Check]:
    """Check that apt finds all driver packages of the version, those for NVSwitches, and the kernel headers."""
    directory = directory_of(facts)
    rows = (wanted.driver_platforms or {}).get(directory[0], {}).get("packages", [])
    version = wanted.driver_version or ""
    if not rows or not wanted.driver_repository_url:
        return
    url = wanted.driver_repository_url.replace("{platform}", directory[0]).replace("{architecture}", directory[1])
    switches = gpu["nvswitches"] if wanted.driver_fabric_manager != "never" else []
    more = ["nvidia-fabricmanager"] if switches or wanted.driver_fabric_manager == "always" else []
    # These packages do not have the version of the driver.
    floating = ["nvlsm"] if any(switch["vendor_id"] == MELLANOX for switch in switches) else []
    names = package_names(rows, version) + more
    # The names of newer branches too, to list the available versions.
    schemes = [names, *(list(row["names"]) + more for row in rows if "until" not in row)]
    headers = (wanted.driver_kernel_headers or "").replace("{kernel}", facts.kernel)
    if has_headers(root, facts.kernel):
        headers = ""
    expected = f"{version} of {', '.join(names)}{''.join(f'; {name}' for name in floating)}"
    try:
        found = archive(url, sorted({name for scheme in schemes for name in scheme} | set(floating) | {headers} - {""}))
    except (PackagesError, OSError) as error:
        hint = f"Make {url} reachable for apt on the host, or set nvidia_driver_repository_url to a mirror"
        yield Check("driver_packages", "unknown", f"no package lists: {error}", expected, hint)
        return
    there = {name: {entry.rpartition("-")[0] for entry in versions} for name, versions in found.items()}
    missing = [f"{name} {version}" for name in names if version not in there[name]]
    missing += [name for name in floating if not there[name]]
    complete = {entry for scheme in schemes for entry in set.intersection(*(there[name] for name in scheme))}
    known = ", ".join(sorted(complete, key=version_key)) or "no complete driver"
    observed = f"no {', '.join(missing)} in {url}, which has {known}" if missing else version
    hint = "Set nvidia_driver_version to a version there, or nvidia_driver_repository_url to another repository"
    yield result("driver_packages", not missing, observed, expected, hint)
    if headers:
        hint = "Boot a kernel whose headers are available, or set nvidia_driver_kernel_headers to their package"
        observed = headers if found[headers] else f"no {headers} in the host's apt sources"
        yield result("kernel_headers", bool(found[headers]), observed, f"headers of kernel {facts.kernel}", hint)


def _nouveau(gpu: Mapping[str, Any], root: Path) -> bool:
    """Return True if nouveau, the kernel's own driver, holds a GPU."""
    links = (at(root, PCI_DEVICES) / entry["address"] / "driver" for entry in gpu["gpus"])
    return any(link.is_symlink() and os.path.basename(os.readlink(link)) == "nouveau" for link in links)


def _secure_boot(variable: Path) -> bool:
    """Return the state of Secure Boot. The data byte of the variable follows four bytes of attributes."""
    try:
        return variable.read_bytes()[4:5] == b"\x01"
    except OSError:
        return False
