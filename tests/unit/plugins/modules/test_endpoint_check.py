"""endpoint_check against a scripted HTTP server and a scripted systemd: every stage, and every way a server lies."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.module_utils.checks import Check, summarise
from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint import options as options_of_module
from ansible_collections.trtllm.fleet.plugins.module_utils.endpoint import verification
from ansible_collections.trtllm.fleet.plugins.module_utils.http_client import Client, Deadline, OutOfTime
from ansible_collections.trtllm.fleet.plugins.module_utils.systemd_unit import Systemd
from ansible_collections.trtllm.fleet.plugins.modules import endpoint_check
from ansible_collections.trtllm.fleet.tests.unit.fake_openai import (
    MODEL,
    USAGE,
    Answer,
    FakeOpenAI,
    chat,
    chat_chunks,
    drip,
    frontend_health,
    hang,
    raw,
    reply,
    reset,
    response,
    serving,
    stream,
    worker,
)
from ansible_collections.trtllm.fleet.tests.unit.fake_systemd import FakeSystemd
from ansible_collections.trtllm.fleet.tests.unit.module_run import run_module

Run = Callable[..., "dict[str, Any]"]
CANARY = "sk-canary-4711"
# Seconds. A busy machine may stand still for a second or two.
AT_ONCE = 60  # a timeout for what must fail without waiting
BRIEF = 3  # a timeout for what must wait until then


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the module on a URL or a running fake and gives what it printed; times are short."""
    monkeypatch.setattr(verification, "INTERVAL", 0.05)

    def run(url: FakeOpenAI | str, systemd: FakeSystemd | None = None, **options: Any) -> dict[str, Any]:
        if systemd:
            monkeypatch.setattr(options_of_module, "Systemd", lambda: Systemd(systemd))
            options.setdefault("unit", "trtllm-serve-0")
        base_url = url.url if isinstance(url, FakeOpenAI) else url
        args = {"base_url": base_url, "model": MODEL, "timeout": 30, **options}
        start = time.monotonic()
        result = run_module(endpoint_check, capsys, args)
        assert args["timeout"] != AT_ONCE or time.monotonic() - start < 30
        return result

    return run


def check(result: dict[str, Any], id: str) -> dict[str, Any]:
    return next(check for check in result["checks"] if check["id"] == id)


def ids(result: dict[str, Any]) -> list[str]:
    return [check["id"] for check in result["checks"]]


# --- it serves ------------------------------------------------------------------------------------------------------


def test_everything_asked_for(run: Run) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "get_system_health", "arguments": "{}"}}
    answers = [
        *[stream(chat_chunks(["New York is in the ", "United States."], ["A location."]))] * 2,
        reply(200, chat(None, tool_calls=[call], finish_reason="tool_calls")),
        reply(200, chat("All systems are green.")),
    ]
    systemd = FakeSystemd("running")
    with FakeOpenAI(serving(chat=answers)) as fake:
        result = run(
            fake,
            systemd,
            expected_text="(?i)united states",
            reasoning=True,
            tool_call=True,
            max_ttft=2,
        )
    assert result["ok"] is True
    assert result["stage"] == "done"
    assert result["changed"] is False
    assert ids(result) == [
        "unit",
        "health",
        "model",
        "completion",
        "usage",
        "harmony",
        "expected_text",
        "reasoning",
        "time_to_first_token",
        "tool_call",
        "unit_stable",
    ]
    assert {check["status"] for check in result["checks"]} == {"pass"}
    assert {check["hint"] for check in result["checks"]} == {""}
    assert result["model"] == MODEL
    assert result["server_version"] == "1.2.1"
    assert result["unit"]["sub_state"] == "running"
    assert result["journal"] == []
    completion = result["completion"]
    assert completion["text"] == "New York is in the United States."
    assert completion["reasoning"] == "A location."
    assert completion["finish_reason"] == "stop"
    assert completion["usage"] == USAGE
    assert 0 < completion["ttft"] <= completion["duration"]
    assert completion["tokens_per_second"] == pytest.approx(30 / completion["duration"], rel=0.05)


def test_what_is_sent(run: Run) -> None:
    with FakeOpenAI(serving()) as fake:
        assert run(fake, prompt="Hi", max_tokens=7)["ok"] is True
    assert fake.paths() == ["/health", "/v1/models", "/version", "/v1/chat/completions"]
    assert fake.bodies("/v1/chat/completions") == [
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 7,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert all("Authorization" not in request.headers for request in fake.requests)


def test_check_mode_asks_the_same(run: Run) -> None:
    with FakeOpenAI(serving()) as fake:
        result = run(fake, _ansible_check_mode=True)
    assert result["ok"] is True
    assert fake.bodies("/v1/chat/completions")


def test_proxy_environment_is_not_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with FakeOpenAI(serving()) as fake:
        assert run(fake)["ok"] is True


def test_path_before_v1(run: Run) -> None:
    script = {f"/llm{path}": answers for path, answers in serving().items()}
    with FakeOpenAI(script) as fake:
        assert run(f"{fake.url}/llm/")["ok"] is True


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        pytest.param({"api": "chat", "stream": False}, {"chat": [reply(200, chat("New York"))]}, id="chat"),
        pytest.param(
            {"api": "completions", "stream": False},
            {
                "completions": [
                    reply(200, {"choices": [{"text": "New York", "finish_reason": "length"}], "usage": USAGE})
                ]
            },
            id="completions",
        ),
        pytest.param(
            {"api": "completions"},
            {
                "completions": [
                    stream(
                        [
                            {"choices": [{"text": "New ", "finish_reason": None}]},
                            {"choices": [{"text": "York", "finish_reason": "stop"}], "usage": USAGE},
                        ]
                    )
                ]
            },
            id="completions streamed",
        ),
        pytest.param(
            {"api": "responses", "stream": False, "reasoning": True},
            {"responses": [reply(200, response("New York", "Hm."))]},
            id="responses",
        ),
        pytest.param(
            {"api": "responses", "reasoning": True},
            {
                "responses": [
                    stream(
                        [
                            {"type": "response.created", "response": {"status": "in_progress"}},
                            {"type": "response.reasoning_text.delta", "delta": "Hm."},
                            {"type": "response.output_text.delta", "delta": "New York"},
                            b": keep-alive\r\n\r\n",
                            b"event: response.completed\r\ndata: "
                            + json.dumps(
                                {"type": "response.completed", "response": response("New York", "Hm.")}
                            ).encode()
                            + b"\r\n\r\n",
                        ],
                        end=b"",
                    )
                ]
            },
            id="responses streamed",
        ),
        pytest.param(
            {"api": "responses", "stream": False},
            {
                "responses": [
                    reply(
                        200,
                        response("New York", status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
                    )
                ]
            },
            id="responses out of tokens",
        ),
        pytest.param({}, {"chat": [reply(200, chat("New York"))]}, id="stream asked, whole answer sent"),
        pytest.param(
            {"stream": False},
            {"chat": [reply(200, chat(None, reasoning="Hm.", finish_reason="length"))]},
            id="reasoning",
        ),
    ],
)
def test_apis(run: Run, options: dict[str, Any], answers: dict[str, list[Answer]]) -> None:
    with FakeOpenAI(serving(**answers)) as fake:
        result = run(fake, **options)
    assert result["ok"] is True, result["msg"]
    completion = result["completion"]
    assert completion["text"] + completion["reasoning"] in ("New York", "New YorkHm.", "Hm.")
    assert completion["finish_reason"] in ("stop", "length")
    assert completion["usage"] == USAGE
    streamed = options.get("stream", True) and answers.keys() != {"chat"}
    assert (completion["ttft"] is not None) is streamed


def test_time_to_first_token_is_that_of_the_second_run(run: Run) -> None:
    slow = stream(chat_chunks(["New York"]), before_first=8)
    fast = stream(chat_chunks(["New York"]))
    with FakeOpenAI(serving(chat=[slow, fast])) as fake:
        result = run(fake, max_ttft=6, timeout=60)
        assert len(fake.bodies("/v1/chat/completions")) == 2
    assert result["ok"] is True
    assert result["completion"]["ttft"] < 6


# --- it starts ------------------------------------------------------------------------------------------------------


def test_refused_then_up(run: Run) -> None:
    with FakeOpenAI(serving(), listen_after=BRIEF) as fake:
        result = run(fake)
    assert result["ok"] is True
    assert check(result, "health")["duration"] >= 1


@pytest.mark.parametrize(
    "loading",
    [
        pytest.param(
            reply(
                503,
                {"error": {"message": "The server is still initializing", "code": "starting"}},
                {"x-trtllm-server-state": "starting", "Retry-After": "1"},
            ),
            id="503",
        ),
        pytest.param(reply(502), id="gateway"),
        pytest.param(reset, id="reset"),
        pytest.param(raw(b""), id="closed"),
    ],
)
def test_loading_then_up(run: Run, loading: Answer) -> None:
    with FakeOpenAI(serving(health=[loading, loading, reply(200)])) as fake:
        result = run(fake)
    assert result["ok"] is True
    assert fake.paths().count("/health") == 3


def test_model_listed_late_and_routed_later(run: Run) -> None:
    """Dynamo: healthy from the start, then no model, then 404 with an empty body or in its own words, then 503."""
    up = serving()
    answers = serving(
        models=[reply(200, {"data": []}), *up["/v1/models"]],
        chat=[
            reply(404),
            reply(404, {"message": "Model not found", "type": "Not Found", "code": 404}),
            reply(503, {"message": "not ready", "type": "Service Unavailable", "code": 503}),
            *up["/v1/chat/completions"],
        ],
        version=[reply(404)],
    )
    with FakeOpenAI(answers) as fake:
        result = run(fake)
    assert result["ok"] is True
    assert result["server_version"] is None


def test_systemd_that_is_busy_for_a_while_is_asked_again(run: Run) -> None:
    with FakeOpenAI(serving()) as fake:
        result = run(fake, FakeSystemd("running", "silent", "silent", "running"))
    assert result["ok"] is True


def test_systemd_that_never_answers_is_told_at_once(run: Run) -> None:
    with FakeOpenAI(serving()) as fake:
        result = run(fake, FakeSystemd("silent"))
    (check,) = result["checks"]
    assert (check["id"], check["status"], check["expected"]) == ("unit", "fail", "systemd to answer")


def test_unit_that_is_queued_and_starts(run: Run) -> None:
    """The run before the queued start must not count as the one that was restarted."""
    with FakeOpenAI(serving()) as fake:
        result = run(fake, FakeSystemd("queued", "starting", "running"))
    assert result["ok"] is True
    assert check(result, "unit")["observed"] == "trtllm-serve-0 is active (running)"


# --- it starts, in turns --------------------------------------------------------------------------------------------

LOADING = reply(503, {"error": {"message": "still initializing"}})


def test_turn_ends_while_the_engine_loads(run: Run) -> None:
    systemd = FakeSystemd("running", journal={"aaaa": ["starting", "Loading weights:  3%\rLoading weights: 40%"]})
    with FakeOpenAI(serving(health=[LOADING])) as fake:
        result = run(fake, systemd, timeout=AT_ONCE, turn={"seconds": 1})
    assert "failed" not in result
    assert (result["ok"], result["finished"], result["stage"]) == (False, False, "health")
    assert (result["first_invocation_id"], result["journal"]) == ("aaaa", [])
    assert re.fullmatch(
        r"health: HTTP 503: still initializing, up to 5\d s more; "
        r"last line of trtllm-serve-0: Loading weights: 40%",
        result["progress"],
    )


def test_turn_of_an_endpoint_on_another_host(run: Run) -> None:
    with FakeOpenAI(serving(models=[reply(200, {"data": []})])) as fake:
        result = run(fake, timeout=AT_ONCE, turn={"seconds": 1})
    assert re.fullmatch(r"model: no model, up to 5\d s more", result["progress"])


def test_time_of_earlier_turns_counts(run: Run) -> None:
    """For the stage they ended in, whose duration is a figure of reports."""
    before = {"waited": 300, "stage": "health", "invocation_id": "aaaa"}
    with FakeOpenAI(serving()) as fake:
        result = run(fake, FakeSystemd("running"), timeout=400, turn={**before, "seconds": 10})
    assert (result["ok"], result["finished"], result["progress"]) == (True, True, "")
    assert check(result, "unit")["duration"] < 60
    assert 300 <= check(result, "health")["duration"] < 360


def test_last_turn_ends_at_the_deadline(run: Run) -> None:
    before = {"waited": 57, "stage": "health", "invocation_id": "aaaa"}
    start = time.monotonic()
    with FakeOpenAI(serving(health=[LOADING])) as fake:
        result = run(fake, FakeSystemd("running"), timeout=60, turn={**before, "seconds": 10})
    assert time.monotonic() - start < 30
    assert (result["failed"], result["finished"]) == (True, True)
    assert re.search(r"still so after 6\d s", check(result, "health")["observed"])


def test_unit_restarted_between_two_turns(run: Run) -> None:
    systemd = FakeSystemd("second run", journal={"aaaa": ["CUDA out of memory"], "bbbb": ["hi"]})
    before = {"waited": 20, "stage": "health", "invocation_id": "aaaa"}
    with FakeOpenAI(serving(health=[reset])) as fake:
        result = run(fake, systemd, timeout=AT_ONCE, turn={**before, "seconds": 10})
    assert (result["failed"], result["finished"]) == (True, True)
    assert result["journal"] == ["CUDA out of memory"]


def test_completion_is_not_interrupted_by_the_end_of_a_turn(run: Run) -> None:
    up = serving()
    answers = serving(chat=[reply(503, {"message": "not ready"})] * 3 + up["/v1/chat/completions"])
    with FakeOpenAI(answers) as fake:
        assert run(fake, turn={"seconds": 0.01})["ok"] is True


# --- it does not come up --------------------------------------------------------------------------------------------


def test_never_ready_ends_at_the_deadline(run: Run) -> None:
    answers = serving(health=[reply(503, {"error": {"message": "still initializing"}})])
    systemd = FakeSystemd("running", journal={"aaaa": ["Loading weights: 3%"]})
    start = time.monotonic()
    with FakeOpenAI(answers) as fake:
        result = run(fake, systemd, timeout=BRIEF)
    assert time.monotonic() - start < 20
    assert result["failed"] is True
    assert result["ok"] is False
    assert result["stage"] == "health"
    assert re.fullmatch(r"HTTP 503: still initializing, still so after \d+ s", check(result, "health")["observed"])
    assert "trtllm_server_start_timeout" in check(result, "health")["hint"]
    assert result["msg"].splitlines()[-1] == "Loading weights: 3%"


def test_refused_until_the_deadline(run: Run) -> None:
    with FakeOpenAI(serving(), listen_after=BRIEF + 1) as fake:
        result = run(fake, timeout=BRIEF)
    assert result["stage"] == "health"
    assert check(result, "health")["observed"].startswith("connection refused, still so after")


def test_last_poll_cut_short_by_the_deadline_does_not_hide_what_was_seen(run: Run) -> None:
    with FakeOpenAI(serving(health=[reply(503, {"message": "loading"}), hang])) as fake:
        result = run(fake, timeout=BRIEF)
    assert check(result, "health")["observed"].startswith("HTTP 503: loading, still so after")


def test_last_completion_cut_short_by_the_deadline_does_not_hide_what_was_seen(run: Run) -> None:
    with FakeOpenAI(serving(chat=[reply(503, {"message": "not ready"}), hang])) as fake:
        result = run(fake, timeout=BRIEF)
    assert check(result, "completion")["observed"].startswith("HTTP 503: not ready, still so after")


def test_failed_unit_stops_at_once_with_its_last_lines(run: Run) -> None:
    lines = [f"line {number}" for number in range(30)]
    systemd = FakeSystemd("starting", "running", "running", "failed", journal={"aaaa": lines, "": ["other"]})
    with FakeOpenAI(serving(health=[reset])) as fake:
        result = run(fake, systemd, timeout=AT_ONCE)
    assert result["stage"] == "health"
    assert check(result, "unit")["status"] == "pass"
    assert check(result, "health")["observed"].endswith("is failed (failed), result exit-code, exit status 1")
    assert result["journal"] == lines[-15:]
    assert result["msg"].splitlines()[1:] == lines[-15:]
    assert result["msg"].splitlines()[0] == (
        f"{fake.url} does not serve: health: found trtllm-serve-0 is failed (failed), result exit-code, exit "
        "status 1; expected active, and not restarted since this check began. Read the journal of the server's "
        "unit"
    )


@pytest.mark.parametrize("state", ["failed", "auto-restart", "dead", "missing"])
def test_unit_that_is_not_running(run: Run, state: str) -> None:
    systemd = FakeSystemd(state, journal={"aaaa": ["ValueError: unknown key"]})
    with FakeOpenAI(serving()) as fake:
        result = run(fake, systemd, timeout=AT_ONCE)
    assert result["stage"] == "unit"
    assert ids(result) == ["unit"]
    assert result["journal"] == ([] if state == "missing" else ["ValueError: unknown key"])
    assert not fake.requests


def test_unit_restarted_while_loading_shows_the_run_that_died(run: Run) -> None:
    systemd = FakeSystemd("running", "running", "second run", journal={"aaaa": ["CUDA out of memory"], "bbbb": ["hi"]})
    with FakeOpenAI(serving(health=[reset])) as fake:
        result = run(fake, systemd, timeout=AT_ONCE)
    assert result["stage"] == "health"
    assert result["journal"] == ["CUDA out of memory"]


def test_unit_restarted_by_the_completion(run: Run) -> None:
    systemd = FakeSystemd(*["running"] * 4, "second run", journal={"aaaa": ["Segmentation fault"]})
    with FakeOpenAI(serving()) as fake:
        result = run(fake, systemd)
    assert result["stage"] == "unit_stable"
    assert result["msg"].endswith("\nSegmentation fault")


@pytest.mark.parametrize(
    ("answer", "observed", "hint"),
    [
        (reply(404, {"detail": "Not Found"}), "HTTP 404: Not Found", "Check base_url"),
        (reply(401, {"message": "who are you"}), "HTTP 401: who are you", "Set api_key"),
        (reply(500, b"Internal Server Error"), "HTTP 500: Internal Server Error", "Read the journal of the server"),
        (raw(b"220 mail.example.com ESMTP\r\n"), "not an HTTP answer: BadStatusLine", "Check base_url and ca_file"),
    ],
)
def test_health_that_waiting_does_not_cure(run: Run, answer: Answer, observed: str, hint: str) -> None:
    with FakeOpenAI(serving(health=[answer])) as fake:
        result = run(fake, timeout=AT_ONCE)
    assert result["stage"] == "health"
    assert check(result, "health")["observed"].startswith(observed)
    assert check(result, "health")["hint"].startswith(hint)


def test_host_that_does_not_resolve(run: Run) -> None:
    result = run("http://no-such-host.invalid:8000", timeout=AT_ONCE)
    assert result["stage"] == "health"
    assert "no-such-host.invalid does not resolve" in result["msg"]


# --- it gives another answer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "observed"),
    [
        (reply(200, {"data": [{"id": "gpt-oss-20b"}, {"id": "other"}]}), "gpt-oss-20b, other"),
        (reply(200, b"<html>nginx</html>"), "not a JSON object: <html>nginx</html>"),
        (reply(200, {"models": []}), '{"models": []}'),
        (reply(404, {"detail": "Not Found"}), "HTTP 404: Not Found"),
    ],
)
def test_wrong_model_list(run: Run, answer: Answer, observed: str) -> None:
    with FakeOpenAI(serving(models=[answer])) as fake:
        result = run(fake, timeout=AT_ONCE)
    assert result["stage"] == "model"
    assert result["model"] is None
    assert check(result, "model")["observed"] == observed
    assert check(result, "model")["hint"]
    assert "/v1/chat/completions" not in fake.paths()


def test_400_on_chat_names_the_vocabulary(run: Run) -> None:
    answer = reply(400, {"object": "error", "message": "failed to download or load vocab file", "code": 400})
    systemd = FakeSystemd("running", journal={"aaaa": ["Error in harmony chat completion"]})
    with FakeOpenAI(serving(chat=[answer])) as fake:
        result = run(fake, systemd, timeout=AT_ONCE)
    assert result["stage"] == "completion"
    assert "HTTP 400: failed to download or load vocab file" in result["msg"]
    assert "model_weights_vocabulary_url" in result["msg"]
    assert "TIKTOKEN_ENCODINGS_BASE" in result["msg"]
    assert result["msg"].endswith("\nError in harmony chat completion")


@pytest.mark.parametrize(
    ("answer", "observed"),
    [
        pytest.param(reply(500, {"error": {"message": "CUDA error"}}), "HTTP 500: CUDA error", id="500"),
        pytest.param(reply(500), "HTTP 500: empty body", id="500 empty"),
        pytest.param(reply(404, {"detail": "Not Found"}), "HTTP 404: Not Found", id="no such route"),
        pytest.param(reply(401, {"error": {"message": "bad key"}}), "HTTP 401: bad key", id="401"),
        pytest.param(reply(200, b"\x00\xff{"), "not a JSON object: ", id="garbage"),
        pytest.param(reply(200, [1, 2]), "not a JSON object: [1, 2]", id="not an object"),
        pytest.param(reply(200, {"choices": "x"}), "not an answer of /v1/chat/completions", id="wrong shape"),
        pytest.param(reply(200, chat(usage={"prompt_tokens": None})), "not an answer of", id="wrong usage"),
        pytest.param(reply(200, chat("")), "no content, 0 characters of reasoning", id="empty"),
        pytest.param(
            reply(200, chat(finish_reason="abort")), '"New York is in the United States."', id="finish reason"
        ),
        pytest.param(
            reply(200, {"error": {"message": "engine is dead"}}), "error in the answer: engine", id="error in 200"
        ),
        pytest.param(stream([b"data: {oops\n\n"]), "not a JSON object: {oops", id="garbage in stream"),
        pytest.param(
            stream([{"error": {"message": "out of memory"}}]),
            "error in the answer: out of memory",
            id="error in stream",
        ),
        pytest.param(
            stream([b"event: error\n: Stream ended before generation completed\n\n"]),
            "error in the stream: Stream ended before generation completed",
            id="dynamo's error event",
        ),
        pytest.param(
            stream(chat_chunks(["New"])[:2]), "the stream ended before it was finished, after 3 characters", id="no end"
        ),
        pytest.param(
            stream(chat_chunks(["New"])[:2], cut=True), "the answer was cut off: connection reset", id="reset"
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
            "the answer was cut off: connection closed",
            id="short",
        ),
    ],
)
def test_bad_completion(run: Run, answer: Answer, observed: str) -> None:
    with FakeOpenAI(serving(chat=[answer])) as fake:
        result = run(fake, timeout=AT_ONCE)
    assert result["stage"] == "completion"
    assert check(result, "completion")["observed"].startswith(observed)
    assert check(result, "completion")["hint"]


@pytest.mark.parametrize(
    ("answer", "status", "observed"),
    [
        (chat(usage=None), "unknown", "an answer without token counts"),
        (chat(usage={"prompt_tokens": 70, "completion_tokens": 0, "total_tokens": 70}), "fail", "70 + 0 = 70"),
        (chat(usage={"prompt_tokens": 70, "completion_tokens": 30, "total_tokens": 99}), "fail", "70 + 30 = 99"),
    ],
)
def test_token_counts(run: Run, answer: dict[str, Any], status: str, observed: str) -> None:
    with FakeOpenAI(serving(chat=[reply(200, answer)])) as fake:
        result = run(fake)
    assert result["failed"] is True
    assert result["stage"] == "usage"
    assert (check(result, "usage")["status"], check(result, "usage")["observed"]) == (status, observed)


@pytest.mark.parametrize(
    ("content", "is_raw"),
    [
        ("<|channel|>analysis<|message|>The user asks", True),
        ("New York is<|return|>", True),
        ('analysisThe user asks: "Where is New York?"assistantfinal**New York** can refer to', True),
        ("analysisThe user asks and max_tokens ran out", True),
        ('analysis"Where" they ask.assistantfinalThere', True),
        ("analysis of the question shows that the assistant finally answers", False),
        ("Analysis: New York", False),
        ("a <| b |> c", False),
    ],
)
def test_raw_harmony(run: Run, content: str, is_raw: bool) -> None:
    with FakeOpenAI(serving(chat=[reply(200, chat(content))])) as fake:
        result = run(fake)
    assert result["stage"] == ("harmony" if is_raw else "done")
    assert ("serving_recipe_image" in result.get("msg", "")) is is_raw


RAW = 'analysisThe user asks: "Where is New York?"assistantfinalIn the United States.'


def test_raw_harmony_is_the_answer_of_a_server_that_does_not_parse_it(run: Run) -> None:
    with FakeOpenAI(serving(chat=[stream(chat_chunks([RAW[:5], RAW[5:]]))])) as fake:
        result = run(fake, harmony=False, expected_text="United States")
        refused = run(fake)
    assert result["ok"] is True
    assert "harmony" not in ids(result)
    assert result["completion"]["text"] == RAW
    assert refused["stage"] == "harmony"
    assert "harmony: false (in trtllm_server_check)" in refused["msg"]


@pytest.mark.parametrize(
    ("answer", "options", "stage"),
    [
        (chat(""), {}, "completion"),
        (chat(None, reasoning_content="Hm"), {}, "completion"),
        (chat(RAW), {"expected_text": "London"}, "expected_text"),
        (chat(RAW), {"reasoning": True}, "reasoning"),
        (chat(RAW), {"tool_call": True}, "tool_call"),
    ],
)
def test_raw_harmony_has_to_answer_too(run: Run, answer: Any, options: dict[str, Any], stage: str) -> None:
    with FakeOpenAI(serving(chat=[reply(200, answer)])) as fake:
        result = run(fake, harmony=False, **options)
    assert result["failed"] is True
    assert result["stage"] == stage


@pytest.mark.parametrize(
    ("answer", "options", "stage", "hint"),
    [
        (chat("London"), {"expected_text": "New York"}, "expected_text", "Check prompt"),
        (
            chat("", reasoning_content="Hm", finish_reason="length"),
            {"expected_text": "New York"},
            "expected_text",
            "Raise max_tokens",
        ),
        (chat("New York"), {"reasoning": True}, "reasoning", "This server does not parse harmony"),
        (
            chat("", reasoning_content="Hm", finish_reason="length"),
            {"reasoning": True},
            "reasoning",
            "Raise max_tokens",
        ),
        (chat(), {"stream": True, "max_ttft": 5}, "time_to_first_token", "Check base_url"),
    ],
)
def test_expectations_not_met(run: Run, answer: Any, options: dict[str, Any], stage: str, hint: str) -> None:
    with FakeOpenAI(serving(chat=[reply(200, answer)])) as fake:
        result = run(fake, **options)
    assert result["failed"] is True
    assert result["stage"] == stage
    assert check(result, stage)["hint"].startswith(hint)


def test_slow_first_token(run: Run) -> None:
    with FakeOpenAI(serving(chat=[stream(chat_chunks(["New York"]), before_first=0.2)])) as fake:
        result = run(fake, max_ttft=0.1)
    assert result["stage"] == "time_to_first_token"
    assert check(result, "time_to_first_token")["expected"] == "at most 0.1 s"


def test_all_that_is_wrong_with_one_answer_is_told(run: Run) -> None:
    with FakeOpenAI(serving(chat=[reply(200, chat("<|start|>London"))])) as fake:
        result = run(fake, expected_text="New York", reasoning=True)
    assert result["stage"] == "harmony"
    assert result["msg"].endswith("(also not passed: expected_text, reasoning)")


# --- tool call ------------------------------------------------------------------------------------------------------

CALL = {"id": "call-1", "type": "function", "function": {"name": "get_system_health", "arguments": "{}"}}


def test_tool_call_sends_the_result_back(run: Run) -> None:
    answers = [
        reply(200, chat()),
        reply(200, chat(None, tool_calls=[CALL], finish_reason="tool_calls", usage=None)),
        reply(200, chat("All systems are green.", usage=None)),
    ]
    with FakeOpenAI(serving(chat=answers)) as fake:
        assert run(fake, tool_call=True)["ok"] is True
    _sample, first, second = fake.bodies("/v1/chat/completions")
    assert first["tool_choice"] == "auto"
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert second["messages"][1]["tool_calls"] == [CALL]
    assert second["messages"][2]["tool_call_id"] == "call-1"
    assert json.loads(second["messages"][2]["content"])["status"] == "ok"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(chat("Yes, it is up."), chat(), id="no call"),
        pytest.param(chat(None, tool_calls=[CALL]), chat(), id="wrong finish reason"),
        pytest.param(
            chat(
                None,
                tool_calls=[{**CALL, "function": {"name": "get_system_health", "arguments": "{oops"}}],
                finish_reason="tool_calls",
            ),
            chat(),
            id="arguments not JSON",
        ),
        pytest.param(
            chat(None, tool_calls=[{**CALL, "function": {"name": "x", "arguments": "{}"}}], finish_reason="tool_calls"),
            chat(),
            id="another tool",
        ),
        pytest.param(chat(None, tool_calls=[CALL], finish_reason="tool_calls"), chat(""), id="no answer"),
        pytest.param(
            chat(None, tool_calls=[CALL], finish_reason="tool_calls"), chat("<|channel|>final"), id="raw harmony"
        ),
        pytest.param(
            chat(None, tool_calls=[CALL], finish_reason="tool_calls"),
            chat("Again.", tool_calls=[CALL]),
            id="calls again",
        ),
    ],
)
def test_bad_tool_call(run: Run, first: Any, second: Any) -> None:
    with FakeOpenAI(serving(chat=[reply(200, chat()), reply(200, first), reply(200, second)])) as fake:
        result = run(fake, tool_call=True)
    assert result["stage"] == "tool_call"


# --- Dynamo ---------------------------------------------------------------------------------------------------------

PREFILL, DECODE = "dyn://dynamo.prefill.generate", "dyn://dynamo.backend.generate"
INSTANCES = {PREFILL: 1, DECODE: 1}
AUX = "dyn://dynamo.prefill.worker_kv_query_source_61d5196aa29f3"
BOTH = frontend_health(worker(PREFILL), worker(AUX), worker(DECODE, 2, "10.0.0.2"))
DISTINCT = {"prefill_worker_id": 2**63 + 1, "decode_worker_id": 2**63 + 2}


def told(answer: Any, ids: Any) -> Any:
    """The answer, or each chunk of it but the last with the usage, tells its workers as Dynamo does."""
    if isinstance(answer, dict):
        return {**answer, "nvext": {"worker_id": ids}}
    return [told(chunk, ids) for chunk in answer[:-1]] + answer[-1:]


def requests(number: int) -> Answer:
    """The metrics of a prefill worker that has taken so many requests."""
    return reply(
        200,
        f'dynamo_component_requests_total{{dynamo_component="prefill",dynamo_endpoint="{AUX}"}} 99\n'
        f'dynamo_component_requests_total{{dynamo_component="prefill",dynamo_endpoint="generate"}} {number}\n'.encode(),
    )


def test_dynamo(run: Run) -> None:
    with FakeOpenAI(serving(health=[BOTH], chat=[stream(told(chat_chunks(["New York"]), DISTINCT))])) as fake:
        result = run(fake, instances=INSTANCES, disaggregated=True)
    assert result["ok"] is True
    assert ids(result) == ["health", "instances", "model", "completion", "usage", "harmony", "disaggregated"]
    assert check(result, "instances")["observed"] == f"1 of 1 {PREFILL}, 1 of 1 {DECODE}"
    assert result["completion"]["workers"] == {"prefill": "9223372036854775809", "decode": "9223372036854775810"}


@pytest.mark.parametrize(
    ("options", "field", "sent"),
    [
        ({"disaggregated": True}, "nvext", {"extra_fields": ["worker_id"]}),
        ({"disaggregated": True, "prefill_metrics": ["{url}/metrics"]}, "nvext", None),
        ({"instances": INSTANCES}, "nvext", None),
        ({"instances": INSTANCES, "reasoning_effort": "low"}, "chat_template_args", {"reasoning_effort": "low"}),
        ({"disaggregated": True, "reasoning_effort": "low"}, "chat_template_args", {"reasoning_effort": "low"}),
        ({"instances": INSTANCES, "reasoning_effort": "low"}, "reasoning_effort", None),
        ({"reasoning_effort": "high"}, "reasoning_effort", "high"),
        ({"reasoning_effort": "high"}, "chat_template_args", None),
        ({"instances": INSTANCES, "reasoning_effort": "low", "api": "responses"}, "reasoning", {"effort": "low"}),
        ({"instances": INSTANCES, "reasoning_effort": "low", "api": "responses"}, "chat_template_args", None),
    ],
)
def test_what_dynamo_is_sent(run: Run, options: dict[str, Any], field: str, sent: Any) -> None:
    script = serving(health=[BOTH], responses=[reply(200, response("New York"))], metrics=[requests(1), requests(2)])
    with FakeOpenAI(script) as fake:
        urls = [url.format(url=fake.url) for url in options.get("prefill_metrics", [])]
        run(fake, **{**options, "prefill_metrics": urls})
    (body,) = fake.bodies("/v1/responses" if options.get("api") else "/v1/chat/completions")
    assert body.get(field) == sent


def test_tool_call_with_the_fields_of_dynamos_guide(run: Run) -> None:
    called = reply(200, chat(None, tool_calls=[CALL], finish_reason="tool_calls", usage=None))
    answers = [reply(200, chat()), called, reply(200, chat("All systems are green.", usage=None))]
    with FakeOpenAI(serving(health=[BOTH], chat=answers)) as fake:
        assert run(fake, instances=INSTANCES, tool_call=True, reasoning_effort="low")["ok"] is True
    _sample, *rounds = fake.bodies("/v1/chat/completions")
    for body in rounds:
        assert body["chat_template_args"] == {"reasoning_effort": "low"}
        # Dynamo refuses fields that it does not know.
        known = {"model", "messages", "tools", "tool_choice", "temperature", "max_tokens", "chat_template_args"}
        assert set(body) == known


@pytest.mark.parametrize(
    ("before", "instances"),
    [
        pytest.param([frontend_health()], INSTANCES, id="no worker"),
        pytest.param([frontend_health(worker(PREFILL), worker(AUX))], INSTANCES, id="prefill only"),
        pytest.param([frontend_health(worker(DECODE))], INSTANCES, id="decode only"),
        pytest.param(
            [frontend_health(worker(PREFILL), worker(PREFILL, 7), worker(DECODE, 2))], INSTANCES, id="one killed"
        ),
        pytest.param([frontend_health(), reset, reply(503)], INSTANCES, id="frontend restarts"),
        pytest.param([frontend_health(worker(PREFILL), worker(DECODE))], {DECODE: "1", PREFILL: 0}, id="drained"),
    ],
)
def test_instances_are_waited_for(run: Run, before: list[Answer], instances: dict[str, Any]) -> None:
    last = BOTH if instances is INSTANCES else frontend_health(worker(DECODE))
    with FakeOpenAI(serving(health=[*before, *before, last])) as fake:
        result = run(fake, instances=instances, timeout=30)
    assert result["ok"] is True
    assert fake.paths().count("/health") == 2 * len(before) + 1


@pytest.mark.parametrize(
    ("workers", "options", "observed", "hint"),
    [
        pytest.param(
            [],
            {},
            f"0 of 1 {PREFILL}, 0 of 1 {DECODE}; listed: no worker",
            "Read the journals of the workers",
            id="none",
        ),
        pytest.param(
            [worker(PREFILL), worker(AUX)],
            {},
            f"1 of 1 {PREFILL}, 0 of 1 {DECODE}; listed: {PREFILL} at 10.0.0.1:34347, still",
            "Read the journals of the workers that do not connect",
            id="prefill only",
        ),
        pytest.param(
            [worker(PREFILL), worker("dyn://dynamo.tensorrt_llm.generate", 2, "10.0.0.2")],
            {},
            f"1 of 1 {PREFILL}, 0 of 1 {DECODE}; listed: {PREFILL} at 10.0.0.1:34347, "
            "dyn://dynamo.tensorrt_llm.generate at",
            "Read the journals of the workers that do not connect",
            id="name of an older release",
        ),
        pytest.param(
            [worker(PREFILL), worker("dyn://other.backend.generate")],
            {},
            f"1 of 1 {PREFILL}, 0 of 1 {DECODE}; listed",
            "Read the journals of the workers that do not connect",
            id="another namespace",
        ),
        pytest.param(
            [worker(PREFILL), worker(PREFILL, 7), worker(DECODE)],
            {},
            f"2 of 1 {PREFILL}, 1 of 1 {DECODE}; listed: {PREFILL} at 10.0.0.1:34347, {PREFILL} at 10.0.0.1:34347, "
            f"{DECODE} at",
            "A killed worker stays listed",
            id="too many",
        ),
        pytest.param(
            [worker(PREFILL), worker(PREFILL, 7)],
            {},
            f"2 of 1 {PREFILL}, 0 of 1 {DECODE}; listed",
            "Read the journals of the workers that do not connect",
            id="too many and too few",
        ),
        pytest.param(
            [worker(PREFILL), worker(DECODE, 2, "10.0.0.2")],
            {"instances": {DECODE: 1}, "instance_address": "10.0.0.3"},
            f"0 of 1 {DECODE}; listed: {PREFILL} at 10.0.0.1:34347, {DECODE} at 10.0.0.2:34347, still",
            "Read the journals of the workers that do not connect",
            id="on another host",
        ),
        pytest.param(
            [worker(DECODE, address="")],
            {"instances": {DECODE: 1}, "instance_address": "10.0.0.1"},
            f"0 of 1 {DECODE}; listed: {DECODE}, still",
            "Read the journals of the workers that do not connect",
            id="no address",
        ),
    ],
)
def test_instances_that_do_not_come(
    run: Run, workers: list[dict[str, Any]], options: dict[str, Any], observed: str, hint: str
) -> None:
    with FakeOpenAI(serving(health=[frontend_health(*workers)])) as fake:
        result = run(fake, **{"instances": INSTANCES, **options}, timeout=BRIEF)
    assert result["stage"] == "instances"
    assert check(result, "instances")["observed"].startswith(observed)
    assert check(result, "instances")["hint"].startswith(hint)
    assert "/v1/models" not in fake.paths()


# What a worker answers at its own system port.
NOT_READY = reply(503, {"status": "notready", "endpoints": {"generate": "notready"}})
READY = reply(200, {"status": "ready", "endpoints": {"generate": "ready"}})


def test_last_stage_waits_for_a_worker(run: Run) -> None:
    with FakeOpenAI({"/health": [NOT_READY, NOT_READY, READY]}) as fake:
        result = run(fake, FakeSystemd("running"), model="", last_stage="health", timeout=30)
    assert (result["ok"], result["stage"], ids(result)) == (True, "done", ["unit", "health"])
    assert (result["model"], result["completion"]) == (None, None)
    assert fake.paths() == ["/health"] * 3


def test_last_stage_ends_with_a_unit_that_dies(run: Run) -> None:
    systemd = FakeSystemd("running", "running", "failed", journal={"aaaa": ["CUDA out of memory"]})
    with FakeOpenAI({"/health": [NOT_READY]}) as fake:
        result = run(fake, systemd, model="", last_stage="health", timeout=AT_ONCE)
    assert (result["failed"], result["stage"]) == (True, "health")
    assert result["journal"] == ["CUDA out of memory"]


def test_last_stage_needs_the_stages_before(run: Run) -> None:
    with FakeOpenAI({"/health": [frontend_health(), BOTH]}) as fake:
        result = run(fake, model="", last_stage="instances", instances=INSTANCES, timeout=30)
        unhealthy = run(f"{fake.url}/no", model="", last_stage="instances", instances=INSTANCES)
    assert (result["ok"], ids(result)) == (True, ["health", "instances"])
    assert (unhealthy["failed"], ids(unhealthy)) == (True, ["health"])


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        ([worker(PREFILL), worker(DECODE, 2, "10.0.0.2")], {"instance_address": "10.0.0.2"}),
        ([worker(DECODE, 3), worker(DECODE, 2, "10.0.0.2")], {"instance_address": "10.0.0.2"}),
        ([worker(DECODE, address="[fd00::0:5]")], {"instance_address": "fd00:0::5"}),
        ([worker(DECODE), worker(DECODE, 2, port=9251)], {"instance_address": "10.0.0.1:9251"}),
        (
            [worker(DECODE, address="[fd00::5]"), worker(DECODE, 2, "[fd00::5]", 9251)],
            {"instance_address": "[fd00::5]:9251"},
        ),
    ],
)
def test_instances_of_one_host(run: Run, workers: list[dict[str, Any]], options: dict[str, Any]) -> None:
    with FakeOpenAI(serving(health=[frontend_health(*workers)])) as fake:
        assert run(fake, instances={DECODE: 1}, **options)["ok"] is True


@pytest.mark.parametrize(
    ("answer", "observed"),
    [
        (reply(200), "an empty body from /health"),
        (reply(200, {"status": "ok"}), '{"status": "ok"} from /health'),
        (reply(200, {"instances": "x"}), '{"instances": "x"} from'),
        (reply(200, {"instances": [{"component": "prefill", "transport": "x"}]}), '{"instances": [{"component"'),
    ],
)
def test_not_dynamo(run: Run, answer: Answer, observed: str) -> None:
    with FakeOpenAI(serving(health=[answer])) as fake:
        result = run(fake, instances=INSTANCES, timeout=AT_ONCE)
    assert result["stage"] == "instances"
    assert check(result, "instances")["observed"].startswith(observed)
    assert check(result, "instances")["hint"].startswith("Not Dynamo's frontend")


def test_listed_worker_that_is_gone_is_waited_out(run: Run) -> None:
    failed = {"message": "Failed to generate completions", "type": "Internal Server Error", "code": 500}
    answers = [reply(500, failed), reply(503), reply(500, failed), reply(404), *serving()["/v1/chat/completions"]]
    with FakeOpenAI(serving(health=[BOTH], chat=answers)) as fake:
        assert run(fake, instances=INSTANCES, timeout=30)["ok"] is True
    with FakeOpenAI(serving(health=[BOTH], chat=[reply(500, failed)])) as fake:
        result = run(fake, instances=INSTANCES, timeout=BRIEF)
    assert result["stage"] == "completion"
    assert "HTTP 500: Failed to generate completions, still so after" in result["msg"]
    assert check(result, "completion")["hint"].startswith("A worker that is listed")


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"disaggregated": True}, "Workers are missing"), ({}, "Read the journal of the server's unit")],
)
def test_no_model(run: Run, options: dict[str, Any], hint: str) -> None:
    with FakeOpenAI(serving(models=[reply(200, {"object": "list", "data": []})])) as fake:
        result = run(fake, timeout=BRIEF, **options)
    assert result["stage"] == "model"
    assert check(result, "model")["hint"].startswith(hint)


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        ({"stream": False}, {"chat": [reply(200, told(chat(), DISTINCT))]}),
        (
            {"api": "responses", "stream": False},
            {"responses": [reply(200, told(response("New York"), DISTINCT))]},
        ),
        (
            {"api": "completions"},
            {
                "completions": [
                    stream(
                        [
                            {"choices": [{"text": "New York"}], "nvext": {"worker_id": {"prefill_worker_id": 2**63}}},
                            {
                                "choices": [{"text": "", "finish_reason": "stop"}],
                                "nvext": {"worker_id": {"decode_worker_id": 2**63 + 1}},
                            },
                            {"choices": [], "usage": USAGE},
                        ]
                    )
                ]
            },
        ),
    ],
)
def test_answers_that_tell_their_workers(run: Run, options: dict[str, Any], answers: dict[str, list[Answer]]) -> None:
    with FakeOpenAI(serving(**answers)) as fake:
        result = run(fake, disaggregated=True, **options)
    assert result["ok"] is True
    assert check(result, "disaggregated")["status"] == "pass"


@pytest.mark.parametrize(
    ("answer", "status", "observed", "hint"),
    [
        pytest.param(
            told(chat(), {"prefill_worker_id": 7, "decode_worker_id": 7}),
            "fail",
            "prefill by 7, decode by 7",
            "Decode workers did the prefill",
            id="aggregated",
        ),
        pytest.param(
            told(chat(), {"prefill_worker_id": None, "decode_worker_id": 7}),
            "fail",
            "prefill by no worker, decode by 7",
            "Decode workers did the prefill",
            id="no prefill",
        ),
        pytest.param(
            {**chat(), "nvext": {"timing": {"total_time_ms": 13.2}}},
            "unknown",
            "an answer without worker ids",
            "Dynamo before 1.3",
            id="1.0.0",
        ),
        pytest.param(chat(), "unknown", "an answer without worker ids", "Dynamo before 1.3", id="not told"),
    ],
)
def test_not_disaggregated(run: Run, answer: Any, status: str, observed: str, hint: str) -> None:
    with FakeOpenAI(serving(chat=[reply(200, answer)])) as fake:
        result = run(fake, disaggregated=True, timeout=AT_ONCE)
    assert result["failed"] is True
    assert result["stage"] == "disaggregated"
    found = check(result, "disaggregated")
    assert (found["status"], found["observed"]) == (status, observed)
    assert found["hint"].startswith(hint)


def answers_by(*workers: tuple[int, int], text: str = "New York") -> list[Answer]:
    """Answers that tell their prefill and their decode worker, each by its number."""
    return [
        stream(told(chat_chunks([text]), {"prefill_worker_id": 2**63 + one, "decode_worker_id": 2**63 + other}))
        for one, other in workers
    ]


# Two prefill workers at .1, two decode workers at .2 and one at .3.
FIVE = frontend_health(
    *(worker(PREFILL, number) for number in (1, 2)),
    *(worker(DECODE, number, f"10.0.0.{2 + number // 5}") for number in (3, 4, 5)),
)
AT_TWO = {"instances": {DECODE: 2}, "instance_address": "10.0.0.2", "answered_by_instance": True}


@pytest.mark.parametrize(
    ("answers", "options"),
    [
        pytest.param(answers_by((1, 3), (2, 5), (1, 4)), AT_TWO, id="decode"),
        pytest.param(
            answers_by((1, 3), (1, 4), (2, 5)),
            {**AT_TWO, "instances": {PREFILL: 2}, "instance_address": "10.0.0.1"},
            id="prefill",
        ),
        pytest.param(
            [*answers_by((1, 5)), reply(503), *answers_by((1, 4), (2, 5)), reply(500), *answers_by((2, 3))],
            AT_TWO,
            id="not routed to at once",
        ),
        pytest.param(answers_by((1, 3), (1, 4)), {**AT_TWO, "api": "completions"}, id="another API"),
        # The first run of the sample does not count.
        pytest.param(answers_by((1, 4), (2, 3), (1, 4)), {**AT_TWO, "max_ttft": 3}, id="with a floor"),
    ],
)
def test_answered_by_instance(run: Run, answers: list[Answer], options: dict[str, Any]) -> None:
    api = options.get("api", "chat")
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[api]
    last = answers_by((7, 7))
    with FakeOpenAI(serving(health=[FIVE], **{api: [*answers, *last]})) as fake:
        result = run(fake, timeout=30, **options)
    assert result["ok"] is True
    assert ids(result)[-1] == "instance_completion"
    # Not one more than it takes.
    assert len(fake.bodies(path)) == len(answers)


def test_workers_that_have_not_answered_are_asked_for(run: Run) -> None:
    answers = [*answers_by((1, 3)), reply(500), *answers_by((2, 5), (1, 4))]
    with FakeOpenAI(serving(health=[FIVE], chat=answers)) as fake:
        assert run(fake, timeout=30, **AT_TWO)["ok"] is True
    asked = [body["nvext"] for body in fake.bodies("/v1/chat/completions")]
    assert all(extra.pop("extra_fields") == ["worker_id"] for extra in asked)
    # The other worker is the one of the answer before; where there is none, the router may choose.
    both = [{"prefill_worker_id": 2**63 + prefill, "decode_worker_id": 2**63 + 4} for prefill in (1, 2)]
    assert asked == [{}, both[0], {}, both[1]]


@pytest.mark.parametrize(
    ("answers", "observed", "expected", "hint"),
    [
        pytest.param(
            answers_by((1, 3), (2, 5)),
            f"answers by {2**63 + 3} ({DECODE} at 10.0.0.2:34347), {2**63 + 5} ({DECODE} at 10.0.0.3:34347), "
            "still so after",
            f"answers by {2**63 + 3} ({DECODE} at 10.0.0.2:34347), {2**63 + 4} ({DECODE} at 10.0.0.2:34347)",
            "A worker that is listed does not take requests",
            id="by one only",
        ),
        pytest.param(
            [*answers_by((1, 3)), reply(500, {"message": "Failed to generate completions"})],
            f"answers by {2**63 + 3} ({DECODE} at 10.0.0.2:34347); HTTP 500: Failed to generate completions, still so",
            "answers by",
            "A worker that is listed does not take requests",
            id="the other fails",
        ),
        pytest.param(
            [*answers_by((1, 3)), *answers_by((1, 4), text="<|start|>")],
            'harmony: found "<|start|>"; expected content without harmony tokens. Workers need --dyn-reasoning-parser',
            "answers by",
            "A worker that is listed does not take requests",
            id="the other answers badly",
        ),
        pytest.param(
            [*answers_by((1, 3)), *answers_by((1, 4), text="")],
            "completion: found no content, 0 characters of reasoning, ended by stop; expected an answer with text or",
            "answers by",
            "A worker that is listed does not take requests",
            id="the other says nothing",
        ),
        pytest.param(
            serving()["/v1/chat/completions"],
            "an answer without worker ids",
            "answers by",
            "Dynamo before 1.3",
            id="1.2",
        ),
    ],
)
def test_not_answered_by_instance(run: Run, answers: list[Answer], observed: str, expected: str, hint: str) -> None:
    with FakeOpenAI(serving(health=[FIVE], chat=answers)) as fake:
        result = run(fake, timeout=BRIEF, **AT_TWO)
    assert (result["failed"], result["stage"]) == (True, "instance_completion")
    found = check(result, "instance_completion")
    assert found["observed"].startswith(observed)
    assert found["expected"].startswith(expected)
    assert found["hint"].startswith(hint)


def test_two_verifications_do_not_keep_step() -> None:
    pauses = {verification.pause() for _try in range(20)}
    assert len(pauses) > 10
    assert all(verification.INTERVAL <= pause <= 2 * verification.INTERVAL for pause in pauses)


@pytest.mark.parametrize(
    ("metrics", "stage", "observed"),
    [
        pytest.param([requests(4), requests(5)], "done", "4 requests of the prefill workers before the", id="counted"),
        pytest.param(
            [requests(4)] * 3 + [requests(5)], "done", "4 requests of the prefill", id="counted a moment later"
        ),
        pytest.param(
            [requests(4)], "disaggregated", "4 requests of the prefill workers before the sample, 4", id="not"
        ),
        pytest.param([requests(4), requests(0)], "disaggregated", "4 requests of the prefill", id="worker restarted"),
        pytest.param([reply(404)], "completion", "HTTP 404: empty body from http://127.0.0.1:", id="wrong path"),
        pytest.param([reset], "completion", "connection reset by peer from http://127.0.0.1:", id="not there"),
    ],
)
def test_disaggregated_by_metrics(run: Run, metrics: list[Answer], stage: str, observed: str) -> None:
    with FakeOpenAI(serving(metrics=metrics)) as fake:
        urls = [f"{fake.url}/metrics"]
        timeout = 30 if stage == "done" else 1
        result = run(fake, disaggregated=True, prefill_metrics=urls, timeout=timeout)
    assert result["stage"] == stage
    found = check(result, "disaggregated" if stage == "done" else stage)
    assert found["observed"].startswith(observed)
    assert (found["hint"] == "") is (stage == "done")


def test_metrics_of_all_prefill_workers_are_added(run: Run) -> None:
    with (
        FakeOpenAI({"/metrics": [requests(40), requests(41)]}) as other,
        FakeOpenAI(serving(metrics=[requests(2)])) as fake,
    ):
        urls = [f"{fake.url}/metrics", f"{other.url}/metrics"]
        result = run(fake, disaggregated=True, prefill_metrics=urls, api_key=CANARY)
    assert (
        check(result, "disaggregated")["observed"] == "42 requests of the prefill workers before the sample, 43 after"
    )
    assert all("Authorization" not in request.headers for request in other.requests)


@pytest.mark.parametrize(
    ("answer", "options", "stage"),
    [
        (chat("<|start|>London"), {}, "harmony"),
        (chat("London"), {"reasoning": True}, "reasoning"),
        (chat("London"), {"tool_call": True}, "tool_call"),
    ],
)
def test_dynamo_without_parsers(run: Run, answer: Any, options: dict[str, Any], stage: str) -> None:
    with FakeOpenAI(serving(health=[BOTH], chat=[reply(200, answer)])) as fake:
        result = run(fake, instances=INSTANCES, **options)
    assert result["stage"] == stage
    assert check(result, stage)["hint"].startswith("Workers need --dyn-reasoning-parser gpt_oss")


# --- time and secrets -----------------------------------------------------------------------------------------------

SLOW_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        pytest.param("health", hang, id="health hangs"),
        pytest.param("health", drip(SLOW_HEAD, pause=0.5), id="health drips its header"),
        pytest.param("models", drip(b"HTTP/1.1 200 OK\r\n" + b"X-Pad: 1\r\n" * 50), id="models drip headers"),
        pytest.param("chat", hang, id="chat hangs"),
        pytest.param("chat", drip(SLOW_HEAD + b" " * 1000), id="chat drips its body"),
        pytest.param(
            "chat",
            drip(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b": ping\n\n" * 100, pause=0.01),
            id="stream of nothing but keep-alives",
        ),
    ],
)
def test_deadline_is_kept(run: Run, path: str, answer: Answer) -> None:
    start = time.monotonic()
    with FakeOpenAI(serving(**{path: [answer]})) as fake:
        result = run(fake, timeout=3)
        elapsed = time.monotonic() - start
    assert result["failed"] is True
    assert result["stage"] == {"health": "health", "models": "model", "chat": "completion"}[path]
    assert "no complete answer within" in result["msg"]
    # Left to themselves these answers take up to a minute; a busy machine may stand still for seconds.
    assert 2 < elapsed < 20


def test_deadline_is_kept_while_resolving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_options: time.sleep(30))
    start = time.monotonic()
    with pytest.raises(OutOfTime, match=r"gpu1\.example was not resolved within 3\.0 s"):
        Client("http://gpu1.example").get("/health", Deadline(BRIEF))
    assert time.monotonic() - start < 20


def test_api_key_is_sent_and_never_shown(run: Run) -> None:
    def keyed(answer: Answer) -> Answer:
        def guarded(handler: Any) -> None:
            sent = handler.headers.get("Authorization")
            refusal = reply(401, {"error": {"message": f"no access with {'x' * 280} {sent}"}})
            (answer if sent == f"Bearer {CANARY}" else refusal)(handler)

        return guarded

    script = {path: [keyed(answer) for answer in answers] for path, answers in serving().items()}
    with FakeOpenAI(script) as fake:
        good = run(fake, api_key=CANARY)
        bad = run(fake, api_key=f"{CANARY}-wrong")
    assert good["ok"] is True
    assert bad["stage"] == "health"
    assert check(bad, "health")["hint"].startswith("Set api_key")
    # Cut short, the key that the server repeats is no longer the whole key, which Ansible would have starred out.
    assert "sk-canary"[:6] not in json.dumps([good, bad])


def test_tls_with_a_private_authority(run: Run, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=lab "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    both = tmp_path / "both.pem"
    both.write_text(cert.read_text() + key.read_text())
    with FakeOpenAI(serving(), cert_file=str(both)) as fake:
        assert run(fake, ca_file=str(cert))["ok"] is True
        untrusted = run(fake, timeout=AT_ONCE)
        plain = run(fake.url.replace("https", "http"), timeout=BRIEF)
    assert untrusted["stage"] == "health"
    assert "its TLS certificate is not trusted" in untrusted["msg"]
    assert "ca_file" in untrusted["msg"]
    assert plain["stage"] == "health"
    with FakeOpenAI(serving()) as fake:
        result = run(fake.url.replace("http", "https"), timeout=AT_ONCE)
    assert "TLS failed" in result["msg"]


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "http://127.0.0.1:8000/v1"}, "base_url is 'http://127.0.0.1:8000/v1' (only scheme, host, port"),
        ({"base_url": "127.0.0.1:8000"}, "base_url is '127.0.0.1:8000'"),
        ({"base_url": "http://127.0.0.1:80000"}, "base_url is 'http://127.0.0.1:80000'"),
        ({"base_url": "ftp://127.0.0.1"}, "base_url is 'ftp://127.0.0.1' ('ftp'); it must look like"),
        ({"base_url": f"http://u:{CANARY}@h"}, "base_url is 'http://h'"),
        ({"base_url": "https://h", "ca_file": "/no/such.pem"}, "ca_file is /no/such.pem, which cannot be used"),
        ({"api_key": f"{CANARY}\n"}, "api_key holds characters that an HTTP header cannot carry"),
        ({"expected_text": "(New"}, "expected_text is '(New', not a regular expression"),
        ({"api": "completions", "reasoning": True}, "reasoning is true with api completions"),
        ({"api": "completions", "reasoning_effort": "low"}, "reasoning_effort is low with api completions"),
        ({"stream": False, "max_ttft": 1}, "max_ttft is set with stream false"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be 1 or more"),
        ({"model": ""}, "model is not set; a completion needs one. Set model or last_stage"),
        ({"last_stage": "instances"}, "last_stage is instances and instances is empty"),
        ({"timeout": 0}, "timeout is 0; it must be above 0 seconds"),
        (
            {"instances": {"prefill": 1}},
            "instances has 'prefill': 1; it must be an endpoint and a number, such as dyn://",
        ),
        ({"instances": {DECODE: -1}}, f"instances has '{DECODE}': -1"),
        ({"instances": {DECODE: "two"}}, f"instances has '{DECODE}': 'two'"),
        ({"instance_address": "10.0.0.1"}, "instance_address is set and instances is empty"),
        ({"instances": {DECODE: 1}, "instance_address": "gpu1"}, "instance_address cannot be used: 'gpu1' does not"),
        ({"prefill_metrics": ["http://h:9091/metrics"]}, "prefill_metrics is set with disaggregated false"),
        ({"disaggregated": True, "prefill_metrics": ["h:9091/metrics"]}, "prefill_metrics is 'h:9091/metrics'"),
        ({"disaggregated": True, "api": "responses"}, "disaggregated is true with api responses and stream true"),
        ({"instances": {DECODE: 1}, "answered_by_instance": True}, "answered_by_instance is true without instance_a"),
        ({**AT_TWO, "api": "responses"}, "answered_by_instance is true with api responses and stream true"),
    ],
)
def test_options_that_cannot_work(run: Run, options: dict[str, Any], message: str) -> None:
    options = dict(options)
    result = run(options.pop("base_url", "http://127.0.0.1:8000"), **options)
    assert result["failed"] is True
    assert result["msg"].startswith(message)
    assert CANARY not in result["msg"]
    assert "checks" not in result


# --- the contract ---------------------------------------------------------------------------------------------------


def test_unknown_is_not_ok() -> None:
    seen = [Check("a", "pass", "1", "1"), Check("b", "unknown", "nothing", "2", "Set b"), Check("c", "fail", "4", "3")]
    summary = summarise(seen)
    assert (summary["ok"], summary["stage"]) == (False, "b")
    assert str(seen[1]) == "b: found nothing; expected 2. Set b"
    assert str(seen[2]) == "c: found 4; expected 3"


def test_nothing_checked_is_not_ok() -> None:
    with pytest.raises(ValueError, match="no check ran"):
        summarise([])
