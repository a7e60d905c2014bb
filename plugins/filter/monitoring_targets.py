# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: monitoring_targets
short_description: Return the hosts, targets and certificates of a Prometheus
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Returns what role P(trtllm.fleet.monitoring#role) writes to the host of Prometheus.
  - A host that this run did not deploy keeps its note of an earlier run. Without one it is a target by its address.
options:
  _input:
    description: Names of hosts by group.
    type: dict
    required: true
  variables:
    description: C(hostvars).
    type: dict
    required: true
  known:
    description: Notes of hosts by name, from the host of Prometheus.
    type: dict
    required: true
  local:
    description: Name of the host of Prometheus.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the targets
  ansible.builtin.debug:
    msg: "{{ (fleet | trtllm.fleet.monitoring_targets(hostvars, {}, inventory_hostname)).targets }}"
  vars:
    fleet:
      gpu_hosts: "{{ groups['gpu_hosts'] }}"
"""

RETURN = r"""
_value:
  description: >-
    C(hosts), the notes by name; C(targets), by job in the format of C(file_sd); C(certificates), in PEM; C(new), the
    hosts that this run deployed.
  type: dict
  sample: {hosts: {}, targets: {node: []}, certificates: [], new: [gpu1]}
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.targets import certificates, merge_notes, targets
from ansible_collections.trtllm.fleet.plugins.plugin_utils.variables import role_default

NOTE = "__monitoring_registration"


def monitoring_targets(
    groups: Mapping[str, Sequence[str]], variables: Mapping[str, Any], known: Mapping[str, Any], local: str
) -> dict[str, Any]:
    """Return hosts, targets, certificates and new hosts, as DOCUMENTATION says."""
    hosts = list(dict.fromkeys(host for members in groups.values() for host in members))
    defaults = {host: _default(host, variables[host]) for host in hosts}
    new = {host: variables[host][NOTE] for host in hosts if NOTE in variables[host]}
    notes = merge_notes(groups, defaults, known, new)
    return {
        "hosts": notes,
        "targets": targets(notes, local),
        "certificates": certificates(notes),
        "new": sorted(new),
    }


def _default(host: str, its: Mapping[str, Any]) -> dict[str, Any]:
    """Return the note of a host that was never reached."""
    address = its.get("monitoring_address") or its.get("ansible_host") or host
    port = its.get("monitoring_exporter_port") or role_default("monitoring", "monitoring_exporter_port")
    return {"address": str(address), "exporter_port": int(port)}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"monitoring_targets": monitoring_targets}
