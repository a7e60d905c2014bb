# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rdma_text
short_description: Describe how KV caches get from a host to others
version_added: 1.0.0
author:
  - trtllm.fleet contributors (@trtllm-fleet)
description:
  - Describes the RDMA devices of a host, the GPUs near each, and how they read the memory of GPUs.
options:
  _input:
    description: RV(trtllm.fleet.gpu_info#module:rdma) of M(trtllm.fleet.gpu_info).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show how the KV cache gets to other hosts
  ansible.builtin.debug:
    msg: "{{ gpus.rdma | trtllm.fleet.rdma_text }}"
"""

RETURN = r"""
_value:
  description: One or two sentences.
  type: str
  sample: >-
    RDMA: mlx5_0:1 (InfiniBand, 400 Gb/s, ACTIVE, nearest to GPU 0). GPU memory is read directly (dma-buf).
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.dynamo.rdma import rdma_text


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rdma_text": rdma_text}
