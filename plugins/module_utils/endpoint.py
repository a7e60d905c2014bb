# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proves that an endpoint serves: ordered stages, each ending in one Check, all before one deadline."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check, Status, failures, summarise
from ansible_collections.trtllm.fleet.plugins.module_utils.dynamo_health import (
    ENDPOINT,
    REQUESTS,
    Instance,
    at,
    count,
    listed,
    place,
    prefill_requests,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.openai_http import (
    Client,
    Completion,
    Deadline,
    EndpointError,
    HttpError,
    NotListening,
    OutOfTime,
    parse_object,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd, Unit, UnitError

# Health and model list answer at once or not at all; a poll that hangs must not hide that the unit has died.
POLL_SECONDS = 10.0

# Dynamo lists a model some seconds before it routes to it, and answers 404 or 503 until then (its issues 11178, 11855).
ROUTABLE_SECONDS = 60.0

# "Not yet" from an engine that loads (503), a gateway without a ready instance (502, 503, 504), a rate limit (429).
NOT_YET = (429, 502, 503, 504)

# What gpt-oss writes between its channels. Seen in content with images before 1.1, and when parsing falls back to
# raw text (TensorRT-LLM issues 9188, 9256): special tokens, or their text with the special tokens dropped.
RAW_HARMONY = re.compile(
    r"<\|(?:start|end|message|channel|constrain|return|call)\|>|\Aanalysis[A-Z]|\Aanalysis.*?assistantfinal", re.DOTALL
)

STABLE = "active, and not restarted since this check began"

HINT_JOURNAL = "The server's log says why: the journal of its unit"
HINT_KEY = "Set api_key (in trtllm_server_check or dynamo_check) to a key that this endpoint accepts"
HINT_ADDRESS = "Check base_url: another program may answer on this port"
HINT_VOCABULARY = (
    "A 400 on chat while /health answers 200 usually means that the harmony vocabulary is missing: set "
    "model_weights_vocabulary_url so that it is staged, and see that TIKTOKEN_ENCODINGS_BASE names its folder in the "
    "server's environment"
)
HINT_IMAGE = (
    "This server does not parse harmony (images before 1.1, or DISABLE_HARMONY_ADAPTER): set serving_recipe_image"
)
HINT_RAW = f"{HINT_IMAGE}, or harmony: false (in trtllm_server_check) to take its raw text for the answer"
HINT_MAX_TOKENS = "Raise max_tokens (in trtllm_server_check or dynamo_check): the answer ended inside the reasoning"
HINT_WORKERS = (
    "Workers that do not connect: see the journals of their units; their etcd (ETCD_ENDPOINTS) and namespace must be "
    "the frontend's, and the component must have this name in this release of Dynamo (tensorrt_llm before 1.3, backend "
    "since)"
)
HINT_STALE = (
    "A worker that was killed stays listed until its lease ends (ETCD_LEASE_TTL, 10 to 30 s). One that stays longer is "
    "another deployment's in the same etcd and namespace, or the number in instances is too small"
)
HINT_CARD = (
    "Workers are missing (set instances to see which), or the frontend could not load the model that they offer. Then "
    "its journal says why: the model's folder is not on its host, or the workers' DYN_SYSTEM_PORT or "
    "DYN_TCP_RESPONSE_STREAM_HOST is wrong"
)
HINT_ROUTE = "A worker that is listed does not take requests: see the journals of the prefill and the decode workers"
HINT_PARSERS = (
    "Workers need --dyn-reasoning-parser gpt_oss and --dyn-tool-call-parser harmony, and the frontend the harmony "
    "vocabulary (TIKTOKEN_ENCODINGS_BASE); Dynamo's mocker can neither reason nor call"
)
HINT_WORKER_IDS = "Dynamo before 1.3 does not tell its workers: set prefill_metrics"
HINT_NO_WORKER_IDS = "Dynamo before 1.3 does not tell its workers: leave answered_by_instance out"
HINT_AGGREGATED = (
    "Decode workers did the prefill: see that prefill workers run with --disaggregation-mode prefill and that decode "
    "workers run with --disaggregation-mode decode"
)
HINT_METRICS = "prefill_metrics has to name /metrics at the DYN_SYSTEM_PORT of every prefill worker"
HINT_RECIPE = "Compare with another serving_recipe_name or serving_recipe_use_case, or lower the floor"

TOOL_PROMPT = "Hey, quick check: is everything up and running?"
TOOL_NAME = "get_system_health"
TOOL = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Returns the current health of this service. Use it before saying that the service is up.",
        "parameters": {"type": "object", "properties": {}},
    },
}
TOOL_RESULT = json.dumps({"status": "ok", "uptime_seconds": 372045})


@dataclass(frozen=True)
class Expectation:
    """What the endpoint has to show. Times in seconds, speed in completion tokens per second."""

    model: str
    api: str
    prompt: str
    max_tokens: int
    stream: bool
    expected_text: str = ""
    reasoning: bool = False
    tool_call: bool = False
    harmony: bool = True
    max_ttft: float | None = None
    min_tokens_per_second: float | None = None
    unit: str = ""
    reasoning_effort: str | None = None
    instances: Mapping[str, int] = field(default_factory=dict)  # of Dynamo, by endpoint
    instance_address: str = ""
    disaggregated: bool = False
    prefill_metrics: Sequence[str] = ()
    answered_by_instance: bool = False
    last_stage: str | None = None

    @property
    def dynamo(self) -> bool:
        """Whether the server is Dynamo, as only there is something to find of what is asked for."""
        return bool(self.instances or self.disaggregated)

    @property
    def answer(self) -> str:
        """What counts as one. Nothing takes reasoning out of raw text, so there the text is all there is."""
        return f"an answer with {'text or reasoning' if self.harmony else 'text'} that ends by stop or length"

    @property
    def worker_ids(self) -> bool:
        """Whether the answer itself has to tell its workers."""
        return self.told_disaggregated or self.answered_by_instance

    @property
    def told_disaggregated(self) -> bool:
        """Whether the answer itself has to tell that it is disaggregated."""
        return self.disaggregated and not self.prefill_metrics

    def __post_init__(self) -> None:
        """Raises ValueError, naming the option, for expectations that no endpoint can meet."""
        if not self.model and not self.last_stage:
            raise ValueError("model is not set; set it to the one to ask, or last_stage to end before it is asked")
        if self.last_stage == "instances" and not self.instances:
            raise ValueError("last_stage is instances without instances, which says what has to be there")
        try:
            re.compile(self.expected_text)
        except re.error as error:
            raise ValueError(f"expected_text is {self.expected_text!r}, not a regular expression: {error}") from None
        for option in ("reasoning", "reasoning_effort"):
            value = getattr(self, option)
            if value and self.api == "completions":
                raise ValueError(
                    f"{option} is {str(value).lower()} with api completions, which has no reasoning; set api to chat "
                    "or responses"
                )
        if self.max_ttft is not None and not self.stream:
            raise ValueError("max_ttft is set with stream false, which shows no first token; set stream to true")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be 1 or more")
        for name, number in self.instances.items():
            if not ENDPOINT.fullmatch(name) or not isinstance(number, int) or number < 0:
                raise ValueError(
                    f"instances has {name!r}: {number!r}; it must be an endpoint and a number, such as "
                    "dyn://dynamo.prefill.generate: 2"
                )
        if self.instance_address:
            if not self.instances:
                raise ValueError("instance_address is set without instances, which says what has to be there")
            try:
                place(self.instance_address)
            except ValueError as error:
                raise ValueError(f"instance_address cannot be used: {error}") from None
        if self.answered_by_instance and not self.instance_address:
            raise ValueError("answered_by_instance is true without instance_address, which says who has to answer")
        if self.prefill_metrics and not self.disaggregated:
            raise ValueError("prefill_metrics is set with disaggregated false; set disaggregated to true")
        if self.worker_ids and self.api == "responses" and self.stream:
            option = "answered_by_instance" if self.answered_by_instance else "disaggregated"
            raise ValueError(
                f"{option} is true with api responses and stream true, which does not tell the workers; set stream to "
                "false" + ("" if self.answered_by_instance else ", or prefill_metrics")
            )


def request_body(wanted: Expectation, workers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The sample request. Temperature 0, so that the same endpoint answers the same; servers refuse unknown fields.

    ``workers`` are the ids of Dynamo's workers that are to answer it, by ``prefill`` and ``decode``.
    """
    body: dict[str, Any] = {"model": wanted.model, "temperature": 0, "stream": wanted.stream}
    body.update(effort(wanted, wanted.api))
    if wanted.worker_ids:
        asked = {f"{role}_worker_id": int(id) for role, id in (workers or {}).items()}
        body["nvext"] = {"extra_fields": ["worker_id"], **asked}
    if wanted.api == "responses":
        return dict(body, input=wanted.prompt, max_output_tokens=wanted.max_tokens)
    body["max_tokens"] = wanted.max_tokens
    if wanted.stream:
        body["stream_options"] = {"include_usage": True}
    if wanted.api == "chat":
        return dict(body, messages=[{"role": "user", "content": wanted.prompt}])
    return dict(body, prompt=wanted.prompt)


def effort(wanted: Expectation, api: str) -> dict[str, Any]:
    """The fields that set the reasoning effort, as this server takes it through this API."""
    if not wanted.reasoning_effort:
        return {}
    if api == "responses":
        return {"reasoning": {"effort": wanted.reasoning_effort}}
    if wanted.dynamo:  # before 1.3 it takes no notice of reasoning_effort; TensorRT-LLM refuses chat_template_args
        return {"chat_template_args": {"reasoning_effort": wanted.reasoning_effort}}
    return {"reasoning_effort": wanted.reasoning_effort}


def judge(wanted: Expectation, done: Completion) -> list[Check]:
    """Everything that can be said of the sample completion itself, in order."""
    out_of_tokens = done.finish_reason == "length" and not done.text
    checks = [_usage(done)]
    if wanted.harmony:
        raw = RAW_HARMONY.search(done.text)
        hint = HINT_PARSERS if wanted.dynamo else HINT_RAW
        checks.append(_check("harmony", raw is None, _quote(done.text), "content without harmony tokens", hint))
    if wanted.expected_text:
        found = re.search(wanted.expected_text, done.text)
        hint = HINT_MAX_TOKENS if out_of_tokens else "Check prompt and expected_text, then the weights and the recipe"
        checks.append(
            _check("expected_text", bool(found), _quote(done.text), f"text matching {wanted.expected_text!r}", hint)
        )
    if wanted.reasoning:
        observed = f"{len(done.reasoning)} characters of reasoning, {len(done.text)} of content"
        hint = HINT_MAX_TOKENS if out_of_tokens else _parser_hint(wanted)
        checks.append(
            _check("reasoning", bool(done.reasoning and done.text), observed, "both, apart from each other", hint)
        )
    if wanted.max_ttft is not None:
        expected = f"at most {wanted.max_ttft:g} s"
        if done.ttft is None:
            checks.append(Check("time_to_first_token", "unknown", "an answer in one piece", expected, HINT_ADDRESS))
        else:
            fast = done.ttft <= wanted.max_ttft
            checks.append(_check("time_to_first_token", fast, f"{done.ttft:.3f} s", expected, HINT_RECIPE))
    if wanted.min_tokens_per_second is not None:
        expected = f"at least {wanted.min_tokens_per_second:g} tokens/s"
        speed = done.tokens_per_second
        if speed is None:
            checks.append(Check("tokens_per_second", "unknown", "an answer without token counts", expected))
        else:
            fast = speed >= wanted.min_tokens_per_second
            checks.append(_check("tokens_per_second", fast, f"{speed:.1f} tokens/s", expected, HINT_RECIPE))
    if wanted.told_disaggregated:
        checks.append(_disaggregated(done))
    return checks


def _disaggregated(done: Completion) -> Check:
    expected = "prefill and decode by different workers"
    prefill, decode = (done.workers.get(role) for role in ("prefill", "decode"))
    if not done.workers:
        return Check("disaggregated", "unknown", "an answer without worker ids", expected, HINT_WORKER_IDS)
    observed = f"prefill by {prefill or 'no worker'}, decode by {decode or 'no worker'}"
    return _check("disaggregated", bool(prefill and decode and prefill != decode), observed, expected, HINT_AGGREGATED)


def _usage(done: Completion) -> Check:
    expected = "prompt and completion tokens above 0 that add up to the total"
    if done.usage is None:
        return Check("usage", "unknown", "an answer without token counts", expected, HINT_ADDRESS)
    prompt, completion, total = (done.usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total"))
    good = prompt > 0 and completion > 0 and prompt + completion == total
    return _check("usage", good, f"{prompt} + {completion} = {total}", expected, HINT_ADDRESS)


def _parser_hint(wanted: Expectation) -> str:
    return HINT_PARSERS if wanted.dynamo else HINT_IMAGE


def _check(id: str, good: bool, observed: str, expected: str, hint: str) -> Check:
    return Check(id, "pass" if good else "fail", observed, expected, "" if good else hint)


def _names(workers: Sequence[Instance]) -> str:
    return ", ".join(f"{entry.id} ({entry})" for entry in workers)


def _quote(text: str) -> str:
    text = " ".join(text.split())
    return f'"{text[:200]}…"' if len(text) > 200 else f'"{text}"' if text else "no content"


class Verification:
    """One run through the stages. ``result`` holds the contract and what was learnt on the way."""

    def __init__(
        self,
        client: Client,
        systemd: Systemd,
        wanted: Expectation,
        timeout: float,
        interval: float,
    ) -> None:
        """Raises ValueError, naming the option, for times that are not above 0 and URLs that cannot work."""
        for option, seconds in (("timeout", timeout), ("interval", interval)):
            if not seconds > 0:
                raise ValueError(f"{option} is {seconds:g}; it must be above 0 seconds")
        self._client = client
        self._systemd = systemd
        self._wanted = wanted
        self._prefills = [Client(url, option="prefill_metrics") for url in wanted.prefill_metrics]
        self._prefilled_before = 0  # requests of the prefill workers before the sample
        self._deadline = Deadline(timeout)
        self._interval = interval
        self._first: Unit | None = None  # the unit when it was first looked at
        self._unit: Unit | None = None
        self._completion: Completion | None = None
        self._answered: set[str] = set()  # ids of the workers of good answers
        self._health_body = b""
        self._listed = False
        self._version: str | None = None
        self._checks: list[Check] = []

    def run(self, journal_lines: int) -> dict[str, Any]:
        """All stages up to the first that fails; checks on one completion are independent, so all of them are made."""
        stages = [
            ("health", self._health, math.inf),
            *([("instances", self._instances, math.inf)] if self._wanted.instances else []),
            ("model", self._model, math.inf),
            ("completion", self._complete, ROUTABLE_SECONDS),
        ]
        if self._wanted.unit:
            stages.insert(0, ("unit", self._active, math.inf))
        for id, attempt, limit in stages:
            if not self._stage(id, attempt, limit) or id == self._wanted.last_stage:
                break
        else:
            if self._completion is not None:  # which it is not after the last stage
                self._checks += judge(self._wanted, self._completion)
            if self._wanted.prefill_metrics:
                self._stage("disaggregated", self._prefilled, POLL_SECONDS)
            if self._wanted.answered_by_instance:
                self._stage("instance_completion", self._answered_by_instance, ROUTABLE_SECONDS)
            if self._wanted.tool_call:
                self._stage("tool_call", self._tool_call, 0)
        # Before the completion every try looked at the unit already.
        if self._wanted.unit and any(check.id == "completion" for check in self._checks):
            self._stage("unit_stable", lambda: self._said("pass", self._unit, STABLE), ROUTABLE_SECONDS)

        summary = summarise(self._checks)
        return dict(
            summary,
            model=self._wanted.model if self._listed else None,
            server_version=self._version,
            completion=dict(self._completion.facts(), prompt=self._wanted.prompt) if self._completion else None,
            unit=self._unit.facts() if self._unit else None,
            journal=[] if summary["ok"] else self._journal(journal_lines),
        )

    def message(self) -> str:
        """The first check that did not pass, and the names of the others, on one line."""
        first, *others = failures(self._checks)
        also = f" (also not passed: {', '.join(check.id for check in others)})" if others else ""
        return f"{self._client.base_url} does not serve: {first}{also}"

    def _stage(self, id: str, attempt: Callable[[], Check], limit: float) -> bool:
        """Try until the answer is more than "not yet" (``unknown``), the unit dies, or time is up; keep the Check.

        ``limit`` is in seconds, within the deadline of the whole run.
        """
        start = time.monotonic()
        deadline = self._deadline.within(limit)
        before = None
        while True:
            try:
                check = self._unit_fault() or attempt()
            except EndpointError as error:
                # A last try that was cut short must not hide what the tries before it saw.
                cut_short = isinstance(error, OutOfTime) and before
                check = cut_short or self._said("fail", error, "a complete answer", HINT_JOURNAL)
            if check.status != "unknown":
                break
            if deadline.remaining() <= self._interval:
                if deadline.remaining() <= 0 and before:
                    check = before  # the last try was cut short
                spent = time.monotonic() - start
                check = replace(check, status="fail", observed=f"{check.observed}, still so after {spent:.0f} s")
                break
            before = check
            time.sleep(self._interval)
        self._checks.append(replace(check, id=id, duration=time.monotonic() - start))
        return check.status == "pass"

    def _said(self, status: Status, observed: object, expected: str, hint: str = "") -> Check:
        """A Check on something that the server said; _stage gives it its id."""
        return Check("", status, self._client.excerpt(observed), expected, hint)

    def _unit_fault(self) -> Check | None:
        """A unit that failed, died or was restarted since the first look ends every stage at once."""
        if not self._wanted.unit:
            return None
        try:
            unit = self._unit = self._systemd.unit(self._wanted.unit)
        except UnitError as error:
            # One that has answered before is busy, as a host is that loads weights for several instances.
            status: Status = "fail" if self._unit is None else "unknown"
            return self._said(status, error, "systemd to answer", "Run on the host that serves, or leave unit out")
        if not unit.exists:
            return self._said("fail", unit, "a unit that is loaded", "Check unit: it is not one of this host")
        # Until a queued start or restart has begun, systemd still shows the run before it.
        if self._first is None and (unit.active_state == "activating" or not unit.job_pending):
            self._first = unit
        stopped = unit.active_state in ("failed", "inactive") and not unit.job_pending
        restarted = self._first is not None and unit.invocation_id != self._first.invocation_id
        if stopped or restarted or unit.restarting:
            return self._said("fail", unit, STABLE, HINT_JOURNAL)
        return None

    def _active(self) -> Check:
        up = self._unit is not None and self._unit.active_state == "active" and not self._unit.job_pending
        return self._said("pass" if up else "unknown", self._unit, "active", "" if up else HINT_JOURNAL)

    def _health(self) -> Check:
        expected = "HTTP 200 from /health"
        starting = (
            f"{HINT_JOURNAL}. If it is still loading, raise timeout (trtllm_server_start_timeout, dynamo_start_timeout)"
        )
        try:
            reply = self._client.get("/health", self._deadline.within(POLL_SECONDS))
        except (NotListening, OutOfTime) as error:
            return self._said("unknown", error, expected, starting)
        except EndpointError as error:
            return self._said(
                "fail", error, expected, "Check base_url and ca_file: scheme, port and certificate must fit"
            )
        self._health_body = reply.body
        if reply.status == 200:
            return self._said("pass", "HTTP 200", expected)
        return self._refusal(HttpError(reply), expected, starting)

    def _instances(self) -> Check:
        """Dynamo's frontend is healthy from the start, with no worker too; what it lists is what counts."""
        check = self._health()
        if check.status != "pass":
            return check
        at = f", all at {self._wanted.instance_address}" if self._wanted.instance_address else ""
        expected = ", ".join(f"{number} {name}" for name, number in self._wanted.instances.items()) + at
        try:
            instances = listed(parse_object(self._health_body))
        except (AttributeError, EndpointError, LookupError, TypeError):
            observed = self._health_body.decode("utf-8", "replace") or "an empty body"
            return self._said("fail", f"{observed} from /health", expected, f"Not Dynamo's frontend. {HINT_ADDRESS}")
        found = count(instances, self._wanted.instances, self._wanted.instance_address)
        if found.equal:
            return self._said("pass", found, expected)
        return self._said("unknown", found, expected, HINT_WORKERS if found.missing else HINT_STALE)

    def _refusal(self, error: HttpError, expected: str, starting: str) -> Check:
        """What a status other than 200 means."""
        if error.status in NOT_YET:
            return self._said("unknown", error, expected, starting)
        hint = HINT_JOURNAL
        if error.status in (401, 403):
            hint = HINT_KEY
        elif error.status in (301, 302, 307, 308, 404, 405):
            hint = HINT_ADDRESS
        return self._said("fail", error, expected, hint)

    def _model(self) -> Check:
        expected = f"{self._wanted.model} in /v1/models"
        try:
            reply = self._client.get("/v1/models", self._deadline.within(POLL_SECONDS))
            if reply.status != 200:
                return self._refusal(HttpError(reply), expected, HINT_JOURNAL)
            models = [str(model["id"]) for model in reply.json()["data"]]
        except (NotListening, OutOfTime) as error:
            return self._said("unknown", error, expected, HINT_JOURNAL)
        except (LookupError, TypeError):
            return self._said("fail", reply.body.decode("utf-8", "replace"), expected, HINT_ADDRESS)
        if not models:  # Dynamo's frontend before its first worker
            return self._said("unknown", "no model", expected, HINT_CARD if self._wanted.dynamo else HINT_JOURNAL)
        self._version = self._server_version()
        self._listed = self._wanted.model in models
        if self._listed:
            return self._said("pass", ", ".join(models), expected)
        return self._said("fail", ", ".join(models), expected, f"Set serving_recipe_model. {HINT_ADDRESS}")

    def _complete(self) -> Check:
        expected = self._wanted.answer
        starting = HINT_ROUTE if self._wanted.dynamo else HINT_JOURNAL
        try:
            self._prefilled_before = self._prefill_requests()
        except EndpointError as error:
            return self._said("fail", error, f"{REQUESTS} of the prefill workers", HINT_METRICS)
        try:
            # The first request after a start is slow (lazy initialisation), so it does not count against a floor.
            floor = self._wanted.max_ttft is not None or self._wanted.min_tokens_per_second is not None
            for _request in range(2 if floor else 1):
                done = self._client.complete(self._wanted.api, request_body(self._wanted), self._deadline)
        except HttpError as error:
            # Dynamo answers 500 and 503 in turns while it lists a worker that is gone.
            not_yet = self._wanted.dynamo if error.status == 500 else error.status == 404 and not error.no_such_route
            if not_yet:
                return self._said("unknown", error, expected, starting)
            check = self._refusal(error, expected, starting)
            if error.status == 400 and self._wanted.api != "completions" and not self._wanted.dynamo:
                return replace(check, hint=HINT_VOCABULARY)
            return check
        self._completion = done
        self._answered = {*done.workers.values()}
        return self._answer(done)

    def _answer(self, done: Completion) -> Check:
        """Whether it is one."""
        said = done.text or (self._wanted.harmony and done.reasoning)
        good = done.finish_reason in ("stop", "length") and bool(said)
        ended = done.finish_reason or "nothing"
        observed = f"{_quote(done.text)}, {len(done.reasoning)} characters of reasoning, ended by {ended}"
        return self._said("pass" if good else "fail", observed, self._wanted.answer, "" if good else HINT_JOURNAL)

    def _answered_by_instance(self) -> Check:
        """As many samples as there are workers, until each one that counts has had a part in a good answer.

        The router is asked for them, or one that knows caches would give the same prompt to the same worker each time.
        Both workers are named, as 500 answers a decode worker alone; some routers take that one in turn all the same.
        """
        listed_workers = listed(parse_object(self._health_body))
        workers = [entry for entry in listed_workers if entry.endpoint in self._wanted.instances]
        asked = at(workers, self._wanted.instance_address)
        expected = f"answers by {_names(asked)}"
        if self._completion is None or not self._completion.workers:
            return self._said("fail", "an answer without worker ids", expected, HINT_NO_WORKER_IDS)
        # A worker's first answer is slow.
        wanted = replace(self._wanted, max_ttft=None, min_tokens_per_second=None)
        told = self._completion.workers
        error = ""
        for _request in workers:
            missing = {entry.role: entry.id for entry in asked if entry.id not in self._answered}
            if not missing:
                break
            try:
                body = request_body(wanted, {**told, **missing} if told else None)
                done = self._client.complete(wanted.api, body, self._deadline)
            except HttpError as refusal:
                error, told = f"; {refusal}", {}
                continue
            bad = failures([replace(self._answer(done), id="completion"), *judge(wanted, done)])
            if bad:
                return self._said("fail", f"{bad[0]} ({', '.join(done.workers.values())})", expected, HINT_ROUTE)
            told = done.workers
            self._answered.update(told.values())
        answered = [entry for entry in workers if entry.id in self._answered]
        observed = f"answers by {_names(answered)}{error}"
        if {*asked} <= {*answered}:
            return self._said("pass", observed, expected)
        return self._said("unknown", observed, expected, HINT_ROUTE)

    def _prefill_requests(self) -> int:
        """The requests that the prefill workers have taken so far. Raises EndpointError."""
        total = 0
        for client in self._prefills:
            try:
                reply = client.get("", self._deadline.within(POLL_SECONDS))
            except EndpointError as error:
                raise EndpointError(f"{error} from {client.base_url}") from None
            if reply.status != 200:
                raise EndpointError(f"{HttpError(reply)} from {client.base_url}")
            total += prefill_requests(reply.body.decode("utf-8", "replace"))
        return total

    def _prefilled(self) -> Check:
        """Asked more than once, for a worker counts a request a moment after it has answered it."""
        expected = "more requests of the prefill workers after the sample than before"
        hint = f"{HINT_AGGREGATED}. {HINT_METRICS}"
        try:
            now = self._prefill_requests()
        except EndpointError as error:
            return self._said("unknown", error, expected, hint)
        observed = f"{self._prefilled_before} requests of the prefill workers before the sample, {now} after"
        if now > self._prefilled_before:
            return self._said("pass", observed, expected)
        return self._said("unknown", observed, expected, hint)

    def _tool_call(self) -> Check:
        """The round trip, always through chat: the model asks for the tool, gets its result, and answers."""
        expected = f"a call of {TOOL_NAME} with JSON arguments, then an answer in text"
        body: dict[str, Any] = {
            "model": self._wanted.model,
            "messages": [{"role": "user", "content": TOOL_PROMPT}],
            "tools": [TOOL],
            "tool_choice": "auto",  # TensorRT-LLM's default is none
            "temperature": 0,
            "max_tokens": self._wanted.max_tokens,
            **effort(self._wanted, "chat"),
        }
        asked = self._client.complete("chat", body, self._deadline)
        try:
            call = asked.tool_calls[0]
            function = call["function"]
            arguments = json.loads(function["arguments"])
            sound = asked.finish_reason == "tool_calls" and function["name"] == TOOL_NAME and call["id"]
            if not sound or not isinstance(arguments, dict):
                raise ValueError
        except (LookupError, TypeError, ValueError):
            observed = f"ended by {asked.finish_reason}, calls {json.dumps(asked.tool_calls)}, {_quote(asked.text)}"
            return self._said("fail", observed, expected, _parser_hint(self._wanted))
        body["messages"] += [
            {"role": "assistant", "tool_calls": [{"id": call["id"], "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call["id"], "content": TOOL_RESULT},
        ]
        answered = self._client.complete("chat", body, self._deadline)
        observed = f"the call, then {_quote(answered.text)} ended by {answered.finish_reason}"
        good = bool(answered.text) and not answered.tool_calls and not RAW_HARMONY.search(answered.text)
        return self._said("pass" if good else "fail", observed, expected, "" if good else _parser_hint(self._wanted))

    def _server_version(self) -> str | None:
        """What /version says; Dynamo has no such path, and nothing depends on it."""
        try:
            return str(self._client.get("/version", self._deadline.within(POLL_SECONDS)).json()["version"])
        except (EndpointError, LookupError):
            return None

    def _journal(self, lines: int) -> list[str]:
        """The unit's last lines: of the run that was first seen, for if it was restarted, that one has the reason."""
        if not self._first or not self._first.exists:
            return []
        return self._systemd.journal(self._wanted.unit, lines, self._first.invocation_id)
