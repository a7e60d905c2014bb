# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: gateway_max_requests
short_description: Return the requests that an instance gets from a gateway at a time
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - As many as the KV cache of the recipe's estimate holds, 1 at least, and its batch at most. Without an estimate the
    batch, which is of all ranks with attention data parallelism.
  - Role P(trtllm.fleet.gateway#role) uses it.
options:
  _input:
    description: The recipe, or a part of it, as M(trtllm.fleet.serving_recipe) returns it.
    type: dict
    required: true
  expected_tokens:
    description: Tokens of a request with its answer.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Show what an instance gets
  ansible.builtin.debug:
    msg: "{{ serving_recipe_result | trtllm.fleet.gateway_max_requests(4096) }}"
"""

RETURN = r"""
_value:
  description: The number of requests.
  type: int
"""

from collections.abc import Callable, Mapping
from typing import Any

# TensorRT-LLM without max_batch_size.
BATCH = 256


def gateway_max_requests(recipe: Mapping[str, Any], expected_tokens: int) -> int:
    """Return the requests of an instance at a time; see DOCUMENTATION."""
    options = recipe.get("engine_options") or {}
    batch = int(options.get("max_batch_size") or (recipe.get("flags") or {}).get("max_batch_size") or BATCH)
    if options.get("enable_attention_dp"):
        batch *= int(options.get("tensor_parallel_size", 1))
    tokens = (recipe.get("memory") or {}).get("kv_tokens")
    return batch if tokens is None else min(batch, max(1, tokens // expected_tokens))


class FilterModule:
    """The filter gateway_max_requests."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"gateway_max_requests": gateway_max_requests}
