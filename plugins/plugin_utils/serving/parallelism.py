# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parallelism of an instance over its GPUs, from its engine options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import get


def integer(options: Mapping[str, Any], *path: str) -> int | None:
    """Return the integer at a path of the engine options; None if the value is missing or of another type."""
    value = get(options, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def size(options: Mapping[str, Any], name: str) -> int | None:
    """Return a parallel size; None if TensorRT-LLM chooses it, as for null and -1."""
    value = integer(options, name)
    return value if value and value > 0 else None


@dataclass(frozen=True)
class Parallelism:
    """Number of GPUs that each part of the model is split over.

    ``attention``: attention and embeddings, 1 if each GPU holds all of them (attention DP).
    ``experts``: groups of whole experts; ``within_experts``: the shards of each expert.
    ``attention_ranks``: GPUs with their own sequences and their own KV cache.
    """

    attention: int
    experts: int
    within_experts: int
    attention_ranks: int


def parallelism(options: Mapping[str, Any]) -> Parallelism:
    """Return the parallelism, with missing sizes computed as in TensorRT-LLM (tensorrt_llm/mapping.py).

    Without pipeline and context parallelism: rules.py rejects the first, and no document uses the second.
    """
    tensor = size(options, "tensor_parallel_size") or 1
    experts, within = size(options, "moe_expert_parallel_size"), size(options, "moe_tensor_parallel_size")
    experts = experts or (max(1, tensor // within) if within else 1)
    by_data = options.get("enable_attention_dp") is True
    return Parallelism(
        attention=1 if by_data else tensor,
        experts=experts,
        within_experts=within or max(1, tensor // experts),
        attention_ranks=tensor if by_data else 1,
    )
