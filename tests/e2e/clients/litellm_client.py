"""Requests of LiteLLM, as its proxy sends them to an OpenAI-compatible server."""

from __future__ import annotations

import litellm
from every_model import KEY, PROMPT, URL, repeat

litellm.ssl_verify = False
litellm.suppress_debug_info = True
SETTINGS = {"api_base": URL, "api_key": KEY, "messages": PROMPT, "max_tokens": 8, "num_retries": 0}


def complete(name: str) -> str:
    answer = litellm.completion(model=f"openai/{name}", **SETTINGS)
    assert answer.usage.completion_tokens, answer
    return str(answer.choices[0].finish_reason)


def stream(name: str) -> str:
    finish = ""
    for chunk in litellm.completion(model=f"openai/{name}", stream=True, **SETTINGS):
        finish = chunk.choices[0].finish_reason or finish
    return finish


repeat(complete, stream)
