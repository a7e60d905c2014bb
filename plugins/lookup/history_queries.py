# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: history_queries
short_description: Return the queries of a fleet's main series
version_added: 1.0.0
description:
  - Reads the description of the dashboards of role P(trtllm.fleet.monitoring#role).
  - Playbook C(trtllm.fleet.status) uses it.
options: {}
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Gather the history of the main series
  trtllm.fleet.monitoring_info:
    queries: "{{ lookup('trtllm.fleet.history_queries', wantlist=true) }}"
"""

RETURN = r"""
_raw:
  description: Queries for O(trtllm.fleet.monitoring_info#module:queries).
  type: list
  elements: dict
"""

from typing import Any

from ansible.plugins.lookup import LookupBase

from ansible_collections.trtllm.fleet.plugins.plugin_utils.monitoring.description import dashboards, history


class LookupModule(LookupBase):
    """The lookup of the panels that have C(history)."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        self.set_options(var_options=variables, direct=kwargs)
        return [{"name": panel["title"], **query} for panel in history(dashboards()) for query in panel["queries"]]
