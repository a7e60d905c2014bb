# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tune_pooled
short_description: Return one benchmark result of several starts
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - The median of a start's rounds becomes one round of each load. Rounds of one start differ less than starts do, so a
    comparison of all rounds would promise too much.
options:
  _input:
    description: Results of M(trtllm.fleet.benchmark_run) with the same loads, one of each start.
    type: list
    elements: dict
    required: true
  name:
    description: Name of the result.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write the measurements of three starts as one
  ansible.builtin.copy:
    content: "{{ results | trtllm.fleet.tune_pooled('variation') | to_nice_json }}"
    dest: /srv/results/variation/result.json
    mode: "0644"
"""

RETURN = r"""
_value:
  description: The result, which M(trtllm.fleet.benchmark_report) reads.
  type: dict
  sample: {kind: benchmark, schema: 1, name: variation, repeat: 3}
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.tuning.trial import pooled


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tune_pooled": pooled}
