# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The expected properties of an endpoint, and the sample request that checks them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.trtllm.fleet.plugins.module_utils.dynamo_health import ENDPOINT, place


@dataclass(frozen=True)
class Expectation:
    """Expected properties of an endpoint. Times are in seconds."""

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
    unit: str = ""
    reasoning_effort: str | None = None
    instances: Mapping[str, int] = field(default_factory=dict)  # numbers of Dynamo's workers by endpoint
    instance_address: str = ""
    disaggregated: bool = False
    prefill_metrics: Sequence[str] = ()
    answered_by_instance: bool = False
    last_stage: str | None = None

    @property
    def dynamo(self) -> bool:
        """True if the server is Dynamo: only Dynamo has instances."""
        return bool(self.instances or self.disaggregated)

    @property
    def answer(self) -> str:
        """What counts as an answer. Raw text has no separate reasoning."""
        return f"an answer with {'text or reasoning' if self.harmony else 'text'} that ends by stop or length"

    @property
    def worker_ids(self) -> bool:
        """True if the answer must have the ids of its workers."""
        return self.disaggregated_by_ids or self.answered_by_instance

    @property
    def disaggregated_by_ids(self) -> bool:
        """True if worker ids must show the disaggregation, because no metrics do."""
        return self.disaggregated and not self.prefill_metrics

    def __post_init__(self) -> None:
        """Raise ValueError, with the option, for expectations that no endpoint can meet."""
        if not self.model and not self.last_stage:
            raise ValueError("model is not set; a completion needs one. Set model or last_stage")
        if self.last_stage == "instances" and not self.instances:
            raise ValueError("last_stage is instances and instances is empty. Set instances to the expected workers")
        try:
            re.compile(self.expected_text)
        except re.error as error:
            raise ValueError(f"expected_text is {self.expected_text!r}, not a regular expression: {error}") from None
        for option in ("reasoning", "reasoning_effort"):
            value = getattr(self, option)
            if value and self.api == "completions":
                raise ValueError(
                    f"{option} is {str(value).lower()} with api completions, which has no reasoning. Set api to chat "
                    "or responses"
                )
        if self.max_ttft is not None and not self.stream:
            raise ValueError("max_ttft is set with stream false, which has no time to first token. Set stream to true")
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
                raise ValueError("instance_address is set and instances is empty. Set instances to the workers")
            try:
                place(self.instance_address)
            except ValueError as error:
                raise ValueError(f"instance_address cannot be used: {error}") from None
        if self.answered_by_instance and not self.instance_address:
            raise ValueError("answered_by_instance is true without instance_address. Set instance_address")
        if self.prefill_metrics and not self.disaggregated:
            raise ValueError("prefill_metrics is set with disaggregated false. Set disaggregated to true")
        if self.worker_ids and self.api == "responses" and self.stream:
            option = "answered_by_instance" if self.answered_by_instance else "disaggregated"
            raise ValueError(
                f"{option} is true with api responses and stream true, which does not return worker ids. Set stream to "
                "false" + ("" if self.answered_by_instance else ", or prefill_metrics")
            )


def request_body(wanted: Expectation, workers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the sample request. Servers reject unknown fields.

    ``workers``: the ids of Dynamo's workers for this request, by ``prefill`` and ``decode``.
    """
    body: dict[str, Any] = {"model": wanted.model, "temperature": 0, "stream": wanted.stream}
    body.update(reasoning_effort(wanted, wanted.api))
    if wanted.worker_ids:
        targets = {f"{role}_worker_id": int(id) for role, id in (workers or {}).items()}
        body["nvext"] = {"extra_fields": ["worker_id"], **targets}
    if wanted.api == "responses":
        return dict(body, input=wanted.prompt, max_output_tokens=wanted.max_tokens)
    body["max_tokens"] = wanted.max_tokens
    if wanted.stream:
        body["stream_options"] = {"include_usage": True}
    if wanted.api == "chat":
        return dict(body, messages=[{"role": "user", "content": wanted.prompt}])
    return dict(body, prompt=wanted.prompt)


def reasoning_effort(wanted: Expectation, api: str) -> dict[str, Any]:
    """Return the fields for the reasoning effort in this server's API."""
    if not wanted.reasoning_effort:
        return {}
    if api == "responses":
        return {"reasoning": {"effort": wanted.reasoning_effort}}
    if wanted.dynamo:  # before 1.3 it ignores reasoning_effort; TensorRT-LLM rejects chat_template_args
        return {"chat_template_args": {"reasoning_effort": wanted.reasoning_effort}}
    return {"reasoning_effort": wanted.reasoning_effort}
