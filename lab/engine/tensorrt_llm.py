# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In the lab's image this is the package tensorrt_llm. There is serve.scripts.benchmark_serving in it, and no more."""

from __future__ import annotations

from typing import NoReturn

from lab.engine.trtllm_serve import VERSION, gpu_count

__version__ = VERSION

if not gpu_count():
    # What it links with is the driver's, and comes into a container with a GPU.
    raise ImportError("libcuda.so.1: cannot open shared object file (the lab's simulated engine has no GPU here)")


def __getattr__(name: str) -> NoReturn:
    """Refuse LLM and all else that upstream's package has."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(f"cannot import {name}: this is the lab's simulated engine, which has no LLM API")
