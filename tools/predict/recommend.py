# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which GPUs serve a load with the fewest hosts, as NVIDIA's AIConfigurator predicts it for the default recipes.

    make recommend LOAD="--prompt 8192 --answer 1024 --user 30 --tokens 100000"

Needs no GPU. `make check-recipes` writes docs/reference/which-gpu.md, of loads in tools/data/recipe_check.yml.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import (
    SYSTEMS,
    Answer,
    Layout,
    Question,
    Shape,
    ask,
    best,
    up_to,
)
from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.recipe import USE_CASES
from tools.markdown import table
from tools.predict.environment import python
from tools.recipe_pages import TABLES, host_gpus, recipe_for, short

PER_GPU = "tokens_per_second_per_gpu"
HEADER = [
    "Model",
    "Host",
    "Instances",
    "Use case",
    "Requests",
    "First token",
    "Tokens/s a user",
    "Tokens/s a host",
    "Hosts",
]


@dataclass(frozen=True)
class Load:
    """What a fleet has to serve.

    ``shape``: tokens of a request. ``user``: the least output tokens/s of a user. ``tokens``: output tokens/s of all.
    ``first_token``: the longest time to the first token in milliseconds, or None.
    """

    shape: Shape
    user: float
    tokens: float
    first_token: float | None = None

    def __str__(self) -> str:
        limit = f", the first token within {self.first_token:,.0f} ms" if self.first_token else ""
        return (
            f"Prompt/answer of {self.shape} tokens, at least {self.user:g} tokens/s for each user{limit}, "
            f"{self.tokens:,.0f} output tokens/s in all"
        )


@dataclass(frozen=True)
class Host:
    """A host with all its GPUs, and the default recipe of a use case on it."""

    model: str
    gpu_type: str
    gpus: int
    use_case: str
    layout: Layout
    max_batch_size: int

    def questions(self, load: Load) -> list[Question]:
        return [
            Question(self.model, self.gpu_type, load.shape, self.layout, batch) for batch in up_to(self.max_batch_size)
        ]


def hosts(models: Sequence[str] = (), gpu_types: Sequence[str] = ()) -> Iterator[Host]:
    """Yield the hosts whose GPUs AIConfigurator knows, each layout once."""
    for model, row in TABLES.models.items():
        if not row["facts"].get("experts") or (models and model not in models):
            continue
        for gpu_type in (name for name in row["supported"] if name in SYSTEMS and name in (gpu_types or SYSTEMS)):
            seen: set[tuple[Layout, int]] = set()
            for use_case in USE_CASES:
                recipe = recipe_for(gpu_type, use_case, model=model)
                layout, batch = Layout.of(recipe), recipe["engine_options"]["max_batch_size"]
                if (layout, batch) not in seen:
                    seen.add((layout, batch))
                    yield Host(model, gpu_type, host_gpus(gpu_type), use_case, layout, batch)


def recommend(load: Load, candidates: Sequence[Host], answers: Mapping[Question, Answer]) -> list[list[str]]:
    """Return the rows of a table: of each model and GPU type the host with the most tokens/s, fewest hosts first."""
    found: dict[tuple[str, str], tuple[float, list[str]]] = {}
    objective = {"most": PER_GPU, "least_per_user": load.user}
    for host in candidates:
        in_time = {
            question: answers[question]
            for question in host.questions(load)
            if load.first_token is None or answers[question].get("ttft_ms", math.inf) <= load.first_token
        }
        chosen = best(in_time, in_time, objective)
        if not chosen:
            continue
        question, answer = chosen
        rate = answer[PER_GPU] * host.gpus
        instances = host.gpus // host.layout.gpus
        requests = question.batch * instances * host.layout.ranks
        row = [
            short(host.model),
            f"{host.gpus} x {host.gpu_type}",
            f"{instances} x {host.layout}",
            host.use_case,
            f"{requests:,}",
            f"{answer['ttft_ms']:,.0f} ms",
            f"{answer['tokens_per_second_per_user']:,.0f}",
            f"{rate:,.0f}",
            f"{math.ceil(load.tokens / rate):,}",
        ]
        kind = host.model, host.gpu_type
        if rate > found.get(kind, (0.0, []))[0]:
            found[kind] = rate, row
    rows = sorted(found.values(), key=lambda one: (one[1][0], -one[0]))
    return [row for _rate, row in rows]


def page(loads: Sequence[Load], candidates: Sequence[Host], answers: Mapping[Question, Answer]) -> str:
    text = [
        "# Which GPU for which load\n",
        "<!-- Written by `make check-recipes`. -->\n",
        "Hosts with the default recipe that has the most output tokens/s there for the load, as NVIDIA's "
        "AIConfigurator predicts it. [Predictions](predictions.md) has how far such predictions are from published "
        'figures. For your load: `make recommend LOAD="--prompt 8192 --answer 1024 --user 30 --tokens 100000"`.\n',
    ]
    for load in loads:
        text += [f"## {load.shape.prompt:,}/{load.shape.answer:,}, {load.user:g} tokens/s a user\n", f"{load}.\n"]
        text.append(table(HEADER, recommend(load, candidates, answers)))
    return "\n".join(text)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make recommend", description="The fewest hosts for a load, without a GPU.")
    parser.add_argument("--prompt", type=int, required=True, help="tokens of a prompt")
    parser.add_argument("--cached", type=int, default=0, help="of these, tokens that are in the KV cache already")
    parser.add_argument("--answer", type=int, required=True, help="tokens of an answer")
    parser.add_argument("--user", type=float, required=True, help="least output tokens/s of a user")
    parser.add_argument("--first-token", type=float, help="longest time to the first token, in milliseconds")
    parser.add_argument("--tokens", type=float, required=True, help="output tokens/s of all users together")
    parser.add_argument("--model", action="append", default=[], choices=list(TABLES.models), help="only this model")
    parser.add_argument("--gpu", action="append", default=[], choices=list(SYSTEMS), help="only this GPU type")
    return parser.parse_args(given)


def main() -> None:
    asked: Any = arguments()
    load = Load(Shape(asked.prompt, asked.answer, asked.cached), asked.user, asked.tokens, asked.first_token)
    candidates = list(hosts(asked.model, asked.gpu))
    answers = ask([question for host in candidates for question in host.questions(load)], python())
    rows = recommend(load, candidates, answers)
    print(f"{load}:\n")
    print(table(HEADER, rows) if rows else "No host reaches this. Lower --user, or raise --first-token.")


if __name__ == "__main__":
    main()
