"""Published engine options for gpt-oss, which must pass the rules and the memory estimate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT

MODELS = ROOT / "roles/serving_recipe/vars/models"

# Memory of one GPU in MiB, from nvidia-smi.
B200, H200, H100, GB200 = 183359, 143771, 81559, 189471
RTX_PRO_6000, RTX_5090 = 97887, 32607


def facts(model: str) -> dict[str, Any]:
    """Return the facts of a model file."""
    found: dict[str, Any] = yaml.safe_load((MODELS / f"{model}.yml").read_text())["__serving_recipe_model"]["facts"]
    return found


@dataclass(frozen=True)
class Published:
    name: str
    gpus: int
    memory_mib: int
    options: dict[str, Any] = field(default_factory=dict)
    model: str = "gpt-oss-120b"


def _split(gpus: int, fraction: float, **options: Any) -> dict[str, Any]:
    return {
        "tensor_parallel_size": gpus,
        "moe_expert_parallel_size": gpus,
        "kv_cache_config": {"free_gpu_memory_fraction": fraction},
        **options,
    }


def _graphs(largest: int) -> dict[str, Any]:
    return {"cuda_graph_config": {"enable_padding": True, "max_batch_size": largest}}


_POSTPROCESSED = {"stream_interval": 20, "num_postprocess_workers": 4}
_BALANCED = {
    "enable_attention_dp": True,
    "attention_dp_config": {"enable_balance": True, "batching_wait_iters": 50, "timeout_iters": 1},
}
_QUICK_START = {"max_batch_size": 720, "max_num_tokens": 16384, **_graphs(720), **_POSTPROCESSED}

PUBLISHED = [
    Published("quick start, low latency", 8, B200, _split(8, 0.9, enable_attention_dp=False, **_QUICK_START)),
    Published("quick start, max throughput", 8, B200, _split(8, 0.9, **_QUICK_START, **_BALANCED)),
    *(
        Published(f"blog 9, low latency, {gpus} x {memory}", gpus, memory, _split(gpus, 0.75, **_graphs(8)))
        for gpus, memory in [(1, B200), (4, B200), (8, B200), (1, H200), (4, H200), (8, H200), (1, GB200), (4, GB200)]
    ),
    *(
        Published(
            f"blog 9, max throughput, {gpus} x {memory}",
            gpus,
            memory,
            _split(gpus, 0.9, enable_attention_dp=True, max_batch_size=640, stream_interval=10, **_graphs(640)),
        )
        for gpus, memory in [(1, B200), (4, B200), (8, B200), (1, H200), (4, H200), (8, H200), (1, GB200), (4, GB200)]
    ),
    Published(
        "H100 template",
        2,
        H100,
        {
            "tensor_parallel_size": 2,
            "moe_expert_parallel_size": 2,
            "max_batch_size": 64,
            "max_seq_len": 98304,
            "max_num_tokens": 8192,
            "enable_chunked_prefill": True,
            "cuda_graph_config": {"enable_padding": True},
            "kv_cache_config": {"free_gpu_memory_fraction": 0.8, "enable_block_reuse": True},
        },
    ),
    *(
        Published(
            f"evaluation, {'DEP' if by_data else 'TP'}{gpus}, {tokens} tokens",
            gpus,
            B200,
            _split(gpus, 0.9, enable_attention_dp=by_data, max_batch_size=batch, max_num_tokens=tokens),
        )
        for gpus in (8, 4)
        for by_data, batch, tokens in [
            (True, 128, 32768),
            (True, 2, 133120),
            (False, 1024, 32768),
            (False, 720, 133120),
        ]
    ),
    Published("20b tutorial, 20 GB", 1, 20475, model="gpt-oss-20b"),
    Published("20b tutorial, RTX 5090", 1, RTX_5090, model="gpt-oss-20b"),
    Published("curated, throughput", 2, B200, _split(2, 0.9, **_QUICK_START, **_BALANCED)),
    Published(
        "curated, latency",
        8,
        B200,
        {**_split(8, 0.9, max_batch_size=64, max_num_tokens=16384, **_graphs(64)), "moe_expert_parallel_size": 1},
    ),
    Published(
        "database, B200 1k1k_tp1_conc256",
        1,
        B200,
        _split(1, 0.85, max_batch_size=512, max_num_tokens=20000, max_seq_len=2304, **_graphs(256)),
    ),
    Published(
        "database, H200 1k1k_tp8_conc64",
        8,
        H200,
        _split(8, 0.85, max_num_tokens=20000, max_seq_len=2068, **_graphs(64)),
    ),
    Published(
        "blog 11, Eagle3",
        8,
        B200,
        {
            **_split(8, 0.8, max_batch_size=10, max_num_tokens=131072, max_seq_len=131072, **_graphs(10)),
            "moe_expert_parallel_size": 4,
            "speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "/draft"},
        },
    ),
    Published(
        "perf-overview, H100 DEP4",
        4,
        H100,
        _split(
            4,
            0.95,
            enable_attention_dp=True,
            cuda_graph_config={
                "enable_padding": True,
                "batch_sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024],
            },
        ),
    ),
    Published("120b on one 80 GB GPU (NVIDIA blog)", 1, H100, {"max_batch_size": 64}),
    Published("120b on one RTX PRO 6000", 1, RTX_PRO_6000, {"moe_config": {"backend": "CUTLASS"}}),
]
