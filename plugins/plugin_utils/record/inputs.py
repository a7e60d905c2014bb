# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checksums of what a run would hand to the roles of a host.

Defaults are not among them: they are part of the collection, whose checksum the record has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.variables import (
    documented,
    entry_point,
    facts,
    role_of,
)

LENGTH = 32  # hexadecimal digits
# The roles that site.yml runs on the hosts of a group.
ROLES = {
    "gpu_hosts": frozenset(
        {
            "apt_packages",
            "bundle",
            "container_image",
            "docker_engine",
            "host_health",
            "model_weights",
            "monitoring",
            "nvidia_container_toolkit",
            "nvidia_driver",
            "preflight",
            "python_program",
            "serving_recipe",
            "trtllm_server",
        }
    ),
    # Role apt_packages depends on a variable of role bundle.
    "gateway": frozenset({"apt_packages", "bundle", "gateway", "host_health", "monitoring"}),
    "registry_mirror": frozenset({"apt_packages", "bundle", "registry_mirror"}),
    "monitoring": frozenset({"apt_packages", "bundle", "monitoring"}),
}
# Variables of role gateway that a GPU host has.
REGISTRATION = "gateway_host_"
# The default of host_health_faults.
FAULTS = "fleet_faults"
# Used only while something is downloaded, and different for each operator or run.
PASSING = frozenset({"model_weights_token"})
# Groups whose hosts serve all others.
GROUPS = ("gateway", "registry_mirror", "monitoring")
# Groups whose hosts are targets of the hosts of group monitoring.
TARGETS = ("gpu_hosts", "dynamo")
# How a host is reached by others.
ADDRESS = "ansible_host"


@cache
def only_facts() -> set[str]:
    """Return the names that only roles set. Reads all roles, so call it once before Ansible forks."""
    return facts() - documented()


def input_names(names: Iterable[str], memberships: Collection[str]) -> list[str]:
    """Return the variables of the roles that site.yml runs on a host of these groups.

    Those of its registration at gateways count for a GPU host only.
    """
    others = only_facts() | PASSING
    mine = frozenset[str]().union(*(roles for group, roles in ROLES.items() if group in memberships))

    # Other hosts have only the exporters: a new receiver of alerts does not concern them.
    entries = [*(["exporter"] if "monitoring" in mine else []), *(["dcgm"] if "gpu_hosts" in memberships else [])]
    exporters = frozenset[str]().union(*(entry_point("monitoring", entry) for entry in entries))

    def is_input(name: str) -> bool:
        if role_of(name) == "monitoring" and "monitoring" not in memberships:
            return name in exporters
        if name.startswith(REGISTRATION):
            return "gpu_hosts" in memberships
        return "host_health" in mine if name == FAULTS else role_of(name) in mine

    return sorted(name for name in names if is_input(name) and name not in others)


def checksum(value: Any) -> str:
    """Return a checksum of a value, the same for equal values in any order of keys."""
    return hashlib.sha256(json.dumps(_sorted(value), default=str).encode()).hexdigest()[:LENGTH]


def _sorted(value: Any) -> Any:
    """Return a value with sorted keys, which may be of several types."""
    if isinstance(value, Mapping):
        return sorted(([repr(key), _sorted(item)] for key, item in value.items()), key=lambda pair: str(pair[0]))
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value


def input_checksums(
    variables: Mapping[str, Any],
    memberships: Collection[str],
    groups: Mapping[str, list[str]],
    addresses: Callable[[str], Any],
    template: Callable[[Any], Any],
) -> dict[str, str]:
    """Return the checksum of each input of a host by name.

    ``memberships``: the groups of the host. ``template`` resolves a value. A value that cannot be resolved yet, as it
    needs facts, counts as its text.
    """

    def resolved(value: Any) -> Any:
        try:
            return template(value)
        except Exception:
            return str(value)

    inputs = {name: checksum(resolved(variables[name])) for name in input_names(variables, memberships)}
    inputs[ADDRESS] = checksum(resolved(variables.get(ADDRESS)))
    for group in GROUPS + (TARGETS if "monitoring" in memberships else ()):
        inputs[f"group {group}"] = checksum([[host, resolved(addresses(host))] for host in groups.get(group, [])])
    return inputs
