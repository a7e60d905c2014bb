# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Estimate the memory of one GPU of an instance, and the tokens that its KV cache holds.

docs/concepts/gpu-memory.md has the formula in words, its exact parts, and its differences to measured values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import get, merge
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.parallelism import Parallelism, integer, parallelism
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.rules import (
    DEFAULT_GRAPH_MAX_BATCH_SIZE,
    DEFAULT_MAX_BATCH_SIZE,
    DEFAULT_MAX_NUM_TOKENS,
    Finding,
)

MIB = 2**20
BFLOAT16 = 2  # bytes
# TensorRT-LLM's defaults (KvCacheConfig of tensorrt_llm/llmapi/llm_args.py).
DEFAULT_FRACTION = 0.9
DEFAULT_TOKENS_PER_BLOCK = 32
# Padding of an expert's matrices for the kernels (fused_moe/quantization.py); the second is for the hidden side of
# gate and up, with every backend except CUTLASS.
WEIGHT_ALIGNMENT = 128
INPUT_ALIGNMENT = 512
# Memory that the driver reserves: nvidia-smi's "reserved" on a GB200; 0.71 GiB on a B200, 0.34 GiB on a H200.
DRIVER_MIB = 742
# CUDA context and libraries: 0.51 GiB (TensorRT-LLM issue 5872, H200) to 1.86 GiB (mlcommons/inference issue 2501,
# gpt-oss-120b) were used before the model was created.
CONTEXT_MIB = 1024
# Memory that every other process of an instance takes on its first GPU (TensorRT-LLM issue 3058).
NEIGHBOUR_MIB = 500
# Measured on DeepSeek-R1 (TensorRT-LLM pull request 12895). Its documentation gives a maximum of 200 MB.
CUDA_GRAPH_MIB = 10
# Buffers for the transfer of the KV cache, one to send and one to receive, each for max_tokens_in_buffer tokens, or for
# the window of a sliding layer (computeTransferBufferSize of cpp/tensorrt_llm/batch_manager/cacheTransBuffer.cpp). They
# are allocated after the KV cache, from what it leaves (TensorRT-LLM issue 13506).
TRANSFER_BUFFERS = 2
TRANSFER = ("cache_transceiver_config", "max_tokens_in_buffer")
# Options that can make the KV cache smaller than the GPUs allow. The first three need not be set.
BOUNDS = tuple(("kv_cache_config", name) for name in ("max_attention_window", "max_tokens", "max_gpu_total_bytes"))
FRACTION = ("kv_cache_config", "free_gpu_memory_fraction")
STEP_SIZES = (("max_num_tokens",), ("max_batch_size",))


def estimate(
    options: Mapping[str, Any],
    facts: Mapping[str, Any],
    gpus: int,
    memory_mib: int,
    release: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Estimate the memory of the fullest GPU of an instance, in MiB, and the tokens that the instance's KV cache holds.

    ``options``: merged engine options; ``facts``: those of the model file; ``gpus``: of one instance; ``memory_mib``:
    of one GPU, from nvidia-smi; ``release``: row of the release table, by default the oldest. Returns:

    - ``weights_mib``, ``runtime_mib``, ``activations_mib``, ``cuda_graphs_mib``, ``kv_cache_mib``, ``transfer_mib``
      (buffers for the transfer of the KV cache) and ``free_mib``: all of ``total_mib``; ``free_mib`` is negative where
      the GPU is too small.
    - ``required_mib``: the smallest total that it fits in.
    - ``kv_tokens``: tokens that the KV cache of the instance holds; ``context``: the longest sequence, in tokens;
      ``sequences_at_context``: how many of that length it holds at once.
    - ``max_sequences``: how many sequences the instance decodes at once; ``tokens_per_sequence``: their average length
      in tokens if the cache holds that many.
    - ``max_seq_len``: the requested value or null; ``fits``: whether the cache holds one such sequence, or, if
      TensorRT-LLM chooses the length, one block, and leaves enough for the buffers.
    - ``limited_by``: the engine option, dotted, without which it would fit or have the model's context; null if none.
    """
    found = _estimate(options, facts, gpus, memory_mib, release or {})
    goal = (found["max_seq_len"] or facts["context"]) if found["fits"] else (found["max_seq_len"] or 1)
    limit: tuple[str, ...] | None = None
    tried, context = options, found["context"]
    for path in (*BOUNDS, FRACTION, *STEP_SIZES):
        if context >= goal:
            break
        if get(tried, path) is None:
            continue
        # Remove the options one by one, unless that makes it worse.
        without = merge(tried, {path[0]: {path[1]: None} if path[1:] else None})
        longer = _estimate(without, facts, gpus, memory_mib, release or {})["context"]
        if longer >= context:
            limit = limit or (path if longer > context else None)
            tried, context = without, longer
    # With too few GPUs the cause is not an option, except a bound that is even lower.
    return {**found, "limited_by": ".".join(limit) if limit and (context >= goal or limit in BOUNDS) else None}


def _estimate(
    options: Mapping[str, Any], facts: Mapping[str, Any], gpus: int, memory_mib: int, release: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the estimate without ``limited_by``."""
    split = parallelism(options)
    used = {
        "weights_mib": _weights(options, facts, split) / MIB,
        "runtime_mib": DRIVER_MIB + CONTEXT_MIB + NEIGHBOUR_MIB * (gpus - 1),
        "activations_mib": _activations(options, facts, split) / MIB,
        "cuda_graphs_mib": len(graph_batch_sizes(options, release)) * CUDA_GRAPH_MIB,
    }
    left = max(0.0, memory_mib - sum(used.values())) * MIB

    asked = integer(options, "max_seq_len")
    wanted = asked or facts["context"]
    windows = _windows(options, facts, wanted, release.get("sliding_window_pools", False))
    layer_bytes = _layer_bytes(options, facts, split)
    block = max(1, integer(options, "kv_cache_config", "tokens_per_block") or DEFAULT_TOKENS_PER_BLOCK)
    fraction = _fraction(options)
    pool = _capped(options, fraction * left, len(windows) * layer_bytes)

    context = _longest(pool, windows, layer_bytes)
    if context < wanted:
        # TensorRT-LLM lowers the context to full blocks (KVCacheManager, "Adjusted max_seq_len").
        context -= context % block
    batch = max(1, integer(options, "max_batch_size") or DEFAULT_MAX_BATCH_SIZE)
    one = _sequence(context, windows, layer_bytes)
    sequences = split.attention_ranks * pool / one if one else 0.0
    least = _sequence(asked or block, windows, layer_bytes) / fraction if fraction else 0
    buffered = max(0, integer(options, *TRANSFER) or 0)
    sliding = _windows(options, facts, buffered, release.get("sliding_window_pools", False))
    transfer = TRANSFER_BUFFERS * _sequence(buffered, sliding, layer_bytes)
    if transfer:
        # With all of the remainder for the KV cache no memory is enough.
        share = transfer / (1 - fraction) if fraction < 1 else left + transfer
        least = max(least, min(share, _capped(options, math.inf, len(windows) * layer_bytes) + transfer))
    return {
        "total_mib": memory_mib,
        **{part: round(size) for part, size in used.items()},
        "kv_cache_mib": round(pool / MIB),
        "transfer_mib": round(transfer / MIB),
        "free_mib": round(memory_mib - sum(used.values()) - (pool + transfer) / MIB),
        "required_mib": math.ceil(sum(used.values()) + least / MIB),
        "kv_tokens": int(sequences * context),
        "context": context,
        "sequences_at_context": round(sequences, 1),
        "max_sequences": batch * split.attention_ranks,
        "tokens_per_sequence": min(wanted, _longest(pool / batch, windows, layer_bytes)),
        "max_seq_len": asked,
        "fits": context >= (asked or 1) and transfer <= left - pool,
    }


def cause(estimated: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the engine option that makes an instance too large; None if it fits or its GPUs are too small."""
    if estimated["fits"]:
        return None
    if _too_large_buffers(estimated):
        return TRANSFER
    if estimated["limited_by"]:
        return tuple(estimated["limited_by"].split("."))
    return ("max_seq_len",) if estimated["context"] else None


def _too_large_buffers(estimated: Mapping[str, Any]) -> bool:
    """Return whether an instance that does not fit would without the buffers for the transfer of the KV cache."""
    return bool(estimated["transfer_mib"] and estimated["context"] >= (estimated["max_seq_len"] or 1))


def problem(estimated: Mapping[str, Any], model: str, gpu_type: str, gpus: int) -> str | None:
    """Return why the instance does not fit its GPUs, or None. Only the first argument decides."""
    if estimated["fits"]:
        return None
    path, asked = cause(estimated), estimated["max_seq_len"]
    where = f"{model} on {gpus} x {gpu_type} does not fit"
    parts = ", ".join(
        f"{estimated[f'{part}_mib']} {name}"
        for part, name in (
            ("weights", "weights"),
            ("runtime", "driver and CUDA"),
            ("activations", "activations"),
            ("cuda_graphs", "CUDA graphs"),
        )
    )
    if path == TRANSFER:
        left = estimated["free_mib"] + estimated["transfer_mib"]
        share = (estimated["kv_cache_mib"] + estimated["free_mib"]) / (estimated["kv_cache_mib"] + left)
        advice = f"Set 'kv_cache_config.free_gpu_memory_fraction' to {math.floor(share * 100) / 100:g}"
        return (
            f"{where}: the buffers of 'cache_transceiver_config.max_tokens_in_buffer' need {estimated['transfer_mib']} "
            f"MiB, and the KV cache leaves {left} MiB of each GPU. "
            f"{advice if share >= 0.01 else 'Lower it'}, or use more GPUs per instance."
        )
    if path == FRACTION or path in BOUNDS:
        held = f"a sequence of {estimated['context']} tokens" if estimated["context"] else "no sequence"
        wanted = f", 'max_seq_len' is {asked}" if asked else ""
        left = estimated["kv_cache_mib"] + estimated["free_mib"]
        return (
            f"{where}: with '{estimated['limited_by']}' its KV cache holds {held}{wanted} "
            f"({estimated['kv_cache_mib']} of the {left} MiB that each GPU has left). Raise or remove it."
        )
    if not estimated["context"]:
        advice = f"Lower '{path[0]}', which determines activations, or use" if path else "Use"
        return (
            f"{where}: the {estimated['total_mib']} MiB of each GPU leave none for the KV cache ({parts}). "
            f"{advice} more GPUs per instance, or GPUs with more memory."
        )
    step_size = path[0] if path in STEP_SIZES else "max_num_tokens"
    return (
        f"{where}: its KV cache holds a sequence of {estimated['context']} tokens, 'max_seq_len' is "
        f"{asked} (MiB of each GPU: {estimated['total_mib']} in all, {parts}, "
        f"{estimated['kv_cache_mib']} KV cache). Lower it or {step_size!r}, or use more GPUs per instance."
    )


def check_context(estimated: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Finding]:
    """Return a note if an instance fits but its context is shorter than the model's and ``max_seq_len`` is not set."""
    context, limit = estimated["context"], estimated["limited_by"]
    if not estimated["fits"] or estimated["max_seq_len"] or context >= facts["context"]:
        return []
    sentence = f"The KV cache holds sequences of {context} tokens, the model's context is {facts['context']}"
    if limit:
        return [Finding(tuple(limit.split(".")), "note", f"{sentence}: '{limit}' is the limit.")]
    return [Finding(("max_seq_len",), "note", f"{sentence}.")]


def _weights(options: Mapping[str, Any], facts: Mapping[str, Any], split: Parallelism) -> float:
    """Return the bytes on one GPU: its padded experts and its part of the other weights."""
    if not facts.get("experts"):
        return float(facts["weights_bytes"] / split.attention)
    hidden, inner = facts["hidden_size"], facts["expert_intermediate_size"]
    rows = _padded(math.ceil(inner / split.within_experts), WEIGHT_ALIGNMENT)
    cutlass = get(options, ("moe_config", "backend")) == "CUTLASS"
    columns = _padded(hidden, WEIGHT_ALIGNMENT if cutlass else INPUT_ALIGNMENT)
    # Gate and up, then down.
    padding = (2 * rows * columns + _padded(hidden, WEIGHT_ALIGNMENT) * rows) / (3 * hidden * inner)
    experts = facts["expert_bytes"] * math.ceil(facts["experts"] / split.experts) / facts["experts"] * padding
    return float(experts + (facts["weights_bytes"] - facts["expert_bytes"]) / split.attention)


def _activations(options: Mapping[str, Any], facts: Mapping[str, Any], split: Parallelism) -> float:
    """Return the bytes on one GPU in the largest step: activations of experts (of a dense model, of its layer), hidden
    states, and logits of a batch.

    Assumes an even distribution of tokens over the experts.
    """
    tokens = max(1, integer(options, "max_num_tokens") or DEFAULT_MAX_NUM_TOKENS)
    batch = max(1, integer(options, "max_batch_size") or DEFAULT_MAX_BATCH_SIZE)
    hidden = facts["hidden_size"]
    logits = batch * facts["vocabulary"] * 4  # float32
    # Input and output; gate, up and their product.
    if not facts.get("experts"):
        width = 2 * hidden + 3 * facts["intermediate_size"] / split.attention
        return float(tokens * width * BFLOAT16 + 2 * tokens * hidden * BFLOAT16 + logits)
    # With attention DP the experts of a GPU process the tokens of all GPUs.
    gathered = tokens * split.attention_ranks
    at_once = min(gathered, integer(options, "moe_config", "max_num_tokens") or gathered)
    width = 2 * hidden + 3 * facts["expert_intermediate_size"] / split.within_experts
    experts = at_once * facts["experts_per_token"] / split.experts * width * BFLOAT16
    return float(experts + (tokens + gathered) * hidden * BFLOAT16 + logits)


def graph_batch_sizes(options: Mapping[str, Any], release: Mapping[str, Any]) -> list[int]:
    """Return the batch sizes of captured CUDA graphs (CudaGraphConfig of tensorrt_llm/llmapi/llm_args.py).

    With padding, the first size above ``max_batch_size`` is replaced by it (TensorRT-LLM pull request 4843).
    """
    config = options.get("cuda_graph_config", {})
    if not isinstance(config, Mapping):
        return []
    batch = max(1, integer(options, "max_batch_size") or DEFAULT_MAX_BATCH_SIZE)
    padding = config.get("enable_padding") is True
    given = config.get("batch_sizes")
    if isinstance(given, list) and given:
        sizes = {each for each in given if isinstance(each, int)}
        largest = max(sizes, default=0)
    else:
        largest = integer(config, "max_batch_size") or DEFAULT_GRAPH_MAX_BATCH_SIZE
        sizes = {each for each in _default_graph_sizes(largest, padding, release) if each < largest} | {largest}
    captured = {each for each in sizes if each <= batch}
    return sorted(captured | {batch} if padding and largest > batch else captured)


def _default_graph_sizes(largest: int, padding: bool, release: Mapping[str, Any]) -> set[int]:
    doubling = {2**power for power in range(6, largest.bit_length())}
    if not padding:
        return {*range(1, 33), *doubling}
    above = range(192, largest + 1, 64) if release.get("dense_cuda_graphs") else doubling - {64}
    return {1, 2, 4, *range(8, 129, 8), *above}


def _layer_bytes(options: Mapping[str, Any], facts: Mapping[str, Any], split: Parallelism) -> int:
    """Return the bytes of a token in the KV cache of a layer on one GPU. A head that several GPUs need is on each."""
    dtype = get(options, ("kv_cache_config", "dtype"))
    heads = math.ceil(facts["kv_heads"] / split.attention)
    return int(2 * heads * facts["head_dim"] * (1 if dtype == "fp8" else BFLOAT16))


def _windows(options: Mapping[str, Any], facts: Mapping[str, Any], context: int, sliding_pools: bool) -> list[int]:
    """Return how many tokens of a sequence each layer keeps. A list of windows repeats over the layers."""
    given = get(options, ("kv_cache_config", "max_attention_window"))
    if isinstance(given, list) and given and all(isinstance(each, int) and each > 0 for each in given):
        return [min(context, given[layer % len(given)]) for layer in range(facts["layers"])]
    sliding = facts["sliding_layers"] if sliding_pools else 0
    return [min(context, facts["sliding_window"])] * sliding + [context] * (facts["layers"] - sliding)


def _sequence(length: int, windows: Sequence[int], layer_bytes: int) -> int:
    """Return the bytes of a sequence in the KV cache of one GPU."""
    return sum(min(length, window) for window in windows) * layer_bytes


def _longest(room: float, windows: Sequence[int], layer_bytes: int) -> int:
    """Return the longest sequence that fits in the bytes of ``room``, in tokens; at most the widest window."""
    length, growing = 0, len(windows)
    for window in sorted(windows):
        step = (window - length) * growing * layer_bytes
        if step > room:
            return length + int(room // (growing * layer_bytes))
        room -= step
        length, growing = window, growing - 1
    return length


def _fraction(options: Mapping[str, Any]) -> float:
    fraction = get(options, ("kv_cache_config", "free_gpu_memory_fraction"), DEFAULT_FRACTION)
    return float(fraction) if isinstance(fraction, (int, float)) and 0 <= fraction <= 1 else DEFAULT_FRACTION


def _capped(options: Mapping[str, Any], pool: float, token_bytes: int) -> float:
    """Return the bytes of the KV cache: the smallest of the fraction's pool and these two options, as TensorRT-LLM."""
    tokens = integer(options, "kv_cache_config", "max_tokens")
    total = integer(options, "kv_cache_config", "max_gpu_total_bytes")
    caps = [pool, *([tokens * token_bytes] if tokens is not None else []), *([total] if total else [])]
    return max(0.0, float(min(caps)))


def _padded(size: int, to: int) -> int:
    return math.ceil(size / to) * to
