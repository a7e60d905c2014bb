# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predictions for a plan: what each recipe serves, what that costs, and how far such predictions were off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.run import loads, median
from ansible_collections.trtllm.fleet.plugins.plugin_utils.benchmark.scenario import comparable_lengths
from ansible_collections.trtllm.fleet.plugins.plugin_utils.prediction.predictor import (
    SYSTEMS,
    Answer,
    Layout,
    Question,
    Shape,
    best,
    up_to,
)

Recipe = Mapping[str, Any]
Ask = Callable[[Sequence[Question]], Mapping[Question, Answer]]
PER_GPU = "tokens_per_second_per_gpu"


@dataclass(frozen=True)
class Settings:
    """Input besides the recipes.

    ``data``: the prediction's data of role serving_recipe; ``errors``: those of predictions, by model and GPU type;
    ``results``: documents of benchmarks of this fleet; ``prompt`` and ``answer``: tokens, instead of those of the use
    case; ``gpu_hour_price``: in any currency, or None.
    """

    data: Mapping[str, Any]
    errors: Mapping[str, Mapping[str, Sequence[float]]]
    results: Sequence[Mapping[str, Any]] = ()
    prompt: int | None = None
    answer: int | None = None
    gpu_hour_price: float | None = None


def predict(recipes: Sequence[Recipe], settings: Settings, ask: Ask) -> list[dict[str, Any]]:
    """Return the prediction of each recipe, in one call of ``ask``.

    A prediction has ``problem``, or:

    - ``prompt`` and ``answer`` in tokens, ``requests`` at a time of an instance, ``ttft_ms``, ``per_user`` and
      ``per_gpu`` in output tokens/s, and ``price`` of a million output tokens with ``gpu_hour_price``;
    - ``published`` and ``measured``: how far predictions are from NVIDIA's figures for this model and GPU type, and
      from benchmarks of this layout, as (predicted / measured - 1), the list of all.
    """
    known = [_Known(recipe, settings) for recipe in recipes]
    answers = ask(list(dict.fromkeys(question for one in known for question in one.questions())))
    return [one.prediction(answers) for one in known]


def not_predicted(recipe: Recipe) -> str:
    """Return why nothing is predicted of a recipe, empty if something is."""
    model = recipe["base_model"] or recipe["model"]
    if recipe["gpu_type"] not in SYSTEMS:
        return f"AIConfigurator has no figures of {recipe['gpu_type']}"
    if not model.startswith("openai/gpt-oss-"):
        return f"predictions are for gpt-oss, not for {model}"
    if recipe["draft_model"]:
        return "AIConfigurator does not know how many tokens of a draft model are accepted"
    return "for complete servers only" if recipe["worker"] else ""


class _Known:
    """A recipe and all questions about it."""

    def __init__(self, recipe: Recipe, settings: Settings) -> None:
        self.model, self.gpu_type = recipe["base_model"] or recipe["model"], recipe["gpu_type"]
        self.settings, self.recipe = settings, recipe
        self.objective = settings.data["objectives"][recipe["use_case"]]
        self.layout, self.problem = Layout.of(recipe), not_predicted(recipe)
        prompt = settings.prompt or self.objective["prompt"]
        cached = int(prompt * settings.data["prefix"]) if recipe["use_case"] == "agentic" else 0
        self.shape = Shape(prompt, settings.answer or self.objective["answer"], cached)

    def questions(self) -> Iterator[Question]:
        if self.problem:
            return
        yield from self._own()
        for question, _tokens in self._benchmarked():
            yield question

    def prediction(self, answers: Mapping[Question, Answer]) -> dict[str, Any]:
        if self.problem:
            return {"problem": self.problem}
        chosen = best(self._own(), answers, self.objective)
        if not chosen:
            problems = [answers[question].get("problem") for question in self._own()]
            least = self.objective.get("least_per_user")
            slow = f"no number of requests gives each user {least} tokens/s"
            return {"problem": next((problem for problem in problems if problem), slow)}
        question, answer = chosen
        price = self.settings.gpu_hour_price
        return {
            "prompt": self.shape.prompt,
            "cached": self.shape.cached,
            "answer": self.shape.answer,
            "requests": question.batch * self.layout.ranks,
            "ttft_ms": round(answer["ttft_ms"], 1),
            "per_user": round(answer["tokens_per_second_per_user"], 1),
            "per_gpu": round(answer[PER_GPU], 1),
            **({"price": round(price / answer[PER_GPU] / 3600 * 1e6, 4)} if price is not None else {}),
            "published": list(self.settings.errors.get(self.model, {}).get(self.gpu_type, [])),
            "measured": [
                round(answers[question][PER_GPU] / tokens - 1, 3)
                for question, tokens in self._benchmarked()
                if "problem" not in answers[question]
            ],
        }

    def _own(self) -> list[Question]:
        """Return the questions about the recipe, up to its batch size."""
        limit = self.recipe["engine_options"].get("max_batch_size") or self.recipe["flags"].get("max_batch_size") or 1
        fixed = self.objective.get("requests")
        batches = [fixed] if fixed else up_to(limit)
        return [Question(self.model, self.gpu_type, self.shape, self.layout, batch) for batch in batches]

    def _benchmarked(self) -> Iterator[tuple[Question, float]]:
        """Yield what was measured of this layout, in output tokens/s of a GPU, with the question about it."""
        for document in self.settings.results:
            subjects = list(document["ran_on"].values())
            lengths = comparable_lengths(document["scenarios"])
            if len(subjects) != 1 or not self._is_of(subjects[0]):
                continue
            instances = max(1, subjects[0]["gpus"]["count"] // self.layout.gpus)
            for scenario, users, points in loads(document):
                tokens = median(points, "throughput.output_tokens_per_second_per_gpu")
                if tokens and scenario in lengths:
                    batch = max(1, round(users / instances / self.layout.ranks))
                    shape = Shape(*lengths[scenario])
                    yield Question(self.model, self.gpu_type, shape, self.layout, batch), tokens

    def _is_of(self, subject: Mapping[str, Any]) -> bool:
        options = subject.get("engine_options") or {}
        measured = {"gpus_per_instance": options.get("tensor_parallel_size") or 1, "engine_options": options}
        return (
            subject.get("model") == self.recipe["model"]
            and not options.get("speculative_config")
            and subject.get("gpu_type") == self.gpu_type
            and Layout.of(measured) == self.layout
        )


def lines(prediction: Mapping[str, Any]) -> Iterator[str]:
    """Yield a prediction as lines of text."""
    if "problem" in prediction:
        yield f"none: {prediction['problem']}"
        return
    requests = prediction["requests"]
    cached = f" ({prediction['cached']:,} of them cached)" if prediction["cached"] else ""
    price = f", {prediction['price']:.2f} for a million of them" if "price" in prediction else ""
    yield (
        f"{prediction['prompt']:,} tokens{cached} answered by {prediction['answer']:,}, {requests:,} "
        f"request{'' if requests == 1 else 's'} at a time: first token after {prediction['ttft_ms']:,.0f} ms, "
        f"{prediction['per_user']:,.0f} tokens/s a user, {prediction['per_gpu']:,.0f} tokens/s a GPU{price}"
    )
    for errors, of in ((prediction["published"], "NVIDIA's figures for this GPU"), (prediction["measured"], "yours")):
        if errors:
            yield f"such predictions are {min(errors):+.0%} to {max(errors):+.0%} off {of} ({len(errors)})"
