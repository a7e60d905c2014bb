# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_problems
short_description: List the problems of a deployment of NVIDIA Dynamo
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Checks all hosts of a deployment together, before a component starts.
  - Does not check workers that are not in C(workers), such as those of hosts outside of the run.
options:
  _input:
    description:
      - C(placement) has the hosts of C(control), C(frontend), C(prefill) and C(decode); C(known) those of the
        inventory; C(replaced) the control host that is lost, or an empty text; C(absent) the control hosts that are not
        in the run; C(addresses) each host's IP; C(networks) the network facts of hosts with a frontend; C(rdma) what
        M(trtllm.fleet.gpu_info) returns as that, of hosts with workers.
      - C(workers) has the recipes of C(prefill) and C(decode) by host, as role P(trtllm.fleet.serving_recipe#role)
        makes them.
      - C(outside) has the C(host), C(name) and C(shared) settings of running components that are not in the run, and
        C(shared) those settings of this run that are neither the image nor engine options.
      - C(ports) has the ports of the frontend (C(dynamo_port)) and of the control hosts by variable; C(port_ranges) the
        first ports of workers by C(dynamo_prefill_port) and C(dynamo_decode_port); C(request_port_offset) how far
        above a worker's port its port for requests is.
      - C(image), C(versions) as in P(trtllm.fleet.dynamo_version#filter), C(router_mode), and C(tls), whether NATS uses
        TLS. C(together) has groups of variables with their values, of which all are set or none; C(numbers), by
        variable, a number and its minimum.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Assert that the deployment has no problem
  ansible.builtin.assert:
    that: deployment | trtllm.fleet.dynamo_problems | length == 0
"""

RETURN = r"""
_value:
  description: One line for each problem, with the variable to set.
  type: list
  elements: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.problems import deployment_problems


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_problems": deployment_problems}
