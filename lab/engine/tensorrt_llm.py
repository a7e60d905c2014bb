# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for the package tensorrt_llm in the lab's image, with serve.scripts.benchmark_serving only."""

from __future__ import annotations

from typing import NoReturn

from lab.engine.trtllm_serve import VERSION, gpu_count

__version__ = VERSION

if not gpu_count():
    # The driver provides the library that upstream links with, in containers with a GPU.
    raise ImportError("libcuda.so.1: cannot open shared object file (the lab's simulated engine has no GPU here)")


def __getattr__(name: str) -> NoReturn:
    """Raise for LLM and all other names of upstream's package."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(f"cannot import {name}: this is the lab's simulated engine, which has no LLM API")
