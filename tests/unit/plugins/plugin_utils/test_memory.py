"""The memory estimate: against measured values, on published configurations, and its general properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.memory import (
    cause,
    check_context,
    estimate,
    graph_batch_sizes,
    problem,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.rules import Finding
from ansible_collections.trtllm.fleet.tests.unit.plugins.plugin_utils.test_rules import OPTIONS
from ansible_collections.trtllm.fleet.tests.unit.published import (
    B200,
    H100,
    PUBLISHED,
    RTX_5090,
    TABLES,
    Published,
    facts,
)

FACTS = facts("gpt-oss-120b")
GIB = 1024  # MiB
TO_128 = [1, 2, 4, *range(8, 129, 8)]
PARTS = ("weights_mib", "runtime_mib", "activations_mib", "cuda_graphs_mib", "kv_cache_mib", "transfer_mib", "free_mib")


def kv_cache(**config: Any) -> dict[str, Any]:
    return {"kv_cache_config": config}


@pytest.mark.parametrize("model", ["gpt-oss-120b", "gpt-oss-20b"])
def test_facts_are_consistent(model: str) -> None:
    """The size of the files follows from the shapes, to the byte."""
    it = facts(model)
    hidden, inner, experts = it["hidden_size"], it["expert_intermediate_size"], it["experts"]
    queries, keys = it["attention_heads"] * it["head_dim"], it["kv_heads"] * it["head_dim"]
    # Four bits, and a scale of one byte for each 32 weights.
    assert it["expert_bytes"] == it["layers"] * experts * 3 * hidden * inner * 17 // 32
    attention = hidden * (queries + 2 * keys) + queries + 2 * keys + queries * hidden + hidden + it["attention_heads"]
    router, biases, norms = experts * (hidden + 1), experts * (2 * inner + hidden), 2 * hidden
    rest = it["layers"] * (attention + router + biases + norms) + hidden + 2 * it["vocabulary"] * hidden
    assert it["weights_bytes"] == it["expert_bytes"] + 2 * rest


# A log of TensorRT-LLM 1.1.0rc3 on a DGX Spark, published on GitHub: CUTLASS, 8192 tokens, 64 sequences.
SPARK: dict[str, Any] = {
    "max_batch_size": 64,
    "max_num_tokens": 8192,
    "moe_config": {"backend": "CUTLASS"},
    "cuda_graph_config": {"enable_padding": True, "max_batch_size": 128},
}


class TestMeasured:
    """gpt-oss-120b on one GPU."""

    def test_weights(self) -> None:
        cutlass = estimate(SPARK, FACTS, 1, B200)["weights_mib"]
        assert cutlass == pytest.approx(63.32 * GIB, rel=0.001)
        # mlcommons/inference issue 2501: 66.52 GiB in use when the model was created, libraries and all.
        other = estimate({"moe_config": {"backend": "TRTLLM"}}, FACTS, 1, B200)["weights_mib"]
        assert other == pytest.approx(66.52 * GIB, rel=0.03)

    def test_activations(self) -> None:
        measured = 0.85 * GIB
        assert measured <= estimate(SPARK, FACTS, 1, B200)["activations_mib"] <= 1.25 * measured

    def test_graphs(self) -> None:
        assert graph_batch_sizes(SPARK, {}) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]

    def test_tokens_of_a_pool(self) -> None:
        """It said 73728 bytes a token, and 86711 tokens in 5.95 GiB (6393028608 bytes)."""
        options = {**SPARK, **kv_cache(free_gpu_memory_fraction=0.9, max_gpu_total_bytes=73728 * 86711)}
        found = estimate(options, FACTS, 1, B200)
        assert (found["kv_tokens"], found["context"]) == (86711, 86688)
        assert found["kv_cache_mib"] == pytest.approx(5.95 * GIB, rel=0.001)


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published.name)
def test_published_configurations_fit(published: Published) -> None:
    found = estimate(published.options, facts(published.model), published.gpus, published.memory_mib)
    assert problem(found, published.model, "gpu", published.gpus) is None
    assert found["fits"]
    assert found["required_mib"] <= published.memory_mib
    assert sum(found[part] for part in PARTS) == pytest.approx(published.memory_mib, abs=3)


def test_one_80_gb_gpu_has_little_kv_cache() -> None:
    """The reason why the published figures of H100 are for four GPUs."""
    one = estimate({"max_batch_size": 64}, FACTS, 1, H100)
    four = estimate({"max_batch_size": 64, "tensor_parallel_size": 4, "moe_expert_parallel_size": 4}, FACTS, 4, H100)
    assert 1 <= one["sequences_at_context"] < 2
    assert four["sequences_at_context"] > 20


def test_model_too_large() -> None:
    found = estimate({}, FACTS, 1, RTX_5090)
    assert (found["fits"], found["context"], found["kv_tokens"]) == (False, 0, 0)
    assert found["free_mib"] < 0
    assert problem(found, "openai/gpt-oss-120b", "rtx_5090", 1) == (
        "openai/gpt-oss-120b on 1 x rtx_5090 does not fit: the 32607 MiB of each GPU leave none for the KV cache "
        "(66596 weights, 1766 driver and CUDA, 2561 activations, 340 CUDA graphs). "
        "Use more GPUs per instance, or GPUs with more memory."
    )


def test_context_too_long() -> None:
    """TensorRT-LLM lowers the length only if ``max_seq_len`` is not set."""
    small = facts("gpt-oss-20b")
    found = estimate({"max_seq_len": 131072}, small, 1, 20475)
    assert problem(found, "openai/gpt-oss-20b", "gpu", 1) == (
        "openai/gpt-oss-20b on 1 x gpu does not fit: its KV cache holds a sequence of 37536 tokens, 'max_seq_len' is "
        "131072 (MiB of each GPU: 20475 in all, 13852 weights, 1766 driver and CUDA, 2561 activations, "
        "340 CUDA graphs, 1760 KV cache). Lower it or 'max_num_tokens', or use more GPUs per instance."
    )
    assert estimate({"max_seq_len": 131072}, small, 1, found["required_mib"])["fits"]
    assert not estimate({"max_seq_len": 131072}, small, 1, found["required_mib"] - 2)["fits"]
    assert estimate({}, small, 1, 20475)["fits"]
    # A length that is not a multiple of the block size.
    assert estimate({"max_seq_len": 2068}, small, 1, 20475)["context"] == 2068


EIGHT: dict[str, Any] = {"tensor_parallel_size": 8, "moe_expert_parallel_size": 8, "max_batch_size": 64}
FRACTION = "kv_cache_config.free_gpu_memory_fraction"


@pytest.mark.parametrize(
    ("options", "path", "sentence"),
    [
        (
            kv_cache(free_gpu_memory_fraction=1e-7),
            FRACTION,
            f"with '{FRACTION}' its KV cache holds no sequence (0 of the 169187 MiB that each GPU has left). "
            "Raise or remove it.",
        ),
        (
            {**kv_cache(max_gpu_total_bytes=2**25), "max_seq_len": 100000},
            "kv_cache_config.max_gpu_total_bytes",
            "with 'kv_cache_config.max_gpu_total_bytes' its KV cache holds a sequence of 3616 tokens, 'max_seq_len' "
            "is 100000 (32 of the 169187 MiB that each GPU has left). Raise or remove it.",
        ),
        (
            {"max_num_tokens": 8000000},
            "max_num_tokens",
            "the 183359 MiB of each GPU leave none for the KV cache (8325 weights, 5266 driver and CUDA, "
            "197803 activations, 330 CUDA graphs). Lower 'max_num_tokens', which determines activations, or use more "
            "GPUs per instance, or GPUs with more memory.",
        ),
    ],
)
def test_an_option_is_the_cause(options: dict[str, Any], path: str, sentence: str) -> None:
    found = estimate({**EIGHT, **options}, FACTS, 8, B200)
    assert cause(found) == tuple(path.split("."))
    assert problem(found, "m", "b200", 8) == f"m on 8 x b200 does not fit: {sentence}"


@pytest.mark.parametrize(
    ("options", "path"),
    [
        (kv_cache(max_tokens=8), "kv_cache_config.max_tokens"),
        (kv_cache(max_tokens=100, free_gpu_memory_fraction=1e-7), FRACTION),
        ({**kv_cache(free_gpu_memory_fraction=1e-7), "max_num_tokens": 8000000}, "max_num_tokens"),
        ({**kv_cache(max_attention_window=[4096]), "max_seq_len": 8192}, "kv_cache_config.max_attention_window"),
        ({"max_batch_size": 1000000}, "max_batch_size"),
        ({"max_num_tokens": 7200000, "max_seq_len": 131072}, "max_num_tokens"),
        ({"max_seq_len": 100000000}, "max_seq_len"),
    ],
)
def test_causes(options: dict[str, Any], path: str) -> None:
    assert cause(estimate({**EIGHT, **options}, FACTS, 8, B200)) == tuple(path.split("."))


def test_the_cause_for_small_gpus_is_not_an_option() -> None:
    for options in ({}, kv_cache(free_gpu_memory_fraction=0.5, max_tokens=8), {"max_num_tokens": 16384}):
        assert cause(estimate(options, FACTS, 1, RTX_5090)) is None
    assert cause(estimate({}, FACTS, 1, B200)) is None


@pytest.mark.parametrize(
    ("options", "memory_mib", "path", "sentence"),
    [
        (kv_cache(max_tokens=100), B200, "kv_cache_config.max_tokens", "96 tokens, {}: '{path}' is the limit."),
        (kv_cache(max_tokens=100), 72607, "kv_cache_config.max_tokens", "96 tokens, {}: '{path}' is the limit."),
        (kv_cache(free_gpu_memory_fraction=0.01), B200, FRACTION, "15936 tokens, {}: '{path}' is the limit."),
        ({}, 72607, "max_seq_len", "17184 tokens, {}."),
        # Also shorter with TensorRT-LLM's default fraction.
        (kv_cache(free_gpu_memory_fraction=0.5), 72607, "max_seq_len", "9536 tokens, {}."),
    ],
)
def test_shorter_than_the_model(options: dict[str, Any], memory_mib: int, path: str, sentence: str) -> None:
    found = check_context(estimate(options, FACTS, 1, memory_mib), FACTS)
    whole = f"The KV cache holds sequences of {sentence}".format("the model's context is 131072", path=path)
    assert found == [Finding(tuple(path.split(".")), "note", whole)]


@pytest.mark.parametrize(
    ("options", "memory_mib"),
    [({}, B200), ({"max_seq_len": 4096}, 72607), ({}, RTX_5090), (kv_cache(max_tokens=1), B200)],
)
def test_context_without_a_note(options: dict[str, Any], memory_mib: int) -> None:
    """The full context, a requested one, or an instance that does not fit."""
    assert check_context(estimate(options, FACTS, 1, memory_mib), FACTS) == []


SPLIT: dict[str, Any] = {"tensor_parallel_size": 4, "moe_expert_parallel_size": 4, "max_batch_size": 64}


class TestParallelism:
    """What is split over the GPUs of an instance, and what each GPU has completely."""

    def test_attention_dp(self) -> None:
        """Each GPU holds attention and embeddings whole, and a KV cache of its own with all heads."""
        split, by_data = (
            estimate({**SPLIT, "enable_attention_dp": by_data}, FACTS, 4, B200) for by_data in (False, True)
        )
        whole = (FACTS["weights_bytes"] - FACTS["expert_bytes"]) / 2**20
        assert by_data["weights_mib"] - split["weights_mib"] == pytest.approx(whole * 3 / 4, abs=1)
        assert by_data["max_sequences"] == 4 * split["max_sequences"]
        tokens = by_data["kv_tokens"] / by_data["kv_cache_mib"] / (split["kv_tokens"] / split["kv_cache_mib"])
        assert tokens == pytest.approx(1, rel=0.001)

    def test_experts_whole_or_split(self) -> None:
        """Shards of experts are padded each: 2880 / 8 = 360 rows become 384."""
        whole, shards = (
            estimate({"tensor_parallel_size": 8, "moe_expert_parallel_size": size}, FACTS, 8, B200)["weights_mib"]
            for size in (8, 1)
        )
        assert 1.02 < shards / whole < 1.06

    def test_heads_are_repeated_where_there_are_too_few(self) -> None:
        eight, sixteen = (
            estimate({"tensor_parallel_size": gpus, **kv_cache(max_gpu_total_bytes=2**30)}, FACTS, gpus, B200)
            for gpus in (8, 16)
        )
        assert eight["kv_tokens"] == sixteen["kv_tokens"]


def test_kv_cache_dtype() -> None:
    auto, fp8 = (estimate(kv_cache(dtype=dtype), FACTS, 1, B200)["kv_tokens"] for dtype in ("auto", "fp8"))
    assert fp8 == pytest.approx(2 * auto, abs=2)


def transfer(tokens: int, **config: Any) -> dict[str, Any]:
    return {"cache_transceiver_config": {"backend": "UCX", "max_tokens_in_buffer": tokens}, **kv_cache(**config)}


def test_buffers_for_the_transfer_of_the_kv_cache() -> None:
    """Two, each for that many tokens of all layers; of a sliding window for the window."""
    assert estimate({}, FACTS, 1, B200)["transfer_mib"] == 0
    found = estimate(transfer(131072, free_gpu_memory_fraction=0.8), FACTS, 1, B200)
    assert found["fits"]
    assert found["transfer_mib"] == 2 * 131072 * 73728 / 2**20
    half = estimate(transfer(131072, dtype="fp8", free_gpu_memory_fraction=0.8), FACTS, 1, B200)
    assert half["transfer_mib"] == found["transfer_mib"] / 2
    sliding = estimate(transfer(131072, free_gpu_memory_fraction=0.8), FACTS, 1, B200, {"sliding_window_pools": True})
    assert sliding["transfer_mib"] == pytest.approx(found["transfer_mib"] / 2, rel=0.01)


def test_buffers_that_the_kv_cache_leaves_no_room_for() -> None:
    """As in TensorRT-LLM issue 13506. The fraction in the message is the largest that fits."""
    options = transfer(131072, free_gpu_memory_fraction=0.85)
    found = estimate(options, facts("gpt-oss-20b"), 1, H100)
    assert not found["fits"]
    assert cause(found) == ("cache_transceiver_config", "max_tokens_in_buffer")
    assert problem(found, "openai/gpt-oss-20b", "h100", 1) == (
        "openai/gpt-oss-20b on 1 x h100 does not fit: the buffers of 'cache_transceiver_config.max_tokens_in_buffer' "
        "need 12288 MiB, and the KV cache leaves 9456 MiB of each GPU. Set "
        "'kv_cache_config.free_gpu_memory_fraction' to 0.8, or use more GPUs per instance."
    )
    for fraction, fits in ((0.8, True), (0.82, False)):
        again = estimate(transfer(131072, free_gpu_memory_fraction=fraction), facts("gpt-oss-20b"), 1, H100)
        assert again["fits"] is fits
    assert estimate(options, facts("gpt-oss-20b"), 1, found["required_mib"])["fits"]
    # A cache with a cap needs no more memory than the cap and the buffers.
    capped = estimate(transfer(131072, free_gpu_memory_fraction=0.9, max_tokens=100000), FACTS, 1, B200)
    assert capped["fits"]
    assert capped["required_mib"] <= B200
    whole = estimate(transfer(131072, free_gpu_memory_fraction=1.0), FACTS, 1, B200)
    assert not whole["fits"]
    assert whole["required_mib"] > B200
    alone = estimate(options, FACTS, 1, H100)
    assert "Lower it, or use more GPUs" in str(problem(alone, "openai/gpt-oss-120b", "h100", 1))


def test_sliding_window() -> None:
    """Half of the layers keep 128 tokens: from 1.4 on by default, before that if it is set."""
    whole = estimate({}, FACTS, 1, B200)
    for found in (
        estimate({}, FACTS, 1, B200, {"sliding_window_pools": True}),
        estimate(kv_cache(max_attention_window=[128, 131072]), FACTS, 1, B200),
    ):
        assert found["kv_tokens"] == pytest.approx(2 * whole["kv_tokens"], rel=0.002)
    # A single window that is set is one pool for all layers again.
    assert estimate(kv_cache(max_attention_window=[131072]), FACTS, 1, B200, {"sliding_window_pools": True}) == whole


def test_caps_of_the_pool() -> None:
    free = estimate({}, FACTS, 1, B200)["kv_tokens"]
    assert estimate(kv_cache(max_tokens=4096), FACTS, 1, B200)["kv_tokens"] == 4096
    assert estimate(kv_cache(max_tokens=2 * free), FACTS, 1, B200)["kv_tokens"] == free
    assert estimate(kv_cache(max_gpu_total_bytes=0), FACTS, 1, B200)["kv_tokens"] == free


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [*range(1, 33), 64, 128]),
        ({"cuda_graph_config": {"max_batch_size": 300}}, [*range(1, 33), 64, 128, 256, 300]),
        ({"cuda_graph_config": {"max_batch_size": 8, "enable_padding": True}}, [1, 2, 4, 8]),
        ({"cuda_graph_config": {"max_batch_size": 300, "enable_padding": True}}, [*TO_128, 256, 300]),
        ({"cuda_graph_config": {"batch_sizes": [1, 64, 4096]}}, [1, 64]),
        (
            {"cuda_graph_config": {"batch_sizes": [1, 64, 4096], "enable_padding": True}, "max_batch_size": 70},
            [1, 64, 70],
        ),
        ({"cuda_graph_config": {"batch_sizes": [1, 64], "enable_padding": True}, "max_batch_size": 70}, [1, 64]),
        ({"cuda_graph_config": None}, []),
        ({"max_batch_size": 2}, [1, 2]),
    ],
)
def test_graph_batch_sizes(options: dict[str, Any], sizes: list[int]) -> None:
    assert graph_batch_sizes(options, {}) == sizes


@pytest.mark.parametrize(
    ("release", "above"),
    [("1.2", [256, 512, 720]), ("1.3", [*range(192, 720, 64), 720]), ("1.4", [*range(192, 720, 64), 720])],
)
def test_graph_batch_sizes_of_a_release(release: str, above: list[int]) -> None:
    options = {"cuda_graph_config": {"max_batch_size": 720, "enable_padding": True}}
    assert graph_batch_sizes(options, TABLES.releases[release]) == [*TO_128, *above]


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.booleans())
def test_more_fraction_never_means_fewer_tokens(one: float, other: float, sliding: bool) -> None:
    less, more = (
        estimate(kv_cache(free_gpu_memory_fraction=fraction), FACTS, 1, H100, {"sliding_window_pools": sliding})[
            "kv_tokens"
        ]
        for fraction in sorted((one, other))
    )
    assert less <= more


@given(st.integers(20000, 300000), st.integers(20000, 300000), st.booleans())
def test_more_memory_never_means_less(one: int, other: int, sliding: bool) -> None:
    less, more = (estimate({}, FACTS, 1, memory, {"sliding_window_pools": sliding}) for memory in sorted((one, other)))
    assert less["kv_tokens"] <= more["kv_tokens"]
    assert less["context"] <= more["context"]
    assert less["fits"] <= more["fits"]


@given(st.booleans(), st.booleans())
def test_more_gpus_mean_fewer_weights_on_each(by_data: bool, experts_whole: bool) -> None:
    weights = [
        estimate(
            {
                "tensor_parallel_size": gpus,
                "moe_expert_parallel_size": gpus if experts_whole else 1,
                "enable_attention_dp": by_data,
            },
            FACTS,
            gpus,
            B200,
        )["weights_mib"]
        for gpus in (1, 2, 4, 8)
    ]
    assert weights == sorted(set(weights), reverse=True)


@given(OPTIONS, st.integers(1, 72), st.integers(1, 300000), st.booleans())
def test_wrong_values_raise_nothing(options: dict[str, Any], gpus: int, memory_mib: int, sliding: bool) -> None:
    found = estimate(options, FACTS, gpus, memory_mib, {"sliding_window_pools": sliding})
    assert found["fits"] is (problem(found, "model", "gpu", gpus) is None)
    assert cause(found) is None or not found["fits"]
    assert all(note.severity == "note" for note in check_context(found, FACTS))
    assert found["kv_cache_mib"] >= 0
    assert sum(found[part] for part in PARTS) == pytest.approx(memory_mib, abs=3)
