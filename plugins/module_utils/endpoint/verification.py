# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verification of an endpoint: ordered stages, each with one Check, before one deadline."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check, Status, failures, summarise
from ansible_collections.trtllm.fleet.plugins.module_utils.dynamo_health import (
    REQUESTS,
    Instance,
    at,
    count,
    listed,
    prefill_requests,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.completion_checks import (
    RAW_HARMONY,
    completion_checks,
    parser_hint,
    quote,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.expectation import (
    Expectation,
    reasoning_effort,
    request_body,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint.hints import (
    HINT_ADDRESS,
    HINT_AGGREGATED,
    HINT_CARD,
    HINT_JOURNAL,
    HINT_KEY,
    HINT_METRICS,
    HINT_NO_WORKER_IDS,
    HINT_ROUTE,
    HINT_STALE,
    HINT_VOCABULARY,
    HINT_WORKERS,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import (
    Client,
    Deadline,
    EndpointError,
    HttpError,
    NotListening,
    OutOfTime,
    parse_object,
)
from ansible_collections.trtllm.fleet.plugins.module_utils.openai_completion import Completion, complete
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd, Unit, UnitError

INTERVAL = 0.5  # least seconds between two tries
JOURNAL_LINES = 15
# Of a request for health or models, which is fast: a poll that hangs must not hide that the unit died.
POLL_SECONDS = 10.0

# Dynamo lists a model some seconds before it routes to it, and answers 404 or 503 until then (issues 11178, 11855).
ROUTABLE_SECONDS = 60.0

# Temporary: an engine loads (503), a gateway has no ready instance (502, 503, 504), or a rate limit applies (429).
NOT_YET = (429, 502, 503, 504)

STABLE = "active, and not restarted since this check began"

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


def _names(workers: Sequence[Instance]) -> str:
    return ", ".join(f"{entry.id} ({entry})" for entry in workers)


def pause() -> float:
    """Return seconds between two tries, at random.

    Of two hosts that ask one frontend in turn, each would get the answers of the other's worker for ever.
    """
    return random.uniform(INTERVAL, 2 * INTERVAL)


@dataclass(frozen=True)
class Turn:
    """One of several runs of a verification that waits for an engine.

    ``seconds``: after which a wait is interrupted. ``waited``: seconds of the runs before; they ended in ``stage`` and
    had the unit's ``invocation_id``.
    """

    seconds: float = math.inf
    waited: float = 0.0
    stage: str = ""
    invocation_id: str | None = None


class Verification:
    """One run through the stages."""

    def __init__(
        self, client: Client, systemd: Systemd, wanted: Expectation, timeout: float, turn: Turn | None = None
    ) -> None:
        """Raise ValueError, with the option, for an invalid timeout or URL."""
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout:g}; it must be above 0 seconds")
        self._turn = turn or Turn()
        self._client = client
        self._systemd = systemd
        self._wanted = wanted
        self._prefills = [Client(url, option="prefill_metrics") for url in wanted.prefill_metrics]
        self._prefilled_before = 0  # requests of the prefill workers before the sample
        # The last turn has time for a try.
        self._deadline = Deadline(max(timeout - self._turn.waited, min(timeout, POLL_SECONDS)))
        self._turn_end = Deadline(self._turn.seconds)
        self._interrupted = False  # by the end of the turn
        self._first_run = self._turn.invocation_id  # of the unit, at the first check
        self._unit: Unit | None = None
        self._completion: Completion | None = None
        self._answered: set[str] = set()  # ids of workers with good answers
        self._health_body = b""
        self._listed = False
        self._version: str | None = None
        self._checks: list[Check] = []

    def run(self) -> dict[str, Any]:
        """Return the result of all stages up to the first that fails. The checks of a completion are all made."""
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
            if self._completion is not None:  # None with last_stage
                self._checks += completion_checks(self._wanted, self._completion)
            if self._wanted.prefill_metrics:
                self._stage("disaggregated", self._prefilled, POLL_SECONDS)
            if self._wanted.answered_by_instance:
                self._stage("instance_completion", self._answered_by_instance, ROUTABLE_SECONDS)
            if self._wanted.tool_call:
                self._stage("tool_call", self._tool_call, 0)
        # Until the completion every try checked the unit already.
        if self._wanted.unit and any(check.id == "completion" for check in self._checks):
            self._stage("unit_stable", lambda: self._checked("pass", self._unit, STABLE), ROUTABLE_SECONDS)

        summary = summarise(self._checks)
        return dict(
            summary,
            finished=not self._interrupted,
            progress=self._progress() if self._interrupted else "",
            first_invocation_id=self._first_run,
            model=self._wanted.model if self._listed else None,
            server_version=self._version,
            completion=dict(self._completion.facts(), prompt=self._wanted.prompt) if self._completion else None,
            unit=self._unit.facts() if self._unit else None,
            journal=[] if summary["ok"] or self._interrupted else self._journal(JOURNAL_LINES),
        )

    def message(self) -> str:
        """Return the first check that did not pass, and the names of the others, on one line."""
        first, *others = failures(self._checks)
        also = f" (also not passed: {', '.join(check.id for check in others)})" if others else ""
        return f"{self._client.base_url} does not serve: {first}{also}"

    def _stage(self, id: str, attempt: Callable[[], Check], limit: float) -> bool:
        """Try until the status is not ``unknown``, the unit fails, or the time is up. Add the Check.

        ``limit``: seconds, within the deadline of the whole run.
        """
        start = time.monotonic() - (self._turn.waited if id == self._turn.stage else 0)
        deadline = self._deadline.within(limit)
        before = None
        while True:
            try:
                check = self._unit_fault() or attempt()
            except EndpointError as error:
                # An interrupted last try must not hide the result of the tries before it.
                interrupted = isinstance(error, OutOfTime) and before
                check = interrupted or self._checked("fail", error, "a complete answer", HINT_JOURNAL)
            if check.status != "unknown":
                break
            if deadline.remaining() <= INTERVAL:
                if deadline.remaining() <= 0 and before:
                    check = before  # the last try was interrupted
                spent = time.monotonic() - start
                check = replace(check, status="fail", observed=f"{check.observed}, still so after {spent:.0f} s")
                break
            if self._turn_is_over(limit):
                self._interrupted = True
                break
            before = check
            time.sleep(pause())
        self._checks.append(replace(check, id=id, duration=time.monotonic() - start))
        return check.status == "pass"

    def _turn_is_over(self, limit: float) -> bool:
        """Return whether to go on in another turn. The stages without a limit wait for the engine."""
        another = self._deadline.remaining() > self._turn.seconds
        return limit == math.inf and another and self._turn_end.remaining() <= 0

    def _checked(self, status: Status, observed: object, expected: str, hint: str = "") -> Check:
        """Return a Check of an answer of the server; _stage sets its id."""
        return Check("", status, self._client.excerpt(observed), expected, hint)

    def _unit_fault(self) -> Check | None:
        """Return a failed Check if the unit failed, stopped or was restarted since the first check."""
        if not self._wanted.unit:
            return None
        try:
            unit = self._unit = self._systemd.unit(self._wanted.unit)
        except UnitError as error:
            # If it answered before, it is busy: the host may load weights for several instances.
            status: Status = "fail" if self._unit is None else "unknown"
            return self._checked(status, error, "systemd to answer", "Run on the host of the unit, or do not set unit")
        if not unit.exists:
            return self._checked("fail", unit, "a unit that is loaded", "Set unit to a unit of this host")
        # Until a queued start or restart begins, systemd shows the run before it.
        if self._first_run is None and (unit.active_state == "activating" or not unit.job_pending):
            self._first_run = unit.invocation_id
        stopped = unit.active_state in ("failed", "inactive") and not unit.job_pending
        restarted = self._first_run is not None and unit.invocation_id != self._first_run
        if stopped or restarted or unit.restarting:
            return self._checked("fail", unit, STABLE, HINT_JOURNAL)
        return None

    def _active(self) -> Check:
        up = self._unit is not None and self._unit.active_state == "active" and not self._unit.job_pending
        return self._checked("pass" if up else "unknown", self._unit, "active", "" if up else HINT_JOURNAL)

    def _health(self) -> Check:
        expected = "HTTP 200 from /health"
        starting = (
            f"{HINT_JOURNAL}. If it still loads, raise timeout (trtllm_server_start_timeout, dynamo_start_timeout)"
        )
        try:
            reply = self._client.get("/health", self._deadline.within(POLL_SECONDS))
        except (NotListening, OutOfTime) as error:
            return self._checked("unknown", error, expected, starting)
        except EndpointError as error:
            return self._checked(
                "fail", error, expected, "Check base_url and ca_file: scheme, port and certificate must match"
            )
        self._health_body = reply.body
        if reply.status == 200:
            return self._checked("pass", "HTTP 200", expected)
        return self._refusal(HttpError(reply), expected, starting)

    def _instances(self) -> Check:
        """Check Dynamo's workers: its frontend is healthy without them, so only its list counts."""
        check = self._health()
        if check.status != "pass":
            return check
        where = f", all at {self._wanted.instance_address}" if self._wanted.instance_address else ""
        expected = ", ".join(f"{number} {name}" for name, number in self._wanted.instances.items()) + where
        try:
            instances = listed(parse_object(self._health_body))
        except (AttributeError, EndpointError, LookupError, TypeError):
            observed = self._health_body.decode("utf-8", "replace") or "an empty body"
            return self._checked("fail", f"{observed} from /health", expected, f"Not Dynamo's frontend. {HINT_ADDRESS}")
        found = count(instances, self._wanted.instances, self._wanted.instance_address)
        if found.equal:
            return self._checked("pass", found, expected)
        return self._checked("unknown", found, expected, HINT_WORKERS if found.missing else HINT_STALE)

    def _refusal(self, error: HttpError, expected: str, starting: str) -> Check:
        """Return the Check of a status other than 200."""
        if error.status in NOT_YET:
            return self._checked("unknown", error, expected, starting)
        hint = HINT_JOURNAL
        if error.status in (401, 403):
            hint = HINT_KEY
        elif error.status in (301, 302, 307, 308, 404, 405):
            hint = HINT_ADDRESS
        return self._checked("fail", error, expected, hint)

    def _model(self) -> Check:
        expected = f"{self._wanted.model} in /v1/models"
        try:
            reply = self._client.get("/v1/models", self._deadline.within(POLL_SECONDS))
            if reply.status != 200:
                return self._refusal(HttpError(reply), expected, HINT_JOURNAL)
            models = [str(model["id"]) for model in reply.json()["data"]]
        except (NotListening, OutOfTime) as error:
            return self._checked("unknown", error, expected, HINT_JOURNAL)
        except (LookupError, TypeError):
            return self._checked("fail", reply.body.decode("utf-8", "replace"), expected, HINT_ADDRESS)
        if not models:  # Dynamo's frontend before its first worker
            return self._checked("unknown", "no model", expected, HINT_CARD if self._wanted.dynamo else HINT_JOURNAL)
        self._version = self._server_version()
        self._listed = self._wanted.model in models
        if self._listed:
            return self._checked("pass", ", ".join(models), expected)
        return self._checked("fail", ", ".join(models), expected, f"Set serving_recipe_model. {HINT_ADDRESS}")

    def _complete(self) -> Check:
        expected = self._wanted.answer
        starting = HINT_ROUTE if self._wanted.dynamo else HINT_JOURNAL
        try:
            self._prefilled_before = self._prefill_requests()
        except EndpointError as error:
            return self._checked("fail", error, f"{REQUESTS} of the prefill workers", HINT_METRICS)
        try:
            # The first request after a start is slow (lazy initialisation), so max_ttft applies to the second.
            for _request in range(1 if self._wanted.max_ttft is None else 2):
                done = complete(self._client, self._wanted.api, request_body(self._wanted), self._deadline)
        except HttpError as error:
            # Dynamo answers 500 and 503 in turn while it lists a worker that ended.
            not_yet = self._wanted.dynamo if error.status == 500 else error.status == 404 and not error.no_such_route
            if not_yet:
                return self._checked("unknown", error, expected, starting)
            check = self._refusal(error, expected, starting)
            if error.status == 400 and self._wanted.api != "completions" and not self._wanted.dynamo:
                return replace(check, hint=HINT_VOCABULARY)
            return check
        self._completion = done
        self._answered = {*done.workers.values()}
        return self._answer(done)

    def _answer(self, done: Completion) -> Check:
        """Return the Check of an answer: it has content or reasoning, and an end."""
        has_content = done.text or (self._wanted.harmony and done.reasoning)
        good = done.finish_reason in ("stop", "length") and bool(has_content)
        ended = done.finish_reason or "nothing"
        observed = f"{quote(done.text)}, {len(done.reasoning)} characters of reasoning, ended by {ended}"
        return self._checked("pass" if good else "fail", observed, self._wanted.answer, "" if good else HINT_JOURNAL)

    def _answered_by_instance(self) -> Check:
        """Send as many samples as there are workers, until each expected one had a part in a good answer.

        The request names its workers, because a router that knows caches would send the same prompt to the same worker.
        It names both, because a decode worker alone is answered with 500. Some routers ignore the decode worker.
        """
        listed_workers = listed(parse_object(self._health_body))
        workers = [entry for entry in listed_workers if entry.endpoint in self._wanted.instances]
        targets = at(workers, self._wanted.instance_address)
        expected = f"answers by {_names(targets)}"
        if self._completion is None or not self._completion.workers:
            return self._checked("fail", "an answer without worker ids", expected, HINT_NO_WORKER_IDS)
        # A worker's first answer is slow.
        wanted = replace(self._wanted, max_ttft=None)
        last = self._completion.workers
        error = ""
        for _request in workers:
            missing = {entry.role: entry.id for entry in targets if entry.id not in self._answered}
            if not missing:
                break
            try:
                body = request_body(wanted, {**last, **missing} if last else None)
                done = complete(self._client, wanted.api, body, self._deadline)
            except HttpError as refusal:
                error, last = f"; {refusal}", {}
                continue
            bad = failures([replace(self._answer(done), id="completion"), *completion_checks(wanted, done)])
            if bad:
                return self._checked("fail", f"{bad[0]} ({', '.join(done.workers.values())})", expected, HINT_ROUTE)
            last = done.workers
            self._answered.update(last.values())
        answered = [entry for entry in workers if entry.id in self._answered]
        observed = f"answers by {_names(answered)}{error}"
        if {*targets} <= {*answered}:
            return self._checked("pass", observed, expected)
        return self._checked("unknown", observed, expected, HINT_ROUTE)

    def _prefill_requests(self) -> int:
        """Return the number of requests of the prefill workers. Raises EndpointError."""
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
        """Check the prefill workers' counts. More than one try, because a worker counts a request after its answer."""
        expected = "more requests of the prefill workers after the sample than before"
        hint = f"{HINT_AGGREGATED}. {HINT_METRICS}"
        try:
            now = self._prefill_requests()
        except EndpointError as error:
            return self._checked("unknown", error, expected, hint)
        observed = f"{self._prefilled_before} requests of the prefill workers before the sample, {now} after"
        if now > self._prefilled_before:
            return self._checked("pass", observed, expected)
        return self._checked("unknown", observed, expected, hint)

    def _tool_call(self) -> Check:
        """Check a tool call round trip through chat: the model calls the tool, gets its result, and answers."""
        expected = f"a call of {TOOL_NAME} with JSON arguments, then an answer in text"
        body: dict[str, Any] = {
            "model": self._wanted.model,
            "messages": [{"role": "user", "content": TOOL_PROMPT}],
            "tools": [TOOL],
            "tool_choice": "auto",  # TensorRT-LLM's default is none
            "temperature": 0,
            "max_tokens": self._wanted.max_tokens,
            **reasoning_effort(self._wanted, "chat"),
        }
        first = complete(self._client, "chat", body, self._deadline)
        try:
            call = first.tool_calls[0]
            function = call["function"]
            arguments = json.loads(function["arguments"])
            sound = first.finish_reason == "tool_calls" and function["name"] == TOOL_NAME and call["id"]
            if not sound or not isinstance(arguments, dict):
                raise ValueError
        except (LookupError, TypeError, ValueError):
            observed = f"ended by {first.finish_reason}, calls {json.dumps(first.tool_calls)}, {quote(first.text)}"
            return self._checked("fail", observed, expected, parser_hint(self._wanted))
        body["messages"] += [
            {"role": "assistant", "tool_calls": [{"id": call["id"], "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call["id"], "content": TOOL_RESULT},
        ]
        answered = complete(self._client, "chat", body, self._deadline)
        observed = f"the call, then {quote(answered.text)} ended by {answered.finish_reason}"
        good = bool(answered.text) and not answered.tool_calls and not RAW_HARMONY.search(answered.text)
        return self._checked("pass" if good else "fail", observed, expected, "" if good else parser_hint(self._wanted))

    def _server_version(self) -> str | None:
        """Return the answer of /version; None for Dynamo, which does not have it."""
        try:
            return str(self._client.get("/version", self._deadline.within(POLL_SECONDS)).json()["version"])
        except (EndpointError, LookupError):
            return None

    def _progress(self) -> str:
        """Return what the wait is for, and the last line of the unit, which says how far an engine is."""
        last = self._checks[-1]
        left = f"{last.id}: {last.observed}, up to {self._deadline.remaining():.0f} s more"
        line = self._client.excerpt("".join(self._journal(1)))
        return f"{left}; last line of {self._wanted.unit}: {line}" if line else left

    def _journal(self, lines: int) -> list[str]:
        """Return the unit's last lines of the first run, which has the reason if the unit was restarted."""
        if self._first_run is None:
            return []
        return self._systemd.journal(self._wanted.unit, lines, self._first_run)
