# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: select_bundle
short_description: Select the bundle for a host
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Reads the C(bundle.json) of hosts, which M(trtllm.fleet.bundle_index) writes, and selects the one that fits the host
    best. Of two that fit as well the newer is selected.
  - An index whose digest is not among O(allowed) is not read.
  - Role P(trtllm.fleet.bundle#role) uses it.
options:
  _input:
    description: The files, each as M(ansible.builtin.slurp) returns its content.
    type: list
    elements: str
    required: true
  allowed:
    description: SHA-256 of each index that may be used.
    type: list
    elements: str
    required: true
  wanted:
    description: Options O(trtllm.fleet.bundle_check#module:platform) to O(trtllm.fleet.bundle_check#module:images).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Select the bundle
  ansible.builtin.set_fact:
    bundle: "{{ [slurped.content] | trtllm.fleet.select_bundle([bundle_sha256], wanted) }}"
"""

RETURN = r"""
_value:
  description:
    - The content of that file; empty if there are none.
    - C(content) in it is the file as given.
    - C(manifest) in it has the files of the bundle without the weights, for M(trtllm.fleet.model_snapshot).
    - C(snapshots) in it are the directories of the weights in the bundle.
    - If all have other digests, these are C(unknown), and O(allowed) is C(allowed).
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.trtllm.fleet.plugins.module_utils import bundle


def select_bundle(indices: Sequence[str], allowed: Sequence[str], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bundle for a host. Raises AnsibleFilterError."""
    try:
        return bundle.select_bundle(indices, allowed, wanted)
    except ValueError as error:
        raise AnsibleFilterError(f"A host has a {bundle.INDEX} that is not an index ({error}).") from error


class FilterModule:
    """The filter select_bundle."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"select_bundle": select_bundle}
