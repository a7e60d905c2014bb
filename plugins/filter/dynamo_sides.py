# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_sides
short_description: Divide the hosts of NVIDIA Dynamo into two sides that serve by themselves
version_added: 1.0.0
description:
  - A rollout changes one side while the other serves. Each side has a frontend, a prefill and a decode worker.
  - A host that an operator drained does not take part.
options:
  _input:
    description: Host names by C(frontend), C(prefill) and C(decode).
    type: dict
    required: true
  statuses:
    description: By host, the result of M(trtllm.fleet.host_status_info).
    type: dict
    required: true
  namespace:
    description: Namespace of Dynamo in which all hosts serve after the rollout. Hosts that do are on the first side.
    type: str
    required: true
  image:
    description: Their image then.
    type: str
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Show which hosts change first
  ansible.builtin.debug:
    msg: "{{ (placement | trtllm.fleet.dynamo_sides(statuses, 'fleet-16b5b934', image)).first }}"
"""

RETURN = r"""
_value:
  description: The sides.
  type: dict
  contains:
    first:
      description: Hosts of the side that changes first; empty if it has changed.
      type: list
      elements: str
    first_to_drain:
      description: Those of C(first) that have not changed.
      type: list
      elements: str
    second:
      description: Hosts of the other side.
      type: list
      elements: str
    plan:
      description: The same in a sentence; empty with a problem.
      type: str
    problem:
      description: Why there are no two sides, and what to do; empty if there are.
      type: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.rollout import sides


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_sides": sides}
