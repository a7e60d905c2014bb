# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: newest_drains
short_description: Select what gateways know last of a host's drained instances
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - A gateway that was down, unreachable or is new does not know what changed at the others.
  - Selects, of each instance of the host, the state of the gateway where it changed last.
options:
  _input:
    description: The hosts of each gateway, as RV(trtllm.fleet.gateway_info#module:hosts).
    type: list
    elements: dict
    required: true
  host:
    description: Name of the host.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Drain the host as at the other gateways
  trtllm.fleet.gateway_host:
    hosts:
      - name: gpu1
        servers: "{{ servers }}"
        drains: "{{ [info.hosts] | trtllm.fleet.newest_drains('gpu1') }}"
"""

RETURN = r"""
_value:
  description: For M(trtllm.fleet.gateway_host), its O(trtllm.fleet.gateway_host#module:hosts[].drains).
  type: list
  elements: dict
  sample: [{name: serve-0, drained_by: operator, drain_changed: "2026-11-27T10:30:00.123+00:00"}]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.gateway.hosts import newest_drains as newest


def newest_drains(gateways: Sequence[Mapping[str, Any]], host: str) -> list[dict[str, str]]:
    """Return the drains, as DOCUMENTATION says."""
    return [{"name": name, **asdict(drain)} for name, drain in newest(gateways, host).items()]


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"newest_drains": newest_drains}
