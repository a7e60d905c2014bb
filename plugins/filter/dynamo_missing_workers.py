# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_missing_workers
short_description: Return the kinds of workers that NVIDIA Dynamo would lack without some hosts
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - A worker of a deployment is one that a frontend lists. A worker whose requests do not use TCP has no address, and
    counts as one of the hosts.
  - Workers find only those of their own namespace. One namespace has to keep workers of all kinds, and so has each of
    which the hosts have workers.
options:
  _input:
    description:
      - The answers of frontends to C(/health). The one with most workers counts, because a frontend that has just
        started knows none.
      - Answers of another form count as without workers.
    type: list
    elements: dict
    required: true
  kinds:
    description: Kinds of which a worker has to be left, beside those that lose one.
    type: list
    elements: str
    choices: [prefill, decode]
    required: true
  addresses:
    description: IP addresses of the hosts.
    type: list
    elements: str
    required: true
  whole:
    description: Whether all workers of a namespace may be among those of the hosts, as their frontends are drained too.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Assert that a decode worker is left without this host
  ansible.builtin.assert:
    that: answers | trtllm.fleet.dynamo_missing_workers(['decode'], ansible_facts.all_ipv4_addresses) | length == 0
"""

RETURN = r"""
_value:
  description: Kinds of which no worker would be left.
  type: list
  elements: str
  sample: [decode]
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.listings import most_workers

KINDS = ("prefill", "decode")


def dynamo_missing_workers(
    answers: Iterable[Mapping[str, Any]], kinds: Sequence[str], addresses: Sequence[str], whole: bool = False
) -> list[str]:
    left: dict[str, set[str]] = {}
    lost: dict[str, set[str]] = {}
    for one in most_workers(answers):
        stays = one.address and one.address not in addresses
        (left if stays else lost).setdefault(one.namespace, set()).add(one.role)
    missing = {*kinds} - max(left.values(), key=len, default=set())
    for namespace, roles in lost.items():
        if namespace in left or not whole:
            missing |= roles - left.get(namespace, set())
    return [kind for kind in KINDS if kind in missing]


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_missing_workers": dynamo_missing_workers}
