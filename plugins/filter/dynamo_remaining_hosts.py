# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_remaining_hosts
short_description: Return how many hosts with workers of NVIDIA Dynamo would be left without some hosts
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - A host has the workers that a frontend lists with one of its addresses.
options:
  _input:
    description: The answers of frontends to C(/health). The one with most workers counts.
    type: list
    elements: dict
    required: true
  addresses:
    description: IP addresses of the hosts.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Show how many hosts are left
  ansible.builtin.debug:
    msg: "{{ answers | trtllm.fleet.dynamo_remaining_hosts(ansible_facts.all_ipv4_addresses) }}"
"""

RETURN = r"""
_value:
  description: Number of other hosts by the kinds of workers that the hosts have.
  type: dict
  sample: {decode: 2}
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.listings import most_workers


def dynamo_remaining_hosts(answers: Iterable[Mapping[str, Any]], addresses: Sequence[str]) -> dict[str, int]:
    left: dict[str, set[str]] = {}
    lost: set[str] = set()
    for one in most_workers(answers):
        if one.address in addresses:
            lost.add(one.role)
        else:
            left.setdefault(one.role, set()).add(one.address)
    return {role: len(left.get(role, ())) for role in sorted(lost)}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_remaining_hosts": dynamo_remaining_hosts}
