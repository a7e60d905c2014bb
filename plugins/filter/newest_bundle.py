# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: newest_bundle
short_description: Select the newest bundle
version_added: 0.1.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Reads the C(bundle.json) of hosts, which M(trtllm.fleet.bundle_index) writes.
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
    - The content of that file; empty if there are none.
    - C(content) in it is the file as given.
    - C(manifest) in it has the files of the bundle without the weights, for M(trtllm.fleet.model_snapshot).
    - C(snapshots) in it are the directories of the weights in the bundle.
  type: dict
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.module_utils import bundle


def newest_bundle(indices: Sequence[str]) -> dict[str, Any]:
    """Return the newest index. Raises AnsibleFilterError."""
    try:
        return bundle.newest_bundle(indices)
    except (ValueError, KeyError, TypeError) as error:
        raise AnsibleFilterError(
            f"A host has a {bundle.INDEX} that is not an index ({type(error).__name__}: {error})."
        ) from error


class FilterModule:
    """The filter newest_bundle."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"newest_bundle": newest_bundle}
