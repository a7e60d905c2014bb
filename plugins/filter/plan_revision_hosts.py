# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_revision_hosts
short_description: Select the hosts that query the hub for a plan
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Returns one host of each set that wants the same revision of the same model from the same hub. A revision that is a
    commit needs no query, and neither does a bundle.
  - The playbook C(trtllm.fleet.plan) uses it.
options:
  _input:
    description: Names of the hosts.
    type: list
    elements: str
    required: true
  variables:
    description:
      - Variables by host, most often C(hostvars). C(__plan_release) is the result of M(trtllm.fleet.host_release_info);
        a host without it, or that could not be reached, is not selected.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Query the hub once
  trtllm.fleet.hub_manifest:
    repository: openai/gpt-oss-120b
  when: inventory_hostname in (ansible_play_hosts_all | trtllm.fleet.plan_revision_hosts(hostvars))
"""

RETURN = r"""
_value:
  description: Names of the selected hosts.
  type: list
  elements: str
  sample: [gpu1]
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.plan import revision_hosts
from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.revisions import readable


def plan_revision_hosts(hosts: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Select the hosts, as DOCUMENTATION tells."""
    return revision_hosts(readable(hosts, variables))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"plan_revision_hosts": plan_revision_hosts}
