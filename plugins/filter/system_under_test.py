# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: system_under_test
short_description: Describe the system under test of a benchmark
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Returns what two results must have in common to be comparable. That is release, recipe with the source of each
    value, image by digest, model and revision, driver, GPUs with clocks and power limit.
options:
  _input:
    description: Result of M(trtllm.fleet.host_release_info) of a host.
    type: dict
    required: true
  gpus:
    description: Result of M(trtllm.fleet.gpu_info) of the same host.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Set the system under test
  ansible.builtin.set_fact:
    subject: "{{ runs | trtllm.fleet.system_under_test(gpus) }}"
"""

RETURN = r"""
_value:
  description: The system under test; an unknown value is V(null).
  type: dict
  sample: {release: 3f786850e387, recipe: gpt-oss-120b-h200x8-low_latency, driver: 580.159.04}
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.system_under_test import subject


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"system_under_test": subject}
