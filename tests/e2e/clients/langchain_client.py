"""Requests of LangChain's OpenAI integration."""

from __future__ import annotations

import functools
import operator

import httpx2
from every_model import KEY, PROMPT, URL, repeat
from langchain_openai import ChatOpenAI


@functools.cache
def model_of(name: str) -> ChatOpenAI:
    return ChatOpenAI(
        model=name,
        base_url=URL,
        api_key=KEY,
        max_tokens=8,
        max_retries=0,
        stream_usage=True,
        http_client=httpx2.Client(verify=False),
    )


def complete(name: str) -> str:
    answer = model_of(name).invoke(PROMPT)
    assert answer.usage_metadata["output_tokens"], answer
    return str(answer.response_metadata["finish_reason"])


def stream(name: str) -> str:
    first, *chunks = model_of(name).stream(PROMPT)
    whole = functools.reduce(operator.add, chunks, first)
    assert whole.usage_metadata["output_tokens"], whole
    return str(whole.response_metadata["finish_reason"])


repeat(complete, stream)
