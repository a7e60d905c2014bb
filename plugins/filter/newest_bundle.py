# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: newest_bundle
short_description: Choose the bundle that was made last
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Reads what hosts have as C(bundle.json), which M(trtllm.fleet.bundle_index) writes.
  - Role P(trtllm.fleet.bundle#role) uses it.
options:
  _input:
    description: The files, each as M(ansible.builtin.slurp) returns its content.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Select the newest bundle
  ansible.builtin.set_fact:
    bundle: "{{ [slurped.content] | trtllm.fleet.newest_bundle }}"
"""

RETURN = r"""
_value:
  description:
    - What that file says; empty when there is none.
    - C(content) in it is the file as it was given.
    - C(manifest) in it is the bundle without the weights, as M(trtllm.fleet.model_snapshot) takes it.
  type: dict
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.module_utils.bundle import INDEX, newest


def newest_bundle(indices: Sequence[str]) -> dict[str, Any]:
    """The newest, as DOCUMENTATION tells."""
    try:
        return newest(indices)
    except (ValueError, KeyError, TypeError) as error:
        raise AnsibleFilterError(f"A host has a {INDEX} that is not one ({type(error).__name__}: {error}).") from error


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"newest_bundle": newest_bundle}
