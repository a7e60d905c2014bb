# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Completions of the OpenAI API: chat, responses and plain completions, complete or as a stream."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import (
    MAX_ANSWER_BYTES,
    Client,
    Deadline,
    EndpointError,
    HttpError,
    Reply,
    parse_object,
)

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "completions": "/v1/completions"}


def complete(client: Client, api: str, payload: dict[str, Any], deadline: Deadline) -> Completion:
    """POST a request to one of the APIs in ``PATHS``. Raises EndpointError, HttpError for another status than 200.

    A server may answer a request for a stream with a complete answer, which has no time to first token.
    """
    done = Completion(api)
    absorb = done.absorb_response if api == "responses" else done.absorb_choices
    start = time.monotonic()
    with client.open(PATHS[api], deadline, payload) as response:
        streamed = "text/event-stream" in (response.getheader("Content-Type") or "")
        if response.status != 200:
            raise HttpError(client.read(response))
        try:
            if not streamed:
                absorb(client.read(response).json())
            for data in events(response) if streamed else ():
                if data == b"[DONE]":
                    break
                first = absorb(parse_object(data))
                if first and done.ttft is None:
                    done.ttft = time.monotonic() - start
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise EndpointError(f"not an answer of {PATHS[api]}: {type(error).__name__} {error}") from None
    done.duration = time.monotonic() - start
    if streamed and not done.finish_reason:
        raise EndpointError(
            f"the stream ended before it was finished, after {len(done.text) + len(done.reasoning)} characters"
        )
    return done


def events(response: http.client.HTTPResponse | BinaryIO) -> Iterator[bytes]:
    """Yield the data of each server-sent event. Raises EndpointError for an event with name ``error``."""
    data: list[bytes] = []
    comments: list[bytes] = []
    name = b""
    size = 0
    while True:
        line = response.readline(MAX_ANSWER_BYTES)
        size += len(line)
        if size > MAX_ANSWER_BYTES:
            raise EndpointError(f"the stream is larger than {MAX_ANSWER_BYTES} bytes")
        if not line:
            return
        key, _colon, value = line.rstrip(b"\r\n").partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value
        elif not key and value:
            comments.append(value)
        elif not key:
            if name == b"error":  # Dynamo puts the message into a comment
                raise EndpointError("error in the stream: " + Reply(200, {}, b"\n".join(data or comments)).explain())
            if data:
                yield b"\n".join(data)
            data, comments, name = [], [], b""


@dataclass
class Completion:
    """Answer to a request. ``ttft`` and ``duration`` are in seconds from the start of the request.

    ``workers``: the ids of Dynamo's workers by ``prefill`` and ``decode``, if the request has them.
    """

    api: str
    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    usage: dict[str, int] | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    workers: dict[str, str] = field(default_factory=dict)
    ttft: float | None = None
    duration: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Return completion tokens, reasoning included, per second from the request to the last byte."""
        if not self.usage or not self.duration:
            return None
        return self.usage["completion_tokens"] / self.duration

    def facts(self) -> dict[str, Any]:
        """Return the values for a playbook."""
        speed = self.tokens_per_second
        return {
            "api": self.api,
            "text": self.text,
            "reasoning": self.reasoning,
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "ttft": None if self.ttft is None else round(self.ttft, 4),
            "tokens_per_second": None if speed is None else round(speed, 2),
            "duration": round(self.duration, 4),
            "workers": self.workers,
        }

    def absorb_choices(self, answer: dict[str, Any]) -> bool:
        """Add a chat or plain completion, complete or one chunk. Return True if it has text."""
        _raise_error(answer)
        brought = ""
        for choice in (answer.get("choices") or [])[:1]:
            message = choice.get("message") or choice.get("delta") or {}
            text = message.get("content") or choice.get("text") or ""
            # TensorRT-LLM and Dynamo use reasoning_content, newer servers reasoning.
            thought = message.get("reasoning_content") or message.get("reasoning") or ""
            self.text += text
            self.reasoning += thought
            self.tool_calls += message.get("tool_calls") or []
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            brought = text + thought
        self._add_workers(answer)
        self._add_usage(answer.get("usage"), "prompt_tokens", "completion_tokens")
        return bool(brought)

    def absorb_response(self, answer: dict[str, Any]) -> bool:
        """Add an answer of the Responses API, complete or one event. Return True if it has text.

        The last event of a stream has the complete answer, so only that one is added.
        """
        _raise_error(answer)
        kind = answer.get("type", "")
        if kind.endswith(".delta"):
            return bool(answer.get("delta"))
        if kind:
            if kind not in ("response.completed", "response.incomplete", "response.failed"):
                return False
            answer = answer["response"]
            _raise_error(answer)
        for item in answer["output"]:
            parts = [*(item.get("content") or []), *(item.get("summary") or [])]
            text = "".join(part.get("text") or "" for part in parts)
            if item["type"] == "reasoning":
                self.reasoning += text
            elif item["type"] == "message":
                self.text += text
        status = answer["status"]
        if status == "incomplete":
            status = (answer.get("incomplete_details") or {}).get("reason") or status
        self.finish_reason = {"completed": "stop", "max_output_tokens": "length"}.get(status, status)
        self._add_workers(answer)
        self._add_usage(answer.get("usage"), "input_tokens", "output_tokens")
        return False

    def _add_workers(self, answer: dict[str, Any]) -> None:
        """Add Dynamo's worker ids as text, because most exceed the exact integers of JSON."""
        ids = (answer.get("nvext") or {}).get("worker_id") or {}
        for role in ("prefill", "decode"):
            if ids.get(f"{role}_worker_id") is not None:
                self.workers[role] = str(ids[f"{role}_worker_id"])

    def _add_usage(self, usage: dict[str, Any] | None, prompt: str, completion: str) -> None:
        if usage:
            self.usage = {
                "prompt_tokens": int(usage[prompt]),
                "completion_tokens": int(usage[completion]),
                "total_tokens": int(usage["total_tokens"]),
            }


def _raise_error(answer: dict[str, Any]) -> None:
    """Raise EndpointError for an error in an answer of status 200."""
    if answer.get("error") or answer.get("type") == "error" or answer.get("object") == "error":
        raise EndpointError("error in the answer: " + Reply(200, {}, json.dumps(answer).encode()).explain())
