#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_faults_info
short_description: Diagnose the faults of a fleet
version_added: 1.0.0
description:
  - Compares the signals of hosts, what gateways report, and the variables of the inventory with the fault catalogue.
  - A fault that explains others comes before them. Then the worst comes first, then the one nearest to the hardware.
  - Playbook C(trtllm.fleet.doctor) gathers its input.
author:
  - trtllm.fleet contributors (@trtllm-fleet)
extends_documentation_fragment:
  - trtllm.fleet.attributes
  - trtllm.fleet.attributes.info_module
  - trtllm.fleet.attributes.action
attributes:
  action:
    details: Runs on the control node and does not connect to the host.
options:
  hosts:
    description:
      - Results of M(trtllm.fleet.host_signals_info) by host, also of tasks that failed or did not reach the host.
    type: dict
    required: true
  gateways:
    description: Results of M(trtllm.fleet.gateway_info) by gateway, also of tasks that failed or did not reach it.
    type: dict
    required: true
  gpu_hosts:
    description: Names of the hosts that are to serve. The variables of others are not compared with recipes.
    type: list
    elements: str
    required: true
  faults:
    description: Rows that change or extend the catalogue, as variable C(fleet_faults).
    type: list
    elements: dict
    default: []
  mode:
    description: >-
      What a repair may do, as O(trtllm.fleet.host_health#role:main:host_health_mode); empty for the mode of each host.
    type: str
    choices: ['', observe, drain, restart, reset, reboot]
    default: ''
seealso:
  - module: trtllm.fleet.host_signals_info
"""

EXAMPLES = r"""
- name: Set the faults of the fleet
  trtllm.fleet.fleet_faults_info:
    hosts: {gpu1: "{{ hostvars.gpu1.signals }}"}
    gateways: {}
    gpu_hosts: [gpu1]
  register: faults
  run_once: true
"""

RETURN = r"""
text:
  description: The report for a terminal.
  returned: success
  type: str
data:
  description:
    - The report. C(severity) is that of the worst fault, or V(none). C(faults) are in the order of the report; those
      with C(consequence_of) follow from the faults with these ids.
  returned: success
  type: dict
  sample:
    kind: doctor
    schema: 1
    taken_at: "2026-11-27T02:10:00+00:00"
    hosts: 1
    severity: critical
    counts: {critical: 1, warning: 0, unknown: 0, info: 0}
    faults:
      - fault: gpu_lost
        title: GPU lost
        severity: critical
        layer: gpu
        cause: The GPU does not answer on the PCI bus. Power, heat or its PCIe link failed.
        cure: Drain the host with playbooks/drain.yml and reboot it.
        remedy: reboot
        out_of_service: true
        consequence_of: []
        source: NVIDIA Xid catalog, 79 RESTART_BM
        hosts: [gpu1]
        evidence: [{host: gpu1, evidence: "NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus."}]
repairs:
  description:
    - What playbook C(repair.yml) does for each host with a fault that takes it out of service. Without C(rungs) the
      C(reason) says why it does nothing.
  returned: success
  type: dict
  sample: {gpu1: {fault: gpu_lost, rungs: [reboot], gpus: ["0000:91:00.0"], reason: ""}}
breaker:
  description: Why too many hosts are sick for a program to act; empty without a reason.
  returned: success
  type: str
  sample: 3 hosts have gpu_lost at the same time (gpu1-gpu3)
"""
