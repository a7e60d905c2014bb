# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_member_problem
short_description: Check a change of the members of NVIDIA Dynamo's etcd
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - A member can be replaced by another, and no other change is possible.
options:
  _input:
    description: The members that etcd has, as NAME=URL, or NAME of a single member.
    type: list
    elements: str
    required: true
  after:
    description: The members that it shall have.
    type: list
    elements: str
    required: true
  lost:
    description: Name of the member that is lost and replaced; empty if none is.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Assert that the members stay
  ansible.builtin.assert:
    that: members | trtllm.fleet.dynamo_member_problem(members, '') | length == 0
"""

RETURN = r"""
_value:
  description: The problem with the variable to set; empty if there is none.
  type: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.members import member_problem


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_member_problem": member_problem}
