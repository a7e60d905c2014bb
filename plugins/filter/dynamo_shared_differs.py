# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_shared_differs
short_description: Test whether a component of NVIDIA Dynamo has to change together with all others
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Compares the settings that are equal on all components. URLs of etcd may differ as long as one stays.
options:
  _input:
    description: The settings of the running component.
    type: dict
    required: true
  after:
    description: The settings of the new one.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show whether all components change at once
  ansible.builtin.debug:
    msg: "{{ running.shared | trtllm.fleet.dynamo_shared_differs(new.shared) }}"
"""

RETURN = r"""
_value:
  description: Whether they differ.
  type: bool
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.shared import shared_differs


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_shared_differs": shared_differs}
