"""Use each feature of the API once by the OpenAI client, its asynchronous form, LangChain and LiteLLM.

Arguments: URL, key and model. Prints a JSON object of client, feature and error; the error is empty where it works.
"""

from __future__ import annotations

import asyncio
import functools
import json
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

import httpx2
import litellm
import openai
from langchain_openai import ChatOpenAI

URL, KEY, MODEL = sys.argv[1:]
PROMPT: list[Any] = [{"role": "user", "content": "Are you there?"}]
SHORT: dict[str, Any] = {"model": MODEL, "messages": PROMPT, "max_tokens": 16}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# Both forms of a request that a client sends after a tool was called.
CALLED: list[Any] = [
    *PROMPT,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]
FINISHED = ("stop", "length", "tool_calls")

litellm.ssl_verify = False
litellm.suppress_debug_info = True


def whole(answer: Any) -> None:
    """Assert that an answer is complete and has its usage."""
    assert answer.choices[0].finish_reason in FINISHED, answer
    assert answer.usage.completion_tokens, answer


def streamed(chunks: Iterable[Any]) -> None:
    """Assert that a stream has text, its end and its usage, in this order."""
    chunks = list(chunks)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert sum(1 for choice in choices if choice.delta.content or getattr(choice.delta, "reasoning_content", None)) > 1
    assert next(choice.finish_reason for choice in choices if choice.finish_reason) in FINISHED
    assert chunks[-1].usage.completion_tokens, chunks[-1]


def raises(kind: type[Exception], request: Callable[[], Any]) -> None:
    """Assert that a request ends with this error of the client."""
    try:
        request()
    except kind:
        return
    raise AssertionError(f"not a {kind.__name__}")


def openai_client() -> dict[str, Callable[[], Any]]:
    client = openai.OpenAI(base_url=URL, api_key=KEY, http_client=httpx2.Client(verify=False), max_retries=0)
    chat = client.chat.completions.create
    return {
        "list of models": lambda: client.models.retrieve(MODEL) and operator.itemgetter(0)(list(client.models.list())),
        "chat": lambda: whole(chat(**SHORT)),
        "chat, streamed": lambda: streamed(chat(**SHORT, stream=True, stream_options={"include_usage": True})),
        "request with tools": lambda: whole(chat(**SHORT, tools=[TOOL])),
        "result of a tool": lambda: whole(chat(**{**SHORT, "messages": CALLED}, tools=[TOOL])),
        "completion": lambda: whole(client.completions.create(model=MODEL, prompt="Are you", max_tokens=16)),
        "response": lambda: responded(client.responses.create(**RESPONSE)),
        "response, streamed": lambda: response_events(list(client.responses.create(**RESPONSE, stream=True))),
        "unknown model is an error": lambda: raises(openai.NotFoundError, lambda: chat(**{**SHORT, "model": "none"})),
        "wrong key is an error": lambda: raises(
            openai.AuthenticationError, lambda: client.with_options(api_key="none").chat.completions.create(**SHORT)
        ),
    }


RESPONSE: dict[str, Any] = {"model": MODEL, "input": "Are you there?", "max_output_tokens": 16}


def responded(answer: Any) -> None:
    assert answer.status in ("completed", "incomplete"), answer
    assert answer.usage.output_tokens, answer


def response_events(events: list[Any]) -> None:
    assert events[0].type == "response.created", events[0]
    assert events[-1].type in ("response.completed", "response.incomplete"), events[-1]
    responded(events[-1].response)


def openai_async() -> dict[str, Callable[[], Any]]:
    def run(request: Callable[[openai.AsyncOpenAI], Any]) -> Callable[[], Any]:
        async def one() -> None:
            async with httpx2.AsyncClient(verify=False) as http:
                await request(openai.AsyncOpenAI(base_url=URL, api_key=KEY, http_client=http, max_retries=0))

        return lambda: asyncio.run(one())

    async def chat(client: openai.AsyncOpenAI, **options: Any) -> None:
        whole(await client.chat.completions.create(**SHORT, **options))

    async def stream(client: openai.AsyncOpenAI) -> None:
        chunks = await client.chat.completions.create(**SHORT, stream=True, stream_options={"include_usage": True})
        streamed([chunk async for chunk in chunks])

    async def twenty(client: openai.AsyncOpenAI) -> None:
        await asyncio.gather(*(chat(client) for _number in range(20)))

    async def respond(client: openai.AsyncOpenAI) -> None:
        responded(await client.responses.create(**RESPONSE))

    async def cancel(client: openai.AsyncOpenAI) -> None:
        chunks = await client.chat.completions.create(**{**SHORT, "max_tokens": 2000}, stream=True)
        async for _chunk in chunks:
            break
        await chunks.close()
        await chat(client)

    return {
        "chat": run(chat),
        "chat, streamed": run(stream),
        "request with tools": run(lambda client: chat(client, tools=[TOOL])),
        "response": run(respond),
        "twenty at once": run(twenty),
        "stream ended by the client": run(cancel),
    }


def langchain() -> dict[str, Callable[[], Any]]:
    model = ChatOpenAI(
        model=MODEL,
        base_url=URL,
        api_key=KEY,
        max_tokens=16,
        max_retries=0,
        stream_usage=True,
        http_client=httpx2.Client(verify=False),
    )

    def chat(used: Any, prompt: Any = PROMPT) -> None:
        answer = used.invoke(prompt)
        assert answer.response_metadata["finish_reason"] in FINISHED, answer
        assert answer.usage_metadata["output_tokens"], answer

    def stream() -> None:
        answer = functools.reduce(operator.add, model.stream(PROMPT))
        assert answer.response_metadata["finish_reason"] in FINISHED, answer
        assert answer.usage_metadata["output_tokens"], answer

    def respond() -> None:
        answer = model.model_copy(update={"use_responses_api": True}).invoke(PROMPT)
        assert answer.usage_metadata["output_tokens"], answer

    return {
        "chat": lambda: chat(model),
        "chat, streamed": stream,
        "request with tools": lambda: chat(model.bind_tools([TOOL])),
        "result of a tool": lambda: chat(model.bind_tools([TOOL]), CALLED),
        "response": respond,
    }


def lite_llm() -> dict[str, Callable[[], Any]]:
    settings = {"api_base": URL, "api_key": KEY, "num_retries": 0, **SHORT, "model": f"openai/{MODEL}"}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    respond = {"api_base": URL, "api_key": KEY, **RESPONSE, "model": f"openai/{MODEL}"}
    return {
        "chat": lambda: whole(litellm.completion(**settings)),
        "chat, streamed": lambda: streamed(litellm.completion(**settings, **usage)),
        "request with tools": lambda: whole(litellm.completion(**settings, tools=[TOOL])),
        "result of a tool": lambda: whole(litellm.completion(**{**settings, "messages": CALLED}, tools=[TOOL])),
        "response": lambda: responded(litellm.responses(**respond)),
    }


def main() -> None:
    found: dict[str, dict[str, str]] = {}
    clients = {"openai": openai_client, "openai, async": openai_async, "LangChain": langchain, "LiteLLM": lite_llm}
    for client, features in clients.items():
        for feature, use in features().items():
            try:
                use()
                error = ""
            except Exception as problem:
                error = repr(problem)
            found.setdefault(client, {})[feature] = error
    print(json.dumps(found))


main()
