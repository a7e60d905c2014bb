# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cuda_directory
short_description: Return the directory of a host in NVIDIA's CUDA repository
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Returns NVIDIA's names of a distribution release and of an architecture.
  - Role P(trtllm.fleet.nvidia_driver#role) uses it.
options:
  _input:
    description: C(ansible_facts) of the host, with C(distribution), C(distribution_version) and C(architecture).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the directory
  ansible.builtin.debug:
    msg: "{{ ansible_facts | trtllm.fleet.cuda_directory }}"
"""

RETURN = r"""
_value:
  description: The names of the platform and the architecture.
  type: dict
  sample: {platform: debian13, architecture: sbsa}
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.preflight.driver import cuda_directory


def directory(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the directory for facts, as DOCUMENTATION says."""
    distribution = facts["distribution"].lower()
    platform, architecture = cuda_directory(distribution, facts["distribution_version"], facts["architecture"])
    return {"platform": platform, "architecture": architecture}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"cuda_directory": directory}
