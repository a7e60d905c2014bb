# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predictions of NVIDIA's AIConfigurator: what a layout serves, from kernels that NVIDIA measured, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.environment import prepared

# The newest release on 2026-11-26. It says that 0.13 removes it in favour of aisimulate, which needs Python 3.12.
VERSION = "0.12.0"
# By GPU type of the hardware table. The database has no GH200, RTX PRO 6000 or NVL card with TensorRT-LLM's kernels.
SYSTEMS = {
    "b200": "b200_sxm",
    "gb200": "gb200",
    "b300": "b300_sxm",
    "gb300": "gb300",
    "h200": "h200_sxm",
    "h100": "h100_sxm",
    "h100_pcie": "h100_pcie",
}
# Quantization of the experts' matrices: TensorRT-LLM's W4A8_MXFP4_MXFP8 on Blackwell, W4A16_MXFP4 on Hopper.
BLACKWELL = ("b200", "gb200", "b300", "gb300")


@dataclass(frozen=True)
class Layout:
    """GPUs of an instance, and how the model is split over them."""

    gpus: int
    attention_dp: bool
    expert_parallel: int

    def __str__(self) -> str:
        if self.gpus == 1:
            return "TP1"
        kind = "DEP" if self.attention_dp else "TP"
        return f"{kind}{self.gpus}" + ("" if self.attention_dp else f" EP{self.expert_parallel}")


@dataclass(frozen=True)
class Shape:
    """Tokens of a request: prompt, answer, and what of the prompt is in the KV cache."""

    prompt: int
    answer: int
    cached: int = 0

    def __str__(self) -> str:
        cached = f", {self.cached:,} of the prompt cached" if self.cached else ""
        return f"{self.prompt:,}/{self.answer:,}{cached}"


@dataclass(frozen=True)
class Question:
    """What a layout serves. ``batch``: the requests at a time, with attention DP those of each GPU."""

    model: str
    gpu_type: str
    shape: Shape
    layout: Layout
    batch: int

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of AIConfigurator's estimate."""
        split, blackwell = self.layout, self.gpu_type in BLACKWELL
        return {
            "model_path": self.model,
            "system_name": SYSTEMS[self.gpu_type],
            "isl": self.shape.prompt,
            "osl": self.shape.answer,
            "prefix": self.shape.cached,
            "batch_size": self.batch,
            "tp_size": 1 if split.attention_dp else split.gpus,
            "attention_dp_size": split.gpus if split.attention_dp else 1,
            "moe_ep_size": split.expert_parallel,
            "moe_tp_size": split.gpus // split.expert_parallel,
            "kvcache_quant_mode": "fp8" if blackwell else "bfloat16",
            "moe_quant_mode": "w4a8_mxfp4_mxfp8" if blackwell else "w4a16_mxfp4",
        }


Answer = dict[str, Any]


def ask(questions: Sequence[Question]) -> dict[Question, Answer]:
    """Return AIConfigurator's answers. The first call installs it below .cache (850 MB).

    An answer has ``ttft_ms``, ``tpot_ms``, ``tokens_per_second_per_gpu`` and ``tokens_per_second_per_user``, or
    ``problem``, why there is no prediction.
    """
    python = prepared("aiconfigurator", [f"aiconfigurator=={VERSION}"]) / "bin/python"
    # One process for each model and GPU type, because each reads a database.
    groups: dict[tuple[str, str], list[Question]] = {}
    for question in dict.fromkeys(questions):
        groups.setdefault((question.model, question.gpu_type), []).append(question)

    def answers(group: list[Question]) -> list[Answer]:
        given = json.dumps([question.arguments() for question in group])
        command = [str(python), str(Path(__file__).with_name("worker.py"))]
        done = subprocess.run(command, input=given, text=True, stdout=subprocess.PIPE, check=True)
        found: list[Answer] = json.loads(done.stdout)
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(answers, groups.values()))
    return {
        question: one
        for group, found in zip(groups.values(), results, strict=True)
        for question, one in zip(group, found, strict=True)
    }
