#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_status_info
short_description: Summarise the status of a fleet
version_added: 1.0.0
description:
  - Combines the results of the hosts and the gateways of a fleet, with a verdict for each host.
  - V(ok) serves. V(drained) gets no new request from any gateway. V(degraded) serves, and there is a reason to act.
    V(down) has a release and does not serve. V(unreachable) did not answer. V(nothing) has no release.
  - The playbook C(trtllm.fleet.status) gathers its input.
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
      - Results of M(trtllm.fleet.host_status_info) by host, also of tasks that failed or did not reach the host.
    type: dict
    required: true
  gateways:
    description: Results of M(trtllm.fleet.gateway_info) by gateway, also of tasks that failed or did not reach it.
    type: dict
    required: true
  inventory:
    description: Names of all hosts that a gateway may have. Others are reported.
    type: list
    elements: str
    required: true
  monitoring:
    description: The monitoring of the fleet, if it has one.
    type: dict
    suboptions:
      host:
        description: Name of its host.
        type: str
        required: true
      result:
        description: Result of M(trtllm.fleet.monitoring_info), also of a task that failed or did not reach the host.
        type: dict
        required: true
  fail_on:
    description:
      - The mildest verdict for which RV(failure) is not empty. V(never) has none.
      - A gateway that does not run HAProxy counts as V(down).
    type: str
    choices: [down, unreachable, degraded, never]
    default: never
seealso:
  - module: trtllm.fleet.host_status_info
  - module: trtllm.fleet.gateway_info
  - module: trtllm.fleet.monitoring_info
"""

EXAMPLES = r"""
- name: Set the status of the fleet
  trtllm.fleet.fleet_status_info:
    hosts: {gpu1: "{{ hostvars.gpu1.look }}", gpu2: "{{ hostvars.gpu2.look }}"}
    gateways: {gateway1: "{{ gateway }}"}
    inventory: "{{ groups.all }}"
  register: status
  run_once: true
"""

RETURN = r"""
text:
  description: The status for a terminal.
  returned: success
  type: str
data:
  description:
    - The complete status. C(summary) has the numbers of the fleet, C(releases) the releases in use with their hosts.
    - C(hosts) has for each host its verdict, the reasons in sentences, drift, instances and GPUs; C(gateways) has
      each gateway with its load.
    - C(monitoring) has state, targets, alerts and the history of the main series, with O(monitoring) only.
  returned: success
  type: dict
failure:
  description: The hosts and gateways with a verdict of O(fail_on) or a worse one, in one sentence; empty without one.
  returned: success
  type: str
  sample: "2 hosts unreachable: gpu3, gpu7. 1 gateway down: gateway2."
charts:
  description: The charts of that history for the page, each with C(title), C(description), C(svg) and C(lines).
  returned: success
  type: list
  elements: dict
"""
