# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: usage_report
short_description: Return the usage of all gateways by API key and model
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Adds the results of M(trtllm.fleet.gateway_usage_info) of all gateways.
  - C(playbooks/usage.yml) uses it.
options:
  _input:
    description: The result of each gateway by its name. A failed one becomes a problem of the report.
    type: dict
    required: true
  series:
    description:
      - Tokens that the engines counted in the same span, as RV(trtllm.fleet.monitoring_info#module:series). Names are
        C(prompt) and C(completion), the label is the model.
    type: dict
"""

EXAMPLES = r"""
- name: Show the usage
  ansible.builtin.debug:
    msg: "{{ ({'gateway1': usage} | trtllm.fleet.usage_report).text }}"
"""

RETURN = r"""
_value:
  description:
    - C(usage) has the sums of each key and model, as M(trtllm.fleet.gateway_usage_info) returns them.
    - C(engines) has the tokens that the engines counted, each with C(kind), C(model) and C(tokens).
    - C(problems) has what is missing, and C(complete) is false with one. C(text) is all of it as a table.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.usage import report


class FilterModule:
    """The filter usage_report."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"usage_report": report}
