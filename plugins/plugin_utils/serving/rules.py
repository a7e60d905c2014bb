# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules for combinations of engine options: errors, and notes on consequences.

Types are checked in engine_options.py; a rule ignores values of a wrong type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.layers import get
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.parallelism import integer, size

# One process per GPU: the product of these is the number of GPUs of an instance (tensorrt_llm/mapping.py).
PARALLEL_OPTIONS = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
MOE_PARALLEL_OPTIONS = ("moe_expert_parallel_size", "moe_tensor_parallel_size", "moe_cluster_parallel_size")
# TensorRT-LLM's defaults in every release of the table (tensorrt_llm/llmapi/llm_args.py).
DEFAULT_MAX_BATCH_SIZE = 2048
DEFAULT_MAX_NUM_TOKENS = 8192
DEFAULT_GRAPH_MAX_BATCH_SIZE = 128


@dataclass(frozen=True)
class Finding:
    """Result of a rule for an option. With an error the server does not start or does not do what the option says."""

    path: tuple[str, ...]
    severity: Literal["error", "note"]
    sentence: str


@dataclass(frozen=True)
class Configuration:
    """Input of rules: the merged engine options of one instance, the ``facts`` of its model, its number of GPUs.

    ``worker``: ``prefill``, ``decode`` or None, from the recipe. ``release``: the row of the release table.
    """

    options: Mapping[str, Any]
    facts: Mapping[str, Any]
    gpus: int
    environment: Mapping[str, Any] = field(default_factory=dict)
    worker: str | None = None
    release: Mapping[str, Any] = field(default_factory=dict)

    def get(self, *path: str) -> Any:
        return get(self.options, path)

    def integer(self, *path: str, default: int | None = None) -> int | None:
        """Return the integer at a path, or ``default``; None for a value of another type."""
        return default if self.get(*path) is None else integer(self.options, *path)

    def variable(self, name: str) -> str:
        """Return an environment variable of TensorRT-LLM; the option ``env_overrides`` can set it too."""
        return str(self.environment.get(name) or self.get("env_overrides", name) or "")

    @property
    def attention_dp(self) -> bool:
        return self.get("enable_attention_dp") is True


Rule = Callable[[Configuration], Iterator[Finding]]


def _error(path: str, sentence: str) -> Finding:
    return Finding(tuple(path.split(".")), "error", sentence)


def _note(path: str, sentence: str) -> Finding:
    return Finding(tuple(path.split(".")), "note", sentence)


def whole_instance(it: Configuration) -> Iterator[Finding]:
    """The product of the sizes is the world size (tensorrt_llm/mapping.py)."""
    sizes = [it.integer(name, default=1) for name in PARALLEL_OPTIONS]
    if None in sizes:
        return
    product = 1
    for each in sizes:
        product *= each or 0
    if product != it.gpus:
        yield _error(
            "tensor_parallel_size",
            f"{' x '.join(PARALLEL_OPTIONS)} is {' x '.join(map(str, sizes))}; "
            f"it must be the number of GPUs of an instance, {it.gpus} (serving_recipe_gpus_per_instance).",
        )


def no_pipelines(it: Configuration) -> Iterator[Finding]:
    """TensorRT-LLM pull request 7911 (modeling_gpt_oss.py asserts it)."""
    pipelines = it.integer("pipeline_parallel_size")
    if pipelines and pipelines > 1 and not it.facts["pipelines"]:
        yield _error(
            "pipeline_parallel_size",
            f"'pipeline_parallel_size' is {pipelines}; TensorRT-LLM has no pipeline parallelism for this model. "
            "Set it to 1.",
        )


def split_of_experts(it: Configuration) -> Iterator[Finding]:
    """The experts are split evenly over the GPUs of tensor parallelism (tensorrt_llm/mapping.py)."""
    if not it.facts.get("experts"):
        for name in (name for name in (*MOE_PARALLEL_OPTIONS, "moe_config") if it.get(name) is not None):
            yield _error(name, f"{name!r} is set; the model has no experts. Remove the option.")
        return
    for name in MOE_PARALLEL_OPTIONS:
        if it.integer(name) == 0:
            yield _error(name, f"{name!r} is 0; it must be at least 1. Remove it, and TensorRT-LLM chooses.")
    tensor = size(it.options, "tensor_parallel_size") or 1
    experts, within = (size(it.options, f"moe_{kind}_parallel_size") for kind in ("expert", "tensor"))
    name = "moe_expert_parallel_size" if experts else "moe_tensor_parallel_size"
    # The deprecated third dimension of this product.
    if (size(it.options, "moe_cluster_parallel_size") or 1) > 1:
        return
    if experts and within and experts * within != tensor:
        yield _error(
            name,
            f"moe_expert_parallel_size x moe_tensor_parallel_size is {experts} x {within}; "
            f"it must be 'tensor_parallel_size', {tensor}. Remove one of the two.",
        )
    elif (experts or within) and tensor % (experts or within or 1):
        yield _error(name, f"{name!r} is {experts or within}; it must divide 'tensor_parallel_size', {tensor}.")
    elif experts and it.facts["experts"] % experts:
        yield _error(name, f"{name!r} is {experts}; it must divide the model's {it.facts['experts']} experts.")


def split_of_heads(it: Configuration) -> Iterator[Finding]:
    """Tensor parallelism splits the attention heads evenly (tensorrt_llm/_torch/modules/attention.py asserts it)."""
    tensor, heads = size(it.options, "tensor_parallel_size") or 1, it.facts["attention_heads"]
    if not it.attention_dp and heads % tensor:
        yield _error(
            "tensor_parallel_size",
            f"'tensor_parallel_size' is {tensor}; it must divide the model's {heads} attention heads.",
        )


def attention_dp(it: Configuration) -> Iterator[Finding]:
    """With attention DP each GPU of the tensor-parallel group has its own sequences; blog 9 sets it for one GPU too."""
    if it.attention_dp and (size(it.options, "tensor_parallel_size") or 1) == 1:
        yield _note("enable_attention_dp", "'enable_attention_dp' has no effect with one GPU per instance.")
    if not it.attention_dp and it.get("attention_dp_config") is not None:
        yield _note("attention_dp_config", "'attention_dp_config' has no effect without 'enable_attention_dp'.")


def attention_sinks(it: Configuration) -> Iterator[Finding]:
    """tensorrt_llm/_torch/modules/attention.py asserts it for a model with sinks, as gpt-oss is (issue 13156)."""
    backend = it.get("attn_backend")
    if it.facts["attention_sinks"] and isinstance(backend, str) and backend != "TRTLLM":
        yield _error(
            "attn_backend",
            f"'attn_backend' is {backend}; the model needs attention sinks, which only TRTLLM has. Remove the option.",
        )


def graph_sizes(it: Configuration) -> Iterator[Finding]:
    """CudaGraphConfig.validate_cuda_graph_config of tensorrt_llm/llmapi/llm_args.py."""
    sizes, largest = it.get("cuda_graph_config", "batch_sizes"), it.integer("cuda_graph_config", "max_batch_size")
    if not isinstance(sizes, list):
        return
    if not sizes:
        yield _note(
            "cuda_graph_config.batch_sizes",
            "'cuda_graph_config.batch_sizes' is empty, so the default sizes are used. "
            "To turn CUDA graphs off, set 'cuda_graph_config: null'.",
        )
    elif largest:
        yield _error(
            "cuda_graph_config.max_batch_size",
            f"'cuda_graph_config.max_batch_size' is {largest} beside 'cuda_graph_config.batch_sizes'; TensorRT-LLM "
            "takes one of them. Remove it: the sizes up to 'max_batch_size' are used.",
        )


def graphs_cover_batches(it: Configuration) -> Iterator[Finding]:
    """Quick start for GPT-OSS: the value of max_batch_size. The engine drops larger graphs (model_engine.py)."""
    config = it.get("cuda_graph_config")
    if config is None and "cuda_graph_config" in it.options:
        return
    sizes = it.get("cuda_graph_config", "batch_sizes")
    largest = it.integer("cuda_graph_config", "max_batch_size") or DEFAULT_GRAPH_MAX_BATCH_SIZE
    if isinstance(sizes, list) and sizes:
        if not all(isinstance(each, int) for each in sizes):
            return
        largest = max(sizes)
    batch = it.integer("max_batch_size", default=DEFAULT_MAX_BATCH_SIZE)
    if batch is None or largest == batch:
        return
    path = "cuda_graph_config.batch_sizes" if sizes else "cuda_graph_config.max_batch_size"
    if largest > batch:
        # With padding, the first larger size is replaced by max_batch_size (TensorRT-LLM pull request 4843).
        if it.get("cuda_graph_config", "enable_padding") is True:
            return
        yield _note(
            path,
            f"CUDA graphs are set up to batch size {largest}; none above 'max_batch_size', {batch}, is used.",
        )
    else:
        yield _note(
            path,
            f"Decode batches of more than {largest} sequences run without a CUDA graph; 'max_batch_size' is {batch}.",
        )


def tokens_for_batch(it: Configuration) -> Iterator[Finding]:
    """A decode step has a token per sequence, and the drafts (model_engine.py). With attention DP both are per GPU."""
    batch = it.integer("max_batch_size")
    tokens = it.integer("max_num_tokens", default=DEFAULT_MAX_NUM_TOKENS)
    per_sequence = 1 + max(0, it.integer("speculative_config", "max_draft_len") or 0)
    if batch is None or tokens is None or batch * per_sequence <= tokens:
        return
    each = f", {per_sequence} each with the drafts" if per_sequence > 1 else ", one each"
    yield _error(
        "max_num_tokens",
        f"'max_num_tokens' is {tokens}; a decode step of 'max_batch_size', {batch}, sequences "
        f"takes {batch * per_sequence} tokens{each}. Raise it or lower 'max_batch_size'.",
    )


def length_of_context(it: Configuration) -> Iterator[Finding]:
    """PyTorchModelEngine._init_max_seq_len raises, unless this variable is set."""
    longest, context = it.integer("max_seq_len"), it.facts["context"]
    allowed = it.variable("TLLM_ALLOW_LONG_MAX_MODEL_LEN").lower() in ("1", "true", "yes", "y")
    if longest is not None and longest > context and not allowed:
        yield _error(
            "max_seq_len",
            f"'max_seq_len' is {longest}; the model's context is {context} tokens. Lower or remove it.",
        )


def length_of_prompts(it: Configuration) -> Iterator[Finding]:
    """LLM._check_arguments rejects such a prompt (TensorRT-LLM pull request 6259); published configurations do too.

    It does not in a decode worker (is_gen_only).
    """
    if it.worker == "decode":
        return
    tokens = it.integer("max_num_tokens", default=DEFAULT_MAX_NUM_TOKENS)
    longest = it.integer("max_seq_len", default=it.facts["context"])
    if it.get("enable_chunked_prefill") is True or tokens is None or longest is None or tokens >= longest:
        return
    yield _note(
        "max_num_tokens",
        f"Prompts of more than 'max_num_tokens', {tokens}, tokens are rejected, but a sequence may have {longest}: "
        "'enable_chunked_prefill' is off.",
    )


def transfer_buffer(it: Configuration) -> Iterator[Finding]:
    """ai-dynamo/dynamo issue 4327: such a prompt blocks the transfer of all later ones until a restart."""
    buffer = it.integer("cache_transceiver_config", "max_tokens_in_buffer")
    longest = it.integer("max_seq_len", default=it.facts["context"])
    if not it.worker or buffer is None or longest is None or buffer >= longest:
        return
    yield _note(
        "cache_transceiver_config.max_tokens_in_buffer",
        f"'cache_transceiver_config.max_tokens_in_buffer' is {buffer}, and a sequence may have {longest} tokens: a "
        f"prompt longer than the buffer hangs the workers. Set 'max_seq_len' to {buffer} or raise the buffer.",
    )


def transfer_backend(it: Configuration) -> Iterator[Finding]:
    """create_kv_cache_transceiver of tensorrt_llm/_torch/pyexecutor: without a backend there is no transfer."""
    if it.worker and not it.get("cache_transceiver_config", "backend"):
        yield _error(
            "cache_transceiver_config.backend",
            f"'cache_transceiver_config.backend' is not set; a {it.worker} worker transfers the KV cache with it.",
        )


def overlap_of_prefill(it: Configuration) -> Iterator[Finding]:
    """TensorRT-LLM docs/source/features/disagg-serving.md: context servers need it off."""
    if it.worker == "prefill" and it.get("disable_overlap_scheduler") is not True:
        yield _error(
            "disable_overlap_scheduler",
            "'disable_overlap_scheduler' is not true; a prefill worker does not run with the overlap scheduler.",
        )


def memory_fraction(it: Configuration) -> Iterator[Finding]:
    """TensorRT-LLM docs/source/features/kvcache.md, and the validator of KvCacheConfig."""
    fraction = it.get("kv_cache_config", "free_gpu_memory_fraction")
    if isinstance(fraction, (int, float)) and not isinstance(fraction, bool) and not 0 < fraction <= 1:
        yield _error(
            "kv_cache_config.free_gpu_memory_fraction",
            f"'kv_cache_config.free_gpu_memory_fraction' is {fraction}; it must be above 0 and at most 1.",
        )


def size_of_blocks(it: Configuration) -> Iterator[Finding]:
    """TensorRT-LLM docs/source/features/kvcache.md, "The Basics"."""
    tokens = it.integer("kv_cache_config", "tokens_per_block")
    if tokens is not None and (tokens < 2 or tokens & (tokens - 1)):
        yield _error(
            "kv_cache_config.tokens_per_block",
            f"'kv_cache_config.tokens_per_block' is {tokens}; it must be a power of two greater than 1.",
        )


def cache_in_host_memory(it: Configuration) -> Iterator[Finding]:
    """host_cache_size of KvCacheConfig is for each rank, and pinned (TensorRT-LLM docs/source/features/kvcache.md)."""
    gib = (it.integer("kv_cache_config", "host_cache_size") or 0) / 2**30
    if gib:
        yield _note(
            "kv_cache_config.host_cache_size",
            f"'kv_cache_config.host_cache_size' takes {gib * it.gpus:.1f} GiB of the host's memory for each instance "
            f"({it.gpus} x {gib:.1f} GiB). The preflight does not check that it is free.",
        )


def adapters(it: Configuration) -> Iterator[Finding]:
    """LoraConfig of tensorrt_llm/lora_helper.py: paths in the container, which has the model's directory only."""
    folders = it.get("lora_config", "lora_dir")
    if isinstance(folders, list) and folders:
        yield _error(
            "lora_config.lora_dir",
            f"'lora_config.lora_dir' is {folders}; the container has no directory but the model's. Remove it, and "
            "serve the adapter merged into the model (serving_recipe_base_model).",
        )
    if it.get("enable_lora") is True and it.get("lora_config") is None:
        yield _note(
            "enable_lora",
            "'enable_lora' is true without 'lora_config': a request needs an adapter in the container, which has none.",
        )


def draft_model(it: Configuration) -> Iterator[Finding]:
    """Eagle3DecodingConfig of tensorrt_llm/llmapi/llm_args.py; 'Eagle' means 'Eagle3'.

    The container looks nothing up on the hub (HF_HUB_OFFLINE). What breaks with a draft model: TensorRT-LLM issue 10612
    (structured output), and ``allow_advanced_sampling`` of the same file.
    """
    names = ("speculative_model", "speculative_model_dir")
    given = {name: it.get("speculative_config", name) for name in names if it.get("speculative_config", name)}
    on_hub = {name: draft for name, draft in given.items() if not str(draft).startswith("/")}
    for name, draft in on_hub.items():
        yield _error(
            f"speculative_config.{name}",
            f"'speculative_config.{name}' is {draft!r}, a name on the hub, which the container cannot reach. Set "
            "serving_recipe_draft_model to a draft model of this model, and remove 'speculative_config'.",
        )
    if on_hub or it.get("speculative_config", "decoding_type") not in ("Eagle", "Eagle3"):
        return
    kind = "speculative_config.decoding_type"
    if not given:
        yield _error(kind, f"{kind!r} Eagle3 needs a draft model. Set serving_recipe_draft_model.")
    elif (it.integer("speculative_config", "max_draft_len") or 0) < 1:
        yield _error(kind, f"{kind!r} Eagle3 needs a 'speculative_config.max_draft_len' of at least 1.")
    else:
        yield _note(kind, "With a draft model an answer may not follow 'response_format' (TensorRT-LLM issue 10612).")
        ignored = "With a draft model this release ignores 'temperature', 'top_p' and 'seed' of a request"
        sampling = it.release.get("draft_sampling")
        if sampling == "ignored":
            yield _note(kind, f"{ignored}.")
        elif sampling == "optional" and not it.get("speculative_config", "allow_advanced_sampling"):
            option = "speculative_config.allow_advanced_sampling"
            yield _note(option, f"{ignored} unless {option!r} is true.")


def stored_responses(it: Configuration) -> Iterator[Finding]:
    """enable_store of tensorrt_llm/serve/openai_server.py, unless the environment turns the store off."""
    workers = it.integer("num_postprocess_workers")
    if workers and workers > 0 and not it.variable("TRTLLM_RESPONSES_API_DISABLE_STORE"):
        yield _note(
            "num_postprocess_workers",
            f"'num_postprocess_workers' is {workers}, so responses are not stored: GET /v1/responses/{{id}} and "
            "'previous_response_id' do not work. Set it to 0 to use them.",
        )


def streamed_chunks(it: Configuration) -> Iterator[Finding]:
    """stream_interval of tensorrt_llm/llmapi/llm_args.py."""
    interval = it.integer("stream_interval")
    if interval and interval > 1:
        yield _note(
            "stream_interval",
            f"'stream_interval' is {interval}: a streamed answer comes in chunks of {interval} tokens.",
        )


def served_model(it: Configuration) -> Iterator[Finding]:
    """The command line sets the model; up to 1.3 the file overrides it (``precedence``)."""
    if it.get("model") is not None:
        yield _error(
            "model",
            "'model' is on the command line of trtllm-serve. Remove it and set serving_recipe_model.",
        )


def text_in_and_out(it: Configuration) -> Iterator[Finding]:
    """LLM._prepare_sampling_params (tensorrt_llm/llmapi/llm.py) raises for a request without an end token; before that
    tensorrt_llm/serve/openai_server.py reads the vocabulary size from the tokenizer."""
    if it.get("skip_tokenizer_init") is True:
        yield _error(
            "skip_tokenizer_init",
            "'skip_tokenizer_init' is true; without a tokenizer the OpenAI API answers no request. Remove the option.",
        )


def deprecated_values(it: Configuration) -> Iterator[Finding]:
    """``deprecated`` of the release table."""
    for row in it.release.get("deprecated", []):
        path = row["option"]
        if it.get(*path.split(".")) == row["value"]:
            yield _note(path, f"{path!r} is {row['value']}, which is deprecated: {row['note']}.")


def random_weights(it: Configuration) -> Iterator[Finding]:
    """LoadFormat of tensorrt_llm/llmapi/llm_args.py."""
    if str(it.get("load_format")).lower() == "dummy":
        yield _note(
            "load_format",
            "'load_format' is dummy: the model's weights are NOT loaded. They are random, and so is every answer.",
        )


RULES: tuple[Rule, ...] = (
    whole_instance,
    no_pipelines,
    split_of_experts,
    split_of_heads,
    attention_dp,
    attention_sinks,
    graph_sizes,
    graphs_cover_batches,
    tokens_for_batch,
    length_of_context,
    length_of_prompts,
    transfer_buffer,
    transfer_backend,
    overlap_of_prefill,
    memory_fraction,
    size_of_blocks,
    cache_in_host_memory,
    adapters,
    draft_model,
    stored_responses,
    streamed_chunks,
    served_model,
    text_in_and_out,
    deprecated_values,
    random_weights,
)


def check_rules(
    options: Mapping[str, Any],
    model: Mapping[str, Any],
    gpus: int,
    environment: Mapping[str, Any] | None = None,
    worker: str | None = None,
    release: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Return the findings of all rules, in their order.

    ``options``: the merged engine options; ``model``: the ``facts`` of the model file; ``gpus``: those of one instance;
    ``environment``: the instance's environment variables; ``worker``: that of the recipe; ``release``: the row of the
    release table. Raises nothing for wrong values of options.
    """
    it = Configuration(options, model, gpus, environment or {}, worker, release or {})
    return [finding for rule in RULES for finding in rule(it)]
