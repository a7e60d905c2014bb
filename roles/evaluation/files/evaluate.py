"""Run evaluations of OpenAI's gpt_oss.evals, and GSM8K, against an endpoint.

  python evaluate.py REQUEST     (a JSON file with the fields of Request)
Evaluations, sampler, grading and reports are the tool's, with the numbers of its command line. The command line itself
has a fixed number of repeats, fails with --examples for gpqa and aime25, writes to /tmp, and retries failed requests
forever. This program reads local copies of data sets if there are any, and writes NAME-EFFORT_allresults.json, .html
and .json, in this order, to the current directory. The last one has the number of answers and their scores of each
question, and how many answers ended at the limit of tokens or came after one without text.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import sys
import threading
import time
import types
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# Of the tool's command line.
TEMPERATURE = 1.0
# The answer of the tool's sampler for status 400.
REFUSED = "No response (bad request)."
# The answer of our sampler if the reasoning took all tokens, after so many tries. The tool retries forever.
CUT_OFF = "No response (cut off)."
CUT_OFF_TRIES = 4
# As TensorRT-LLM's test: task gsm8k of lm-evaluation-harness with this limit, chat template, and examples as turns.
# All questions have the same examples; the harness draws new ones for each.
GSM8K_MAX_TOKENS = 8192
GSM8K_TEMPERATURE = 0.0
GSM8K_SHOTS = 5
GSM8K_SEED = 1234
GSM8K_URL = "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data"
# The harness's flexible-extract takes the last of these.
NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
# Seconds; the tool's own pauses grow without limit.
LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Request:
    """The request of a run. ``examples`` 0 means all; ``data`` is a directory of local copies, or empty."""

    base_url: str
    model: str
    names: list[str]
    efforts: list[str]
    examples: int
    repeats: int
    threads: int
    max_tokens: int
    patience: float
    data: str


# --- data sets --------------------------------------------------------------------------------------------------------


def local_copy(data: str, url: str) -> str:
    """Return the URL, or the path of its copy in ``data``. Raises FileNotFoundError."""
    if not data:
        return url
    path = Path(data, url.rsplit("/", 1)[-1])
    if not path.is_file():
        raise FileNotFoundError(f"{path}, the copy of {url}, is missing")
    return str(path)


def reading(reader: Callable[..., Any], data: str) -> Callable[..., Any]:
    """Return pandas' ``reader`` with local copies instead of downloads."""

    @functools.wraps(reader)
    def read(url: str, *arguments: Any, **options: Any) -> Any:
        return reader(local_copy(data, url), *arguments, **options)

    return read


def gsm8k_rows(data: str, split: str) -> list[dict[str, str]]:
    """Return questions and answers of GSM8K. Raises OSError and ValueError."""
    if data:
        text = Path(local_copy(data, f"gsm8k_{split}.jsonl")).read_text(encoding="utf-8")
    else:
        with urllib.request.urlopen(f"{GSM8K_URL}/{split}.jsonl", timeout=60) as answer:
            text = answer.read().decode()
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not all(isinstance(row, dict) and "question" in row and "####" in row.get("answer", "") for row in rows):
        raise ValueError(
            f"gsm8k_{split}.jsonl is not GSM8K: each line needs a question, and an answer that ends in #### N"
        )
    return rows


# --- GSM8K ------------------------------------------------------------------------------------------------------------


def last_number(text: str) -> str:
    """Return the last number of a text as flexible-extract does, empty without one."""
    found = NUMBER.findall(text)
    return plain(next(filter(None, found[-1]))) if found else ""


def plain(answer: str) -> str:
    """Remove from an answer what the harness ignores: reasoning, commas, dollar signs and a final period."""
    return re.sub(r"\.$", "", re.sub(r"(?s).*#### ", "", answer).replace(",", "").replace("$", "")).strip().lower()


def gsm8k_messages(shots: list[dict[str, str]], question: str, pack: Callable[..., Any]) -> list[Any]:
    """Return the conversation: the examples as turns, and the question."""
    messages = []
    for shot in shots:
        messages.append(pack(role="user", content=f"Question: {shot['question']}\nAnswer:"))
        messages.append(pack(role="assistant", content=shot["answer"]))
    return [*messages, pack(role="user", content=f"Question: {question}\nAnswer:")]


class Gsm8k:
    """GSM8K with the interface of the tool's evaluations."""

    def __init__(self, data: str, examples: int, threads: int) -> None:
        self.rows = gsm8k_rows(data, "test")
        if examples:
            self.rows = random.Random(0).sample(self.rows, min(examples, len(self.rows)))
        train = gsm8k_rows(data, "train")
        self.shots = random.Random(GSM8K_SEED).sample(train, min(GSM8K_SHOTS, len(train)))
        self.threads = threads

    def __call__(self, sampler: Any) -> Any:
        from gpt_oss.evals import report
        from gpt_oss.evals.types import SingleEvalResult

        def ask(row: dict[str, str]) -> Any:
            answer = sampler(gsm8k_messages(self.shots, row["question"], sampler._pack_message))
            text, asked = answer.response_text, answer.actual_queried_message_list
            right, extracted = plain(row["answer"]), last_number(text)
            score = float(extracted == right)
            html = report.jinja_env.from_string(report.HTML_JINJA).render(
                prompt_messages=asked,
                next_message={"content": text, "role": "assistant"},
                score=score,
                correct_answer=right,
                extracted_answer=extracted,
            )
            convo = [*asked, {"content": text, "role": "assistant"}]
            return SingleEvalResult(html=html, score=score, convo=convo, metrics={"chars": len(text)})

        return report.aggregate_results(report.map_with_progress(ask, self.rows, num_threads=self.threads))


# --- failed requests --------------------------------------------------------------------------------------------------


class GivenUpError(Exception):
    """The endpoint rejects requests for too long."""


class CutOffError(Exception):
    """A question was answered without text too often."""


class Tries(NamedTuple):
    """Requests for one answer before the last one: without text, and rejected."""

    empty: int = 0
    rejected: int = 0


class Patience:
    """Replacement of module ``time`` in the tool's sampler, which sleeps before it retries a request.

    Raises GivenUpError for a request that the endpoint has rejected for ``seconds``, if it has answered no other
    request since. The tool also retries an answer without text; that shows a healthy endpoint, so CutOffError follows
    only after ``CUT_OFF_TRIES``.
    """

    def __init__(self, seconds: float, refusal: type[Exception], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._refusal, self._clock = seconds, refusal, clock
        self._answered = clock()
        self._own = threading.local()

    def sleep(self, seconds: float) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, self._refusal):
            self._answered = self._clock()
            self._own.empty = self._own.__dict__.get("empty", 0) + 1
            if self._own.empty >= CUT_OFF_TRIES:
                raise CutOffError
        else:
            self._own.rejected = self._own.__dict__.get("rejected", 0) + 1
            began = self._own.__dict__.setdefault("began", self._clock())
            if self._clock() - max(began, self._answered) > self._seconds:
                raise GivenUpError(f"no request has been answered for {self._seconds:g} s: {error}") from None
        time.sleep(min(seconds, LONGEST_PAUSE, self._seconds / 4))

    def answered(self) -> Tries:
        """Return what was tried before the answer to the thread's question, and reset the thread."""
        self._answered = self._clock()
        own = self._own.__dict__
        tries = Tries(own.get("empty", 0), own.get("rejected", 0))
        own.clear()
        return tries


# --- what is known of each answer -------------------------------------------------------------------------------------


@dataclass
class Answers:
    """The answers of an evaluation, which the tool returns in any order.

    Attributes:
        questions: Number of answers and sum of their scores by question. The tool repeats its list of questions.
        truncated: Answers that ended at the limit of tokens, with and without text.
        asked_again: Answers that came after one without text.
        incomplete: Answers of either kind.
        rejected: Requests that were sent again after an error.
    """

    questions: dict[int, list[float]] = field(default_factory=dict)
    truncated: int = 0
    asked_again: int = 0
    incomplete: int = 0
    rejected: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self, tries: Tries, truncated: bool) -> None:
        """Take over an answer."""
        with self.lock:
            self.truncated += truncated
            self.asked_again += tries.empty > 0
            self.incomplete += truncated or tries.empty > 0
            self.rejected += tries.rejected

    def by_question(self, mapped: Callable[..., Any], repeats: int) -> Callable[..., Any]:
        """Return the tool's ``map_with_progress`` with a record of the score of each question."""

        def mapping(ask: Callable[[Any], Any], rows: Sequence[Any], *arguments: Any, **options: Any) -> Any:
            questions = max(1, len(rows) // repeats)

            def recorded(numbered: tuple[int, Any]) -> Any:
                number, row = numbered
                result = ask(row)
                with self.lock:
                    known = self.questions.setdefault(number % questions, [0, 0.0])
                    known[0] += 1
                    known[1] += result.score or 0.0
                return result

            return mapped(recorded, list(enumerate(rows)), *arguments, **options)

        return mapping


# --- the run ----------------------------------------------------------------------------------------------------------


def run(request: Request, directory: Path) -> None:
    """Run all evaluations with all efforts, one after the other."""
    import openai
    import pandas
    from gpt_oss.evals import chat_completions_sampler, report
    from gpt_oss.evals.aime_eval import AIME25Eval
    from gpt_oss.evals.basic_eval import BasicEval
    from gpt_oss.evals.gpqa_eval import GPQAEval
    from gpt_oss.evals.types import SamplerResponse

    pandas.read_csv = reading(pandas.read_csv, request.data)
    pandas.read_json = reading(pandas.read_json, request.data)
    patience = Patience(request.patience, openai.APIError)
    chat_completions_sampler.time = types.SimpleNamespace(sleep=patience.sleep)

    class Sampler(chat_completions_sampler.ChatCompletionsSampler):  # type: ignore[misc, name-defined, unused-ignore]
        client: Any

        def __init__(self, answers: Answers, **options: Any) -> None:
            super().__init__(**options)
            self._answers, self._own = answers, threading.local()
            # The client would try again by itself, which nothing counts.
            create = self.client.with_options(max_retries=0).chat.completions.create

            def ask(**request: Any) -> Any:
                response = create(**request)
                self._own.truncated = response.choices[0].finish_reason == "length"
                return response

            # All that the tool uses of the client.
            self.client = types.SimpleNamespace(
                chat=types.SimpleNamespace(completions=types.SimpleNamespace(create=ask))
            )

        def __call__(self, messages: Any) -> Any:
            self._own.truncated = False
            try:
                answer = super().__call__(messages)
            except CutOffError:
                answer = SamplerResponse(CUT_OFF, messages, {"usage": None})
            self._answers.ended(patience.answered(), self._own.truncated)
            return answer

    options: dict[str, Any] = {"n_threads": request.threads, "n_repeats": 1 if request.examples else request.repeats}
    options["num_examples"] = request.examples or None
    makers: dict[str, Callable[[], Any]] = {
        "basic": BasicEval,
        "gpqa": lambda: GPQAEval(**options),
        "aime25": lambda: AIME25Eval(**options),
        "gsm8k": lambda: Gsm8k(request.data, request.examples, request.threads),
    }
    # Read all data sets before the first request.
    evaluations = {name: makers[name]() for name in request.names}
    draw, mapped = report.tqdm, report.map_with_progress
    for effort in request.efforts:
        for name, evaluation in evaluations.items():
            answers = Answers()
            repeats = options["n_repeats"] if name in ("gpqa", "aime25") else 1
            report.map_with_progress = answers.by_question(mapped, repeats)
            sampler = Sampler(
                answers,
                model=request.model,
                reasoning_model=True,
                reasoning_effort=effort,
                temperature=GSM8K_TEMPERATURE if name == "gsm8k" else TEMPERATURE,
                max_tokens=min(request.max_tokens, GSM8K_MAX_TOKENS) if name == "gsm8k" else request.max_tokens,
                base_url=f"{request.base_url}/v1",
            )
            report.tqdm = functools.partial(draw, desc=f"{name}, {effort}")
            began = time.monotonic()
            result = evaluation(sampler)
            write(directory / f"{name}-{effort}", result, answers, report, time.monotonic() - began)


def write(stem: Path, result: Any, answers: Answers, report: Any, seconds: float) -> None:
    """Write the files of the tool's command line. The last one, with the metrics, marks them complete."""
    everything = {name: getattr(result, name) for name in ("score", "metrics", "htmls", "convos", "metadata")}
    stem.with_name(f"{stem.name}_allresults.json").write_text(json.dumps(everything, indent=2), encoding="utf-8")
    stem.with_name(f"{stem.name}.html").write_text(report.make_report(result), encoding="utf-8")
    last = [convo[-1]["content"] for convo in result.convos]
    counts = {"answers": len(last), "refused": last.count(REFUSED), "cut_off": last.count(CUT_OFF)}
    counts |= {name: getattr(answers, name) for name in ("truncated", "asked_again", "incomplete", "rejected")}
    # Without the tool's map it is one question.
    questions = [answers.questions[number] for number in sorted(answers.questions)] or [[len(last), result.score]]
    metrics = {**result.metrics, "score": result.score, **counts, "questions": questions, "seconds": round(seconds, 1)}
    new = stem.with_name(f".{stem.name}.json")
    new.write_text(json.dumps(dict(sorted(metrics.items())), indent=2), encoding="utf-8")
    new.replace(stem.with_name(f"{stem.name}.json"))


def main() -> None:
    request = Request(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    try:
        run(request, Path.cwd())
    except (GivenUpError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        # Threads may have requests that take hours.
        os._exit(1)


if __name__ == "__main__":
    main()
