# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: dynamo_shared_options
short_description: Select the engine options that must be equal on all workers of NVIDIA Dynamo
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - A prefill worker transfers its KV cache to a decode worker, which needs the same type of cache and of transfer.
options:
  _input:
    description: The engine options, as role P(trtllm.fleet.serving_recipe#role) makes them.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the shared options
  ansible.builtin.debug:
    msg: "{{ recipe.engine_options | trtllm.fleet.dynamo_shared_options }}"
"""

RETURN = r"""
_value:
  description: Each such option by its name, with TensorRT-LLM's default where it is not set.
  type: dict
  sample:
    kv_cache_config.dtype: auto
    kv_cache_config.tokens_per_block: "32"
    cache_transceiver_config.backend: UCX
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.shared import shared_options


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"dynamo_shared_options": shared_options}
