"""Engine options in published documents for gpt-oss: rules and the memory estimate must accept all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tools.recipe_pages import TABLES, resolve_all, short

# Memory of one GPU in MiB, as nvidia-smi prints it.
MEMORY = {row["gpu_type"]: row["memory_mib"] for row in TABLES.hardware}
B200, H200, H100 = MEMORY["b200"], MEMORY["h200"], MEMORY["h100"]
RTX_PRO_6000, RTX_5090 = MEMORY["rtx_pro_6000"], MEMORY["rtx_5090"]


def facts(model: str) -> dict[str, Any]:
    """Return the facts of a model file."""
    found: dict[str, Any] = TABLES.models[f"openai/{model}"]["facts"]
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


def document_rows() -> Iterator[Published]:
    """Yield each published document of role serving_recipe on the GPUs that it names.

    test_documents.py compares these options with copies of the documents.
    """
    for name, document in TABLES.documents.items():
        for case, recipe in resolve_all(document, [document["use_case"]], name=name).recipes.items():
            options, model = recipe["engine_options"], short(document["model"])
            yield Published(recipe["name"], case.size, MEMORY[case.gpu_type], options, model)


PUBLISHED = [
    *document_rows(),
    Published("20b tutorial, 20 GB", 1, 20475, model="gpt-oss-20b"),
    Published("20b tutorial, RTX 5090", 1, RTX_5090, model="gpt-oss-20b"),
    Published(
        "curated, throughput",
        2,
        B200,
        _split(
            2,
            0.9,
            max_batch_size=720,
            max_num_tokens=16384,
            stream_interval=20,
            num_postprocess_workers=4,
            enable_attention_dp=True,
            attention_dp_config={"enable_balance": True, "batching_wait_iters": 50, "timeout_iters": 1},
            **_graphs(720),
        ),
    ),
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
