"""Rules for engine options: errors, notes, and that published configurations pass."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.rules import Finding, check_rules
from ansible_collections.trtllm.fleet.tests.unit.published import PUBLISHED, Published, facts

FACTS = facts("gpt-oss-120b")
# Options without a finding; every case starts from them.
QUIET: dict[str, Any] = {
    "tensor_parallel_size": 4,
    "max_batch_size": 128,
    "max_num_tokens": 131072,
    "cuda_graph_config": {"max_batch_size": 128},
}


def findings(options: dict[str, Any], gpus: int = 4, **environment: str) -> list[Finding]:
    return check_rules({**QUIET, **options}, FACTS, gpus, environment)


def test_quiet() -> None:
    assert findings({}) == []


@pytest.mark.parametrize(
    ("options", "path", "sentence"),
    [
        (
            {"tensor_parallel_size": 2},
            "tensor_parallel_size",
            "tensor_parallel_size x pipeline_parallel_size x context_parallel_size is 2 x 1 x 1; "
            "it must be the number of GPUs of an instance, 4 (serving_recipe_gpus_per_instance).",
        ),
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
            "pipeline_parallel_size",
            "'pipeline_parallel_size' is 2; TensorRT-LLM has no pipeline parallelism for this model. Set it to 1.",
        ),
        (
            {"moe_expert_parallel_size": 4, "moe_tensor_parallel_size": 4},
            "moe_expert_parallel_size",
            "moe_expert_parallel_size x moe_tensor_parallel_size is 4 x 4; it must be 'tensor_parallel_size', 4. "
            "Remove one of the two.",
        ),
        (
            {"moe_expert_parallel_size": 0},
            "moe_expert_parallel_size",
            "'moe_expert_parallel_size' is 0; it must be at least 1. Remove it, and TensorRT-LLM chooses.",
        ),
        (
            {"attn_backend": "FLASHINFER"},
            "attn_backend",
            "'attn_backend' is FLASHINFER; the model needs attention sinks, which only TRTLLM has. Remove the option.",
        ),
        (
            {"model": "openai/gpt-oss-20b"},
            "model",
            "'model' is on the command line of trtllm-serve. Remove it and set serving_recipe_model.",
        ),
        (
            {"skip_tokenizer_init": True},
            "skip_tokenizer_init",
            "'skip_tokenizer_init' is true; without a tokenizer the OpenAI API answers no request. Remove the option.",
        ),
        (
            {"moe_expert_parallel_size": 3},
            "moe_expert_parallel_size",
            "'moe_expert_parallel_size' is 3; it must divide 'tensor_parallel_size', 4.",
        ),
        (
            {"moe_tensor_parallel_size": 8},
            "moe_tensor_parallel_size",
            "'moe_tensor_parallel_size' is 8; it must divide 'tensor_parallel_size', 4.",
        ),
        (
            {"max_batch_size": 128, "max_num_tokens": 64, "max_seq_len": 64},
            "max_num_tokens",
            "'max_num_tokens' is 64; a decode step of 'max_batch_size', 128, sequences takes 128 tokens, one each. "
            "Raise it or lower 'max_batch_size'.",
        ),
        (
            {
                "max_num_tokens": 256,
                "max_seq_len": 256,
                "speculative_config": {"decoding_type": "NGram", "max_draft_len": 3},
            },
            "max_num_tokens",
            "'max_num_tokens' is 256; a decode step of 'max_batch_size', 128, sequences takes 512 tokens, "
            "4 each with the drafts. Raise it or lower 'max_batch_size'.",
        ),
        (
            {"max_seq_len": 131073, "max_num_tokens": 131073},
            "max_seq_len",
            "'max_seq_len' is 131073; the model's context is 131072 tokens. Lower or remove it.",
        ),
        (
            {"cuda_graph_config": {"max_batch_size": 64, "batch_sizes": [1, 128]}},
            "cuda_graph_config.max_batch_size",
            "'cuda_graph_config.max_batch_size' is 64 beside 'cuda_graph_config.batch_sizes'; TensorRT-LLM takes one "
            "of them. Remove it: the sizes up to 'max_batch_size' are used.",
        ),
        (
            {"kv_cache_config": {"free_gpu_memory_fraction": 0}},
            "kv_cache_config.free_gpu_memory_fraction",
            "'kv_cache_config.free_gpu_memory_fraction' is 0; it must be above 0 and at most 1.",
        ),
        (
            {"kv_cache_config": {"tokens_per_block": 48}},
            "kv_cache_config.tokens_per_block",
            "'kv_cache_config.tokens_per_block' is 48; it must be a power of two greater than 1.",
        ),
        (
            {"speculative_config": {"decoding_type": "Eagle3", "max_draft_len": 3}},
            "speculative_config.decoding_type",
            "'speculative_config.decoding_type' Eagle3 needs a draft model. Set serving_recipe_draft_model.",
        ),
        (
            {"speculative_config": {"decoding_type": "Eagle3", "speculative_model": "/models/draft"}},
            "speculative_config.decoding_type",
            "'speculative_config.decoding_type' Eagle3 needs a 'speculative_config.max_draft_len' of at least 1.",
        ),
        *(
            (
                {"speculative_config": {"decoding_type": kind, name: "nvidia/gpt-oss-120b-Eagle3", "max_draft_len": 3}},
                f"speculative_config.{name}",
                f"'speculative_config.{name}' is 'nvidia/gpt-oss-120b-Eagle3', a name on the hub, which the container "
                "cannot reach. Set serving_recipe_draft_model to a draft model of this model, and remove "
                "'speculative_config'.",
            )
            for kind, name in (("Eagle", "speculative_model"), ("Draft_Target", "speculative_model_dir"))
        ),
        (
            {"lora_config": {"lora_dir": ["/adapters/a"]}},
            "lora_config.lora_dir",
            "'lora_config.lora_dir' is ['/adapters/a']; the container has no directory but the model's. Remove it, and "
            "serve the adapter merged into the model (serving_recipe_base_model).",
        ),
    ],
)
def test_error(options: dict[str, Any], path: str, sentence: str) -> None:
    assert findings(options) == [Finding(tuple(path.split(".")), "error", sentence)]


def test_uneven_split() -> None:
    """Sizes that no host has today, but that an override can set."""
    assert [found.sentence for found in findings({"tensor_parallel_size": 6}, gpus=6)] == [
        "'tensor_parallel_size' is 6; it must divide the model's 64 attention heads."
    ]
    uneven = {"tensor_parallel_size": 6, "moe_expert_parallel_size": 3, "enable_attention_dp": True}
    assert [found.sentence for found in findings(uneven, gpus=6)] == [
        "'moe_expert_parallel_size' is 3; it must divide the model's 128 experts."
    ]


@pytest.mark.parametrize(
    ("options", "path", "sentence"),
    [
        (
            {"attention_dp_config": {"enable_balance": True}},
            "attention_dp_config",
            "'attention_dp_config' has no effect without 'enable_attention_dp'.",
        ),
        (
            {"max_num_tokens": 16384},
            "max_num_tokens",
            "Prompts of more than 'max_num_tokens', 16384, tokens are rejected, but a sequence may have 131072: "
            "'enable_chunked_prefill' is off.",
        ),
        (
            {"kv_cache_config": {"host_cache_size": 100 * 2**30}},
            "kv_cache_config.host_cache_size",
            "'kv_cache_config.host_cache_size' takes 400.0 GiB of the host's memory for each instance (4 x 100.0 GiB). "
            "The preflight does not check that it is free.",
        ),
        (
            {"enable_lora": True},
            "enable_lora",
            "'enable_lora' is true without 'lora_config': a request needs an adapter in the container, which has none.",
        ),
        (
            {"max_num_tokens": None, "max_seq_len": 98304},
            "max_num_tokens",
            "Prompts of more than 'max_num_tokens', 8192, tokens are rejected, but a sequence may have 98304: "
            "'enable_chunked_prefill' is off.",
        ),
        (
            {"num_postprocess_workers": 4},
            "num_postprocess_workers",
            "'num_postprocess_workers' is 4, so responses are not stored: GET /v1/responses/{id} and "
            "'previous_response_id' do not work. Set it to 0 to use them.",
        ),
        (
            {"stream_interval": 20},
            "stream_interval",
            "'stream_interval' is 20: a streamed answer comes in chunks of 20 tokens.",
        ),
        (
            {"cuda_graph_config": {"max_batch_size": 720}},
            "cuda_graph_config.max_batch_size",
            "CUDA graphs are set up to batch size 720; none above 'max_batch_size', 128, is used.",
        ),
        (
            {"cuda_graph_config": {"batch_sizes": [1, 2, 64]}},
            "cuda_graph_config.batch_sizes",
            "Decode batches of more than 64 sequences run without a CUDA graph; 'max_batch_size' is 128.",
        ),
        (
            {"cuda_graph_config": {"batch_sizes": []}},
            "cuda_graph_config.batch_sizes",
            "'cuda_graph_config.batch_sizes' is empty, so the default sizes are used. "
            "To turn CUDA graphs off, set 'cuda_graph_config: null'.",
        ),
    ],
)
def test_note(options: dict[str, Any], path: str, sentence: str) -> None:
    assert findings(options) == [Finding(tuple(path.split(".")), "note", sentence)]


@pytest.mark.parametrize("load_format", ["dummy", "DUMMY"])
def test_random_weights(load_format: str) -> None:
    sentence = "'load_format' is dummy: the model's weights are NOT loaded. They are random, and so is every answer."
    assert findings({"load_format": load_format}) == [Finding(("load_format",), "note", sentence)]


def test_attention_dp_on_one_gpu() -> None:
    sentence = "'enable_attention_dp' has no effect with one GPU per instance."
    options = {"tensor_parallel_size": 1, "enable_attention_dp": True}
    assert findings(options, gpus=1) == [Finding(("enable_attention_dp",), "note", sentence)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_tokens": 8192, "enable_chunked_prefill": True},
        {"max_num_tokens": 2048, "max_seq_len": 2048},
        {"cuda_graph_config": None},
        {"cuda_graph_config": {"max_batch_size": 0}},
        {"moe_expert_parallel_size": 1},
        {"moe_expert_parallel_size": -1, "moe_tensor_parallel_size": None},
        {"moe_expert_parallel_size": 2, "moe_tensor_parallel_size": 2},
        {"tensor_parallel_size": 4, "pipeline_parallel_size": None, "context_parallel_size": 1},
        {"enable_attention_dp": True, "attention_dp_config": {"enable_balance": True}},
        {"stream_interval": 1, "num_postprocess_workers": 0},
        {"attn_backend": "TRTLLM", "skip_tokenizer_init": False, "load_format": "auto"},
    ],
)
def test_no_finding(options: dict[str, Any]) -> None:
    assert findings(options) == []


def of_worker(worker: str, options: dict[str, Any]) -> list[Finding]:
    """Return the findings for a worker that is valid otherwise."""
    transfer = {"backend": "UCX", "max_tokens_in_buffer": 131072, **options.pop("cache_transceiver_config", {})}
    quiet = {**QUIET, "cache_transceiver_config": transfer, "disable_overlap_scheduler": True}
    return check_rules({**quiet, **options}, FACTS, 4, worker=worker)


def test_a_decode_worker_reads_no_prompts() -> None:
    assert of_worker("decode", {"max_num_tokens": 16384}) == []
    assert [each.path for each in of_worker("prefill", {"max_num_tokens": 16384})] == [("max_num_tokens",)]


@pytest.mark.parametrize("worker", ["prefill", "decode"])
def test_a_prompt_that_does_not_fit_the_transfer_buffer(worker: str) -> None:
    small = {"cache_transceiver_config": {"max_tokens_in_buffer": 65536}}
    (told,) = of_worker(worker, small)
    assert told.path == ("cache_transceiver_config", "max_tokens_in_buffer")
    assert "is 65536, and a sequence may have 131072 tokens" in told.sentence
    assert of_worker(worker, {**small, "max_seq_len": 65536, "max_num_tokens": 65536}) == []


@pytest.mark.parametrize("worker", ["prefill", "decode"])
def test_a_worker_without_a_transfer_backend(worker: str) -> None:
    (told,) = of_worker(worker, {"cache_transceiver_config": {"backend": None}})
    assert (told.severity, told.path) == ("error", ("cache_transceiver_config", "backend"))


def test_the_overlap_scheduler_is_for_decode_only() -> None:
    assert of_worker("decode", {"disable_overlap_scheduler": False}) == []
    (told,) = of_worker("prefill", {"disable_overlap_scheduler": False})
    assert (told.severity, told.path) == ("error", ("disable_overlap_scheduler",))


def test_environment_variables_allow_it() -> None:
    """A variable allows what a rule reports otherwise; env_overrides sets variables too."""
    assert findings({"num_postprocess_workers": 4}, TRTLLM_RESPONSES_API_DISABLE_STORE="1") == []
    long = {"max_seq_len": 200000, "max_num_tokens": 200000}
    assert findings(long, TLLM_ALLOW_LONG_MAX_MODEL_LEN="1") == []
    assert findings({**long, "env_overrides": {"TLLM_ALLOW_LONG_MAX_MODEL_LEN": 1}}) == []


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published.name)
def test_published_configurations_pass(published: Published) -> None:
    options = {"tensor_parallel_size": 1, **published.options}
    found = check_rules(options, facts(published.model), published.gpus)
    assert [finding for finding in found if finding.severity == "error"] == []


NAMES = [
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "moe_expert_parallel_size",
    "moe_tensor_parallel_size",
    "moe_cluster_parallel_size",
    "enable_attention_dp",
    "attention_dp_config",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "enable_chunked_prefill",
    "num_postprocess_workers",
    "stream_interval",
    "cuda_graph_config",
    "kv_cache_config",
    "speculative_config",
    "moe_config",
    "env_overrides",
    "attn_backend",
    "model",
    "skip_tokenizer_init",
    "load_format",
    "batch_sizes",
    "max_draft_len",
    "decoding_type",
    "free_gpu_memory_fraction",
    "tokens_per_block",
    "max_attention_window",
    "max_tokens",
    "max_gpu_total_bytes",
    "dtype",
    "backend",
    "enable_padding",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200000) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
OPTIONS = st.dictionaries(st.sampled_from(NAMES), VALUES)


@given(OPTIONS, st.integers(1, 72))
def test_wrong_values_raise_nothing(options: dict[str, Any], gpus: int) -> None:
    for finding in check_rules(options, FACTS, gpus):
        assert finding.path[0] in NAMES
        assert finding.sentence.endswith(".")
