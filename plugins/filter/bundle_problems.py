# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: bundle_problems
short_description: Tell why a host cannot do with a bundle
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Compares what a bundle has with what a host is and needs.
  - Role P(trtllm.fleet.bundle#role) uses it.
options:
  _input:
    description: The bundle, as P(trtllm.fleet.newest_bundle#filter) returns it.
    type: dict
    required: true
  wanted:
    description:
      - C(platform) with C(distribution), C(release) and C(architecture); C(repository) and C(revision) of the weights;
        C(image); C(packages) as C(name) or C(name=version), whose version may have wildcards; C(bundle_dir), and
        C(sizes) of the files in it by path, empty where the host has no bundle there; C(alone), whether it has none at
        all and gets nothing from other hosts.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Stop where the bundle is for other machines
  ansible.builtin.assert:
    that: bundle_result | trtllm.fleet.bundle_problems(wanted) | length == 0
"""

RETURN = r"""
_value:
  description: One line for each problem, with the variable to change.
  type: list
  elements: str
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.bundle import problems


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"bundle_problems": problems}
