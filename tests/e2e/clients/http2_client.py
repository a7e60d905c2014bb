"""Requests of the OpenAI client over HTTP/2, on one connection."""

from __future__ import annotations

import httpx2
import openai
from every_model import KEY, PROMPT, URL, repeat

versions: set[str] = set()
# As by default, it repeats a request on a connection that HAProxy closes while it reloads. The HTTP client leaves that
# to it.
CLIENT = openai.OpenAI(
    base_url=URL,
    api_key=KEY,
    http_client=httpx2.Client(
        verify=False, http2=True, event_hooks={"response": [lambda answer: versions.add(answer.http_version)]}
    ),
)


def complete(name: str) -> str:
    answer = CLIENT.chat.completions.create(model=name, messages=PROMPT, max_tokens=8)
    assert answer.usage
    assert answer.usage.completion_tokens, answer
    assert versions == {"HTTP/2"}, versions
    return str(answer.choices[0].finish_reason)


def stream(name: str) -> str:
    finish = ""
    for chunk in CLIENT.chat.completions.create(model=name, messages=PROMPT, max_tokens=8, stream=True):
        finish = chunk.choices[0].finish_reason or finish
    return finish


repeat(complete, stream)
