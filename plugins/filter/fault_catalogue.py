# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fault_catalogue
short_description: Return the fault catalogue with an operator's rows
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Returns the faults that a host can see by itself, for the program of role P(trtllm.fleet.host_health#role).
  - Fails with all problems of the rows.
options:
  _input:
    description: Rows that change or extend the catalogue, as in M(trtllm.fleet.fleet_faults_info).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Write the catalogue
  ansible.builtin.copy:
    dest: /etc/faults.json
    content: "{{ fleet_faults | trtllm.fleet.fault_catalogue | to_nice_json }}"
    mode: "0644"
"""

RETURN = r"""
_value:
  description: The faults, as in docs/reference/faults.md.
  type: list
  elements: dict
  sample: [{id: gpu_lost, severity: critical, remedy: reboot, out_of_service: true}]
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.module_utils.health.catalogue import CatalogueError
from ansible_collections.trtllm.fleet.plugins.plugin_utils.health.fault_rows import read_catalogue

# Signals that only the control node has.
CONTROL = {"connection", "variables", "gateway", "gateway_instance", "registration", "task", "drift", "name"}


def fault_catalogue(overrides: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, as DOCUMENTATION says. Raises AnsibleFilterError."""
    try:
        catalogue = read_catalogue(overrides)
    except CatalogueError as error:
        raise AnsibleFilterError(f"fleet_faults is not valid: {'; '.join(error.problems)}") from None
    own = {
        name: fault
        for name, fault in catalogue.items()
        if fault.severity != "ignored" and any(one["signal"] not in CONTROL for one in fault.seen)
    }
    return [{**asdict(fault), "explains": [name for name in fault.explains if name in own]} for fault in own.values()]


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"fault_catalogue": fault_catalogue}
