# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollback_releases
short_description: To which release each host goes back
version_added: 0.1.0
description:
  - What is undone is the rollout that brought something to these hosts last, also one that broke off and that another
    run finished. Hosts that it did not reach stay at what they run, and so do those that have gone back already.
  - Where no rollout ever was, each host goes back to what was proven before.
options:
  _input:
    description: What M(trtllm.fleet.host_release_info) told, by host.
    type: dict
    required: true
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Select the releases to roll back to
  ansible.builtin.set_fact:
    releases: "{{ {'gpu1': runs1, 'gpu2': runs2} | trtllm.fleet.rollback_releases }}"
"""

RETURN = r"""
_value:
  description: The release of each host by name; empty for one that has none to go back to.
  type: dict
  sample: {gpu1: 89e6c98d9288, gpu2: ""}
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.fleet.rollout import back_to, newest_rollout


def rollback_releases(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The release of each host, as DOCUMENTATION tells."""
    rollout = newest_rollout(runs["history"] for runs in hosts.values())
    return {name: back_to(runs["history"], runs["verified"], rollout) for name, runs in hosts.items()}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollback_releases": rollback_releases}
