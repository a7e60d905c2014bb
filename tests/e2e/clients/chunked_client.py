"""Requests without a length, in chunks of a few bytes, each on its own connection."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
from every_model import KEY, PROMPT, URL, repeat


def post(name: str, **more: object) -> str:
    text = json.dumps({"messages": PROMPT, "max_tokens": 8, **more, "model": name}).encode()

    def parts() -> Iterator[bytes]:
        for place in range(0, len(text), 20):
            yield text[place : place + 20]

    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    answer = httpx2.post(f"{URL}/chat/completions", content=parts(), headers=headers, verify=False, timeout=60)
    answer.raise_for_status()
    return answer.text


def complete(name: str) -> str:
    return str(json.loads(post(name))["choices"][0]["finish_reason"])


def stream(name: str) -> str:
    lines = [line.removeprefix("data: ") for line in post(name, stream=True).splitlines() if line]
    assert lines[-1] == "[DONE]", lines
    return str([json.loads(line)["choices"][0]["finish_reason"] for line in lines[:-1]][-1])


repeat(complete, stream)
