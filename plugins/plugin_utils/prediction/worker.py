# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answer questions with NVIDIA's AIConfigurator, in the environment that it is installed in.

Standard input is a list of questions in JSON, standard output the list of their answers. A question has the options
of ``aiconfigurator.cli.api.cli_estimate``. An answer has ``ttft_ms``, ``tpot_ms``, ``tokens_per_second_per_gpu`` and
``tokens_per_second_per_user``, or ``problem``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from typing import Any


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the estimate for a question, or why there is none."""
    from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found,unused-ignore]

    try:
        found = cli_estimate(**question)
    # It raises its own errors, those of pandas and of the compiled engine.
    except Exception as error:
        return {"problem": " ".join(str(error).split())[:300] or type(error).__name__}
    if found.kv_cache_warning:
        return {"problem": found.kv_cache_warning}
    return {
        "ttft_ms": found.ttft,
        "tpot_ms": found.tpot,
        "tokens_per_second_per_gpu": found.tokens_per_second_per_gpu,
        "tokens_per_second_per_user": found.tokens_per_second_per_user,
    }


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # AIConfigurator prints its progress.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump([answer(question) for question in json.load(sys.stdin)], out)
    out.close()


if __name__ == "__main__":
    main()
