# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run two prompts through TensorRT-LLM's Python API without a server, in the image of the engine.

``llm_api.py MODEL OPTIONS``: the model's folder and the YAML file of engine options. The last line of the output is
a JSON list of the answers. Prompts and sampling are those of the gpt-oss-20b tutorial.
"""

from __future__ import annotations

import json
import sys

import yaml
from tensorrt_llm import LLM, SamplingParams

PROMPTS = ["Hello, my name is", "The capital of France is"]


def main() -> None:
    model, options = sys.argv[1:]
    with open(options, encoding="utf-8") as file:
        llm = LLM(model=model, **(yaml.safe_load(file) or {}))
    answers = llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95))
    print(json.dumps([{"prompt": answer.prompt, "text": answer.outputs[0].text} for answer in answers]))


# The engine's child processes import this file.
if __name__ == "__main__":
    main()
