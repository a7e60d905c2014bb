# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_status
short_description: Tell how a fleet is, host by host, and why
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Puts together what the hosts and the gateways of a fleet answered, with a verdict for each host.
  - V(ok) serves as it should. V(drained) gets nothing new from any gateway, as somebody wants it. V(degraded) serves,
    and there is a reason to look. V(down) has a release and serves nothing. V(unreachable) gave no answer, and
    V(nothing) has nothing to serve.
  - The playbook C(trtllm.fleet.status) gathers what it needs.
options:
  _input:
    description: Names of the hosts.
    type: list
    elements: str
    required: true
  variables:
    description:
      - Variables by host, most often C(hostvars). Of each host C(__status_look) is the result of
        M(trtllm.fleet.host_status), which may be that of a task that failed or that did not reach the host.
      - A host that a gateway knows and that is not here is told as a stranger.
    type: dict
    required: true
  gateways:
    description:
      - Results of M(trtllm.fleet.gateway_info), each with the name of its gateway as C(__status_gateway). They may be
        those of a task that failed or that did not reach the gateway.
    type: list
    elements: dict
    required: true
  taken_at:
    description: When they were asked, in ISO 8601.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show how the fleet is
  ansible.builtin.debug:
    msg: "{{ (ansible_play_hosts_all | trtllm.fleet.fleet_status(hostvars, gateways=[], taken_at=moment)).text }}"
  run_once: true
  vars:
    moment: "{{ now(utc=true).isoformat() }}"
"""

RETURN = r"""
_value:
  description: The status.
  type: dict
  contains:
    text:
      description: The status for a terminal.
      type: str
    data:
      description:
        - The whole status. C(summary) has the numbers of the fleet; C(releases) what is in use and by which hosts;
          C(hosts) each host with its verdict, the reasons for it in sentences, what drifted, instances and GPUs;
          C(gateways) each gateway with its load.
      type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.status import make_status, render


def fleet_status(
    hosts: Sequence[str],
    variables: Mapping[str, Mapping[str, Any]],
    gateways: Sequence[Mapping[str, Any]],
    taken_at: str,
) -> dict[str, Any]:
    """The status of a fleet, as DOCUMENTATION tells."""
    status = make_status(
        {name: variables[name].get("__status_look") for name in hosts},
        {answer["__status_gateway"]: answer for answer in gateways},
        list(variables),
        taken_at,
    )
    return {"text": render(status), "data": status}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"fleet_status": fleet_status}
