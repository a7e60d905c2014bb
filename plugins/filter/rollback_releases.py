# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollback_releases
short_description: Select the rollout to undo, and the release to which each host rolls back
version_added: 1.0.0
description:
  - Undoes the unfinished rollout, otherwise the one that last updated one of these hosts, whether one run or several
    completed it. Hosts that it did not update, and hosts that have rolled back already, keep their release.
  - If no rollout has run, each host rolls back to the release that was verified before.
options:
  _input:
    description: Results of M(trtllm.fleet.host_release_info), by host.
    type: dict
    required: true
  unfinished:
    description: Name of the rollout that holds the lock, from M(trtllm.fleet.rollout_lock); empty without one.
    type: str
    default: ""
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Select the releases to roll back to
  ansible.builtin.set_fact:
    releases: "{{ ({'gpu1': runs1, 'gpu2': runs2} | trtllm.fleet.rollback_releases).releases }}"
"""

RETURN = r"""
_value:
  description:
    - C(rollout) is the name of the rollout to undo; empty if none has run.
    - C(releases) has the name of the release of each host; empty if it has no release to roll back to.
  type: dict
  sample: {rollout: "2026-11-23T01:47:29Z", releases: {gpu1: 89e6c98d9288, gpu2: ""}}
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.rollout.history import newest_rollout, rollback_release


def rollback_releases(hosts: Mapping[str, Mapping[str, Any]], unfinished: str = "") -> dict[str, Any]:
    """Return the rollout and the release of each host, as DOCUMENTATION describes."""
    rollout = unfinished or newest_rollout(runs["history"] for runs in hosts.values())
    releases = {name: rollback_release(runs["history"], runs["verified"], rollout) for name, runs in hosts.items()}
    return {"rollout": rollout, "releases": releases}


class FilterModule:
    """Provide filter rollback_releases."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollback_releases": rollback_releases}
