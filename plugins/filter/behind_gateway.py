# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: behind_gateway
short_description: Count the GPUs behind a gateway
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Counts the GPUs of the instances that are in service at a gateway, for figures of a GPU.
  - Playbook C(benchmark.yml) uses it.
options:
  _input:
    description: RV(trtllm.fleet.gateway_info#module:hosts) of M(trtllm.fleet.gateway_info).
    type: dict
    required: true
  hosts:
    description: The release of each host of the run, as its C(release.json).
    type: dict
    required: true
  model:
    description: The model to measure, by its name on the hub; empty for the only one.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Set the instances in service
  ansible.builtin.set_fact:
    behind: "{{ gateway.hosts | trtllm.fleet.behind_gateway({'gpu1': runs.description}) }}"
"""

RETURN = r"""
_value:
  description:
    - C(hosts) in service, C(gpus), the number of GPUs of their instances, C(model), the name for requests, and
      C(weights), their path.
    - C(problems) has why figures of a GPU would be wrong, such as hosts in service that are not in the run.
  type: dict
  sample: {hosts: [gpu1], gpus: 8, model: gpt-oss-120b, weights: /srv/trtllm-fleet/models/a, problems: []}
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark import system_under_test


def behind_gateway(gateway: Mapping[str, Any], hosts: Mapping[str, Any], model: str = "") -> dict[str, Any]:
    """Return what a gateway sends the requests of a model to."""
    return system_under_test.behind_gateway(gateway, hosts, model)


class FilterModule:
    """The filter behind_gateway."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"behind_gateway": behind_gateway}
