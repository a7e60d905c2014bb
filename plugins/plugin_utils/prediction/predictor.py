# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predictions of NVIDIA's AIConfigurator: what a layout serves, from kernels that NVIDIA measured, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
# Requests at a time that are tried, with attention DP on each GPU.
BATCHES = (1, 8, 32, 64, 128, 256, 384, 512, 640, 720, 1024)


@dataclass(frozen=True)
class Layout:
    """GPUs of an instance, and how the model is split over them."""

    gpus: int
    attention_dp: bool
    expert_parallel: int

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> Layout:
        """Return the layout of a recipe's instances."""
        gpus, options = recipe["gpus_per_instance"], recipe["engine_options"]
        attention_dp = bool(options.get("enable_attention_dp")) and gpus > 1
        return cls(gpus, attention_dp, options.get("moe_expert_parallel_size") or 1)

    @classmethod
    def published(cls, name: str) -> Layout:
        """Return a layout by its name in NVIDIA's tables, TP1 or DEP4."""
        kind, gpus = name[:-1], int(name[-1])
        return cls(gpus, kind == "DEP", gpus)

    @property
    def ranks(self) -> int:
        """The GPUs that have requests of their own."""
        return self.gpus if self.attention_dp else 1

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


class PredictorError(RuntimeError):
    """AIConfigurator did not run; the message has the last line that it wrote."""


def ask(questions: Sequence[Question], python: str) -> dict[Question, Answer]:
    """Return AIConfigurator's answers. ``python``: an interpreter that has it. Raises PredictorError and OSError.

    An answer has ``ttft_ms``, ``tpot_ms``, ``tokens_per_second_per_gpu`` and ``tokens_per_second_per_user``, or
    ``problem``, why there is no prediction.
    """
    # One process for each model and GPU type, because each reads a database.
    groups: dict[tuple[str, str], list[Question]] = {}
    for question in dict.fromkeys(questions):
        groups.setdefault((question.model, question.gpu_type), []).append(question)

    def answers(group: list[Question]) -> list[Answer]:
        given = json.dumps([question.arguments() for question in group])
        command = [python, str(Path(__file__).with_name("worker.py"))]
        done = subprocess.run(command, input=given, text=True, capture_output=True, check=False)
        if done.returncode:
            raise PredictorError(done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}")
        found: list[Answer] = json.loads(done.stdout)
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(answers, groups.values()))
    return {
        question: one
        for group, found in zip(groups.values(), results, strict=True)
        for question, one in zip(group, found, strict=True)
    }


def up_to(limit: int) -> list[int]:
    """Return the batch sizes to try with a maximum batch size."""
    return [batch for batch in BATCHES if batch <= limit]


def best(
    questions: Iterable[Question], answers: Mapping[Question, Answer], objective: Mapping[str, Any]
) -> tuple[Question, Answer] | None:
    """Return the question with the best answer under an objective of the data; None without a prediction.

    ``most`` in it is what there should be most of, ``least_per_user`` what each user gets at least, in tokens/s.
    """
    good = [
        (question, answers[question])
        for question in questions
        if "problem" not in answers[question]
        and answers[question]["tokens_per_second_per_user"] >= objective.get("least_per_user", 0)
    ]
    return max(good, key=lambda one: float(one[1][objective["most"]]), default=None)
