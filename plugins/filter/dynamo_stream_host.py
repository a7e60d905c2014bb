# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_stream_host
short_description: Select where a frontend of NVIDIA Dynamo listens for workers' answers
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - A frontend sends workers its address with each request, and they connect to it for the answer. Versions differ in
    what sets this address, C(DYN_TCP_RESPONSE_STREAM_HOST).
  - Fails if no value leads to the address. For example, Dynamo 1.1 to 1.5 take the last address of an interface, which
    is usually IPv6 link-local; no model ever loads then.
options:
  _input:
    description: Network facts of the host (C(ansible_facts)).
    type: dict
    required: true
  address:
    description: IP address at which workers reach the frontend.
    type: str
    required: true
  way:
    description: Value C(response_stream_host) of the version, from P(trtllm.fleet.dynamo_version#filter).
    type: str
    choices: [ignored, interface, address]
    required: true
"""

EXAMPLES = r"""
- name: Show the interface
  ansible.builtin.debug:
    msg: "{{ ansible_facts | trtllm.fleet.dynamo_stream_host('10.0.0.4', 'interface') }}"
"""

RETURN = r"""
_value:
  description: Value for C(DYN_TCP_RESPONSE_STREAM_HOST), empty if it is to be unset.
  type: str
  sample: eth1
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.addresses import stream_host


def dynamo_stream_host(facts: Mapping[str, Any], address: str, way: str) -> str:
    try:
        return stream_host(facts, address, way)
    except ValueError as error:
        raise AnsibleFilterError(f"{address}: a frontend {error}") from error


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_stream_host": dynamo_stream_host}
